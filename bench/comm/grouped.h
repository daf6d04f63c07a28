// The two-level exchange for many nodes (transport/exchange/CODES.md, "Many nodes"), as far as the simulator needs it: one step of one
// bucket, no losses, nobody late.  n ranks stand in groups of g; rank h g + k has position k in group h.
//
//   reduce   within the group, coded as coded-rs does it: rank k gets part k from each of its group and decodes the group's sum of it;
//   ring     of the ranks of position k of all groups, over part k: reduce-scatter and all-gather, segment by segment;
//   gather   rank k multicasts part k of the whole sum to its group.
//
// Real words are sent, coded, added and compared with the true sum; arithmetic takes no virtual time.  Packets are leases that are
// processed on arrival, so a rank keeps little more than one copy of the gradient, and 4096 ranks fit in a process.  Records have their
// right size and no content.
#pragma once
#include <memory>

#include "runtime/core/protocol.h"
#include "transport/sim/sim.h"

namespace gradcast {

/// Shared by all ranks.
struct GroupedPlan {
    uint32_t n, group, m;
    uint64_t count;   // elements
    uint32_t segment_bytes;
    int32_t (*word)(uint32_t super_block, uint64_t element);   // the summands
    std::vector<int32_t> expected;                             // [count]
    uint64_t wrong = 0, done_us = 0;                           // found by all ranks; when the last rank finished
    uint32_t done = 0;                                         // number of ranks that have finished
};
/// Checks n, group, m and count.
Status grouped_check(const GroupedPlan& plan);
/// Starts at its first event.
std::unique_ptr<Protocol> grouped_create(GroupedPlan& plan, Rank self);

}   // namespace gradcast
