// A link moves packets between the ranks of one job over a real network; a driver runs protocols over a link on one thread.
//
//     listener (a daemon has one)  ->  accepted stream, handshake done  ->  Link of the job it names  ->  Driver  ->  Protocol by channel
#pragma once
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/crypto.h"
#include "runtime/core/fd.h"
#include "runtime/core/log.h"
#include "runtime/core/profile.h"
#include "runtime/core/protocol.h"
#include "transport/link/datagrams_found.h"
#include "transport/wire/packet.h"

namespace gradcast {

enum class LinkKind : uint8_t { uring_tcp, epoll_tcp };
const char* link_name(LinkKind kind);

using JobId = std::array<uint8_t, 16>;      // all zero: the daemons' own mesh
std::string job_id_text(const JobId& id);   // 32 hex digits

/// Who we are, as told in every handshake.
struct Identity {
    std::string name;                 // as in gradcastd.toml
    std::array<uint8_t, 16> uuid{};   // kept in the state directory
    uint64_t incarnation = 0;         // grows with every start
};

struct PeerAddress {
    Identity identity;     // name is what we expect; uuid and incarnation zero = any
    std::string address;   // "host:port", "[v6]:port"
};

/// Datagrams beside the streams of a link: for the channels attached as datagrams, by multicast where there are several receivers.
struct DatagramConfig {
    std::string interface;   // "eth0", or one of its addresses; never chosen for the user (a group without one leaves by the default route)
    std::string group;       // "239.192.1.2:4712" or "[ff15::1:2]:4712"; multicast_group() makes one of a job's id
    uint32_t segment_bytes =
        0;                       // payload of one datagram, the same at every rank: datagram_segment() of the smallest MTU; 0: no datagrams
    uint32_t socket_bytes = 0;   // SO_RCVBUF wanted; 0: 4 MiB or what the kernel gives, which is said
};
/// The largest payload of one datagram on links of this MTU, a multiple of 8.
uint32_t datagram_segment(uint32_t mtu, bool ipv6);
/// A group for this view of a job: administratively scoped (239.192.0.0/14), or transient and site-local (ff15::/16).
std::string multicast_group(const JobId& job, uint32_t view, bool ipv6, uint16_t port);

struct LinkConfig {
    LinkKind kind = LinkKind::uring_tcp;
    JobId job{};
    uint32_t view = 1;
    Identity self;
    Rank rank = 0;
    std::vector<PeerAddress> peers;   // by rank, own entry included; a lower rank connects to a higher one
    std::vector<ClusterKey> keys;
    Protect protect = Protect::auth;
    uint64_t deadline_us = 30'000'000;   // how long a broken stream may stay away before peer_lost
    uint32_t segment_bytes = segment_bytes_stream;
    uint32_t socket_bytes = 0;   // SO_SNDBUF and SO_RCVBUF; 0 leaves them to the kernel
    DatagramConfig datagrams;
    Profile* profile = nullptr;   // of this rank's job; must live as long as the driver runs
};

/// A stream whose peer a Listener has authenticated, on its way to the link of its job, which answers the peer's Hello.
struct AcceptedStream {
    virtual ~AcceptedStream() = default;   // closes it
};

/// Counted by the link, read from any thread.
struct LinkCounters {
    // On streams: headers, tags, handshakes and repeats included.  Of datagrams: header, payload and tag; all that came, dropped or not.
    std::atomic<uint64_t> bytes_sent{0}, bytes_received{0};
    std::atomic<uint64_t> packets_sent{0}, packets_received{0}, packets_refused{0}, reconnects{0};
    std::array<std::atomic<uint64_t>, static_cast<size_t>(DatagramFault::kinds)> datagrams_dropped{};   // on receipt, by DatagramFault
    std::atomic<bool> copies{false};             // of datagrams: multicast does not reach everybody, so each rank gets its own
    std::atomic<uint64_t> datagrams_unsent{0};   // refused by the kernel, without an address, or above the limit of the queue
};

/// Runs the protocols of one rank over one link: the network thread's body.
class Driver {
public:
    virtual ~Driver() = default;
    /// Before run(), for protocols that belong to no view (Host::open_view).  They are not owned and outlive the driver.
    virtual void attach(uint16_t channel, Protocol* protocol) = 0;
    /// The same for a protocol whose packets are datagrams, as transport/bulk is.  Only with LinkConfig::datagrams.
    virtual void attach_datagrams(uint16_t channel, Protocol* protocol) = 0;
    /// Memory that payloads will come from and go to; refusal (RLIMIT_MEMLOCK) is logged once and does no harm.
    virtual void register_memory(Buffer whole) = 0;
    /// Until stop().  The calling thread becomes the network thread.
    virtual Status run() = 0;
    virtual void stop() = 0;                                   // any thread
    virtual void adopt(std::unique_ptr<AcceptedStream>) = 0;   // any thread
    virtual Host& host() = 0;                                  // for the trainer
    virtual const LinkCounters& counters() const = 0;
    virtual const char* name() const = 0;   // the path in use: "uring_tcp" or, where io_uring is refused, "epoll_tcp"
    /// Datagrams take the same path: "uring_udp", "epoll_udp", "" without any.
    virtual const char* datagrams_name() const = 0;
    /// What the start-up probe has found (datagrams_found.h).  Any thread; nothing without datagrams.
    virtual std::optional<DatagramsFound> datagrams_found() const = 0;
};
/// Falls back to epoll_tcp, and says so in the log, where io_uring is refused.
Status driver_open(const LinkConfig& config, const Log& log, std::unique_ptr<Driver>* driver);

/// The daemon's one listening socket: accepts, makes the handshake (deadline 5 s, at most 256 half-open), hands the stream on by job id.
struct ListenerConfig {
    std::string address;   // "host:port"; port 0 picks one
    int socket_fd = -1;    // or an already listening socket, taken over
    Identity self;
    std::vector<ClusterKey> keys;
    uint64_t handshake_us = 5'000'000;   // a peer that has not said its Hello by then is dropped
};
class Listener {
public:
    virtual ~Listener() = default;
    /// take(job, stream) runs on the listener's thread; false (or a job nobody has opened) closes the stream, which then tries again.
    virtual Status start(std::function<bool(const JobId&, std::unique_ptr<AcceptedStream>)> take) = 0;
    virtual std::string address() const = 0;   // with the port that was picked
};
Status listener_open(const ListenerConfig& config, const Log& log, std::unique_ptr<Listener>* listener);

}   // namespace gradcast
