// A vector is a transfer of words of bulk, whose step is its number among its sender's.  A receive: posted -first segment-> ... -last
// segment-> completed; segments land in its buffer in any order, each once.
#include "transport/broadcast.h"

#include <algorithm>
#include <vector>

#include "runtime/core/overloads.h"
#include "transport/wire/packet.h"

namespace gradcast {
namespace {

struct BroadcastCommand {
    struct Send {
        Buffer message;
        uint64_t ticket = 0;
    };
    struct Receive {
        Rank from = 0;
        Buffer message;
        uint64_t ticket = 0;
    };
    std::variant<Send, Receive> what;
};

class BroadcastProtocol final : public Protocol {
public:
    BroadcastProtocol(Rank self, uint32_t ranks, uint32_t segment_bytes)
        : self_(self), segment_bytes_(segment_bytes), others_(ranks_but(self, ranks)), peers_(ranks) {}

    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override {
        if (packet.type != PacketType::words || packet.sender >= peers_.size() || packet.sender == self_) return Landing::drop;
        const DataBody body = body_of<DataBody>(packet);
        if (body.phase != static_cast<uint8_t>(Phase::gather) || body.bucket.get() != 0 || body.part.get() != 0) return Landing::drop;
        const Receive* receive = find(packet.sender, body.step.get());
        if (!receive) return body.step.get() < peers_[packet.sender].posted ? Landing::drop : Landing::later;
        const Buffer& whole = receive->buffer;
        const uint64_t offset = uint64_t{body.index.get()} * segment_bytes_;
        if (offset >= whole.bytes || bytes != std::min<uint64_t>(segment_bytes_, whole.bytes - offset)) return Landing::drop;
        *place = whole.part(offset, bytes);
        return Landing::place;
    }

    void on(std::span<const Event> events, Actions& actions) override {
        for (const Event& event : events)
            std::visit(Overloads{[&](const Event::Received& it) { take(*it.packet, actions); },
                                 [&](const Event::Sent& it) { complete(it.ticket, it.status, actions); },
                                 [&](const Event::Command& it) {
                                     std::visit(Overloads{[&](const BroadcastCommand::Send& command) { send(command, actions); },
                                                          [&](const BroadcastCommand::Receive& command) { receive(command, actions); }},
                                                it.as<BroadcastCommand>().what);
                                 },
                                 [&](const Event::PeerLost& it) { lost(it.rank, it.status, actions); },
                                 [](const OneOf<Event::PeerUp, Event::TimerExpired, Event::Computed, Event::Ready> auto&) {}},
                       event.what);
    }

private:
    struct Receive {
        Rank from;
        uint32_t number;
        uint64_t ticket;
        Buffer buffer;
        uint64_t got = 0;   // bytes
    };
    struct Peer {
        uint32_t posted = 0;   // receives
        Status lost = {};
    };

    Receive* find(Rank from, uint32_t number) {
        const auto at = std::find_if(receives_.begin(), receives_.end(),
                                     [&](const Receive& each) { return each.from == from && each.number == number; });
        return at == receives_.end() ? nullptr : &*at;
    }
    static void complete(uint64_t ticket, Status status, Actions& actions) {
        actions.completions.push_back({0, ticket, 0, nullptr, status});
    }

    void take(const Packet& packet, Actions& actions) {
        Receive* receive = find(packet.sender, body_of<DataBody>(packet).step.get());
        if (!receive) return;
        receive->got += packet.payload.bytes;
        if (receive->got < receive->buffer.bytes) return;
        complete(receive->ticket, {}, actions);
        receives_.erase(receives_.begin() + (receive - receives_.data()));
    }

    void send(const BroadcastCommand::Send& command, Actions& actions) {
        GC_ASSERT(command.message.bytes > 0);
        DataBody body{};
        body.step.set(sent_++);
        body.phase = static_cast<uint8_t>(Phase::gather);
        actions.sends.push_back({{0, others_.data()}, PacketType::words, body_bytes(body), command.message, command.ticket, 0});
    }

    void receive(const BroadcastCommand::Receive& command, Actions& actions) {
        const auto& [from, message, ticket] = command;
        GC_ASSERT(from < peers_.size() && from != self_ && message.bytes > 0);
        Peer& peer = peers_[from];
        const uint32_t number = peer.posted++;
        if (!peer.lost.ok()) return complete(ticket, peer.lost, actions);
        receives_.push_back({from, number, ticket, message});
    }

    void lost(Rank rank, const Status& why, Actions& actions) {
        if (rank >= peers_.size()) return;
        Status& status = peers_[rank].lost;
        status = why.ok() ? fail(Code::peer_lost, "rank {} is lost", rank) : why;
        std::erase_if(receives_, [&](const Receive& each) {
            if (each.from != rank) return false;
            complete(each.ticket, status, actions);
            return true;
        });
    }

    const Rank self_;
    const uint32_t segment_bytes_;
    const std::vector<uint64_t> others_;   // bits of ranks
    uint32_t sent_ = 0;
    std::vector<Receive> receives_;
    std::vector<Peer> peers_;
};

}   // namespace

std::unique_ptr<Protocol> broadcast_protocol(Rank self, uint32_t ranks, uint32_t segment_bytes) {
    return std::make_unique<BroadcastProtocol>(self, ranks, segment_bytes);
}

void Broadcast::send(Buffer message, uint64_t ticket) {
    host_.post(channel_, command_event<BroadcastCommand>({BroadcastCommand::Send{message, ticket}}));
}
void Broadcast::receive(Rank from, Buffer message, uint64_t ticket) {
    host_.post(channel_, command_event<BroadcastCommand>({BroadcastCommand::Receive{from, message, ticket}}));
}

}   // namespace gradcast
