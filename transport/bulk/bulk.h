// Reliable datagrams, by multicast or to one rank: each packet that a protocol sends arrives exactly once, in any order, at every receiver
// that still wants it, although the network loses, duplicates and reorders datagrams.
//
// It is a Protocol around another one, the *user*.  It is attached to a datagram channel in place of the user, passes events on and turns
// the user's Sends into datagrams.  To the user it behaves like a stream link that does not keep order:
//
//   * A Send of words or record, of up to 2^22 segments, is a *transfer*: (sender, DataBody without index) names it, once in a view for
//     each receiver.  It is cut in segments 0 .. count-1.  Its ticket completes when every receiver has it, is lost, or does not want it
//     any more.  Transfers of older steps go first; within a step records and Phase::reduce do.  The user may have any number of transfers
//     under way.
//   * land() is asked for each segment with its own index, perhaps several times, and must answer alike until the segment has been given as
//     a packet event: place (a repaired segment is put there too), or drop when it is not wanted any more.  A dropped segment is not asked
//     for again.  For a transfer that is not for this rank it always answers `foreign`.  `later` stops the sender: land() is asked again
//     every millisecond.  A user that can do without some segments of a sender (as `coded` with s >= 1) answers drop as soon as it can.
//   * Of a transfer to several ranks a place keeps what it got until the transfer is complete here: repairs are computed from it.  Where
//     something was dropped or came as a lease, missing segments are sent again instead.
//   * The events PeerLost, Ready, Command, Computed and TimerExpired are the user's own; timer ids with the top bit are Bulk's.
//
// Blocks of at most 128 packets are repaired by Cauchy parity over GF(2^8).  A receiver reports to a sender at once what it lacks (one
// deficit a block, with the highest sequence seen) and how much it may send.  The receiver's window is divided among the senders that are
// active. A rank that does not answer for stall_us while others do is *lagging*: nobody waits for its credit until it answers again. If
// multicasts stop reaching a rank during a job and datagrams to it alone still do, each receiver gets a copy of its own from then on
// (Send::copies).  Bulk never gives a rank up by itself: PeerLost ends that rank's part in all transfers.
//
// Memory does not depend on the transfers: 256 slots for each sender (pieces of 2048 segments under way), up to 32 blocks that have begun
// to arrive, and up to 8 MiB of parity packets in all.  What does not fit counts as lost and is sent again.
#pragma once
#include <atomic>
#include <memory>

#include "runtime/core/arena.h"
#include "transport/wire/packet.h"

namespace gradcast {

constexpr uint32_t bulk_segment_min = 384, bulk_segment_max = 32760;

struct BulkConfig {
    Rank self = 0;
    uint32_t ranks = 0;
    uint32_t segment_bytes =
        0;   // payload of a datagram, a multiple of 8 within these limits: 1432 on Ethernet, 1024 to 4096 on InfiniBand
    uint32_t header_bytes = datagram_wire_bytes;   // of each datagram on the network: Ethernet, IPv4, UDP and ours
    // Most bytes in flight to this rank from all senders: the buffer of its switch port.
    uint64_t window_bytes = 896 * 1024;
    uint64_t rate_bytes_per_s = 0;   // upper limit of sending; 0: none
    uint64_t stall_us = 20'000;
};

/// Written by the network thread, read by any.
struct BulkCounters {
    std::atomic<uint64_t> packets_sent{0}, repairs_sent{0}, feedback_sent{0};
    std::atomic<uint64_t> repairs_bytes{0}, feedback_bytes{0};                        // of these, with headers
    std::atomic<uint64_t> packets_received{0}, duplicates{0}, repaired{0}, lost{0};   // lost: first transmissions that did not arrive here
    std::atomic<uint32_t> deaf{0};   // 1 + the first rank that our multicasts do not reach any more; 0: none
};

/// `user` must outlive it.  Memory is planned in `arena`, which must be sealed before the first event.
std::unique_ptr<Protocol> bulk_create(const BulkConfig& config, Protocol& user, Arena& arena, BulkCounters* counters);

}   // namespace gradcast
