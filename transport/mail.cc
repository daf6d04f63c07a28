// A message is cut into fragments, which go to the link together: between two ranks they arrive in order and without other mail between
// them (mail needs a stream link).
//
// A send, to each rank: waiting (small: for room; large: until the rank asks) -> fragments with the link -> sent, or the rank is lost.
// A receive: posted, and asked for if it is large -fragment 0-> begun -last fragment-> completed.  Fragments above lease_bytes_max land in
// the receiver's buffer, smaller ones are copied there.  The protocol owns the buffer until the completion.
//
// No packet lands later, which would hold up its sender's other packets: one that nobody has asked for, or above the room, is dropped.
#include "transport/mail.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/core/bits.h"
#include "runtime/core/overloads.h"
#include "transport/wire/packet.h"

namespace gradcast {
namespace {

struct MailCommand {
    struct Send {
        RankSet to;
        uint64_t tag = 0, ticket = 0;
        Buffer message;
    };
    struct Receive {
        Rank from = 0;
        uint64_t tag = 0, ticket = 0;
        Buffer message;
    };
    std::variant<Send, Receive> what;
};

class MailProtocol : public Protocol {
public:
    MailProtocol(Rank self, uint32_t ranks, uint32_t segment_bytes)
        : self_(self), ranks_(ranks), segment_bytes_(segment_bytes), room_(mail_room(ranks)), peers_(ranks, Peer{.room = room_}) {}

    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override {
        if (!valid(packet, bytes)) return Landing::drop;
        if (packet.type == PacketType::mail_word) return Landing::lease;
        const MailBody body = body_of<MailBody>(packet);
        const uint64_t offset = body.offset.get(), total = body.total.get();
        Receive* receive = find(packet.sender, body.tag.get(), offset);
        if (!receive) return small(total) ? Landing::lease : Landing::drop;   // large: its receive ended with a conflict of sizes
        if (bytes <= lease_bytes_max) return Landing::lease;
        if (total == receive->buffer.bytes) {
            *place = receive->buffer.part(offset, bytes);
        } else {
            std::vector<std::byte>& unwanted = peers_[packet.sender].unwanted;   // read to check its tag; take() reports the conflict
            unwanted.resize(segment_bytes_);
            *place = {unwanted.data(), nullptr, bytes};
        }
        return Landing::place;
    }

    void on(std::span<const Event> events, Actions& actions) override {
        for (const Event& event : events)
            std::visit(
                Overloads{[&](const Event::Received& it) { take(*it.packet, actions); }, [&](const Event::Sent& it) { sent(it, actions); },
                          [&](const Event::Command& it) {
                              std::visit(Overloads{[&](const MailCommand::Send& command) { send(command, actions); },
                                                   [&](const MailCommand::Receive& command) { receive(command, actions); }},
                                         it.as<MailCommand>().what);
                          },
                          [&](const Event::PeerUp& it) { up(it.rank); },
                          [&](const Event::PeerLost& it) { lost(it.rank, it.status, actions); },
                          [](const OneOf<Event::TimerExpired, Event::Computed, Event::Ready> auto&) {}},
                event.what);
    }

private:
    struct Outgoing {
        uint64_t ticket, tag;
        Buffer message;
        uint32_t pending = 0;   // ranks that it waits for, and fragments whose memory the link holds; 0: free
        Status status;
    };
    struct Waiting {
        Rank to;
        uint32_t outgoing;
    };
    struct Receive {
        Rank from;
        uint64_t tag, ticket;
        Buffer buffer;
        bool begun = false;
        uint64_t got = 0;   // bytes received
    };
    struct Early {
        Rank from;
        uint64_t tag;
        std::vector<std::byte> bytes;
    };
    struct Peer {
        Status lost = {};
        std::vector<std::byte> unwanted = {};
        // As receiver of messages: small ones that may go to it, tags it asks for before they are sent.
        uint32_t room = 0;
        std::vector<uint64_t> asked = {};
        // As sender: small messages of it in early_, and those taken since the last MailWord::room to it.
        uint32_t early = 0, taken = 0;
    };
    static constexpr uint32_t index_bits = 20;   // of an Outgoing in a ticket

    bool small(uint64_t bytes) const { return bytes <= std::min(mail_early_bytes, segment_bytes_); }

    bool valid(const Packet& packet, uint64_t bytes) const {
        if (packet.sender >= ranks_ || packet.sender == self_) return false;
        if (packet.type == PacketType::mail_word) return bytes == 0 && body_of<MailWordBody>(packet).reserved.get() == 0;
        if (packet.type != PacketType::mail) return false;
        const MailBody body = body_of<MailBody>(packet);
        const uint64_t offset = body.offset.get(), total = body.total.get();
        if (offset % segment_bytes_ != 0 || (offset >= total && offset > 0)) return false;
        return bytes == std::min<uint64_t>(segment_bytes_, total - offset);
    }

    /// The receive that a fragment belongs to: fragment 0 begins the first one posted, the others follow.
    Receive* find(Rank from, uint64_t tag, uint64_t offset) {
        // land() of a fragment may come before take() of fragment 0: its receive has not begun then.
        for (bool begun : {true, false})
            for (Receive& receive : receives_)
                if (receive.from == from && receive.tag == tag && receive.begun == begun &&
                    (offset > 0 ? offset < receive.buffer.bytes : !begun))
                    return &receive;
        return nullptr;
    }

    static void complete(uint64_t ticket, Status status, Actions& actions) {
        actions.completions.push_back({0, ticket, 0, nullptr, status});
    }
    void complete(Receive& receive, Status status, Actions& actions) {
        complete(receive.ticket, status, actions);
        receives_.erase(receives_.begin() + (&receive - receives_.data()));
    }
    static Status wrong_size(Rank from, uint64_t tag, uint64_t total, uint64_t bytes) {
        return fail(Code::conflict, "mail {:#x} of rank {} has {} bytes where {} are expected: the ranks do not run the same job", tag,
                    from, total, bytes);
    }

    void take(const Packet& packet, Actions& actions) {
        if (!valid(packet, packet.payload.bytes)) return;
        if (packet.type == PacketType::mail_word) return take_word(packet.sender, body_of<MailWordBody>(packet), actions);
        const MailBody body = body_of<MailBody>(packet);
        const uint64_t offset = body.offset.get(), total = body.total.get(), tag = body.tag.get();
        Receive* receive = find(packet.sender, tag, offset);
        if (!receive) {
            // Also a message whose receive went to the message before it, after land().
            Peer& peer = peers_[packet.sender];
            if (!small(total) || peer.early == room_) return;
            ++peer.early;
            if (spare_.empty()) spare_.emplace_back();
            spare_.back().assign(packet.payload.host, packet.payload.host + packet.payload.bytes);
            early_.push_back({packet.sender, tag, std::move(spare_.back())});
            spare_.pop_back();
            return;
        }
        if (offset != receive->got) return;
        if (small(total)) taken(packet.sender, actions);
        if (total != receive->buffer.bytes)
            return complete(*receive, wrong_size(packet.sender, tag, total, receive->buffer.bytes), actions);
        std::byte* place = receive->buffer.host + offset;
        if (packet.payload.bytes > 0 && place != packet.payload.host) {
            if (packet.payload.bytes > lease_bytes_max) return;   // it landed before this receive was posted
            std::memcpy(place, packet.payload.host, packet.payload.bytes);
        }
        receive->begun = true;
        receive->got += packet.payload.bytes;
        if (receive->got == total) complete(*receive, {}, actions);
    }

    // ---- of the receiver of messages ----

    void word(Rank to, MailWord kind, uint64_t value, Actions& actions) {
        MailWordBody body{};
        body.value.set(value);
        body.kind.set(static_cast<uint32_t>(kind));
        actions.sends.push_back({{to}, PacketType::mail_word, body_bytes(body), {}, 0, 0});
    }

    /// A receive has taken a small message of this rank.
    void taken(Rank from, Actions& actions) {
        Peer& peer = peers_[from];
        if (++peer.taken < room_ / 2) return;
        word(from, MailWord::room, std::exchange(peer.taken, 0), actions);
    }

    void receive(const MailCommand::Receive& command, Actions& actions) {
        const auto& [from, tag, ticket, message] = command;
        GC_ASSERT(from < ranks_ && from != self_);
        for (auto early = early_.begin(); early != early_.end(); ++early) {
            if (early->from != from || early->tag != tag) continue;
            const bool fits = early->bytes.size() == message.bytes;
            if (fits) std::copy(early->bytes.begin(), early->bytes.end(), message.host);
            complete(ticket, fits ? Status{} : wrong_size(from, tag, early->bytes.size(), message.bytes), actions);
            spare_.push_back(std::move(early->bytes));
            early_.erase(early);
            --peers_[from].early;
            return taken(from, actions);
        }
        const Status& lost = peers_[from].lost;
        if (!lost.ok()) return complete(ticket, lost, actions);
        receives_.push_back({from, tag, ticket, message});
        if (!small(message.bytes)) word(from, MailWord::ask, tag, actions);
    }

    // ---- of the sender ----

    void send(const MailCommand::Send& command, Actions& actions) {
        const auto& [to, tag, ticket, message] = command;
        GC_ASSERT(message.bytes <= UINT32_MAX);
        const auto free = std::find_if(outgoing_.begin(), outgoing_.end(), [](const Outgoing& each) { return each.pending == 0; });
        const auto index = static_cast<uint32_t>(free - outgoing_.begin());
        if (free == outgoing_.end()) outgoing_.emplace_back();
        GC_ASSERT(index < 1u << index_bits);
        outgoing_[index] = {ticket, tag, message, 1, {}};   // 1: while it is handed out
        if (!to.bits) send_to(to.rank, index, actions);
        for (Rank rank = 0; to.bits && rank < ranks_; ++rank)
            if (bit(to.bits, rank)) send_to(rank, index, actions);
        release(index, {}, actions);
    }

    void send_to(Rank to, uint32_t index, Actions& actions) {
        GC_ASSERT(to < ranks_ && to != self_);
        Outgoing& out = outgoing_[index];
        Peer& peer = peers_[to];
        const auto asked = std::find(peer.asked.begin(), peer.asked.end(), out.tag);
        if (!peer.lost.ok()) {
            out.status = peer.lost;
        } else if (small(out.message.bytes) ? peer.room > 0 : asked != peer.asked.end()) {
            if (small(out.message.bytes)) --peer.room;
            else peer.asked.erase(asked);
            hand_out(to, index, actions);
        } else {
            ++out.pending;
            waiting_.push_back({to, index});
        }
    }

    /// To the link.
    void hand_out(Rank to, uint32_t index, Actions& actions) {
        Outgoing& out = outgoing_[index];
        uint64_t offset = 0;
        do {
            MailBody body;
            body.tag.set(out.tag);
            body.offset.set(static_cast<uint32_t>(offset));
            body.total.set(static_cast<uint32_t>(out.message.bytes));
            const uint64_t bytes = std::min<uint64_t>(segment_bytes_, out.message.bytes - offset);
            actions.sends.push_back(
                {{to}, PacketType::mail, body_bytes(body), out.message.part(offset, bytes), ++tickets_ << index_bits | index, 0});
            ++out.pending;
            offset += bytes;
        } while (offset < out.message.bytes);
    }

    /// A rank that it waited for has its message, or the link has sent a fragment.
    void release(uint32_t index, Status status, Actions& actions) {
        Outgoing& out = outgoing_[index];
        GC_ASSERT(out.pending > 0);
        if (!status.ok()) out.status = status;
        if (--out.pending == 0) complete(out.ticket, out.status, actions);
    }

    void sent(const Event::Sent& event, Actions& actions) {
        release(static_cast<uint32_t>(event.ticket & ((1u << index_bits) - 1)), event.status, actions);
    }

    /// The first message that waits for this rank, if `which` says so, goes to the link.
    template <typename Which>
    bool resume(Rank to, Which which, Actions& actions) {
        for (auto each = waiting_.begin(); each != waiting_.end(); ++each) {
            if (each->to != to || !which(outgoing_[each->outgoing])) continue;
            const uint32_t index = each->outgoing;
            waiting_.erase(each);
            hand_out(to, index, actions);
            release(index, {}, actions);
            return true;
        }
        return false;
    }

    void take_word(Rank from, const MailWordBody& body, Actions& actions) {
        Peer& peer = peers_[from];
        const uint64_t value = body.value.get();
        switch (static_cast<MailWord>(body.kind.get())) {
            case MailWord::ask:
                if (resume(
                        from, [&](const Outgoing& out) { return out.tag == value && !small(out.message.bytes); }, actions))
                    break;
                if (peer.asked.size() < std::max(mail_asked_max / ranks_, 1u)) peer.asked.push_back(value);
                break;
            case MailWord::room:
                peer.room = static_cast<uint32_t>(std::min<uint64_t>(peer.room + std::min<uint64_t>(value, room_), room_));
                while (peer.room > 0 && resume(
                                            from, [&](const Outgoing& out) { return small(out.message.bytes); }, actions))
                    --peer.room;
                break;
        }
    }

    // ---- ranks that come and go ----

    /// Where the rank was lost, neither side keeps anything from before.
    void up(Rank rank) {
        Peer& peer = peers_[rank];
        if (std::exchange(peer.lost, Status{}).ok()) return;
        std::erase_if(early_, [&](const Early& each) { return each.from == rank; });
        peer.asked.clear();
        peer.room = room_;
        peer.early = peer.taken = 0;
    }

    void lost(Rank rank, const Status& why, Actions& actions) {
        Status& status = peers_[rank].lost;
        status = why.ok() ? fail(Code::peer_lost, "rank {} is lost", rank) : why;
        for (size_t i = 0; i < receives_.size();) {
            if (receives_[i].from == rank) complete(receives_[i], status, actions);
            else ++i;
        }
        for (size_t i = 0; i < waiting_.size();) {
            if (waiting_[i].to != rank) {
                ++i;
                continue;
            }
            const uint32_t index = waiting_[i].outgoing;
            waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
            release(index, status, actions);
        }
    }

    const Rank self_;
    const uint32_t ranks_, segment_bytes_, room_;
    uint64_t tickets_ = 0;
    std::vector<Outgoing> outgoing_;
    std::vector<Waiting> waiting_;                // in the order of sends
    std::vector<Receive> receives_;               // in posting order
    std::vector<Early> early_;                    // in arrival order
    std::vector<std::vector<std::byte>> spare_;   // memory of early messages that were taken
    std::vector<Peer> peers_;
};

}   // namespace

std::unique_ptr<Protocol> mail_protocol(Rank self, uint32_t ranks, uint32_t segment_bytes) {
    return std::make_unique<MailProtocol>(self, ranks, segment_bytes);
}

void Mail::send(RankSet to, uint64_t tag, Buffer message, uint64_t ticket) {
    host_.post(channel_, command_event<MailCommand>({MailCommand::Send{to, tag, ticket, message}}));
}
void Mail::receive(Rank from, uint64_t tag, Buffer message, uint64_t ticket) {
    host_.post(channel_, command_event<MailCommand>({MailCommand::Receive{from, tag, ticket, message}}));
}

}   // namespace gradcast
