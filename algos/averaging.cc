#include "algos/averaging.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "algos/worker_sum.h"

namespace gradcast {

void scale(std::span<float> vector, double factor) {
    if (factor == 1) return;
    for (float& each : vector) each *= static_cast<float>(factor);
}

Status Averaging::plan(const AlgorithmPlan& plan) {
    workers_ = plan.workers;
    const uint64_t bytes = plan.net.layout().elements * sizeof(float);
    plan.arena.plan("parameters before the round", bytes, &before_);
    plan.arena.plan("mean of workers", bytes, &mean_);
    for (const Group& group : plan.net.layout().groups)
        if (group.statistics) statistics_.push_back(group);
    GC_TRY(allocation_.plan(plan));
    own_speeds_.assign(plan.workers, 1), all_speeds_.assign(plan.workers, 1);
    return {};
}

void Averaging::keep(const char* what, const AlgorithmPlan& plan, uint64_t bytes, Buffer* vector) {
    plan.arena.plan(what, bytes, vector);
    kept_.push_back(vector);
}

std::vector<std::span<std::byte>> Averaging::parts() {
    std::vector<std::span<std::byte>> parts = {std::as_writable_bytes(kept_speeds())};
    for (const Buffer* each : kept_) parts.emplace_back(each->host, each->bytes);
    parts.push_back(states_.all());
    return parts;
}

std::span<const std::byte> Averaging::state() {
    const std::span<const std::byte> number = std::as_bytes(std::span(&workers_, 1));
    state_.assign(number.begin(), number.end());
    for (const std::span<std::byte> part : parts()) state_.insert(state_.end(), part.begin(), part.end());
    return state_;
}

Status Averaging::restore_speeds(std::span<const std::byte> state) {
    GC_ASSERT(state.size() == kept_speeds().size_bytes());
    std::memcpy(all_speeds_.data(), state.data(), state.size());
    for (size_t k = 0; k < kept_speeds().size(); ++k)
        if (!(std::isfinite(all_speeds_[k]) && all_speeds_[k] > 0))
            return fail(Code::data, "the speed of worker {} is no number above 0", k);
    std::copy_n(all_speeds_.begin(), kept_speeds().size(), kept_speeds().begin());
    return {};
}

Status Averaging::check_workers(std::span<const std::byte> state) const {
    uint64_t workers = 0;
    if (state.size() < sizeof workers)
        return fail(Code::data, "the state of the algorithm has {} bytes instead of {}", state.size(), sizeof workers);
    std::memcpy(&workers, state.data(), sizeof workers);
    if (workers == workers_) return {};
    return fail(Code::data, "trained by {} workers, and {} are to go on: set algorithm.workers = {}", workers, workers_, workers);
}

Status Averaging::restore(std::span<const std::byte> state) {
    GC_TRY(check_workers(state));
    uint64_t wanted = sizeof workers_;
    for (const std::span<std::byte> part : parts()) wanted += part.size();
    if (state.size() != wanted) return fail(Code::data, "the state of the algorithm has {} bytes instead of {}", state.size(), wanted);
    const uint64_t speeds = kept_speeds().size_bytes();
    GC_TRY(restore_speeds(state.subspan(sizeof workers_, speeds)));
    uint64_t at = sizeof workers_;
    for (const std::span<std::byte> part : parts()) {
        std::ranges::copy(state.subspan(at, part.size()), part.begin());
        at += part.size();
    }
    restored_ = true;
    return {};
}

void Averaging::combine(std::span<const float> before, std::span<const float> mean, std::span<float> parameters) {
    for (size_t i = 0; i < parameters.size(); ++i) parameters[i] = before[i] + mean[i];
}

Status Averaging::contribute(Context& context, size_t, std::span<float> difference) {
    const std::span<const float> parameters = context.net->parameters(), w = before();
    for (size_t i = 0; i < difference.size(); ++i) difference[i] = parameters[i] - w[i];
    return {};
}

Status Averaging::train(Context& context, size_t own) {
    const uint32_t steps = context.local->config().steps;
    return context.local->train(context, context.workers->own()[own], context.step * steps, steps, term(own), &losses_[own]);
}

Status Averaging::train_share(Context& context, size_t own) {
    const uint32_t worker = context.workers->own()[own];
    const uint64_t begin_us = context.host.now_us();
    uint64_t samples = 0;
    GC_TRY(context.local->train_share(context, context.step, allocation_.first(worker), allocation_.share(worker), term(own), &losses_[own],
                                      &samples));
    own_speeds_[own] = static_cast<float>(static_cast<double>(samples) * 1e6 / static_cast<double>(context.host.now_us() - begin_us + 1));
    return {};
}

/// Fills in the differences of this rank's workers.
Status Averaging::learn(Context& context) {
    WorkerSum& workers = *context.workers;
    for (size_t i = 0; i < workers.own().size(); ++i) {
        const WorkerTurn turn(context, workers.own()[i]);
        std::ranges::copy(start(i), context.net->parameters().begin());
        context.net->refresh();
        worker_begins(i, context.optimiser->state());
        GC_TRY(allocation_.on() ? train_share(context, i) : train(context, i));
        worker_ends(i, context.optimiser->state());
        if (context.try_worker) GC_TRY((*context.try_worker)(workers.own()[i]));
        GC_TRY(contribute(context, i, workers.vector(i)));
        scale(workers.vector(i), weight(*context.local, workers.own()[i]));
    }
    return {};
}

Status Averaging::apply(Context& context, StepRecord* record) {
    const uint64_t begin_us = context.host.now_us();
    losses_.resize(context.workers->own().size());   // allocates in the first round of a view only
    if (allocation_.on()) GC_TRY(allocation_.begin(context.step, context.local->batches_of_round(context.step)));
    GC_TRY(begin(context));
    GC_TRY(learn(context));
    const uint64_t learnt_us = context.host.now_us();
    GC_TRY(aggregate(context, &record->loss));
    record->compute_us = learnt_us - begin_us;
    record->wait_us = context.host.now_us() - learnt_us;
    return {};
}

Status Averaging::aggregate(Context& context, double* loss) {
    GC_TRY(context.workers->sum(losses_, mean(), loss, own_speeds(), all_speeds()));
    const std::span<float> parameters = context.net->parameters();
    combine(before(), mean(), parameters);
    for (const Group& group : statistics_)
        for (uint64_t i = group.offset; i < group.offset + group.count; ++i) parameters[i] = before()[i] + mean()[i];
    applied(context);
    return {};
}

Status Averaging::round(Context& context) {
    const std::span<float> parameters = context.net->parameters();
    std::copy(parameters.begin(), parameters.end(), floats(before_).begin());
    StepRecord record;
    const Status status = apply(context, &record);
    if (!status.ok()) std::copy(before().begin(), before().end(), parameters.begin());
    std::ranges::fill(context.optimiser->state(), 0.0f);   // of the next worker
    context.net->refresh();
    GC_TRY(status);
    if (allocation_.measures()) std::copy(all_speeds_.begin(), all_speeds_.end(), kept_speeds().begin());
    if (allocation_.on()) GC_TRY(allocation_.applied(context.step));
    context.round_done(record);
    return {};
}

}   // namespace gradcast
