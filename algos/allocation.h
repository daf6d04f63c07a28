// How the samples of a round are shared out to workers (Zhu, Xie, Zhu, "DE-DNN").  An epoch is a permutation of the samples, cut in m
// batches, one a round; a round's samples are cut in mini-batches, of which worker k trains a run of s_k.  Each sample is trained once an
// epoch.
//
//     eda    s_k = S / n, as equal as they can be; S: mini-batches of the round
//     bsda   so in the job's first round; then S e_k / sum e, with e_k = samples / seconds of the worker's last round
//
// Each has at least one; the rest goes by largest remainder, to the lower number where they are equal, so shares always sum to S.  Shares
// of bsda follow the clock.  They are kept in replay.log in each node's job folder, a line a round; `replay` = that file repeats them.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "algos/replay.h"
#include "runtime/core/status.h"

namespace gradcast {

struct AlgorithmPlan;

/// shares sum to `count`, which is at least their number.  speeds: above 0.  rest: as many, overwritten.
void allocate(std::span<const float> speeds, uint64_t count, std::span<uint32_t> shares, std::span<double> rest);

class Allocation {
public:
    Status plan(const AlgorithmPlan& plan);
    bool on() const { return on_; }
    /// Speeds of this round set the shares of the next one.
    bool measures() const { return on_ && measures_ && log_.empty(); }
    /// Begins a round: sets the workers' shares of `count` mini-batches.  Error: those of the log do not fit.
    Status begin(uint64_t round, uint64_t count);
    uint64_t first(uint32_t worker) const;
    uint32_t share(uint32_t worker) const { return shares_[worker]; }
    /// [workers], state: all nodes have the same.
    std::span<float> speeds() { return speeds_; }
    /// The round is applied: keeps its shares.
    Status applied(uint64_t round);

private:
    bool on_ = false, measures_ = false;
    std::string head_;
    ReplayLog kept_;
    std::string line_;   // of a round
    std::vector<float> speeds_;
    std::vector<double> rest_;
    std::vector<uint32_t> shares_, log_;   // log_: [rounds, workers]
};

}   // namespace gradcast
