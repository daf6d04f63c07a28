// LAMB (You et al. 2020, "Large batch optimization for deep learning: training BERT in 76 minutes", algorithm 2), tensor by tensor:
//   m, v as Adam's;   r = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon);   u = r + weight_decay w;   w = w - lr (|w| / |u|) u
// The ratio is 1 where one of both norms is 0, and for tensors without decay (decay_exempt), as in the authors' code.
// Squares are added in double in a fixed order; so the ratio depends on shapes and values alone.
#include <bit>
#include <cmath>

#include "nn/optimisers/adam.h"

namespace gradcast {
namespace {

constexpr const OptimiserKey* keys[] = {&weight_decay_key, &beta1_key, &beta2_key, &epsilon_key};

/// rate: lr; root and epsilon: times 1 - beta1^t, so that r = m / (sqrt(v) root + epsilon).
StepRates rates(const OptimiserConfig& config, StepId step) {
    const MomentShares shares = moment_shares(config, step);
    return adam_rates(config, learning_rate(config, step), shares.first / std::sqrt(shares.second), shares.first * config.epsilon);
}

struct Moments {
    float m, v;
    Moments(const AdamStep& s, float m_before, float v_before, float g)
        : m(s.beta1 * m_before + s.rest1 * g), v(s.beta2 * v_before + s.rest2 * (g * g)) {}
    float step(const AdamStep& s, float w) const { return m / (std::sqrt(v) * s.root + s.epsilon) + s.weight_decay * w; }
};

void look(const StepRates& rates, const float* w, const float* const* state, const float* g, uint64_t count, TensorNorms* norms) {
    const auto s = std::bit_cast<AdamStep>(rates);
    for (uint64_t i = 0; i < count; ++i) {
        const double step = Moments(s, state[0][i], state[1][i], g[i]).step(s, w[i]), weight = w[i];
        norms->w += weight * weight;
        norms->step += step * step;
    }
}

void scale(StepRates* rates, const TensorNorms& norms) {
    if (norms.w == 0 || norms.step == 0) return;
    auto s = std::bit_cast<AdamStep>(*rates);
    s.rate = static_cast<float>(s.rate * (std::sqrt(norms.w) / std::sqrt(norms.step)));
    *rates = std::bit_cast<StepRates>(s);
}

void update(const FloatKernels&, const StepRates& rates, float* w, float* const* state, const float* g, uint64_t count) {
    const auto s = std::bit_cast<AdamStep>(rates);
    for (uint64_t i = 0; i < count; ++i) {
        const Moments now(s, state[0][i], state[1][i], g[i]);
        state[0][i] = now.m;
        state[1][i] = now.v;
        w[i] -= s.rate * now.step(s, w[i]);
    }
}

}   // namespace

const OptimiserKind lamb_optimiser{.name = "lamb",
                                   .keys = keys,
                                   .vectors = [](const OptimiserConfig&) -> uint32_t { return 2; },
                                   .rates = rates,
                                   .update = update,
                                   .look = look,
                                   .scale = scale};

}   // namespace gradcast
