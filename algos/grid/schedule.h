// In which order a stage of a pipeline runs the passes of its micro-batches, and what a step costs.  Pure functions.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace gradcast {

/// Stages k = 0 .. S - 1.
enum class Schedule : uint8_t {
    gpipe,                      // all forward passes, then all backward passes (Huang et al. 2019)
    one_forward_one_backward,   // S - k forward passes, then in turn a backward and a forward pass (Narayanan et al. 2019)
    zero_bubble,                // the same; data passes free the stage before, weights passes fill the waits (ZB-H1; Qi et al. 2024)
    // As these two, with 2 (S - k) - 1 forward passes: no stage waits for
    // edges that take up to half as long as the passes of a micro-batch.
    eager_one_forward_one_backward,   // Zhuang et al. 2023
    eager_zero_bubble                 // ZB-H2; Qi et al. 2024
};
inline constexpr Schedule all_schedules[] = {Schedule::gpipe, Schedule::one_forward_one_backward, Schedule::zero_bubble,
                                             Schedule::eager_one_forward_one_backward, Schedule::eager_zero_bubble};
/// "gpipe", "1f1b", "zero-bubble", "eager-1f1b", "eager-zero-bubble", in the order of Schedule.
std::span<const char* const> pipeline_schedule_names();
/// A backward pass is two, data and weights.
constexpr bool passes_apart(Schedule schedule) { return schedule == Schedule::zero_bubble || schedule == Schedule::eager_zero_bubble; }
/// None: no schedule has that name.
std::optional<Schedule> pipeline_schedule_find(std::string_view name);

/// backward is data and weights, layer by layer: it needs less memory, and the stage before waits for all of it (nn/net.h: Backward).
enum class StagePass : uint8_t { forward, backward, data, weights };
/// "forward", "backward", "data", "weights".
const char* stage_pass_name(StagePass pass);
struct StageTask {
    StagePass pass;
    uint32_t micro_batch;
    bool operator==(const StageTask&) const = default;
};

/// All tasks of stage `stage` of `stages` in a step of `micro_batches`: for each micro-batch forward and backward, or where
/// passes_apart() forward, data and weights.  Each pass takes the micro-batches in their order.  O(micro_batches).
std::vector<StageTask> stage_tasks(Schedule schedule, uint32_t stages, uint32_t stage, uint32_t micro_batches);
/// The most micro-batches that the tasks keep at a time: their forward pass has begun, and their last pass has not ended.
uint32_t slots_of(std::span<const StageTask> tasks);

/// The share of a step in which each of `stages` equal stages computes nothing, where all passes take the same time and edges none:
/// (p-1)/(m+p-1), where passes_apart() (p-1)/(3m+p-1), which holds from m = p micro-batches on.
double idle_share(Schedule schedule, uint32_t stages, uint32_t micro_batches);

/// Seconds of a stage's passes of one micro-batch.
struct StageTimes {
    double forward = 0, data = 0, weights = 0;
    bool waits = true;   // for gradients of the next stage, before its backward passes
    double sum() const { return forward + data + weights; }
};
struct PipelineCost {
    double step = 0;            // from the first task's begin to the last one's end
    std::vector<double> ends;   // by stage: of its last task
    std::vector<double> idle;   // by stage: the share of the step in which it computes nothing
};
/// Returns the cost of a step whose stages have these times.  An edge takes `edge` seconds, in which its stages may compute.
PipelineCost pipeline_cost(Schedule schedule, std::span<const StageTimes> stages, uint32_t micro_batches, double edge = 0);

}   // namespace gradcast
