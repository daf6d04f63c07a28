// A vector is a transfer of words of bulk, whose step is its number among its sender's.  A receive: posted -first segment-> ... -last
// segment-> completed; segments land in its buffer in any order, each once.
#include "transport/broadcast.h"

#include <algorithm>
#include <vector>

#include "transport/wire/packet.h"

namespace gradcast {
namespace {

enum class BroadcastCommand : uint32_t { send = 1, receive = 2 };

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
        for (const Event& event : events) {
            switch (event.kind) {
                case Event::Kind::packet: take(*event.packet, actions); break;
                case Event::Kind::sent: complete(event.id, event.status, actions); break;
                case Event::Kind::command:
                    switch (static_cast<BroadcastCommand>(event.command)) {
                        case BroadcastCommand::send: send(event, actions); break;
                        case BroadcastCommand::receive: receive(event, actions); break;
                    }
                    break;
                case Event::Kind::peer_lost: lost(event, actions); break;
                case Event::Kind::peer_up:
                case Event::Kind::timer:
                case Event::Kind::computed:
                case Event::Kind::ready: break;
            }
        }
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

    void send(const Event& event, Actions& actions) {
        GC_ASSERT(event.buffer.bytes > 0);
        DataBody body{};
        body.step.set(sent_++);
        body.phase = static_cast<uint8_t>(Phase::gather);
        actions.sends.push_back({{0, others_.data()}, PacketType::words, body_bytes(body), event.buffer, event.ticket, 0});
    }

    void receive(const Event& event, Actions& actions) {
        GC_ASSERT(event.rank < peers_.size() && event.rank != self_ && event.buffer.bytes > 0);
        Peer& peer = peers_[event.rank];
        const uint32_t number = peer.posted++;
        if (!peer.lost.ok()) return complete(event.ticket, peer.lost, actions);
        receives_.push_back({event.rank, number, event.ticket, event.buffer});
    }

    void lost(const Event& event, Actions& actions) {
        if (event.rank >= peers_.size()) return;
        Status& status = peers_[event.rank].lost;
        status = event.status.ok() ? fail(Code::peer_lost, "rank {} is lost", event.rank) : event.status;
        std::erase_if(receives_, [&](const Receive& each) {
            if (each.from != event.rank) return false;
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

void broadcast_post(Host& host, uint16_t channel, BroadcastCommand command, Rank rank, Buffer message, uint64_t ticket) {
    Event event = command_event(command);
    event.rank = rank;
    event.buffer = message;
    event.ticket = ticket;
    host.post(channel, event);
}

}   // namespace

std::unique_ptr<Protocol> broadcast_protocol(Rank self, uint32_t ranks, uint32_t segment_bytes) {
    return std::make_unique<BroadcastProtocol>(self, ranks, segment_bytes);
}

void Broadcast::send(Buffer message, uint64_t ticket) { broadcast_post(host_, channel_, BroadcastCommand::send, 0, message, ticket); }
void Broadcast::receive(Rank from, Buffer message, uint64_t ticket) {
    broadcast_post(host_, channel_, BroadcastCommand::receive, from, message, ticket);
}

}   // namespace gradcast
