// A message is cut into fragments, which go to the link at once: between two ranks they arrive in order and without other mail between them
// (mail needs a stream link).
//
// A receive: posted -fragment 0-> begun -last fragment-> completed.  Fragments above lease_bytes_max land in the receiver's buffer, smaller
// ones are copied there.  The protocol owns the buffer until the completion.
#include "transport/mail.h"

#include <algorithm>
#include <cstring>

#include "transport/wire/packet.h"

namespace gradcast {
namespace {

enum class MailCommand : uint32_t { send = 1, receive = 2 };

class MailProtocol : public Protocol {
public:
    MailProtocol(Rank self, uint32_t ranks, uint32_t segment_bytes)
        : self_(self), ranks_(ranks), segment_bytes_(segment_bytes), peers_(ranks) {}

    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override {
        if (!valid(packet, bytes)) return Landing::drop;
        const MailBody body = body_of<MailBody>(packet);
        const uint64_t offset = body.offset.get(), total = body.total.get();
        Receive* receive = find(packet.sender, body.tag.get(), offset);
        if (!receive) {
            if (offset > 0) return Landing::drop;   // its receive ended with a conflict of sizes
            return total <= early_bytes() && early_.size() < mail_early_max ? Landing::lease : Landing::later;
        }
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
        for (const Event& event : events) {
            switch (event.kind) {
                case Event::Kind::packet: take(*event.packet, actions); break;
                case Event::Kind::sent: sent(event, actions); break;
                case Event::Kind::command:
                    switch (static_cast<MailCommand>(event.command)) {
                        case MailCommand::send: send(event, actions); break;
                        case MailCommand::receive: receive(event, actions); break;
                    }
                    break;
                case Event::Kind::peer_up: peers_[event.rank].lost = {}; break;
                case Event::Kind::peer_lost: lost(event, actions); break;
                case Event::Kind::timer:
                case Event::Kind::computed:
                case Event::Kind::ready: break;
            }
        }
    }

private:
    struct Outgoing {
        uint64_t ticket;
        uint32_t left = 0;   // fragments whose memory the link holds; 0: free
        Status status;
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
        Status lost;
        std::vector<std::byte> unwanted;
    };
    static constexpr uint32_t index_bits = 20;   // of an Outgoing in a ticket

    uint64_t early_bytes() const { return std::min(mail_early_bytes, segment_bytes_); }

    bool valid(const Packet& packet, uint64_t bytes) const {
        if (packet.type != PacketType::mail || packet.sender >= ranks_ || packet.sender == self_) return false;
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
        const MailBody body = body_of<MailBody>(packet);
        const uint64_t offset = body.offset.get(), total = body.total.get(), tag = body.tag.get();
        Receive* receive = find(packet.sender, tag, offset);
        if (!receive) {
            // Also a message whose receive went to the message before it, after land().
            if (offset == 0 && total == packet.payload.bytes)
                early_.push_back({packet.sender, tag, {packet.payload.host, packet.payload.host + packet.payload.bytes}});
            return;
        }
        if (offset != receive->got) return;
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

    void send(const Event& event, Actions& actions) {
        GC_ASSERT(!event.to.bits ? event.to.rank < ranks_ && event.to.rank != self_ : (event.to.bits[self_ / 64] >> self_ % 64 & 1) == 0);
        GC_ASSERT(event.buffer.bytes <= UINT32_MAX);
        const auto free = std::find_if(outgoing_.begin(), outgoing_.end(), [](const Outgoing& each) { return each.left == 0; });
        const auto index = static_cast<uint64_t>(free - outgoing_.begin());
        if (free == outgoing_.end()) outgoing_.emplace_back();
        GC_ASSERT(index < 1u << index_bits);
        Outgoing& out = outgoing_[index];
        out = {event.ticket, 0, {}};
        uint64_t offset = 0;
        do {
            MailBody body;
            body.tag.set(event.tag);
            body.offset.set(static_cast<uint32_t>(offset));
            body.total.set(static_cast<uint32_t>(event.buffer.bytes));
            const uint64_t bytes = std::min<uint64_t>(segment_bytes_, event.buffer.bytes - offset);
            actions.sends.push_back(
                {event.to, PacketType::mail, body_bytes(body), event.buffer.part(offset, bytes), ++tickets_ << index_bits | index, 0});
            ++out.left;
            offset += bytes;
        } while (offset < event.buffer.bytes);
    }

    void sent(const Event& event, Actions& actions) {
        Outgoing& out = outgoing_[event.id & ((1u << index_bits) - 1)];
        GC_ASSERT(out.left > 0);
        if (!event.status.ok()) out.status = event.status;
        if (--out.left == 0) complete(out.ticket, out.status, actions);
    }

    void receive(const Event& event, Actions& actions) {
        GC_ASSERT(event.rank < ranks_ && event.rank != self_);
        for (auto early = early_.begin(); early != early_.end(); ++early) {
            if (early->from != event.rank || early->tag != event.tag) continue;
            const bool fits = early->bytes.size() == event.buffer.bytes;
            if (fits) std::copy(early->bytes.begin(), early->bytes.end(), event.buffer.host);
            complete(event.ticket, fits ? Status{} : wrong_size(event.rank, event.tag, early->bytes.size(), event.buffer.bytes), actions);
            early_.erase(early);
            return;
        }
        const Status& lost = peers_[event.rank].lost;
        if (!lost.ok()) return complete(event.ticket, lost, actions);
        receives_.push_back({event.rank, event.tag, event.ticket, event.buffer});
    }

    void lost(const Event& event, Actions& actions) {
        Status& status = peers_[event.rank].lost;
        status = event.status.ok() ? fail(Code::peer_lost, "rank {} is lost", event.rank) : event.status;
        for (size_t i = 0; i < receives_.size();) {
            if (receives_[i].from == event.rank) complete(receives_[i], status, actions);
            else ++i;
        }
    }

    const Rank self_;
    const uint32_t ranks_, segment_bytes_;
    uint64_t tickets_ = 0;
    std::vector<Outgoing> outgoing_;
    std::vector<Receive> receives_;   // in posting order
    std::vector<Early> early_;        // in arrival order
    std::vector<Peer> peers_;
};

}   // namespace

std::unique_ptr<Protocol> mail_protocol(Rank self, uint32_t ranks, uint32_t segment_bytes) {
    return std::make_unique<MailProtocol>(self, ranks, segment_bytes);
}

static void mail_post(Host& host, uint16_t channel, MailCommand command, uint64_t ticket, RankSet to, uint64_t tag, Buffer message) {
    Event event = command_event(command);
    event.ticket = ticket;
    event.to = to;
    event.rank = to.rank;
    event.tag = tag;
    event.buffer = message;
    host.post(channel, event);
}

void Mail::send(RankSet to, uint64_t tag, Buffer message, uint64_t ticket) {
    mail_post(host_, channel_, MailCommand::send, ticket, to, tag, message);
}
void Mail::receive(Rank from, uint64_t tag, Buffer message, uint64_t ticket) {
    mail_post(host_, channel_, MailCommand::receive, ticket, {from}, tag, message);
}

}   // namespace gradcast
