// TLS of the control plane: 1.3 with pre-shared keys and (EC)DHE, as between the daemons (transport/stream/psk.h).  Bytes in, bytes out: no
// socket, clock or thread, so that the gate and a client that waits share it.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "runtime/control/keys.h"

struct ssl_ctx_st;
struct ssl_st;

namespace gradcast {

/// The keys of an accepting side, or the one key of a connecting side.
class TlsKeys {
public:
    explicit TlsKeys(std::vector<ControlKey> keys);
    ~TlsKeys();
    TlsKeys(const TlsKeys&) = delete;
    TlsKeys& operator=(const TlsKeys&) = delete;
    const std::vector<ControlKey> keys;
    ssl_ctx_st* const context;
};

class TlsEnd {
public:
    enum class Side : uint8_t { connector, acceptor };
    /// The connector shows keys[0].
    TlsEnd(std::shared_ptr<const TlsKeys> keys, Side side);
    ~TlsEnd();
    TlsEnd(const TlsEnd&) = delete;
    TlsEnd& operator=(const TlsEnd&) = delete;

    /// Takes bytes that the other side has sent.  False: the end has failed: send output(), then close; why() says why.
    bool receive(std::span<const char> bytes);
    /// Both sides have shown that they have the key, and bytes may be read and written.
    bool open() const { return open_; }
    /// The key, of an acceptor that is open.
    const ControlKey& key() const { return *key_; }
    /// Copies plain bytes of the other side to `to`.  *bytes: how many; 0: no more have come.  False: the end has failed.
    bool read(std::span<char> to, size_t* bytes);
    /// Seals at most one record of 16 KiB into output().  Returns how much of `bytes` it took; 0: the end is not open, or has failed.
    size_t write(std::span<const char> bytes);
    std::span<const char> output() const;   // sealed bytes to be sent
    void wrote(size_t bytes);               // so many of output() have been sent

    const std::string& why() const { return why_; }
    /// After a failure.  True: the sides have different keys.  False: the other side does not speak TLS 1.3 with a key.
    bool keys_differ() const { return keys_differ_; }

    const ControlKey* offered(std::string_view identity);   // for OpenSSL's callback
    const ControlKey& offer() const { return keys_->keys[0]; }

private:
    bool failed(int result);

    const std::shared_ptr<const TlsKeys> keys_;
    ssl_st* ssl_ = nullptr;
    const bool connector_;
    bool open_ = false, keys_differ_ = false;
    size_t received_ = 0;               // bytes before it was open
    const ControlKey* key_ = nullptr;   // of an acceptor: the offered one; null: it is not in keys_
    std::string identity_;              // that was offered
    std::string why_;
};

}   // namespace gradcast
