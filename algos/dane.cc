// DANE, distributed approximate Newton (Shamir, Srebro, Zhang, "Communication-efficient distributed optimization using an approximate
// Newton-type method", 2014; for networks Wang, Liu, Yuan, "Distributed convolutional neural networks based on an approximate Newton-type
// method"). O(w) = mean over samples, worker k has O_k of its part.  A round, with all averages weighted by samples:
//
//     g_k = grad O_k(w0) over the worker's part, or a share of it (anchor);   g = mean of g_k
//     w_k = argmin O_k(w) - (g_k - eta g)^T w + (mu/2) ||w - w0||^2           inexact: local steps from w0 with
//                                     grad O_k(w; batch) - (g_k - eta g) + mu (w - w0)
//     w0  <- w0 + mean of (w_k - w0)
//
// Messages: two sums of P values a round.  Keeps a copy of w0; g_k is in the memory of the worker's vector.  May go wrong: with a small mu
// the corrected local problem can run away, and the job ends by name.
#include "algos/averaging.h"
#include "algos/worker_sum.h"

namespace gradcast {
namespace {

class Dane final : public Averaging {
public:
    Status plan(const AlgorithmPlan& plan) override {
        const AlgorithmSettings& settings = plan.settings;
        mu_ = static_cast<float>(settings.mu);
        eta_ = static_cast<float>(settings.eta);
        // The factor of the L2 term's own gradient.  It is 0 where the optimiser decays w beside the gradient.
        decay_ =
            optimiser_find(plan.optimiser.kind)->decay_apart ? 0 : static_cast<float>((1 - settings.eta) * plan.optimiser.weight_decay);
        return Averaging::plan(plan);
    }

private:
    Status begin(Context& context) override {
        context.advice = "raise algorithm.mu, or lower the learning rate";
        WorkerSum& workers = *context.workers;
        Local& local = *context.local;
        for (size_t i = 0; i < workers.own().size(); ++i) {
            const uint32_t worker = workers.own()[i];
            const WorkerTurn turn(context, worker);
            GC_TRY(local.gradient(context, worker, local.config().pass_share, workers.vector(i), &losses()[i]));
            scale(workers.vector(i), local.weight(worker));
        }
        double loss;
        GC_TRY(workers.sum(losses(), mean(), &loss));
        for (size_t i = 0; i < workers.own().size(); ++i) {
            const std::span<float> shift = workers.vector(i);
            const auto part = static_cast<float>(1 / local.weight(workers.own()[i]));
            for (size_t j = 0; j < shift.size(); ++j) shift[j] = eta_ * mean()[j] - part * shift[j] - decay_ * before()[j];
        }
        shifts_ = &workers;
        return {};
    }
    LocalTerm term(size_t own) override { return {.shift = shifts_->vector(own).data(), .pull = mu_, .centre = before().data()}; }
    double weight(const Local& local, uint32_t worker) override { return local.weight(worker); }

    float mu_ = 0, eta_ = 1, decay_ = 0;
    WorkerSum* shifts_ = nullptr;   // of the present round: vectors hold them until the worker has learnt
};

}   // namespace

std::unique_ptr<Algorithm> dane_create() { return std::make_unique<Dane>(); }

}   // namespace gradcast
