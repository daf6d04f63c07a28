// The parameter server of asgd and softsync: takes pushes, applies them, answers.
#include <algorithm>
#include <cmath>

#include "algos/asgd.h"
#include "runtime/core/bits.h"
#include "runtime/core/elementary.h"

namespace gradcast {

double Asgd::lambda(uint64_t tau) const {
    if (scaling_ == "inverse") return 1.0 / static_cast<double>(std::max<uint64_t>(tau, 1));
    return scaling_ == "exp" ? elementary::power(beta_, tau) : 1;
}

bool Asgd::may_begin(uint32_t k) const {
    if (staleness_most_ == 0) return true;
    uint64_t slowest = ~uint64_t{0};
    for (const Worker& each : all_)
        if (each.state != State::finished) slowest = std::min(slowest, each.pushes);
    return all_[k].pushes <= slowest + staleness_most_;
}

Status Asgd::take(Context& context, uint32_t k, std::vector<uint32_t>* answered) {
    const uint64_t tau = version_ - all_[k].version;
    const Head pushed = head(push(k));
    GC_ASSERT(soft_ || staleness_most_ == 0 || tau <= (workers_ - 1) * (2 * uint64_t{staleness_most_} + 1));
    for (const float each : own_part(values(push(k))))
        if (!std::isfinite(each))
            return fail(Code::diverged, "round {}: the gradient of worker {} holds NaN or Inf: {}", context.step + 1, k, context.advice);
    log_.pushes()[taken_] = {k, static_cast<uint32_t>(tau), taken_ > 0 && anew_at_ == taken_};
    loss_ += pushed.loss / static_cast<double>(updates_);   // at server 0
    GC_TRY(update_.add(context, {version_, k}, push(k).part(sizeof(Head), elements_ * sizeof(float)), lambda(tau)));
    ++taken_;
    if (update_.full()) {
        updating_ = true;
        GC_TRY(update_.apply(context, version_, w()));
        updating_ = false;
        ++version_;
        applied_.taken = taken_;
        applied_.loss = loss_;
        for (uint32_t each = 0; each < workers_; ++each) applied_.pushes[each] = all_[each].pushes;
    }
    if (!wait_) all_[k].held = true;
    else if (update_.full())
        for (const uint32_t each : update_.collected()) all_[each].held = true;
    // In the order of their numbers: the same in a replay.
    for (uint32_t each = 0; each < workers_; ++each) {
        if (!all_[each].held || (handed_ < updates_ && !may_begin(each))) continue;
        all_[each].held = false;
        all_[each].version = version_;
        const bool handed = handed_ < updates_;
        handed_ += handed;
        if (!handed) all_[each].state = State::finished;
        fill(each, begins(each, handed));
        answered->push_back(each);
    }
    return {};
}

void Asgd::fill(uint32_t k, bool go) {
    head(answer(k)) = {go, version_, all_[k].pushes, 0};
    if (!one_answer_ || k == 0) std::ranges::copy(own_part(w()), own_part(values(answer(k))).begin());
}

Status Asgd::choose(Context& context, uint32_t* k) {
    const auto is_there = [&](uint32_t each) { return open_[each] && context.mail->done(push_ticket(each, 0)); };
    const auto any = [&] {
        if (log_.replays()) {
            *k = log_.worker(taken_);
            return !open_[*k] || is_there(*k);
        }
        for (uint32_t i = 0; i < workers_; ++i, turn_ = (turn_ + 1) % workers_)   // in turn, so that nobody starves
            if (is_there(turn_)) {
                *k = turn_;
                return true;
            }
        return false;
    };
    GC_TRY(context.mail->wait_until(std::cref(any), 10 * context.deadline_us, "push of a worker"));
    if (!open_[*k] || all_[*k].state == State::finished)
        return fail(Code::data, "the replay log has a push of worker {} that it cannot have made", *k);
    turn_ = (*k + 1) % workers_;
    return {};
}

Status Asgd::next(Context& context, uint32_t* k) {
    const uint64_t ticket = order_ticket(taken_), us = 10 * context.deadline_us;
    uint32_t& order = orders_[taken_ % orders_.size()];
    const Buffer message{reinterpret_cast<std::byte*>(&order), nullptr, sizeof order};
    if (part_ == 0) {
        GC_TRY(choose(context, k));
        if (parts_.servers > 1) {
            GC_TRY(context.mail->wait(ticket, ticket, us, "word to another server"));   // of an earlier push
            order = *k;
            context.mail->send({0, other_servers_.data()}, order_tag(taken_), message, ticket);
        }
    } else {
        context.mail->receive(0, order_tag(taken_), message, ticket);
        GC_TRY(context.mail->wait(ticket, ticket, us, "word of the first server"));
        *k = order;
        if (*k >= workers_ || !open_[*k])
            return fail(Code::data, "the first server names a push of worker {} that it cannot have made", *k);
        GC_TRY(context.mail->wait(push_ticket(*k, part_), push_ticket(*k, part_), us, "push of a worker"));
    }
    open_[*k] = false;
    return {};
}

void Asgd::expect(Context& context, uint32_t k) {
    open_[k] = true;
    context.mail->receive(rank_of(context, k), tag(k, false), message(push(k), part_), push_ticket(k, part_));
}

void Asgd::reply(Context& context, uint32_t k) {
    if (one_answer_ && k > 0) return;   // that of worker 0 is for all
    if (one_answer_) return context.mail->broadcast(0, tag(k, true), answer(k), answer_ticket(k, 0));
    context.mail->send({rank_of(context, k), nullptr}, tag(k, true), message(answer(k), part_), answer_ticket(k, part_));
}

Status Asgd::pull_anew(Context& context) {
    anew_at_ = taken_;
    waiting_.clear();
    for (uint32_t k = 0; k < workers_; ++k) {
        if (open_[k])
            GC_TRY(context.mail->wait(push_ticket(k, part_), push_ticket(k, part_), 10 * context.deadline_us, "push of a worker"));
        if (open_[k] || all_[k].held) waiting_.push_back(k);
        open_[k] = false;
    }
    start(context);
    for (const uint32_t k : waiting_) {
        const bool go = begins(k, true);
        if (go) expect(context, k);
        GC_TRY(context.mail->wait(answer_ticket(k, part_), answer_ticket(k, part_), 10 * context.deadline_us, "answer to a worker"));
        fill(k, go);
        reply(context, k);
    }
    return {};
}

Status Asgd::serve(Context& context) {
    open_.assign(workers_, false);
    other_servers_.assign(1 + parts_.servers / 64, 0);
    for (uint32_t s = 1; s < parts_.servers; ++s) set_bit(other_servers_.data(), s);
    for (uint32_t k = 0; k < workers_; ++k) {
        const bool go = all_[k].state == State::ready && begins(k, true);
        if (go) expect(context, k);
        if (pull_) fill(k, go), reply(context, k);
    }
    while (taken_ < updates_) {
        if (replays_anew()) GC_TRY(pull_anew(context));
        uint32_t k = 0;
        GC_TRY(next(context, &k));
        all_[k].pushes++;
        answered_.clear();
        if (one_answer_)   // its memory may be sent again until then
            GC_TRY(context.mail->wait(answer_ticket(0, 0), answer_ticket(0, 0), 10 * context.deadline_us, "answer to the workers"));
        GC_TRY(take(context, k, &answered_));
        for (const uint32_t each : answered_) {
            // The answer before has been received: the worker has pushed since.
            if (head(answer(each)).go) expect(context, each);
            const uint64_t ticket = answer_ticket(each, part_);
            GC_TRY(context.mail->wait(ticket, ticket, 10 * context.deadline_us, "answer to a worker"));
            reply(context, each);
        }
        context.progress.advance();
    }
    return context.mail->wait(1, tickets(), 10 * context.deadline_us, "end of the round");
}

}   // namespace gradcast
