// DiLoCo (Douillard et al., "DiLoCo: distributed low-communication training of language models", 2023, algorithm 1): local SGD whose mean
// difference is the gradient of an outer optimiser with Nesterov's momentum.  alpha: outer_lr, beta: outer_momentum.
//
//     w_k   <- `local_steps` steps of the inner optimiser from w; its state stays with the worker
//     delta  = (1/W) sum_k (w - w_k)
//     v     <- beta v + delta
//     w     <- w - alpha (delta + beta v)
//
// Messages: one sum of P values a round, and where there is a checkpoint the states of the own workers to all others.  Keeps a copy of w,
// v, and the inner optimiser's state of each own worker (with checkpoints of each worker).  May go wrong: alpha = 1 and a large beta
// overshoot where workers take few steps.
#include "algos/averaging.h"

namespace gradcast {
namespace {

class DiLoCo final : public Averaging {
public:
    Status plan(const AlgorithmPlan& plan) override {
        alpha_ = static_cast<float>(plan.settings.outer_lr);
        beta_ = static_cast<float>(plan.settings.outer_momentum);
        keep("outer momentum", plan, plan.net.layout().elements * sizeof(float), &momentum_);
        states().plan("workers' optimisers", plan, plan.state_size * sizeof(float));
        return Averaging::plan(plan);
    }

private:
    void worker_begins(size_t own, std::span<float> state) override { std::ranges::copy(states().of<float>(own), state.begin()); }
    void worker_ends(size_t own, std::span<const float> state) override { std::ranges::copy(state, states().of<float>(own).begin()); }
    void combine(std::span<const float> before, std::span<const float> mean, std::span<float> parameters) override {
        const std::span<float> v = floats(momentum_);
        for (size_t i = 0; i < parameters.size(); ++i) {
            const float delta = -mean[i];
            v[i] = beta_ * v[i] + delta;
            parameters[i] = before[i] - alpha_ * (delta + beta_ * v[i]);
        }
    }

    float alpha_ = 0, beta_ = 0;
    Buffer momentum_;
};

}   // namespace

std::unique_ptr<Algorithm> diloco_create() { return std::make_unique<DiLoCo>(); }

}   // namespace gradcast
