#include "algos/grid/schedule.h"

#include <algorithm>
#include <array>
#include <limits>

namespace gradcast {
namespace {

constexpr const char* names[] = {"gpipe", "1f1b", "zero-bubble", "eager-1f1b", "eager-zero-bubble"};

/// Runs tasks of all stages as soon as what they need is there.
class Timeline {
public:
    Timeline(std::span<const StageTimes> times, uint32_t micro_batches, double edge)
        : times_(times),
          edge_(edge),
          ends_(times.size(), std::vector<std::array<double, 4>>(micro_batches, {none, none, none, none})),
          free_(times.size()) {}

    /// When what the task needs is there; none: not yet.
    double ready(uint32_t stage, const StageTask& task) const {
        const auto end = [&](uint32_t at, StagePass pass) { return ends_[at][task.micro_batch][static_cast<size_t>(pass)]; };
        switch (task.pass) {
            case StagePass::forward: return stage == 0 ? 0 : end(stage - 1, StagePass::forward) + edge_;
            case StagePass::backward:
            case StagePass::data:
                return std::max(end(stage, StagePass::forward),
                                stage + 1 < times_.size() && times_[stage].waits ? end(stage + 1, task.pass) + edge_ : 0);
            case StagePass::weights: return end(stage, StagePass::data);
        }
        return none;
    }
    double begin(uint32_t stage, const StageTask& task) const { return std::max(ready(stage, task), free_[stage]); }
    void run(uint32_t stage, const StageTask& task, double seconds) {
        free_[stage] = ends_[stage][task.micro_batch][static_cast<size_t>(task.pass)] = begin(stage, task) + seconds;
    }
    double ended(uint32_t stage) const { return free_[stage]; }
    static constexpr double none = std::numeric_limits<double>::infinity();

private:
    const std::span<const StageTimes> times_;   // by stage
    const double edge_;
    std::vector<std::vector<std::array<double, 4>>> ends_;   // by stage, micro-batch, pass
    std::vector<double> free_;
};

std::vector<StageTask> gpipe(uint32_t micro_batches) {
    std::vector<StageTask> tasks;
    for (const StagePass pass : {StagePass::forward, StagePass::backward})
        for (uint32_t i = 0; i < micro_batches; ++i) tasks.push_back({pass, i});
    return tasks;
}

// At most `ahead` forward passes are ahead of the backward passes.
std::vector<StageTask> one_forward_one_backward(uint32_t ahead, uint32_t micro_batches) {
    std::vector<StageTask> tasks;
    ahead = std::min(ahead, micro_batches);
    for (uint32_t i = 0; i < ahead; ++i) tasks.push_back({StagePass::forward, i});
    for (uint32_t i = 0; i < micro_batches; ++i) {
        tasks.push_back({StagePass::backward, i});
        if (i + ahead < micro_batches) tasks.push_back({StagePass::forward, i + ahead});
    }
    return tasks;
}

// Weights passes are put off by so many micro-batches.  The last ones fill the stage's wait at the end.
std::vector<StageTask> zero_bubble(uint32_t ahead, uint32_t put_off, uint32_t micro_batches) {
    std::vector<StageTask> tasks;
    uint32_t weights = 0;
    for (const auto& [pass, micro_batch] : one_forward_one_backward(ahead, micro_batches)) {
        tasks.push_back({pass == StagePass::backward ? StagePass::data : pass, micro_batch});
        if (pass == StagePass::backward && micro_batch >= put_off) tasks.push_back({StagePass::weights, weights++});
    }
    while (weights < micro_batches) tasks.push_back({StagePass::weights, weights++});
    return tasks;
}

double seconds_of(const StageTimes& times, StagePass pass) {
    switch (pass) {
        case StagePass::forward: return times.forward;
        case StagePass::backward: return times.data + times.weights;
        case StagePass::data: return times.data;
        case StagePass::weights: return times.weights;
    }
    return 0;
}

}   // namespace

std::span<const char* const> pipeline_schedule_names() { return names; }

std::optional<Schedule> pipeline_schedule_find(std::string_view name) {
    const auto at = std::ranges::find(names, name);
    return at == std::end(names) ? std::nullopt : std::optional(static_cast<Schedule>(at - std::begin(names)));
}

const char* stage_pass_name(StagePass pass) {
    switch (pass) {
        case StagePass::forward: return "forward";
        case StagePass::backward: return "backward";
        case StagePass::data: return "data";
        case StagePass::weights: return "weights";
    }
    return "?";
}

std::vector<StageTask> stage_tasks(Schedule schedule, uint32_t stages, uint32_t stage, uint32_t micro_batches) {
    const uint32_t ahead = stages - stage, eagerly = 2 * ahead - 1;
    switch (schedule) {
        case Schedule::gpipe: return gpipe(micro_batches);
        case Schedule::one_forward_one_backward: return one_forward_one_backward(ahead, micro_batches);
        case Schedule::eager_one_forward_one_backward: return one_forward_one_backward(eagerly, micro_batches);
        // All stages keep as many micro-batches as the first one.
        case Schedule::zero_bubble: return zero_bubble(ahead, stage, micro_batches);
        case Schedule::eager_zero_bubble:   // as zero_bubble where there are no more micro-batches than stages
            return zero_bubble(eagerly, stage + std::min(stage, micro_batches - std::min(stages, micro_batches)), micro_batches);
    }
    return {};
}

uint32_t slots_of(std::span<const StageTask> tasks) {
    uint32_t now = 0, most = 0;
    for (const StageTask& task : tasks) {
        now += task.pass == StagePass::forward;
        most = std::max(most, now);
        now -= task.pass == StagePass::backward || task.pass == StagePass::weights;
    }
    return most;
}

double idle_share(Schedule schedule, uint32_t stages, uint32_t micro_batches) {
    const double waits = stages - 1.0, passes = (passes_apart(schedule) ? 3.0 : 1.0) * micro_batches;
    return waits > 0 ? waits / (passes + waits) : 0;
}

PipelineCost pipeline_cost(Schedule schedule, std::span<const StageTimes> times, uint32_t micro_batches, double edge) {
    const auto stages = static_cast<uint32_t>(times.size());
    Timeline timeline(times, micro_batches, edge);
    std::vector<std::vector<StageTask>> tasks;
    for (uint32_t stage = 0; stage < stages; ++stage) tasks.push_back(stage_tasks(schedule, stages, stage, micro_batches));
    std::vector<size_t> next(stages);
    for (bool any = true; any;) {
        any = false;
        for (uint32_t stage = 0; stage < stages; ++stage)
            for (; next[stage] < tasks[stage].size(); ++next[stage], any = true) {
                const StageTask& task = tasks[stage][next[stage]];
                if (timeline.ready(stage, task) == Timeline::none) break;
                timeline.run(stage, task, seconds_of(times[stage], task.pass));
            }
    }
    PipelineCost cost;
    for (uint32_t stage = 0; stage < stages; ++stage) {
        if (next[stage] < tasks[stage].size()) return {Timeline::none, {}, {}};   // stages wait for each other
        cost.ends.push_back(timeline.ended(stage));
        cost.step = std::max(cost.step, cost.ends.back());
    }
    for (const StageTimes& each : times) cost.idle.push_back(1 - each.sum() * micro_batches / cost.step);
    return cost;
}

}   // namespace gradcast
