#include "algos/port.h"

#include <algorithm>

namespace gradcast {

/// Time limit of a wait for sums.  It counts from the last packet that arrived, so that a slow network is not taken for a dead one.
class Port::Patience {
public:
    Patience(const Port& port, uint64_t deadlines)
        : context_(port.context_),
          exchange_(port.exchange_),
          us_((context_.step == context_.first ? 10 : context_.patience) * deadlines * context_.deadline_us),
          until_us_(context_.host.now_us() + us_) {}
    uint64_t us() const { return us_; }
    uint64_t next_us() const { return std::min(context_.host.now_us() + context_.deadline_us / 40, until_us_); }
    bool expired() {
        const uint64_t now_us = context_.host.now_us();
        if (const uint64_t arrivals = exchange_.arrivals(); std::exchange(arrivals_, arrivals) != arrivals) {
            until_us_ = now_us + us_;
            context_.progress.advance();
        }
        return now_us >= until_us_;
    }

private:
    Context& context_;
    const Exchange& exchange_;
    const uint64_t us_;
    uint64_t until_us_, arrivals_ = 0;
};

Port::Port(Context& context, Dispatch& dispatch, Exchange& exchange, size_t buckets, StepId first_step, Judge* judge,
           std::vector<Rank> view_ranks)
    : context_(context),
      dispatch_(dispatch),
      exchange_(exchange),
      judge_(judge),
      first_step_(first_step),
      view_ranks_(std::move(view_ranks)),
      step_(first_step) {
    for (auto& each : come_) each.resize(buckets);
    dispatch.add(gradient_channel, this);
}

/// Until the network thread has ended the step that used the memory before: words written earlier could be lost, or sent as words of that
/// step.
Status Port::begin() {
    if (exchange_.begun(step_)) return {};
    Waiting waiting(context_.progress);
    Patience patience(*this, 1);
    while (!exchange_.begun(step_)) {
        const Status status = dispatch_.collect(std::min(context_.host.now_us() + 50, patience.next_us()));
        if (status.code != Code::deadline || !dispatch_.ended().ok()) GC_TRY(status);
        if (patience.expired()) return overdue(patience.us());
    }
    return {};
}

void Port::ready(uint32_t bucket) { context_.host.post(gradient_channel, {Event::Ready{step_, bucket}}); }

Status Port::wait(uint32_t first, std::span<const Sum*> into, uint64_t deadlines) {
    Waiting waiting(context_.progress);
    const Span span(context_.profile, Profile::trainer, StepPhase::wait);
    const std::span<const Sum*> come = std::span(come_[step_ % step_slots]).subspan(first, into.size());
    Patience patience(*this, deadlines);
    if (!early_.status.ok() && early_.step == step_) {
        const Status found = std::exchange(early_.status, {});
        GC_TRY(judge_ ? judge_->judge(found, step_) : found);
    }
    while (std::find(come.begin(), come.end(), nullptr) != come.end()) {
        const Status status = dispatch_.collect(patience.next_us());
        if (status.code != Code::deadline || !dispatch_.ended().ok()) GC_TRY(status);
        if (patience.expired()) return overdue(patience.us());
    }
    std::copy(come.begin(), come.end(), into.begin());
    std::fill(come.begin(), come.end(), nullptr);
    return {};
}

void Port::applied() {
    if (step_ > first_step_) command({ExchangeCommand::Release{step_ - 1}});
    ++step_;
}

Status Port::poll() {
    // A wait in vain costs a text of its status.
    if (context_.host.now_us() < poll_us_) return {};
    poll_us_ = context_.host.now_us() + context_.deadline_us / 400;
    const Status status = dispatch_.collect(context_.host.now_us());
    return status.code == Code::deadline && dispatch_.ended().ok() ? Status{} : status;
}

Status Port::take(const Completion& completion) {
    // Where ranks may be missing, a sum may come before this trainer has begun its step.
    if (completion.sum) come_[completion.step % step_slots][completion.id] = completion.sum;
    if (completion.status.code == Code::conflict) {
        if (conflict_.status.ok()) conflict_ = completion;
        return {};
    }
    if (completion.status.code == Code::deadline) missing_ = completion.status;
    return completion.status;
}

Status Port::taken(Status so_far) {
    const Completion conflict = std::exchange(conflict_, {});
    if (!so_far.ok() || conflict.status.ok()) return so_far;
    // Others may be a step ahead.  Their conflict can be judged once this rank is in that step.
    if (conflict.step > step_) {
        early_ = conflict;
        return Status{};
    }
    return judge_ ? judge_->judge(conflict.status, conflict.step) : conflict.status;
}

void Port::expelled(Rank rank) {
    const auto at = std::ranges::find(view_ranks_, rank);
    if (!view_ranks_.empty() && at == view_ranks_.end()) return;   // of another exchange
    const Rank of_exchange = view_ranks_.empty() ? rank : static_cast<Rank>(at - view_ranks_.begin());
    command({ExchangeCommand::Expel{of_exchange, fail(Code::peer_lost, "rank {} is lost", rank)}});
}

void Port::command(const ExchangeCommand& command) { context_.host.post(gradient_channel, command_event(command)); }

/// Asks the exchange what is missing.
Status Port::overdue(uint64_t us) {
    missing_ = {};
    command({ExchangeCommand::Explain{step_}});
    (void)dispatch_.collect(context_.host.now_us() + 1'000'000);
    GC_TRY(dispatch_.ended());
    const double seconds = static_cast<double>(us) / 1e6;
    if (!missing_.ok()) return fail(Code::deadline, "no sum within {} s: {}", seconds, missing_.what);
    return fail(Code::deadline, "no sum of step {} within {} s", context_.step + 1, seconds);
}

}   // namespace gradcast
