// The start of a stream: TLS 1.3 with the cluster key as external PSK and (EC)DHE, one Hello each way inside it; then both sides leave TLS
// and send packets under keys exported from it.  Bytes in, bytes out: no socket, clock or thread.
//
//     connecting side                           accepting side
//     ClientHello …            TLS 1.3          … Finished
//     Hello (verdict ask)      ->               checks it
//                              <-               Hello (verdict accept), or a refusal with its reason
//     checks it
//     Hello (verdict accept)   ->               done; packets both ways
#pragma once
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/crypto.h"
#include "transport/kernel/rdma.h"
#include "transport/link/link.h"

struct ssl_ctx_st;
struct ssl_st;

namespace gradcast {

/// The version of everything that nodes send each other, packets and messages of jobs included.  Raise it with any change of these.
constexpr uint16_t link_version_min = 5, link_version_max = 5;
constexpr uint32_t rank_any = 0xffffffff;

/// later: the job is not open yet; refuse: the two sides do not fit.
enum class Verdict : uint8_t { ask = 0, accept = 1, later = 2, refuse = 3 };

struct Hello {
    uint16_t version_min = link_version_min, version_max = link_version_max;
    Verdict verdict = Verdict::ask;
    Protect protect = Protect::auth;
    JobId job{};
    uint32_t view = 0;
    Rank rank = rank_any;
    uint32_t segment_bytes = 0;
    std::array<uint8_t, 16> uuid{};
    uint64_t incarnation = 0;
    uint64_t stream = 0;           // random, drawn by the sender when its side of the stream starts or restarts; never 0
    uint64_t peer_stream = 0;      // the receiver's, as known to the sender; 0: not known
    uint64_t received = 0;         // packets that the sender has received on this stream
    uint8_t rail = 0, rails = 1;   // number of the connection, of so many
    RdmaEnd rdma;                  // where the sender takes the stream's packets
    std::string name;
    std::string reason;   // for later and refuse
};
/// Appends the wire form.  Name and reason are truncated to fit.
void hello_write(const Hello& hello, std::vector<std::byte>* bytes);
/// Why `bytes` do not begin with a Hello; null: they do, or may once more bytes are here.  *used: the Hello's size, 0 if it is incomplete.
const char* hello_parse(std::span<const std::byte> bytes, Hello* hello, size_t* used);

/// TLS settings and the key ring, shared by all handshakes of a listener or driver.
class TlsContext {
public:
    explicit TlsContext(const std::vector<ClusterKey>& ring);
    ~TlsContext();
    TlsContext(const TlsContext&) = delete;
    TlsContext& operator=(const TlsContext&) = delete;
    const std::vector<ClusterKey> keys;
    ssl_ctx_st* ssl = nullptr;
};

/// The keys of a cluster, which may be replaced while links and listeners use them: handshakes that begin then have the new ones, streams
/// that are open stay.  Any thread.
class KeyRing {
public:
    explicit KeyRing(const std::vector<ClusterKey>& keys) : now_(std::make_shared<const TlsContext>(keys)) {}
    std::shared_ptr<const TlsContext> now() const {
        std::lock_guard lock(mutex_);
        return now_;
    }
    void replace(const std::vector<ClusterKey>& keys) {
        auto next = std::make_shared<const TlsContext>(keys);
        std::lock_guard lock(mutex_);
        now_ = std::move(next);
    }

private:
    mutable std::mutex mutex_;
    std::shared_ptr<const TlsContext> now_;
};

class Handshake {
public:
    enum class State : uint8_t {
        negotiating,   // needs feed()
        asked,         // peer() is known: call accept() or refuse()
        waiting,       // accepted; waits for the other side's verdict
        done,          // send output(), then packets
        failed,        // send output() if possible, then close; status() says why
    };
    enum class Side : uint8_t { connector, acceptor };
    /// The connector offers key number `key` of the ring and asks with `own`; the acceptor uses only own.name.
    Handshake(std::shared_ptr<const TlsContext> tls, Side side, const Hello& own, uint32_t key = 0);
    ~Handshake();
    Handshake(const Handshake&) = delete;
    Handshake& operator=(const Handshake&) = delete;

    /// Returns the number of bytes used; after `done` the rest are packets.
    size_t feed(std::span<const std::byte> bytes);
    std::span<const std::byte> output() const { return std::span(out_).subspan(sent_); }
    void wrote(size_t bytes);

    State state() const { return state_; }
    const Status& status() const { return status_; }
    bool keys_differ() const { return keys_differ_; }   // failed: another key of the ring may work
    Verdict verdict() const { return peer_.verdict; }   // failed: the peer's verdict, if it gave one
    const Hello& peer() const { return peer_; }
    void accept(const Hello& own);
    /// Sends `reason` to the peer; it is the text of status().
    void refuse(Verdict verdict, const std::string& reason);
    /// The packet keys of both directions, bound to the job and both incarnations.  In state done.
    void keys(Key* to_acceptor, Key* to_connector) const;

    const ClusterKey* psk_find(std::string_view id);   // for OpenSSL's callbacks
    const ClusterKey& psk_offer() const { return tls_->keys[key_]; }

private:
    void progress();
    void hello_received(const Hello& hello);
    void send_hello(const Hello& hello);
    void collect();   // moves bytes from OpenSSL to out_
    void fail_tls();
    void fail_with(Status status);

    std::shared_ptr<const TlsContext> tls_;
    ssl_st* ssl_ = nullptr;
    const bool connector_;
    uint32_t key_ = 0;
    State state_ = State::negotiating;
    Status status_;
    bool secure_ = false, keys_differ_ = false, known_ = false;   // known_: the offered key id is in the ring
    bool greeted_ = false;                                        // the first Hello has arrived
    Hello own_, peer_;
    std::string offered_;             // acceptor: the offered key id
    std::vector<std::byte> record_;   // the partial TLS record
    std::vector<std::byte> plain_, out_;
    size_t sent_ = 0;
};

}   // namespace gradcast
