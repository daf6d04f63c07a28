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

    /// Bytes of the other side.  False: it has failed: send output(), then close; why() says why.
    bool hear(std::span<const char> bytes);
    /// Both sides have shown that they have the key, and bytes may be read and written.
    bool open() const { return open_; }
    /// The key, of an acceptor that is open.
    const ControlKey& key() const { return *key_; }
    /// What the other side has written: how much was copied to `to`, 0: there is nothing more.  False: it has failed.
    bool read(std::span<char> to, size_t* bytes);
    /// At most one record, of 16 KiB, goes into output(); how much of `bytes` that is.  0: it is not open, or has failed.
    size_t write(std::span<const char> bytes);
    std::span<const char> output() const;
    void wrote(size_t bytes);

    const std::string& why() const { return why_; }
    /// Failed because the other side does not have this key; else it speaks something else.
    bool keys_differ() const { return keys_differ_; }

    const ControlKey* offered(std::string_view identity);   // for OpenSSL's callback
    const ControlKey& offer() const { return keys_->keys[0]; }

private:
    bool failed(int result);

    const std::shared_ptr<const TlsKeys> keys_;
    ssl_st* ssl_ = nullptr;
    const bool connector_;
    bool open_ = false, keys_differ_ = false;
    size_t heard_ = 0;   // bytes, before it was open
    const ControlKey* key_ = nullptr;
    std::string identity_;   // that was offered
    std::string why_;
};

}   // namespace gradcast
