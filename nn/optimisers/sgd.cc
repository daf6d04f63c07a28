#include "nn/optimisers/sgd.h"

#include <bit>

#include "nn/optimiser.h"

namespace gradcast {
namespace {

uint32_t vectors(const OptimiserConfig& config) { return static_cast<float>(config.momentum) != 0; }

Status check(const OptimiserConfig& config) {
    if (!config.nesterov || config.momentum != 0) return {};
    return fail(Code::invalid, "optimiser.nesterov goes with sgd and a momentum above 0");
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

constexpr std::string_view keys[] = {"momentum", "nesterov"};

}   // namespace

const OptimiserKind sgd_optimiser{.name = "sgd", .keys = keys, .vectors = vectors, .check = check, .rates = rates, .update = update};

}   // namespace gradcast
