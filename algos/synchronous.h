// One synchronous step: the net computes this rank's blocks, their gradients go to the exchange bucket by bucket, and the exact sums over
// all blocks come back.
#pragma once
#include <array>
#include <atomic>
#include <span>
#include <vector>

#include "algos/arbiter.h"
#include "algos/context.h"
#include "transport/exchange/exchange.h"

namespace gradcast {

struct SynchronousConfig {
    Rank self = 0;
    const View& view;
    std::vector<uint32_t> own_blocks;         // of every step
    StepId first_step = 0;                    // that the exchange sums
    Buffer kept_parameters, kept_exponents;   // for the arbiter; empty where no rank may be missing
};

class SynchronousStep final : public Consumer {
public:
    /// Allocates.  Must exist before the exchange completes anything: a sum may come before this trainer begins its first step.
    SynchronousStep(Context& context, Dispatch& dispatch, Exchange& exchange, const SynchronousConfig& config);

    /// Computes this rank's blocks of context.step on the lanes.  Each bucket is quantised, and is `ready` when its last block is added.
    /// Error: of the block that failed first; the others are abandoned.
    Status compute();
    /// Blocks until all buckets of context.step are summed.  `into` is indexed by bucket.  The only place where a round waits.
    /// Errors: deadline (names the first bucket that waits and what is missing), conflict, peer_lost, or the error that has ended the job
    /// elsewhere.
    Status wait(std::span<const Sum*> into);
    /// Before the state is written.
    void keep_state() { arbiter_.keep_state(); }
    /// The sums have been applied: releases the step before in the exchange.  Ranks that compute wrong values are cut off one step after
    /// they were found.
    void applied();

    const Exchange& exchange() const { return exchange_; }
    const std::vector<uint32_t>& own_blocks() const { return config_.own_blocks; }
    bool outvoted() const { return arbiter_.outvoted(); }

    Status take(const Completion& completion) override;
    Status taken(Status so_far) override;
    void expelled(Rank rank) override;

private:
    class Sink;
    class Patience;
    Status wait_begun();
    Status overdue(uint64_t us);
    Status finite(const Sum& sum);
    void command(ExchangeCommand command, StepId step, uint32_t bucket);

    Context& context_;
    Dispatch& dispatch_;
    Exchange& exchange_;
    const SynchronousConfig config_;
    Arbiter arbiter_;
    std::vector<std::atomic<uint32_t>> blocks_left_;         // by bucket
    std::vector<std::atomic<int64_t>> losses_;               // by target
    std::array<std::vector<const Sum*>, step_slots> come_;   // by step % step_slots and bucket: not yet taken by wait()
    Completion conflict_, early_;                            // early_: a conflict in the next step, which this rank has not begun
    Status missing_;                                         // the answer of the exchange to `explain`
    bool expelling_ = false;                                 // since the step before
};

}   // namespace gradcast
