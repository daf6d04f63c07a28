// The two-level exchange for many nodes (spec/coded-sgd.md section 6, last paragraph), as far as the simulator needs it: one step of one
// bucket, no losses, nobody late.  n ranks stand in groups of g; rank h g + k has position k in group h.
//
//   reduce   within the group, coded as coded-rs does it: rank k gets part k from each of its group and decodes the group's sum of it;
//   ring     of the ranks of position k of all groups, over part k: reduce-scatter and all-gather, segment by segment;
//   gather   rank k multicasts part k of the whole sum to its group.
//
// Real words travel and are coded, added and compared with the true sum; arithmetic takes no time.  Packets are leases: what comes is
// worked in at once, so a rank keeps little more than one copy of the gradient, and 4096 of them fit in a process.  Records travel with
// their right size and are not looked at.
#pragma once
#include <memory>

#include "runtime/core/protocol.h"
#include "transport/link/sim.h"

namespace gradcast {

/// What all ranks share.
struct GroupedPlan {
    uint32_t n, group, m;
    uint64_t count;   // elements
    uint32_t segment_bytes;
    int32_t (*word)(uint32_t super_block, uint64_t element);   // what the ranks add up
    std::vector<int32_t> expected;                             // [count]
    uint64_t wrong = 0, done_us = 0;                           // found by all ranks; when the last one had everything
    uint32_t done = 0;                                         // ranks
};
/// Mistakes in n, group, m and count.
Status grouped_check(const GroupedPlan& plan);
/// Begins with its first event.
std::unique_ptr<Protocol> grouped_create(GroupedPlan& plan, Rank self);

}   // namespace gradcast
