#include "algos/gathering.h"

#include <algorithm>

#include "algos/worker_sum.h"

namespace gradcast {

Status Gathering::plan(const AlgorithmPlan& plan) {
    workers_ = plan.workers;
    elements_ = plan.net.layout().elements;
    plan.arena.plan("models of all workers", workers_ * elements_ * sizeof(float), &models_);
    right_.resize(workers_);
    own_.resize(workers_);
    return Averaging::plan(plan);
}

Status Gathering::validate(Context& context, std::span<const float> parameters, uint64_t* right) {
    std::ranges::copy(parameters, context.net.parameters().begin());
    context.net.refresh();
    return context.local->validate(context, right);
}

Status Gathering::contribute(Context& context, size_t own, std::span<float> difference) {
    GC_TRY(Averaging::contribute(context, own, difference));
    uint64_t right = 0;
    GC_TRY(context.local->validate(context, &right));
    own_[own] = static_cast<float>(right);   // exact: below 2^24
    return {};
}

Status Gathering::aggregate(Context& context, double* loss) {
    WorkerSum& all = *context.workers;
    GC_TRY(all.gather(losses(), std::span(own_).first(all.own().size()), floats(models_), right_, loss));
    for (uint32_t worker = 0; worker < workers_; ++worker)
        for (uint64_t i = 0; i < elements_; ++i) model(worker)[i] += before()[i];
    return choose(context, context.net.parameters());
}

}   // namespace gradcast
