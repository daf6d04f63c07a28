// The exchange that a job starts with, and with `auto` the one that it goes on with: its first steps are measured, all ranks agree on the
// figures, and each predicts the same from them.  In a job that is long enough the best ones are then tried, and the fastest stays.  With
// `balance` the ranks' shares of the blocks follow what they take for a block: measured over a few steps in a hundred.
#pragma once
#include <array>
#include <string>
#include <vector>

#include "runtime/job/run/session.h"
#include "transport/exchange/auto.h"

namespace gradcast {

class ExchangeChoice {
public:
    /// Takes what the job file asks for, over these nodes.  `parts` are planned and outlive the exchange.
    Status open(const EngineConfig& config, const JobParts& parts, Report& report);
    const Alternative& first() const { return alternatives_.front(); }
    /// Gives the alternative of one rank alone.
    Status alone(Alternative* alternative) const;
    /// Returns all that the job may have, the first one before the others.
    std::span<const Alternative> all() const { return alternatives_; }
    /// Returns the largest number of targets of the exchanges that the job may choose.  first: that of the exchange at the start.
    uint32_t targets_most(uint32_t first) const;

    void record(const StepRecord& step);
    /// Returns whether choose() must be called before `step`.  Always false if there is one alternative.
    bool due(StepId step) const { return alternatives_.size() > 1 && !chosen_ && step == window_ + measured_end; }
    /// Some exchange of a job of so many steps may go by datagrams.  A job with `survive` that begins with one rank may get others, and its
    /// link cannot get datagrams later.
    bool datagrams(StepId steps) const;   // of this run
    /// Between two steps: the exchange for the steps that follow, to try it or to stay with it; null: the present one.  The same at all
    /// ranks.  `lanes` of this rank compute.
    Status choose(Context& context, const Session& session, uint64_t lanes, Report& report, const Alternative** next);
    /// Before this step: balance().  Never, where the job does not ask for it.
    bool balances(StepId step) const { return balance_ && step == window_ + measured_end; }
    /// Between two steps: the present exchange with other shares, at all ranks alike; null: the present shares are as good.
    Status balance(Context& context, const Session& session, Report& report, const Alternative** next);
    /// The exchange of a view of n nodes that goes on from `step`.  `auto` measures and chooses anew.
    Status for_view(const ViewExchange& exchange, uint32_t n, StepId step, Alternative* alternative);

private:
    // The first step of a window warms caches and streams up; those after it are measured.  If fewer steps remain, none are tried.
    static constexpr StepId measured_first = 1, measured_end = 6, tried_least = 24, balance_every = 100;
    static constexpr double balance_gain = 1.1;   // of the slowest rank's time, for which the session changes

    uint64_t compute_us();   // median of the window
    Status measure(Context& context, const Session& session, uint64_t lanes, Report& report, Measured* measured);
    Status agree(Context& context, const Session& session, Measured* measured);

    StepId steps_ = 0;       // of the job
    std::string name_;       // as the job asks for it
    ExchangeConfig asked_;   // likewise
    uint32_t datagram_bytes_ = 0;
    bool grows_ = false;   // from one rank on
    std::vector<Alternative> alternatives_;
    std::array<uint64_t, measured_end - measured_first> computes_us_ = {}, waits_us_ = {}, steps_us_ = {};   // of the window
    Measured first_;              // what the predictions follow from
    std::vector<size_t> tried_;   // alternatives that are measured, the first one before the others; empty: not predicted yet
    size_t present_ = 0;          // of tried_
    bool chosen_ = false;
    std::vector<Measured> measured_;   // by rank
    uint64_t agreements_ = 0;
    bool balance_ = false;
    StepId window_ = 0;              // its first step; at first that of this run of the job, or of its present view
    std::vector<double> block_us_;   // by rank: what a block takes; 0: not known yet
};

}   // namespace gradcast
