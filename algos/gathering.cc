#include "algos/gathering.h"

#include <algorithm>

#include "algos/worker_sum.h"

namespace gradcast {
namespace {
constexpr uint32_t batches_measured = 10;
}

Status Gathering::plan(const AlgorithmPlan& plan) {
    workers_ = plan.workers;
    elements_ = plan.net.layout().elements;
    plan.arena.plan("models of all workers", workers_ * elements_ * sizeof(float), &models_);
    right_.resize(workers_);
    own_.resize(workers_);
    GC_TRY(Averaging::plan(plan));
    uint64_t count = 0;
    for (const Group& group : statistics()) count += group.count;
    measured_.resize(count);
    return {};
}

Status Gathering::measure(Context& context, uint32_t worker, std::span<float> parameters) {
    std::ranges::copy(parameters, context.net->parameters().begin());
    context.net->refresh();
    if (statistics().empty()) return {};
    std::ranges::fill(measured_, 0.0);
    for (uint32_t batch = 0; batch < batches_measured; ++batch) {
        double loss;
        GC_TRY(context.local->batch(context, worker, context.step * batches_measured + batch, mean(), &loss));
        size_t at = 0;
        for (const Group& group : statistics())
            for (uint64_t i = 0; i < group.count; ++i) measured_[at++] += static_cast<double>(mean()[group.offset + i]);
    }
    size_t at = 0;
    for (const Group& group : statistics())
        for (uint64_t i = 0; i < group.count; ++i)
            parameters[group.offset + i] = static_cast<float>(measured_[at++] / (batches_measured * context.local->config().batch));
    std::ranges::copy(parameters, context.net->parameters().begin());
    context.net->refresh();
    return {};
}

Status Gathering::validate(Context& context, uint32_t worker, std::span<float> parameters, uint64_t* right) {
    GC_TRY(measure(context, worker, parameters));
    return context.local->validate(context, right);
}

Status Gathering::contribute(Context& context, size_t own, std::span<float> difference) {
    GC_TRY(Averaging::contribute(context, own, difference));
    uint64_t right = 0;
    if (by_accuracy()) GC_TRY(context.local->validate(context, &right));
    own_[own] = static_cast<float>(right);   // exact: below 2^24
    return {};
}

Status Gathering::aggregate(Context& context, double* loss) {
    WorkerSum& all = *context.workers;
    GC_TRY(all.gather(losses(), std::span(own_).first(all.own().size()), floats(models_), right_, loss, own_speeds(), all_speeds()));
    for (uint32_t worker = 0; worker < workers_; ++worker)
        for (uint64_t i = 0; i < elements_; ++i) model(worker)[i] += before()[i];
    return choose(context, context.net->parameters());
}

}   // namespace gradcast
