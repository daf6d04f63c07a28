// Adam (Kingma and Ba 2015), weight_decay added to the gradient.
#include <bit>
#include <cmath>

#include "nn/optimiser.h"
#include "runtime/core/elementary.h"

namespace gradcast {
namespace {

constexpr OptimiserKey beta1_key{
    .name = "beta1", .member = &OptimiserConfig::beta1, .max = 1, .below = true, .help = "decay rate of the first moment"};
constexpr OptimiserKey beta2_key{
    .name = "beta2", .member = &OptimiserConfig::beta2, .max = 1, .below = true, .help = "decay rate of the second moment"};
constexpr OptimiserKey epsilon_key{
    .name = "epsilon", .member = &OptimiserConfig::epsilon, .above = true, .help = "added to the root of the second moment"};
constexpr const OptimiserKey* keys[] = {&weight_decay_key, &beta1_key, &beta2_key, &epsilon_key};

uint32_t vectors(const OptimiserConfig&) { return 2; }   // m, v

StepRates rates(const OptimiserConfig& config, StepId step) {
    const double one = 1 - elementary::power(config.beta1, step + 1), two = 1 - elementary::power(config.beta2, step + 1);
    return std::bit_cast<StepRates>(AdamStep{.beta1 = static_cast<float>(config.beta1),
                                             .rest1 = static_cast<float>(1 - config.beta1),
                                             .beta2 = static_cast<float>(config.beta2),
                                             .rest2 = static_cast<float>(1 - config.beta2),
                                             .rate = static_cast<float>(learning_rate(config, step) / one),
                                             .root = static_cast<float>(1 / std::sqrt(two)),
                                             .epsilon = static_cast<float>(config.epsilon),
                                             .weight_decay = static_cast<float>(config.weight_decay)});
}

void update(const FloatKernels& kernels, const StepRates& rates, float* w, float* const* state, const float* g, uint64_t count) {
    kernels.adam(w, state[0], state[1], g, count, std::bit_cast<AdamStep>(rates));
}

}   // namespace

const OptimiserKind adam_optimiser{.name = "adam", .keys = keys, .vectors = vectors, .rates = rates, .update = update};

}   // namespace gradcast
