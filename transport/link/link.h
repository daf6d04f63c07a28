// A driver moves packets between the ranks of one job over a real network and runs their protocols, on one thread.
//
//     Listener (one a daemon)  ->  AcceptedStream, handshake done  ->  Driver of the job that it names  ->  Protocol by channel
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
#include "runtime/core/identity.h"
#include "runtime/core/log.h"
#include "runtime/core/profile.h"
#include "runtime/core/protocol.h"
#include "transport/link/datagrams_found.h"
#include "transport/wire/packet.h"
#include "transport/wire/packet_keys.h"

namespace gradcast {

enum class LinkKind : uint8_t { uring_tcp, epoll_tcp };
const char* link_name(LinkKind kind);

struct PeerAddress {
    Identity identity;     // the expected identity; uuid and incarnation 0: any
    std::string address;   // "host:port", "[v6]:port"
    /// Where it listens on each of its interfaces, in place of `address`; as many as LinkConfig::interfaces.
    std::vector<std::string> rails = {};
};

/// Datagrams of a link, for channels that are attached as datagrams; by multicast if there are several receivers.
struct DatagramConfig {
    std::string interface;   // "eth0", or one of its addresses; required: without one a group would use the default route
    std::string group;       // "239.192.1.2:4712" or "[ff15::1:2]:4712", see multicast_group()
    /// Payload of one datagram, the same at every rank: datagram_segment() of the smallest MTU; 0: no datagrams.
    uint32_t segment_bytes = 0;
    uint32_t socket_bytes = 0;   // SO_RCVBUF; 0: 4 MiB.  Less from the kernel is logged
    bool probe_only = false;     // a peer that datagrams do not reach is not given up, and nothing is logged
};
/// The largest payload of one datagram for this MTU, a multiple of 8.
uint32_t datagram_segment(uint32_t mtu, bool ipv6);
/// The multicast group of a job's view: administratively scoped (239.192.0.0/14), or transient and site-local (ff15::/16).
std::string multicast_group(const JobId& job, uint32_t view, bool ipv6, uint16_t port);

/// RDMA for streams, datagrams or both, in place of TCP and UDP (rdma.h).
struct RdmaConfig {
    bool streams = false, datagrams = false;
    std::vector<std::string> devices;   // as RdmaModule::find takes them; datagrams use the first one
};

class KeyRing;

struct LinkConfig {
    LinkKind kind = LinkKind::uring_tcp;
    std::function<void(const std::string&)> warn = {};   // of what the network does; the network thread calls it, beside the log
    JobId job{};
    uint32_t view = 1;   // of protocols that belong to none; 0 where views are opened beside them
    Identity self;
    Rank rank = 0;
    std::vector<PeerAddress> peers;   // by rank, with an entry for self; the lower rank connects (but see `first`)
    std::vector<ClusterKey> keys;
    std::shared_ptr<KeyRing> ring;   // in place of keys, where they may be replaced meanwhile (handshake.h)
    Protect protect = Protect::auth;
    uint64_t packets_per_key = packets_per_key_default;   // the same at every rank
    uint64_t deadline_us = 30'000'000;                    // a stream that is down this long makes PeerLost
    bool survive = false;   // job.survive: a lost peer may come again (PeerUp), as the same or a later incarnation
    /// So many are here from the start; 0: all.  Those behind them begin as lost and connect to the others when they come.
    uint32_t first = 0;
    uint32_t segment_bytes = segment_bytes_stream;
    /// Connections that a peer's stream is spread over, the same at every rank: over these interfaces (empty: as the kernel routes), or
    /// over the devices of `rdma`.
    uint32_t rails = 1;
    std::vector<std::string> interfaces;
    /// One connection more to each peer, the same at every rank, for edges, control and small messages of mail: these do not wait behind
    /// the words, records and large messages in a rail's socket.  Only packets of one connection stay in order.
    bool express = false;
    uint32_t connections() const { return rails + express; }   // to each peer
    uint32_t socket_bytes = 0;                                 // SO_SNDBUF and SO_RCVBUF; 0: the kernel's default
    DatagramConfig datagrams;
    RdmaConfig rdma;
    Profile* profile = nullptr;   // optional; must outlive run()
};

/// A stream that a Listener has accepted and authenticated; the driver of its job answers the peer's Hello.
struct AcceptedStream {
    virtual ~AcceptedStream() = default;   // closes it
};

/// Written by the network thread, read by any.
struct LinkCounters {
    // Streams: with headers, tags, handshakes and repeats.  Datagrams: header, payload and tag, also of dropped ones.
    std::atomic<uint64_t> bytes_sent{0}, bytes_received{0};
    std::atomic<uint64_t> packets_sent{0}, packets_received{0}, packets_refused{0}, reconnects{0};
    std::array<std::atomic<uint64_t>, static_cast<size_t>(DatagramFault::kinds)> datagrams_dropped{};   // on receipt, by DatagramFault
    std::atomic<uint32_t> rdma_streams{0};                                                              // of the open ones, those over RDMA
    std::atomic<uint32_t> probing{0};            // streams that have not answered their probe (streams.h)
    std::atomic<bool> copies{false};             // multicast does not reach all: each receiver gets its own datagrams
    std::atomic<uint64_t> datagrams_unsent{0};   // refused by the kernel, no address, or queue full
};

/// Runs the protocols of one rank: the body of the network thread.
class Driver {
public:
    virtual ~Driver() = default;
    /// Attaches a protocol that belongs to no view (Host::open_view).  Before run().  Not owned; must outlive the driver.
    virtual void attach(uint16_t channel, Protocol* protocol) = 0;
    /// The same for a protocol over datagrams, like transport/bulk.  Needs LinkConfig::datagrams.
    virtual void attach_datagrams(uint16_t channel, Protocol* protocol) = 0;
    /// Registers the memory of payloads with the kernel, where the backend uses that.  A refusal (RLIMIT_MEMLOCK) is logged once.
    virtual void register_memory(Buffer whole) = 0;
    /// Runs until stop().  The calling thread is the network thread.
    virtual Status run() = 0;
    virtual void stop() = 0;                                   // any thread
    virtual void adopt(std::unique_ptr<AcceptedStream>) = 0;   // any thread
    /// One more rank, behind the others, at a numeric address.  Any thread.  Each protocol gets PeerLost of it: those of a
    /// view must ignore that, and name ranks by ranks_max bits.  Not over RDMA.
    virtual void add(const PeerAddress& peer) = 0;
    virtual Host& host() = 0;   // for the trainer
    virtual const LinkCounters& counters() const = 0;
    virtual const char* name() const = 0;   // the backend: "uring_tcp", or "epoll_tcp" where io_uring is refused; "rdma_rc"
    /// Probes streams that are open and datagrams once more: when that has ended, LinkCounters::probing is 0 and datagrams_found() has
    /// another round.  Any thread.  Datagrams only with DatagramConfig::probe_only, as data would wait for it.
    virtual void probe() = 0;
    /// "uring_udp", "epoll_udp", "rdma_ud"; "" without datagrams.
    virtual const char* datagrams_name() const = 0;
    /// The result of the start-up probe; nullopt without datagrams.  Any thread.
    virtual std::optional<DatagramsFound> datagrams_found() const = 0;
};
/// Falls back to epoll_tcp, with a line in the log, if io_uring is refused.
Status driver_open(const LinkConfig& config, const Log& log, std::unique_ptr<Driver>* driver);

/// A daemon's listening socket: accepts, performs the handshake (at most 256 at a time), passes the stream on by job id.
struct ListenerConfig {
    std::string address;   // "host:port"; port 0 picks one
    int socket_fd = -1;    // or a listening socket, which it takes over
    Identity self;
    std::vector<ClusterKey> keys = {};
    std::shared_ptr<KeyRing> ring = {};   // as LinkConfig's
    uint64_t handshake_us = 5'000'000;    // deadline of a handshake
};
class Listener {
public:
    virtual ~Listener() = default;
    /// take(job, stream) runs on the listener's thread; false (no such job yet) closes the stream, and the peer tries again.
    virtual Status start(std::function<bool(const JobId&, std::unique_ptr<AcceptedStream>)> take) = 0;
    virtual std::string address() const = 0;   // with the port that was picked
};
Status listener_open(const ListenerConfig& config, const Log& log, std::unique_ptr<Listener>* listener);

}   // namespace gradcast
