// Distributed gradient descent: the exact gradient of all data, and one step of the optimiser.
//
//     g = sum_k (N_k / N) grad O_k(w);   w <- a step of the optimiser with g
//
// Messages: one sum of P values a round.  Keeps the mean gradient.  May go wrong: a learning rate for mini-batches is often too small here.
#include "algos/averaging.h"
#include "algos/worker_sum.h"

namespace gradcast {
namespace {

class Gd final : public Algorithm {
public:
    Status plan(const AlgorithmPlan& plan) override {
        plan.arena.plan("mean of workers", plan.net.layout().elements * sizeof(float), &mean_);
        return {};
    }
    Status round(Context& context) override {
        WorkerSum& workers = *context.workers;
        losses_.resize(workers.own().size());   // allocates in the first round of a view only
        StepRecord record;
        const uint64_t begin_us = context.host.now_us();
        for (size_t i = 0; i < workers.own().size(); ++i) {
            const uint32_t worker = workers.own()[i];
            const WorkerTurn turn(context, worker);
            GC_TRY(context.local->gradient(context, worker, 1, workers.vector(i), &losses_[i]));
            context.samples += context.local->samples(worker);
            scale(workers.vector(i), context.local->weight(worker));
            losses_[i] *= context.local->weight(worker);
        }
        const uint64_t computed_us = context.host.now_us();
        const std::span<float> mean(mean_.as<float>(), mean_.bytes / sizeof(float));
        GC_TRY(workers.sum(losses_, mean, &record.loss));
        const uint64_t summed_us = context.host.now_us();
        context.optimiser->step(context.step);
        context.local->apply(context, context.net->parameters(), mean);
        context.net->refresh();
        record.compute_us = computed_us - begin_us;
        record.wait_us = summed_us - computed_us;
        record.apply_us = context.host.now_us() - summed_us;
        context.round_done(record);
        return {};
    }

private:
    Buffer mean_;
    std::vector<double> losses_;   // of own workers
};

}   // namespace

std::unique_ptr<Algorithm> gd_create() { return std::make_unique<Gd>(); }

}   // namespace gradcast
