// A round of asgd and softsync: what all ranks do, and a rank that is alone.
#include "algos/asgd.h"

#include <algorithm>

#include "nn/net.h"

namespace gradcast {

Status Asgd::plan(const AlgorithmPlan& plan) {
    const AlgorithmSettings& settings = plan.settings;
    workers_ = plan.workers;
    elements_ = plan.net.layout().elements;
    collect_ = soft_ ? (settings.collect > 0 ? settings.collect : workers_) : 1;
    wait_ = soft_ && settings.pull == "wait";
    scaling_ = settings.lambda;
    beta_ = settings.beta;
    staleness_most_ = settings.max_staleness;
    updates_ = plan.updates;
    steps_ = std::max(settings.local_steps, 1u);
    batch_ = plan.local->config().batch;
    optimiser_ = plan.optimiser;
    exact_ = soft_ && collect_ == workers_ && wait_ && scaling_ == "none";
    servers_ = plan.servers;
    if (exact_ && servers_ > 1)
        return fail(Code::invalid,
                    "algorithm.servers: softsync that collects all pushes, waits and does not scale them sums exactly, "
                    "as ssgd, at one server: leave it out, or set collect, pull or lambda");
    if (collect_ > workers_) return fail(Code::invalid, "algorithm.collect: {} pushes are more than the {} workers", collect_, workers_);
    if (updates_ % collect_ != 0)
        return fail(Code::invalid, "algorithm.updates: {} pushes of a round are no multiple of collect, {}", updates_, collect_);
    GC_TRY(log_.plan(plan));
    message_ = sizeof(Head) + elements_ * sizeof(float);
    state_.plan(plan);
    update_.plan(plan, collect_, exact_);
    if (steps_ > 1) plan.arena.plan("gradient of a local step", elements_ * sizeof(float), &local_);
    plan.arena.plan("pushes", workers_ * message_, &pushes_);
    plan.arena.plan("answers", workers_ * message_, &answers_);
    all_.resize(workers_), orders_.resize(2 * workers_), applied_.pushes.resize(workers_);
    answered_.reserve(workers_), waiting_.reserve(workers_);
    return {};
}

Status Asgd::round(Context& context) {
    const uint64_t begin_us = context.host.now_us();
    GC_TRY(log_.catch_up(context.replay_head));
    std::ranges::copy(context.net->parameters(), w().begin());
    parts_ = {context.ranks == 1 ? 1 : std::min(servers_, context.ranks - 1), elements_};   // nodes may have been lost
    part_ = context.self < parts_.servers ? context.self : 0;
    begin(context);
    if (context.ranks > 1) context.mail->begin(tickets());
    one_answer_ = context.mail->multicasts() && wait_ && collect_ == workers_ && parts_.servers == 1 && context.ranks - 1 <= workers_;
    Status status = context.ranks == 1 ? alone(context) : context.self < parts_.servers ? serve(context) : work(context);
    if (status.ok()) status = spread(context);
    // A replay has the pulls of the first run alone.
    applied_.on = !status.ok() && context.self == 0 && parts_.servers == 1 && !log_.replays() && !updating_;
    if (!status.ok()) state_.swap(context);   // it keeps that of the last update
    std::ranges::copy(w(), context.net->parameters().begin());
    context.net->refresh();
    GC_TRY(status);
    for (const Push& push : log_.pushes()) context.staleness.add(push.tau);
    StepRecord record;
    record.loss = loss_;
    record.clipped = update_.clipped();
    record.compute_us = context.host.now_us() - begin_us;
    context.round_done(record);
    return {};
}

void Asgd::begin(Context& context) {
    const bool goes_on = std::exchange(applied_.on, false) && applied_.step == context.step && context.self == 0 && parts_.servers == 1;
    if (goes_on) {
        state_.swap(context);
    } else {
        state_.keep(context);
        applied_.step = context.step;
        applied_.taken = 0;
        applied_.loss = 0;
        std::ranges::fill(applied_.pushes, 0);
    }
    pull_ = std::exchange(view_, context.view) != context.view;
    taken_ = applied_.taken;
    anew_at_ = goes_on ? taken_ : 0;
    loss_ = applied_.loss;
    for (uint32_t k = 0; k < workers_; ++k) all_[k] = {.pushes = applied_.pushes[k]};
    log_.begin(context.step);
    update_.begin(parts_, part_);
    start(context);
}

void Asgd::start(const Context& context) {
    version_ = (context.step * updates_ + taken_) / collect_;
    const uint64_t ready = std::min<uint64_t>(workers_, updates_ - taken_);
    handed_ = taken_ + ready;
    for (uint32_t k = 0; k < workers_; ++k) {
        all_[k].version = version_;
        all_[k].held = false;
        all_[k].state = k < ready ? State::ready : State::finished;
    }
}

Status Asgd::alone(Context& context) {
    const auto all_pull = [&] {
        waiting_.clear();
        for (uint32_t k = 0; k < workers_; ++k) {
            fill(k, true);
            if (all_[k].state == State::ready) waiting_.push_back(k);
        }
    };
    all_pull();
    while (taken_ < updates_) {
        if (replays_anew()) {
            anew_at_ = taken_;
            start(context);
            all_pull();
        }
        uint32_t k = log_.replays() ? log_.worker(taken_) : waiting_.front();
        const auto at = std::ranges::find(waiting_, k);
        if (at == waiting_.end() || all_[k].state == State::finished)
            return fail(Code::data, "the replay log has a push of worker {} that it cannot have made", k);
        waiting_.erase(at);
        GC_TRY(compute(context, k, values(answer(k))));
        answered_.clear();
        GC_TRY(take(context, k, &answered_));
        for (const uint32_t each : answered_)
            if (head(answer(each)).go) waiting_.push_back(each);
    }
    return {};
}

Status Asgd::spread(Context& context) {
    if (context.self < parts_.servers) state_.pack(context, parts_, context.self);
    if (context.ranks > 1) {
        const uint64_t of_loss = 1 + parts_.servers, of_log = of_loss + 1;
        const Buffer number{reinterpret_cast<std::byte*>(&loss_), nullptr, sizeof loss_};
        context.mail->begin(of_log);
        const auto exchange = [&](uint32_t s, const Buffer& what, uint64_t ticket) {
            context.mail->broadcast(s, tags | uint64_t{1} << 33 | ticket, what, ticket);
        };
        for (uint32_t s = 0; s < parts_.servers; ++s) exchange(s, state_.of(context, parts_, s), 1 + s);
        exchange(0, number, of_loss);
        exchange(0, log_.message(), of_log);
        GC_TRY(context.mail->wait(1, of_log, (10 + updates_) * context.deadline_us, "state of a server"));
    }
    GC_TRY(log_.keep(context.replay_head, context.step));
    for (uint32_t s = 0; s < parts_.servers; ++s) state_.unpack(context, parts_, s);
    context.optimiser->refresh();
    return {};
}

std::unique_ptr<Algorithm> asgd_create() { return std::make_unique<Asgd>(false); }
std::unique_ptr<Algorithm> softsync_create() { return std::make_unique<Asgd>(true); }

}   // namespace gradcast
