// How long the phases of the last steps have taken at each node of a job, and which node is a straggler.
#pragma once
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/le.h"
#include "runtime/core/profile.h"

namespace gradcast {

/// Of one phase, in microseconds: the median of the last recent_steps, and quantiles of the last window_steps.
struct PhaseTimes {
    uint32_t recent = 0, p50 = 0, p99 = 0;
    bool operator==(const PhaseTimes&) const = default;
};
struct RankTimes {
    uint32_t steps = 0;    // that they are of; 0: nothing is known
    uint32_t blocks = 0;   // of a step, that the node computes
    std::array<PhaseTimes, step_phases> phases{};
    const PhaseTimes& of(StepPhase phase) const { return phases[static_cast<size_t>(phase)]; }
    bool operator==(const RankTimes&) const = default;
};
struct NodeTimes {
    std::string node;
    RankTimes times;
    bool operator==(const NodeTimes&) const = default;
};

/// The wire form of RankTimes, in the news of a rank (job_news.h).
struct RankTimesWire {
    Le32 steps, blocks;
    struct {
        Le32 recent, p50, p99;
    } phases[step_phases];
    void set(const RankTimes& times);
    RankTimes get() const;
};
static_assert(sizeof(RankTimesWire) == 8 + 12 * step_phases && alignof(RankTimesWire) == 1);

/// The last steps of one rank, written by its trainer.
class StepTimes {
public:
    static constexpr uint32_t window_steps = 128, recent_steps = 16;
    void step(const std::array<uint64_t, step_phases>& us, uint32_t blocks);
    RankTimes read() const;   // any thread

private:
    // relaxed: a step that is being written may be seen in part
    std::array<std::array<std::atomic<uint32_t>, step_phases>, window_steps> steps_{};
    std::atomic<uint32_t> count_{0}, blocks_{0};
};

/// The newest RankTimes of each node, written by the network thread.
class TimesOfNodes {
public:
    void plan(size_t nodes);   // before the first step
    void set(size_t node, const RankTimes& times);
    RankTimes get(size_t node) const;   // any thread

private:
    static constexpr size_t words = 2 + 3 * step_phases;
    size_t nodes_ = 0;
    std::unique_ptr<std::atomic<uint32_t>[]> words_;
};

struct Straggler {
    std::string node, phase;
    uint32_t us = 0, others_us = 0;   // of a step: in that phase, and the median of the others
    std::string advice;
    bool operator==(const Straggler&) const = default;
};
/// Nodes whose own work in a step (compute, apply) takes more than twice the others' median and at least 2 ms longer, also for each block.
/// Waiting is no work: a node that waits for a straggler is none.
std::vector<Straggler> stragglers_of(const std::vector<NodeTimes>& nodes);

}   // namespace gradcast
