// What crosses the cuts of a net that is computed in stages: a block's activations forward, their gradients backward.
//
// A transfer has a key, the same at both ranks, and is posted at both.  A receive names the sender and gives the memory.  It tells the
// sender that the memory is there, and the value goes as soon as both are posted.  Post receives before their values are due: then a
// transfer costs no round trip.  What waits at its sender holds up nothing else.
//
// Between two ranks a key names one transfer in each direction.  It may come again in another view only.
#pragma once
#include <compare>
#include <memory>

#include "runtime/core/protocol.h"

namespace gradcast {

constexpr uint32_t edges_receives_max = 1024 * 1024;   // receives that all others may have posted with a rank
constexpr uint32_t edges_abandoned_max = 1024;         // abandoned blocks that a rank remembers of each rank: the latest ones
/// Receives that a rank may have posted with one other at a time.
constexpr uint32_t edges_receives(uint32_t ranks) { return edges_receives_max / ranks; }

/// Names what crosses a cut, alike at both ranks.
struct EdgeKey {
    uint32_t step = 0, block = 0;
    uint16_t edge = 0;       // the number that the job's ranks give it
    bool gradient = false;   // else a value
    auto operator<=>(const EdgeKey&) const = default;
};

/// The protocol, on the network thread.  Needs a stream link whose segment is segment_bytes.  Memory: O(posted transfers), a segment a rank
/// after a broken connection, and what the limits above allow others to make it keep.
std::unique_ptr<Protocol> edges_protocol(Rank self, uint32_t ranks, uint32_t segment_bytes);

/// The handle.  Any thread.  Calls post a command and do not block; a Completion on the channel has the ticket as its id, and each transfer
/// has one.  Its errors: conflict (the sizes differ), cancelled (the block was abandoned at either rank), peer_lost, node_memory (more
/// than edges_receives() receives).
class Edges {
public:
    Edges(Host& host, uint16_t channel) : host_(host), channel_(channel) {}
    /// The value must not change before the completion; it has at most 4 GiB - 1 bytes.  Not to self.  Completed when the rank has it.
    void send(Rank to, const EdgeKey& key, Buffer value, uint64_t ticket);
    /// place.bytes must equal the size sent, else Code::conflict at both ranks.  The protocol owns the place until the completion.
    void receive(Rank from, const EdgeKey& key, Buffer place, uint64_t ticket);
    /// Ends all transfers of the block at this rank, and those that are posted for it afterwards, with Code::cancelled.  Transfers whose
    /// bytes are being sent or received already complete as usual.  Every other rank gets a notice and does the same with its
    /// transfers of this block from and to this rank.
    void abandon(uint32_t step, uint32_t block);
    /// Why the transfer with this ticket has not ended: a Completion of Code::deadline with the ticket as its id names rank, key and
    /// missing bytes.  The transfer goes on.  None if it has ended.
    void explain(uint64_t ticket);

private:
    Host& host_;
    uint16_t channel_;
};

}   // namespace gradcast
