// Schedules of the learning rate, and the keys of [optimiser] that belong to them.
#include <algorithm>
#include <cmath>

#include "nn/optimiser.h"
#include "runtime/core/elementary.h"

namespace gradcast {
namespace {

// step
constexpr OptimiserKey decay_every_key{.name = "decay_every",
                                       .member = &OptimiserConfig::decay_every,
                                       .max = UINT32_MAX,
                                       .help = "steps after which lr is multiplied by decay again"};
constexpr OptimiserKey decay_key{
    .name = "decay", .member = &OptimiserConfig::decay, .above = true, .help = "factor of lr, see decay_every"};
constexpr const OptimiserKey* step_keys[] = {&decay_every_key, &decay_key};

std::optional<OptimiserMistake> step_check(const OptimiserConfig& config) {
    if (config.decay_every > 0) return {};
    return OptimiserMistake{"schedule", "step needs decay_every, a number of steps"};
}

double step_rate(const OptimiserConfig& config, StepId step) {
    return config.lr * elementary::power(config.decay, step / config.decay_every);
}

// cosine
constexpr OptimiserKey lr_end_key{.name = "lr_end", .member = &OptimiserConfig::lr_end, .help = "lr after the last step"};
constexpr const OptimiserKey* cosine_keys[] = {&lr_end_key};

double cosine_rate(const OptimiserConfig& config, StepId step) {
    if (step <= config.warm_up) return config.lr;
    const uint64_t span = std::max(config.steps, step) - config.warm_up;
    const double half_turns = static_cast<double>(step - config.warm_up) / static_cast<double>(span);
    return config.lr_end + (config.lr - config.lr_end) * (1 + elementary::turn(half_turns / 2).cos) / 2;
}

constexpr ScheduleKind schedules[] = {
    {.name = "constant", .rate = [](const OptimiserConfig& config, StepId) { return config.lr; }},
    {.name = "step", .keys = step_keys, .check = step_check, .rate = step_rate},
    {.name = "cosine", .keys = cosine_keys, .ends = true, .rate = cosine_rate},
};

}   // namespace

const OptimiserKey warm_up_key{.name = "warm_up",
                               .member = &OptimiserConfig::warm_up,
                               .max = UINT32_MAX,
                               .help = "first steps, in which lr grows linearly; goes with every schedule"};

std::span<const ScheduleKind> schedule_kinds() { return schedules; }
std::vector<std::string> schedule_names() {
    std::vector<std::string> names;
    for (const ScheduleKind& kind : schedules) names.emplace_back(kind.name);
    return names;
}
const ScheduleKind* schedule_find(std::string_view name) {
    for (const ScheduleKind& kind : schedules)
        if (name == kind.name) return &kind;
    return nullptr;
}

double learning_rate(const OptimiserConfig& config, StepId step) {
    const double lr = schedule_find(config.schedule)->rate(config, step);
    return step < config.warm_up ? lr * static_cast<double>(step + 1) / config.warm_up : lr;
}

}   // namespace gradcast
