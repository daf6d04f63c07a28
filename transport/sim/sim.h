// The simulator: n ranks in one process, in virtual time.  It drives any Protocol and whole algorithms: each rank may have a trainer
// thread, of which one runs at a time.  All events follow from the seed.
//
// It uses every freedom that runtime/core/protocol.h gives a driver:
//   * Events come in batches: those within batch_us of the first are handled with it, so land() of a packet may precede on() of the
//     previous packet.
//   * On a stream land() is called when a packet's head arrives; the place is poisoned until the last byte is there.  If the connection
//     breaks in between, land() is called again for the same packet.  Landing::later blocks all packets of that sender.
//   * A payload is read from the sender's memory on arrival (streams) or after leaving (datagrams).  The run fails on a write before
//     `Sent`, a payload that is too long, a place of the wrong size, racing computes, and memory used after its lease.
//   * `computed` never comes in the batch that asked for it; with compute_async computes end in any order.
// A dead rank's packets are lost.  run() always returns: virtual time ends at end_us, and a wait that nothing can end is reported as a
// deadlock.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/protocol.h"
#include "transport/wire/packet.h"

namespace gradcast {

constexpr uint32_t sim_stream_overhead_bytes = packet_head_bytes + 16;                // head and tag of a packet
constexpr uint32_t sim_datagram_overhead_bytes = datagram_overhead_bytes + 28 + 14;   // with UDP, IPv4 and Ethernet

struct SimConfig {
    uint64_t seed = 1;
    uint32_t ranks = 2;
    uint32_t segment_bytes = segment_bytes_stream;   // payload of one packet; longer Sends are cut
    double rate_bytes_per_s = 125e6;                 // of each rank's link, in each direction
    uint64_t latency_us = 50;
    uint64_t jitter_us = 20;          // uniform, added to latency_us; reorders datagrams
    uint64_t queue_bytes = 0;         // datagrams: the queue before a rank's link, more is lost; 0: unbounded
    uint32_t group_ranks = 0;         // datagrams: a multicast reaches the sender's block of this many consecutive ranks; 0: all
    double loss = 0, duplicate = 0;   // datagrams: per packet and receiver
    double loss_burst = 1;            // mean length of a run of lost packets at one receiver (Gilbert-Elliott); 1: independent losses
    double loss_sent = 0;             // datagrams: lost at the sender, for all receivers; in runs of loss_burst
    PacketType loss_type{};           // lose only packets of this type; default: all
    uint32_t header_bytes = sim_datagram_overhead_bytes;   // datagrams: header bytes on the wire
    uint32_t lead_bytes = 0;                               // datagrams: bytes before a lease's payload (InfiniBand: a GRH of 40)
    double break_per_packet = 0;   // streams: probability that the connection breaks; packets in flight are sent again after reconnect_us
    uint64_t reconnect_us = 2000;
    uint64_t window_bytes = 1 << 20;       // streams: bytes to one peer that it has not taken yet
    uint64_t batch_us = 3;                 // longest time from an event to its batch
    uint64_t compute_ns_per_word = 1;      // cost of a Compute action
    bool compute_async = false;            // `computed` comes after that time, not at once
    uint64_t lost_after_us = 10'000'000;   // time from a rank's death to PeerLost
    uint64_t end_us = 3'600'000'000;       // virtual time at which the run fails
    bool trace = false;                    // keep Simulator::trace()
};

/// One event of the run, in order; tests check overlap with it.
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
    /// Attaches a protocol that belongs to no view (Host::open_view), over streams: in order, exactly once, across breaks.
    virtual void attach(Rank rank, uint16_t channel, Protocol* protocol) = 0;
    /// The same over datagrams, on the same link: lost, doubled and reordered.
    virtual void attach_datagrams(Rank rank, uint16_t channel, Protocol* protocol) = 0;
    /// trainer(host) runs on a thread of its own; one of all threads runs at a time.
    virtual void trainer(Rank rank, std::function<Status(Host&)> trainer) = 0;
    virtual Host& host(Rank rank) = 0;                  // to post before run()
    virtual void kill(Rank rank, uint64_t at_us) = 0;   // the rank stops
    /// The rank does nothing until to_us, as a process that is stopped: its streams stay, and what comes waits for it.
    virtual void stall(Rank rank, uint64_t from_us, uint64_t to_us) = 0;
    virtual void slow(Rank rank, double factor) = 0;      // multiplies the time of its spend() and computes
    virtual void deafen(Rank rank, uint64_t at_us) = 0;   // the rank receives no multicasts from then on
    virtual void partition(std::vector<Rank> side, uint64_t from_us, uint64_t to_us) = 0;
    /// Runs until every trainer has returned or is dead; without trainers, until no event remains.  Returns the first trainer's error, or
    /// Code::deadline at end_us.
    virtual Status run() = 0;
    virtual Status result(Rank rank) const = 0;
    virtual uint64_t now_us() const = 0;
    virtual uint64_t bytes_sent(Rank rank) const = 0;   // with headers and tags
    virtual uint64_t bytes_received(Rank rank) const = 0;
    virtual const std::vector<SimTrace>& trace() const = 0;
    virtual uint64_t trace_hash() const = 0;                       // over all events in order: equal for equal seeds
    virtual void mark(Rank rank, std::string text) = 0;            // adds a line to the trace, from a trainer
    virtual std::vector<Completion>& completions(Rank rank) = 0;   // of a rank without a trainer
};

}   // namespace gradcast
