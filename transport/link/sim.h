// The simulator: n ranks in one process on virtual time.  It drives anything that is a Protocol, and whole algorithms: each rank may have a
// trainer, a thread of which exactly one runs at a time.  Everything that happens follows from the seed.
//
// It behaves as a driver may at its worst, within runtime/core/protocol.h:
//   * Events come in batches: what arrives within batch_us of a first event is handled with it, so land() is asked before on() has seen the
//     packet before.
//   * On a stream land() is asked when a packet's head arrives, the place is poisoned, and the payload is there when its last byte is.
//     When the connection breaks in between, land() is asked again for the same packet.  A Landing::later holds up all packets of that
//     sender.
//   * A payload is taken from the sender's memory when it arrives (streams) or has left (datagrams), so memory that is written before
//     `sent` is found and fails the run.  So do payloads that are too long, places of the wrong size, computes that race and memory kept
//     after a lease.
//   * `computed` never comes within the batch that asked for it; with compute_async computes end in any order.
// A dead rank's packets vanish with it.  run() never hangs: virtual time ends at end_us, and a wait that nothing can end is told as a
// deadlock.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/protocol.h"
#include "transport/wire/packet.h"

namespace gradcast {

constexpr uint32_t sim_stream_overhead_bytes = packet_head_bytes + 16;                // of a packet: head and tag
constexpr uint32_t sim_datagram_overhead_bytes = datagram_overhead_bytes + 28 + 14;   // with UDP, IPv4 and Ethernet

struct SimConfig {
    uint64_t seed = 1;
    uint32_t ranks = 2;
    uint32_t segment_bytes = segment_bytes_stream;   // payload of one packet; longer Sends are cut
    double rate_bytes_per_s = 125e6;                 // of each rank's link, each way
    uint64_t latency_us = 50;
    uint64_t jitter_us = 20;          // uniform on top; reorders datagrams
    uint64_t queue_bytes = 0;         // datagrams: what waits before each rank's link, more is lost; 0: unbounded
    uint32_t group_ranks = 0;         // datagrams: a multicast reaches the sender's block of so many consecutive ranks; 0: all
    double loss = 0, duplicate = 0;   // datagrams: per packet and receiver
    double loss_burst = 1;            // mean length of a run of lost packets at one receiver (Gilbert-Elliott); 1: independent losses
    double loss_sent = 0;             // datagrams: lost on the sender's side, for all receivers alike, in runs as loss_burst says
    PacketType loss_type{};           // only packets of this type are lost; default: all
    uint32_t header_bytes = sim_datagram_overhead_bytes;   // datagrams: what the network carries with each
    uint32_t lead_bytes = 0;                               // datagrams: what lies before a lease's payload (InfiniBand: a GRH of 40)
    double break_per_packet = 0;   // streams: the connection breaks; what was in flight is sent again after reconnect_us
    uint64_t reconnect_us = 2000;
    uint64_t window_bytes = 1 << 20;       // streams: what may be on its way to one peer and not yet taken by it
    uint64_t batch_us = 3;                 // longest time from an event to the batch that handles it
    uint64_t compute_ns_per_word = 1;      // what a Compute action costs
    bool compute_async = false;            // its `computed` comes after that time, not at once
    uint64_t lost_after_us = 10'000'000;   // a rank that is dead that long is told as peer_lost
    uint64_t end_us = 3'600'000'000;       // virtual time after which the run fails: nothing may hang
    bool trace = false;                    // keep Simulator::trace()
};

/// One line of what happened, in order: the tests' view of overlap.
struct SimTrace {
    uint64_t at_us;
    Rank rank;
    enum class What : uint8_t { ready, send, deliver, complete, spend, mark } what;
    PacketType type{};
    StepId step = 0;
    uint32_t bucket = 0;
    Rank peer = 0;      // send, deliver: the other side (the first of several)
    std::string text;   // mark
};

class Simulator {
public:
    static std::unique_ptr<Simulator> create(const SimConfig& config);
    virtual ~Simulator() = default;
    /// Over streams: in order, exactly once, may break and come back.  For protocols that belong to no view (Host::open_view).
    virtual void attach(Rank rank, uint16_t channel, Protocol* protocol) = 0;
    /// Over datagrams, on the same link: lost, doubled and swapped.
    virtual void attach_datagrams(Rank rank, uint16_t channel, Protocol* protocol) = 0;
    /// trainer(host) runs on the rank's own thread, one thread of all at a time.
    virtual void trainer(Rank rank, std::function<Status(Host&)> trainer) = 0;
    virtual Host& host(Rank rank) = 0;                    // to post from outside before run()
    virtual void kill(Rank rank, uint64_t at_us) = 0;     // the rank stops for good
    virtual void slow(Rank rank, double factor) = 0;      // its spend() and computes take that much longer
    virtual void deafen(Rank rank, uint64_t at_us) = 0;   // multicasts do not reach it any more
    virtual void partition(std::vector<Rank> side, uint64_t from_us, uint64_t to_us) = 0;
    /// Until every trainer has returned (a killed one counts) or, without trainers, nothing is left to happen.  The first trainer's error,
    /// or Code::deadline at end_us.
    virtual Status run() = 0;
    virtual Status result(Rank rank) const = 0;
    virtual uint64_t now_us() const = 0;
    virtual uint64_t bytes_sent(Rank rank) const = 0;   // headers and tags included
    virtual uint64_t bytes_received(Rank rank) const = 0;
    virtual const std::vector<SimTrace>& trace() const = 0;
    virtual uint64_t trace_hash() const = 0;                       // over everything that happened, in order: equal for equal seeds
    virtual void mark(Rank rank, std::string text) = 0;            // a line of the trace, from a trainer
    virtual std::vector<Completion>& completions(Rank rank) = 0;   // of a rank without a trainer
};

}   // namespace gradcast
