// One synchronous step: the net computes this rank's blocks, their gradients go to the exchange bucket by bucket, and the exact sums over
// all blocks come back.
#pragma once
#include <atomic>
#include <span>
#include <vector>

#include "algos/arbiter.h"
#include "algos/port.h"

namespace gradcast {

/// A block's loss in whole units of 2^-20, so that the sum over blocks does not depend on their grouping.  A loss too large for 64 bits,
/// or NaN, counts as the limit; its error comes with the gradient.
int64_t loss_units(double sum, uint32_t blocks);

struct SynchronousConfig {
    Rank self = 0;   // of the exchange
    const View& view;
    std::vector<Rank> view_ranks;             // by rank of the exchange; empty: the same
    std::vector<uint32_t> own_blocks;         // of every step
    std::vector<uint32_t> gradients;          // by bucket: how many a block has of it (gradients_of_buckets())
    uint32_t own_samples = 0;                 // of the blocks whose first holder this rank is: they count as those that it trains on
    StepId first_step = 0;                    // that the exchange sums
    Buffer kept_parameters, kept_exponents;   // for the arbiter; empty where no rank may be missing
};

class SynchronousStep {
public:
    /// Allocates.  Like a Port, it must exist before the exchange completes anything.
    SynchronousStep(Context& context, Dispatch& dispatch, Exchange& exchange, const SynchronousConfig& config);

    /// Computes this rank's blocks of context.step on the lanes.  Each bucket is quantised, and is `ready` when its last block is added.
    /// Ends early where the sums do not need the rest.  Error: of the block that failed first; the others are abandoned.
    Status compute();
    /// Blocks until all buckets of context.step are summed (Port::wait), and checks that their maxima are finite.  `into` is indexed by
    /// bucket.  First adds up the words of weights that other stages have too (TiedSums).  The only place where a round waits.
    Status wait(std::span<const Sum*> into);
    /// Returns by bucket the sums of the present step that have come, before wait() takes them; null: not here yet.
    std::span<const Sum* const> come() const { return port_.come(); }
    /// Before the state is written.
    void keep_state() { arbiter_.keep_state(); }
    /// The sums have been applied: releases the step before in the exchange.  Ranks that compute wrong values are cut off one step after
    /// they were found.
    void applied();

    /// Takes what has come from other ranks and from this node's operator.  Error: what has ended the job, or the view.
    Status poll() { return port_.poll(); }

    bool outvoted() const { return arbiter_.outvoted(); }

private:
    class Sink;
    void whole(Sink& sink);
    /// All words of the bucket are added.
    Status ready(uint32_t bucket);
    /// Sums weights that other stages have too, and makes their buckets ready.
    Status tie();
    bool needless();
    Status finite(const Sum& sum);

    Context& context_;
    Dispatch& dispatch_;
    Exchange& exchange_;
    const SynchronousConfig config_;
    Arbiter arbiter_;
    Port port_;
    std::vector<std::atomic<uint32_t>> gradients_remaining_;   // by bucket: of own blocks
    std::vector<std::atomic<int64_t>> losses_;                 // by target
    std::vector<std::atomic<uint64_t>> valid_;                 // by target: positions whose label counts
    bool expelling_ = false;                                   // since the step before
};

}   // namespace gradcast
