#include "algos/mailbox.h"

namespace gradcast {

Mailbox::Mailbox(Host& host, Dispatch& dispatch, Progress& progress, uint64_t deadline_us, Rank self, uint32_t ranks, bool multicasts)
    : host_(host),
      dispatch_(dispatch),
      progress_(progress),
      deadline_us_(deadline_us),
      self_(self),
      ranks_(ranks),
      multicasts_(multicasts),
      others_(ranks_but(self, ranks)),
      mail_(host, mail_channel),
      broadcast_(host, broadcast_channel) {
    dispatch.add(mail_channel, this);
    dispatch.add(broadcast_channel, this);
}

void Mailbox::send(const RankSet& to, uint64_t tag, Buffer message, uint64_t ticket) {
    fates_[ticket] = Fate::open;
    mail_.send(to, tag, message, name(ticket));
}

void Mailbox::receive(Rank from, uint64_t tag, Buffer message, uint64_t ticket) {
    fates_[ticket] = Fate::open;
    mail_.receive(from, tag, message, name(ticket));
}

void Mailbox::broadcast(Rank from, uint64_t tag, Buffer message, uint64_t ticket) {
    if (!multicasts_) return self_ == from ? send({0, others_.data()}, tag, message, ticket) : receive(from, tag, message, ticket);
    fates_[ticket] = Fate::open;
    if (self_ == from) broadcast_.send(message, name(ticket));
    else broadcast_.receive(from, message, name(ticket));
}

Status Mailbox::take(const Completion& completion) {
    const bool lost = completion.status.code == Code::peer_lost && dispatch_.any_lost();
    if (!lost) GC_TRY(completion.status);
    if (completion.id >> 32 != round_) return {};
    const uint64_t ticket = completion.id & UINT32_MAX;
    GC_ASSERT(ticket < fates_.size());
    fates_[ticket] = lost ? Fate::lost : Fate::done;
    return {};
}

/// Takes what has come.  Error: the time has run out.
Status Mailbox::collect(uint64_t until_us, uint64_t us, const char* what) {
    // Mail of an expelled rank will not come, but this rank must first receive the reason.
    const Status status = dispatch_.collect(dispatch_.expelling() ? host_.now_us() + deadline_us_ / 40 : until_us);
    if (status.code != Code::deadline || !dispatch_.ended().ok()) return status;
    if (!dispatch_.expelling()) return fail(Code::deadline, "no {} within {} s", what, static_cast<double>(us) / 1e6);
    dispatch_.cut_expelled();
    return {};
}

Status Mailbox::wait(uint64_t first, uint64_t last, uint64_t us, const char* what) {
    Waiting waiting(progress_);
    const uint64_t until_us = host_.now_us() + us;
    while (first <= last)
        if (fates_[first] != Fate::open) ++first;
        else GC_TRY(collect(until_us, us, what));
    return {};
}

Status Mailbox::wait_until(const std::function<bool()>& there, uint64_t us, const char* what) {
    Waiting waiting(progress_);
    const uint64_t until_us = host_.now_us() + us;
    while (!there()) GC_TRY(collect(until_us, us, what));
    return {};
}

}   // namespace gradcast
