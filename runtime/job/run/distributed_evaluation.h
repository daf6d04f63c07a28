// An evaluation of the test data that all ranks of a view make together.
#pragma once
#include "algos/context.h"
#include "runtime/job/run/parts.h"

namespace gradcast {

/// Rank r of n evaluates batches r, r + n, …; the lowest ranks, one more than may be lost, each add all up in the order of the batches, so
/// the sum has the same bits whatever n.  What a lost rank owes they evaluate themselves.
class DistributedEvaluation {
public:
    /// For ranks of a view of n, of which so many may be lost.
    void plan(const Evaluator& evaluator, Rank self, uint32_t n, uint32_t losses_tolerated, Arena& arena);
    /// After a step; until all have the result, or for `us`.  Trainer thread.
    Status run(Context& context, JobParts& parts, uint64_t us, BatchResult* sum);

private:
    Rank self_ = 0;
    uint32_t n_ = 1;
    std::vector<uint64_t> others_, to_adders_;   // bits of ranks: all but this one; the adders but this one
    uint32_t adders_ = 1;                        // lowest ranks that add up
    Buffer results_, totals_;                    // BatchResult by rank and batch; of the whole test set, by adder
};

}   // namespace gradcast
