// Adam (Kingma and Ba 2015), weight_decay added to the gradient; AdamW (Loshchilov, Hutter 2019), where it is apart:  w = w - lr
// weight_decay w before Adam's step.
#include "nn/optimisers/adam.h"

#include <bit>
#include <cmath>
#include <utility>

#include "runtime/core/elementary.h"

namespace gradcast {

const OptimiserKey beta1_key{
    .name = "beta1", .member = &OptimiserConfig::beta1, .max = 1, .below = true, .help = "decay rate of the first moment"};
const OptimiserKey beta2_key{
    .name = "beta2", .member = &OptimiserConfig::beta2, .max = 1, .below = true, .help = "decay rate of the second moment"};
const OptimiserKey epsilon_key{
    .name = "epsilon", .member = &OptimiserConfig::epsilon, .above = true, .help = "added to the root of the second moment"};

MomentShares moment_shares(const OptimiserConfig& config, StepId step) {
    return {1 - elementary::power(config.beta1, step + 1), 1 - elementary::power(config.beta2, step + 1)};
}

StepRates adam_rates(const OptimiserConfig& config, double rate, double root, double epsilon) {
    return std::bit_cast<StepRates>(AdamStep{.beta1 = static_cast<float>(config.beta1),
                                             .rest1 = static_cast<float>(1 - config.beta1),
                                             .beta2 = static_cast<float>(config.beta2),
                                             .rest2 = static_cast<float>(1 - config.beta2),
                                             .rate = static_cast<float>(rate),
                                             .root = static_cast<float>(root),
                                             .epsilon = static_cast<float>(epsilon),
                                             .weight_decay = static_cast<float>(config.weight_decay)});
}

namespace {

constexpr const OptimiserKey* keys[] = {&weight_decay_key, &beta1_key, &beta2_key, &epsilon_key};

uint32_t vectors(const OptimiserConfig&) { return 2; }   // m, v

StepRates rates(const OptimiserConfig& config, StepId step) {
    const MomentShares shares = moment_shares(config, step);
    return adam_rates(config, learning_rate(config, step) / shares.first, 1 / std::sqrt(shares.second), config.epsilon);
}

void update(const FloatKernels& kernels, const StepRates& rates, float* w, float* const* state, const float* g, uint64_t count) {
    kernels.adam(w, state[0], state[1], g, count, std::bit_cast<AdamStep>(rates));
}

StepRates rates_apart(const OptimiserConfig& config, StepId step) {
    auto now = std::bit_cast<AdamStep>(rates(config, step));
    now.weight_decay = static_cast<float>(learning_rate(config, step) * config.weight_decay);
    return std::bit_cast<StepRates>(now);
}

void update_apart(const FloatKernels& kernels, const StepRates& rates, float* w, float* const* state, const float* g, uint64_t count) {
    auto now = std::bit_cast<AdamStep>(rates);
    const float decay = std::exchange(now.weight_decay, 0.0f);
    for (uint64_t i = 0; i < count; ++i) w[i] -= decay * w[i];
    kernels.adam(w, state[0], state[1], g, count, now);
}

}   // namespace

const OptimiserKind adam_optimiser{.name = "adam", .keys = keys, .vectors = vectors, .rates = rates, .update = update};
const OptimiserKind adamw_optimiser{
    .name = "adamw", .keys = keys, .vectors = vectors, .decay_apart = true, .rates = rates_apart, .update = update_apart};

}   // namespace gradcast
