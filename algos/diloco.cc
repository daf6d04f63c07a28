// DiLoCo (Douillard et al., "DiLoCo: distributed low-communication training of language models", 2023, algorithm 1): local SGD whose mean
// difference is the gradient of an outer optimiser with Nesterov's momentum.  alpha: outer_lr, beta: outer_momentum.
//
//     w_k   <- `local_steps` steps of the inner optimiser from w; its state stays with the worker
//     delta  = (1/W) sum_k (w - w_k)
//     v     <- beta v + delta
//     w     <- w - alpha (delta + beta v)
//
// Messages: one sum of P values a round.  Keeps a copy of w, v, and the inner optimiser's state of each own worker, which no other node
// has. May go wrong: alpha = 1 and a large beta overshoot where workers take few steps.
#include "algos/averaging.h"

namespace gradcast {
namespace {

class DiLoCo final : public Averaging {
public:
    Status plan(const AlgorithmPlan& plan) override {
        alpha_ = static_cast<float>(plan.settings.outer_lr);
        beta_ = static_cast<float>(plan.settings.outer_momentum);
        state_bytes_ = plan.state_size * sizeof(float);
        plan.arena.plan("outer momentum", plan.net.layout().elements * sizeof(float), &momentum_);
        plan.arena.plan("workers' optimisers", plan.own_workers * state_bytes_, &inner_);
        return Averaging::plan(plan);
    }

private:
    std::span<float> inner(size_t own) { return floats(inner_.part(own * state_bytes_, state_bytes_)); }
    void worker_begins(size_t own, std::span<float> state) override {
        GC_ASSERT(state.size_bytes() == state_bytes_);
        std::ranges::copy(inner(own), state.begin());
    }
    void worker_ends(size_t own, std::span<const float> state) override { std::ranges::copy(state, inner(own).begin()); }
    void combine(std::span<const float> before, std::span<const float> mean, std::span<float> parameters) override {
        const std::span<float> v = floats(momentum_);
        for (size_t i = 0; i < parameters.size(); ++i) {
            const float delta = -mean[i];
            v[i] = beta_ * v[i] + delta;
            parameters[i] = before[i] - alpha_ * (delta + beta_ * v[i]);
        }
    }

    float alpha_ = 0, beta_ = 0;
    uint64_t state_bytes_ = 0;
    Buffer momentum_, inner_;
};

}   // namespace

std::unique_ptr<Algorithm> diloco_create() { return std::make_unique<DiLoCo>(); }

}   // namespace gradcast
