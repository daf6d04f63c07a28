// The trainer's side of an exchange: waits for exact sums, bucket by bucket, and gives up the memory of steps that are stable.
#pragma once
#include <array>
#include <span>
#include <vector>

#include "algos/context.h"
#include "transport/exchange/exchange.h"

namespace gradcast {

/// Resolves a conflict of two ranks about the sum of some blocks.
struct Judge {
    virtual ~Judge() = default;
    /// `found`: the conflict (Exchange::conflict) of step `at`, and the result if no culprit can be named.  Ok: the job goes on without
    /// the culprit.
    virtual Status judge(Status found, StepId at) = 0;
};

/// Each step is begin(), words and ready() by the user, wait(), applied().  Trainer thread, but for ready() and
/// exchange(); with slice groups also a lane that waits within a pass, one thread at a time.
class Port final : public Consumer {
public:
    /// Allocates.  Must exist before the exchange completes anything: a sum may come before this trainer begins its first step.  judge:
    /// null if no conflict can be decided.  view_ranks: ranks of the view, by rank of the exchange; empty: both numberings are equal.
    Port(Context& context, Dispatch& dispatch, Exchange& exchange, size_t buckets, StepId first_step, Judge* judge,
         std::vector<Rank> view_ranks = {});

    StepId step() const { return step_; }   // the present one
    Exchange& exchange() const { return exchange_; }

    /// Blocks until words of the present step may be written.
    Status begin();
    /// The bucket's words and records are complete.  Any thread.
    void ready(uint32_t bucket);
    /// The bucket's sum is complete without this rank, or will be, and no thread writes its words any more.
    void abandon(uint32_t bucket) { command({ExchangeCommand::Abandon{step_, bucket}}); }
    /// Blocks until buckets first .. first + into.size() - 1 of the present step are summed.  `patience`: deadlines without any packet.
    /// Errors: deadline (names the first bucket that waits and what is missing), conflict, peer_lost, or the error that has ended the job
    /// elsewhere.
    Status wait(uint32_t first, std::span<const Sum*> into, uint64_t patience = 1);
    /// The sums of the present step that wait() has not taken, by bucket; null: not here yet.
    std::span<const Sum* const> come() const { return come_[step_ % step_slots]; }
    /// The sums have been applied: releases the step before, which all ranks have applied: each computed the present step from it.
    void applied();
    /// Takes what has come.  Error: what has ended the job, or the view.
    Status poll();

    Status take(const Completion& completion) override;
    Status taken(Status so_far) override;
    void expelled(Rank rank) override;

private:
    class Patience;
    Status overdue(uint64_t us);
    void command(const ExchangeCommand& command);

    Context& context_;
    Dispatch& dispatch_;
    Exchange& exchange_;
    Judge* const judge_;
    const StepId first_step_;
    const std::vector<Rank> view_ranks_;
    StepId step_;
    std::array<std::vector<const Sum*>, step_slots> come_;   // by step % step_slots and bucket: not yet taken by wait()
    uint64_t poll_us_ = 0;                                   // of the next poll()
    Completion conflict_, early_;                            // early_: a conflict in the next step, which this rank has not begun
    Status missing_;                                         // the answer of the exchange to Explain
};

}   // namespace gradcast
