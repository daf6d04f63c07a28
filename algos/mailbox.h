// Rounds of mail: a trainer numbers its sends and receives from 1, waits, and checks which of them succeeded.  What one rank has for all
// others goes by multicast where the view has datagrams for it.
#pragma once
#include <functional>
#include <vector>

#include "algos/dispatch.h"
#include "transport/broadcast.h"
#include "transport/mail.h"

namespace gradcast {

class Mailbox final : public Consumer {
public:
    /// multicasts: broadcast_channel is attached.
    Mailbox(Host& host, Dispatch& dispatch, Progress& progress, uint64_t deadline_us, Rank self, uint32_t ranks, bool multicasts);

    /// Begins a round with tickets 1 .. `tickets`.  What the previous round has not waited for ends unseen; its memory must live until
    /// then.
    void begin(uint64_t tickets) {
        fates_.assign(tickets + 1, Fate::done);
        ++round_;
    }
    /// As Mail's; never to this rank itself.
    void send(const RankSet& to, uint64_t tag, Buffer message, uint64_t ticket);
    void receive(Rank from, uint64_t tag, Buffer message, uint64_t ticket);
    /// Begins a round in which each rank sends `own` to all others and receives theirs into place(rank), of the same size: ticket rank + 1
    /// is what comes from that rank, ranks + 1 is what goes.
    template <typename Place>
    void exchange(uint64_t tag, Buffer own, Place place) {
        begin(ranks_ + 1);
        for (Rank rank = 0; rank < ranks_; ++rank)
            if (rank != self_) receive(rank, tag, place(rank), rank + 1);
        send({0, others_.data()}, tag, own, ranks_ + 1);
    }
    /// A message of `from` to all others, of 1 byte at least: sends it there, receives it elsewhere.  All ranks call it in the same order
    /// for each `from`.
    void broadcast(Rank from, uint64_t tag, Buffer message, uint64_t ticket);
    /// broadcast() sends one message for all others, not one to each.
    bool multicasts() const { return multicasts_; }
    /// Blocks until tickets first .. last are done or their rank is lost.  `what` names the wait in the error, for example "result of the
    /// evaluation after step 938".
    Status wait(uint64_t first, uint64_t last, uint64_t us, const char* what);
    /// Blocks until there() is true, which is asked after each completion.
    Status wait_until(const std::function<bool()>& there, uint64_t us, const char* what);
    /// It was begun and is done, or was not begun in this round.
    bool done(uint64_t ticket) const { return fates_[ticket] == Fate::done; }
    /// The ticket's receiver or sender is lost.
    bool lost(uint64_t ticket) const { return fates_[ticket] == Fate::lost; }

    Status take(const Completion& completion) override;

private:
    Status collect(uint64_t until_us, uint64_t us, const char* what);
    enum class Fate : uint8_t { open, done, lost };
    Host& host_;
    Dispatch& dispatch_;
    Progress& progress_;
    const uint64_t deadline_us_;
    const Rank self_;
    const uint32_t ranks_;
    const bool multicasts_;
    const std::vector<uint64_t> others_;   // bits of ranks
    Mail mail_;
    Broadcast broadcast_;
    uint64_t name(uint64_t ticket) const { return round_ << 32 | ticket; }   // as the protocol has it
    uint64_t round_ = 0;
    std::vector<Fate> fates_;   // by ticket
};

}   // namespace gradcast
