// An evaluation of the test data that all ranks of a view make together.
#pragma once
#include "algos/context.h"
#include "runtime/job/run/parts.h"

namespace gradcast {

/// Of n evaluators, r evaluates batches r, r + n, …; the first ones, one more than may be lost, each add all up in the order of the
/// batches, so the sum has the same bits whatever n.  What a lost one owes they evaluate themselves.  An evaluator is a rank; of a net in
/// stages it is a replica.  The rank of its last stage, and of the first slice group, has the results and tells the replica's other ranks
/// what else to evaluate.  A replica that lacks a rank, or whose passes have ended early, is lost: if the rank that has the results lives,
/// it says so in place of results.
class DistributedEvaluation {
public:
    /// For ranks of a view of n, of which so many may be lost.  grid: of a net in stages, else null.
    void plan(const JobParts& parts, const Grid* grid, Rank self, uint32_t n, uint32_t losses_tolerated, Arena& arena);
    /// After a step; until all have the result, or for `us`.  Trainer thread.
    Status run(Context& context, JobParts& parts, uint64_t us, BatchResult* sum);

private:
    /// The rank that has the results of an evaluator.
    Rank holder(uint32_t evaluator) const { return holders_.empty() ? evaluator : holders_[evaluator]; }
    /// Evaluates what the rank of this replica that has the results orders.
    template <typename Run>
    Status obey(Context& context, uint64_t us, const char* what, Run run);

    uint32_t own_ = 0;                           // evaluator that this rank belongs to
    bool spare_ = false;                         // it belongs to none
    bool holds_ = true;                          // it has the results
    uint32_t n_ = 1;                             // evaluators
    std::vector<Rank> holders_;                  // by evaluator; empty: each is a rank
    std::vector<uint64_t> others_, to_adders_;   // bits of ranks: all but this one; the adders' but this one
    uint32_t adders_ = 1;                        // first evaluators, which add up
    bool alone_ = true;                          // there is no other rank
    std::vector<uint64_t> mates_;                // bits of ranks: the others of this replica
    bool orders_ = false;                        // among the ranks of this replica
    Buffer results_, totals_;                    // BatchResult by evaluator and batch; of the whole test set, by adder
    Buffer numbers_;                             // orders: evaluators, then n_, the end
};

}   // namespace gradcast
