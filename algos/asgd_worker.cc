// The workers of asgd and softsync at one rank: pull, compute, push.
#include <algorithm>

#include "algos/asgd.h"
#include "nn/graph/layers.h"
#include "nn/net.h"

namespace gradcast {

Status Asgd::compute(Context& context, uint32_t k, std::span<const float> at) {
    const WorkerTurn turn(context, k);
    std::ranges::copy(at, context.net->parameters().begin());
    context.net->refresh();
    const std::span<float> sum = values(push(k));
    double& loss = head(push(k)).loss = 0;
    // Its mini-batches are counted over the whole job: a round gives each worker at most `updates` pushes, or one in each update.
    const uint64_t push_of_job = exact_ ? all_[k].version : context.step * updates_ + all_[k].pushes, first = push_of_job * steps_;
    ++all_[k].pushes;
    for (uint32_t i = 0; i < steps_; ++i) {
        const std::span<float> gradient = i == 0 ? sum : std::span(local_.as<float>(), elements_);
        double of_step = 0;
        GC_TRY(context.local->batch(context, k, first + i, gradient, &of_step));
        loss += of_step / steps_;
        context.samples += batch_;
        if (i + 1 < steps_) descend(context, all_[k].version, gradient);
        for (uint64_t j = 0; i > 0 && j < elements_; ++j) sum[j] += gradient[j];
    }
    for (const Group& group : context.net->layout().groups)   // they are means, not sums of steps
        for (uint64_t j = group.offset; group.statistics && steps_ > 1 && j < group.offset + group.count; ++j)
            sum[j] /= static_cast<float>(steps_);
    return {};
}

void Asgd::descend(Context& context, uint64_t version, std::span<const float> gradient) const {
    const std::span<float> parameters = context.net->parameters();
    const auto lr = static_cast<float>(learning_rate(optimiser_, version)), decay = static_cast<float>(optimiser_.weight_decay);
    const float share = 1.0f / static_cast<float>(batch_);
    for (const Group& group : context.net->layout().groups)
        for (uint64_t j = group.offset; j < group.offset + group.count; ++j) {
            float& w = parameters[j];
            const float d = share * gradient[j];
            w += group.statistics ? statistics_share * (d - w) : -lr * (d + decay * w);
        }
    context.net->refresh();
}

Status Asgd::work(Context& context) {
    const auto own = [&](uint32_t k) { return rank_of(context, k) == context.self; };
    const uint32_t nodes = context.ranks - parts_.servers, first = context.self - parts_.servers;   // first: of the own workers
    const auto answer_of = [&](uint32_t k) { return one_answer_ ? first : k; };                     // whose answer k reads
    const auto await_answer = [&](uint32_t k) {
        if (!one_answer_)
            for (uint32_t s = 0; s < parts_.servers; ++s)
                context.mail->receive(s, tag(k, true), message(answer(k), s), answer_ticket(k, s));
        else if (k + nodes >= workers_)   // the last of the own ones: nobody reads the answer before any more
            context.mail->broadcast(0, tag(first, true), answer(first), answer_ticket(first, 0));
    };
    const auto done = [&](uint32_t k) {
        bool all = true;
        for (uint32_t s = 0; s < parts_.servers; ++s)
            all = all && context.mail->done(push_ticket(k, s)) && context.mail->done(answer_ticket(answer_of(k), s));
        // The next answer comes to where this one is, so the own workers begin together.
        for (uint32_t each = first; one_answer_ && each < workers_; each += nodes) all = all && context.mail->done(push_ticket(each, 0));
        return all;
    };
    const auto settle = [&] {   // answers that have come
        bool some = false, open = false;
        for (uint32_t k = 0; k < workers_; ++k) {
            if (!own(k)) continue;
            Worker& worker = all_[k];
            if (worker.state == State::computing && done(k)) {
                const Head& reply = head(answer(answer_of(k)));
                worker.state = reply.go ? State::ready : State::finished;
                worker.version = reply.version;
                worker.pushes = reply.pushes;
            }
            some |= worker.state == State::ready;
            open |= worker.state == State::computing;
        }
        return some || !open;
    };
    for (uint32_t k = 0; k < workers_; ++k) {
        if (!own(k)) continue;
        if (!begins(k, true)) all_[k].state = State::finished;
        if (pull_) all_[k].state = State::computing;
        if (pull_) await_answer(k);
        else std::ranges::copy(w(), values(answer(k)).begin());
    }
    for (;;) {
        GC_TRY(context.mail->wait_until(std::cref(settle), 10 * context.deadline_us, "answer of the server"));
        bool some = false;
        for (uint32_t k = 0; k < workers_; ++k) {
            if (!own(k) || all_[k].state != State::ready) continue;
            some = true;
            GC_TRY(compute(context, k, values(answer(answer_of(k)))));
            await_answer(k);
            for (uint32_t s = 0; s < parts_.servers; ++s)
                context.mail->send({s, nullptr}, tag(k, false), message(push(k), s), push_ticket(k, s));
            all_[k].state = State::computing;
        }
        if (!some) return {};
    }
}

}   // namespace gradcast
