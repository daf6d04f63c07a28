#include "nn/optimisers/sgd.h"

#include <bit>

#include "nn/optimiser.h"

namespace gradcast {
namespace {

constexpr OptimiserKey momentum_key{
    .name = "momentum", .member = &OptimiserConfig::momentum, .max = 1, .below = true, .help = "factor of the last update"};
constexpr OptimiserKey nesterov_key{.name = "nesterov", .member = &OptimiserConfig::nesterov, .help = "Nesterov's momentum"};
constexpr const OptimiserKey* keys[] = {&momentum_key, &weight_decay_key, &nesterov_key};

uint32_t vectors(const OptimiserConfig& config) { return static_cast<float>(config.momentum) != 0; }

std::optional<OptimiserMistake> check(const OptimiserConfig& config) {
    if (!config.nesterov || config.momentum != 0) return {};
    return OptimiserMistake{nesterov_key.name, "goes with a momentum above 0"};
}

StepRates rates(const OptimiserConfig& config, StepId step) {
    return std::bit_cast<StepRates>(SgdStep{.lr = static_cast<float>(learning_rate(config, step)),
                                            .momentum = static_cast<float>(config.momentum),
                                            .weight_decay = static_cast<float>(config.weight_decay),
                                            .nesterov = config.nesterov ? 1.0f : 0.0f,
                                            .unused = {}});
}

void update(const FloatKernels& kernels, const StepRates& rates, float* w, float* const* state, const float* g, uint64_t count) {
    const auto now = std::bit_cast<SgdStep>(rates);
    (now.nesterov != 0 ? kernels.nesterov : kernels.sgd)(w, state[0], g, count, now.lr, now.momentum, now.weight_decay);
}

}   // namespace

const OptimiserKind sgd_optimiser{.name = "sgd", .keys = keys, .vectors = vectors, .check = check, .rates = rates, .update = update};

}   // namespace gradcast
