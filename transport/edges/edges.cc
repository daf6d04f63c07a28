// A transfer at its receiver: posted, and asked for -first packet-> begun -last packet-> completed.
// At its sender: waiting for the ask -> with the link -> completed.
//
// Packets land in the receive's memory.  No packet lands later, which would hold up its sender's other packets: what no receive expects is
// dropped.
#include "transport/edges/edges.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "runtime/core/overloads.h"
#include "transport/wire/packet.h"

namespace gradcast {
namespace {

struct BlockOfStep {
    uint32_t step = 0, block = 0;
    bool operator==(const BlockOfStep&) const = default;
    bool has(const EdgeKey& key) const { return key.step == step && key.block == block; }
};

struct EdgesCommand {
    struct Send {
        Rank to = 0;
        EdgeKey key;
        Buffer value;
        uint64_t ticket = 0;
    };
    struct Receive {
        Rank from = 0;
        EdgeKey key;
        Buffer place;
        uint64_t ticket = 0;
    };
    struct Abandon {
        BlockOfStep block;
    };
    struct Explain {
        uint64_t ticket = 0;
    };
    std::variant<Send, Receive, Abandon, Explain> what;
};

std::string name_of(const EdgeKey& key) {
    return fmt::format("edge {} of step {}, block {} ({})", key.edge, key.step, key.block, key.gradient ? "gradient" : "value");
}

/// The latest blocks that a rank has abandoned.
class Abandoned {
public:
    void add(const BlockOfStep& block) {
        if (has(block)) return;
        if (blocks_.size() < edges_abandoned_max) blocks_.push_back(block);
        else blocks_[oldest_++ % edges_abandoned_max] = block;
    }
    bool has(const BlockOfStep& block) const { return std::find(blocks_.begin(), blocks_.end(), block) != blocks_.end(); }
    bool has(const EdgeKey& key) const { return has(BlockOfStep{key.step, key.block}); }
    std::span<const BlockOfStep> all() const { return blocks_; }
    void clear() {
        blocks_.clear();
        oldest_ = 0;
    }

private:
    std::vector<BlockOfStep> blocks_;
    size_t oldest_ = 0;   // modulo the maximum
};

class EdgesProtocol final : public Protocol {
public:
    EdgesProtocol(Rank self, uint32_t ranks, uint32_t segment_bytes)
        : self_(self), ranks_(ranks), segment_bytes_(segment_bytes), others_(ranks_but(self, ranks)), peers_(ranks) {}

    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override {
        if (packet.sender >= ranks_) return Landing::drop;
        Peer& peer = peers_[packet.sender];
        peer.landing.reset();   // packets of one rank land one after the other
        if (!valid(packet, bytes)) return Landing::drop;
        if (packet.type == PacketType::edge_word) return Landing::lease;
        const auto body = body_of<EdgeBody>(packet);
        const uint32_t index = body.index.get();
        Receive* receive = find(peer, key_of(body));
        if (!receive || index < receive->got || index > receive->landed || bytes != bytes_of(*receive, index)) return Landing::drop;
        if (index == receive->landed) {
            ++receive->landed;
            peer.landing = Place{receive->key, index};
            *place = receive->place.part(offset_of(index), bytes);
        } else {
            // The connection broke after the packet's head, or the packet is a copy, whose bytes must not overwrite the first one's.
            // take() tells.
            peer.again.resize(segment_bytes_);
            *place = {peer.again.data(), nullptr, bytes};
        }
        return Landing::place;
    }

    void on(std::span<const Event> events, Actions& actions) override {
        for (const Event& event : events)
            std::visit(
                Overloads{[&](const Event::Received& it) { take(*it.packet, actions); }, [&](const Event::Sent& it) { sent(it, actions); },
                          [&](const Event::Command& it) {
                              std::visit([&](const auto& command) { run(command, actions); }, it.as<EdgesCommand>().what);
                          },
                          [&](const Event::PeerUp& it) { up(it.rank, actions); },
                          [&](const Event::PeerLost& it) { lost(it.rank, it.status, actions); },
                          [](const OneOf<Event::TimerExpired, Event::Computed, Event::Ready> auto&) {}},
                event.what);
        for (Rank rank = 0; ending_ > 0 && rank < ranks_; ++rank)
            each_receive(rank, [&](Receive& receive) { return !receive.ended.ok() && end(rank, receive, receive.ended, actions); });
    }

private:
    struct Waiting {   // a send that its receiver has not asked for
        EdgeKey key;
        Buffer value;
        uint64_t ticket;
    };
    struct Outgoing {   // a send that the link has
        EdgeKey key;
        Rank to;
        uint64_t bytes, ticket;
        bool busy;
    };
    struct Receive {
        EdgeKey key;
        Buffer place;
        uint64_t ticket;
        uint32_t landed = 0;   // packets for which land() has given the place
        uint32_t got = 0;      // packets received
        Status ended = {};     // an error: to be completed when the link does not write there any more
    };
    struct Ask {
        EdgeKey key;
        uint32_t bytes;
    };
    struct Place {
        EdgeKey key;
        uint32_t index;
        bool operator==(const Place&) const = default;
    };
    struct Peer {
        Status lost = {};
        std::vector<Receive> receives = {};
        std::vector<Waiting> waiting = {};
        std::vector<Ask> asks = {};          // of values that are not sent yet
        Abandoned abandoned = {};            // by it
        std::optional<Place> landing = {};   // what the link may be writing
        std::vector<std::byte> again = {};
    };

    static EdgeKey key_of(const auto& body) { return {body.step.get(), body.block.get(), body.edge.get(), body.gradient == 1}; }
    uint64_t offset_of(uint32_t index) const { return uint64_t{index} * segment_bytes_; }
    uint32_t packets_of(uint64_t bytes) const {
        return static_cast<uint32_t>(std::max<uint64_t>((bytes + segment_bytes_ - 1) / segment_bytes_, 1));
    }
    /// Of this packet of the value.
    uint64_t bytes_of(const Receive& receive, uint32_t index) const {
        return index < packets_of(receive.place.bytes) ? std::min<uint64_t>(segment_bytes_, receive.place.bytes - offset_of(index))
                                                       : ~uint64_t{0};
    }

    bool valid(const Packet& packet, uint64_t bytes) const {
        if (packet.sender >= ranks_ || packet.sender == self_) return false;
        if (packet.type == PacketType::edge_word) {
            const auto body = body_of<EdgeWordBody>(packet);
            const bool of_key = body.kind == static_cast<uint8_t>(EdgeWord::ask) || body.kind == static_cast<uint8_t>(EdgeWord::size);
            return bytes == 0 && body.gradient <= of_key && (of_key || (body.edge.get() == 0 && body.bytes.get() == 0));
        }
        const auto body = body_of<EdgeBody>(packet);
        return packet.type == PacketType::edge && body.gradient <= 1 && body.reserved == 0 && body.reserved_too == 0;
    }

    static Receive* find(Peer& peer, const EdgeKey& key) {
        for (Receive& receive : peer.receives)
            if (receive.key == key) return receive.ended.ok() ? &receive : nullptr;
        return nullptr;
    }

    static void complete(uint64_t ticket, const Status& status, Actions& actions) {
        actions.completions.push_back({0, ticket, 0, nullptr, status});
    }
    template <typename Each>
    static void remove(std::vector<Each>& all, Each& one) {   // their order has no meaning
        one = all.back();
        all.pop_back();
    }
    /// Calls each(receive), which returns true if it has removed the receive.
    template <typename Call>
    void each_receive(Rank from, Call call) {
        std::vector<Receive>& receives = peers_[from].receives;
        for (size_t i = 0; i < receives.size();) i += !call(receives[i]);
    }
    /// Completes and removes a receive; false: later, as the link writes there.
    bool end(Rank from, Receive& receive, const Status& status, Actions& actions) {
        Peer& peer = peers_[from];
        const bool waits = peer.landing && peer.landing->key == receive.key;
        ending_ += (waits && !status.ok()) - !receive.ended.ok();
        receive.ended = status;
        if (waits) return false;
        complete(receive.ticket, status, actions);
        remove(peer.receives, receive);
        return true;
    }

    static EdgeWordBody word_of(const EdgeKey& key, EdgeWord kind, uint64_t bytes) {
        EdgeWordBody body{};
        body.step.set(key.step);
        body.block.set(key.block);
        body.edge.set(key.edge);
        body.gradient = key.gradient;
        body.kind = static_cast<uint8_t>(kind);
        body.bytes.set(static_cast<uint32_t>(bytes));
        return body;
    }
    static void word(RankSet to, EdgeWord kind, const EdgeKey& key, uint64_t bytes, Actions& actions) {
        actions.sends.push_back({to, PacketType::edge_word, body_bytes(word_of(key, kind, bytes)), {}});
    }
    static void word(RankSet to, EdgeWord kind, const BlockOfStep& block, Actions& actions) {
        word(to, kind, {block.step, block.block}, 0, actions);
    }

    Status wrong_size(const EdgeKey& key, Rank rank, uint64_t its, uint64_t own) const {
        return fail(Code::conflict, "{} has {} bytes at rank {} and {} at rank {}: the ranks do not run the same job", name_of(key), its,
                    rank, own, self_);
    }
    static Status abandoned_by(Rank rank, const EdgeKey& key) {
        return fail(Code::cancelled, "step {}, block {} was abandoned by rank {}", key.step, key.block, rank);
    }
    /// Returns why a transfer with this rank cannot begin; ok if it can.
    Status refused(Rank rank, const EdgeKey& key) const {
        GC_ASSERT(rank < ranks_ && rank != self_);
        if (abandoned_.has(key)) return abandoned_by(self_, key);
        if (peers_[rank].abandoned.has(key)) return abandoned_by(rank, key);
        return peers_[rank].lost;
    }

    // ---- packets -----------------------------------------------------------------------------------------------------------------

    void take(const Packet& packet, Actions& actions) {
        if (!valid(packet, packet.payload.bytes)) return;
        const Rank from = packet.sender;
        if (packet.type == PacketType::edge_word) return take_word(from, body_of<EdgeWordBody>(packet), actions);
        const auto body = body_of<EdgeBody>(packet);
        const EdgeKey key = key_of(body);
        const uint32_t index = body.index.get();
        Peer& peer = peers_[from];
        if (peer.landing == Place{key, index}) peer.landing.reset();
        Receive* receive = find(peer, key);
        if (!receive || index != receive->got || packet.payload.bytes != bytes_of(*receive, index)) return;
        std::byte* place = receive->place.host + offset_of(index);
        if (packet.payload.bytes > 0 && packet.payload.host != place) std::memcpy(place, packet.payload.host, packet.payload.bytes);
        if (++receive->got == packets_of(receive->place.bytes)) end(from, *receive, {}, actions);
    }

    void take_word(Rank from, const EdgeWordBody& body, Actions& actions) {
        Peer& peer = peers_[from];
        const EdgeKey key = key_of(body);
        const BlockOfStep block{key.step, key.block};
        switch (static_cast<EdgeWord>(body.kind)) {
            case EdgeWord::ask: return take_ask(from, {key, body.bytes.get()}, actions);
            case EdgeWord::size:
                if (Receive* receive = find(peer, key))
                    end(from, *receive, wrong_size(key, from, body.bytes.get(), receive->place.bytes), actions);
                break;
            case EdgeWord::abandon:
                peer.abandoned.add(block);
                cancel_waiting(peer, block, from, actions);
                end_receives(from, block, from, actions);
                word({from}, EdgeWord::gone, block, actions);
                break;
            case EdgeWord::gone:
                if (abandoned_.has(block)) end_receives(from, block, self_, actions);
                break;
        }
    }

    void end_receives(Rank from, const BlockOfStep& block, Rank by, Actions& actions) {
        each_receive(from, [&](Receive& receive) {
            return block.has(receive.key) && receive.ended.ok() && end(from, receive, abandoned_by(by, receive.key), actions);
        });
    }
    static void cancel_waiting(Peer& peer, const BlockOfStep& block, Rank by, Actions& actions) {
        std::erase_if(peer.asks, [&](const Ask& each) { return block.has(each.key); });
        std::erase_if(peer.waiting, [&](const Waiting& each) {
            if (!block.has(each.key)) return false;
            complete(each.ticket, abandoned_by(by, each.key), actions);
            return true;
        });
    }

    // ---- of the receiver of values -----------------------------------------------------------------------------------------------

    void run(const EdgesCommand::Receive& command, Actions& actions) {
        const auto& [from, key, place, ticket] = command;
        check(place.bytes);
        Status status = refused(from, key);
        if (status.ok() && peers_[from].receives.size() == edges_receives(ranks_))
            status = fail(Code::node_memory, "{} of rank {}: {} receives are posted already: post fewer at a time", name_of(key), from,
                          edges_receives(ranks_));
        if (!status.ok()) return complete(ticket, status, actions);
        peers_[from].receives.push_back({key, place, ticket});
        word({from}, EdgeWord::ask, key, place.bytes, actions);
    }

    // ---- of the sender -----------------------------------------------------------------------------------------------------------

    void check(uint64_t bytes) const { GC_ASSERT(bytes <= UINT32_MAX && packets_of(bytes) < 1u << 24); }

    void run(const EdgesCommand::Send& command, Actions& actions) {
        const auto& [to, key, value, ticket] = command;
        check(value.bytes);
        if (const Status status = refused(to, key); !status.ok()) return complete(ticket, status, actions);
        const Waiting waiting{key, value, ticket};
        std::vector<Ask>& asks = peers_[to].asks;
        const auto ask = std::find_if(asks.begin(), asks.end(), [&](const Ask& each) { return each.key == key; });
        if (ask == asks.end()) return peers_[to].waiting.push_back(waiting);
        hand_out(to, waiting, ask->bytes, actions);
        remove(asks, *ask);
    }

    void take_ask(Rank from, const Ask& ask, Actions& actions) {
        Peer& peer = peers_[from];
        for (Waiting& each : peer.waiting) {
            if (each.key != ask.key) continue;
            hand_out(from, each, ask.bytes, actions);
            return remove(peer.waiting, each);
        }
        if (peer.asks.size() < edges_receives(ranks_) && !abandoned_.has(ask.key)) peer.asks.push_back(ask);
    }

    /// Gives the send to the link if the receiver asked for exactly as many bytes; else tells both ends that the sizes differ.
    void hand_out(Rank to, const Waiting& send, uint32_t asked, Actions& actions) {
        const auto& [key, value, ticket] = send;
        if (value.bytes != asked) {
            word({to}, EdgeWord::size, key, value.bytes, actions);
            return complete(ticket, wrong_size(key, to, asked, value.bytes), actions);
        }
        const auto free = std::find_if(outgoing_.begin(), outgoing_.end(), [](const Outgoing& each) { return !each.busy; });
        const auto index = static_cast<size_t>(free - outgoing_.begin());
        if (free == outgoing_.end()) outgoing_.emplace_back();
        outgoing_[index] = {key, to, value.bytes, ticket, true};
        EdgeBody body{};
        body.step.set(key.step);
        body.block.set(key.block);
        body.edge.set(key.edge);
        body.gradient = key.gradient;
        actions.sends.push_back({{to}, PacketType::edge, body_bytes(body), value, index + 1});
    }

    void sent(const Event::Sent& event, Actions& actions) {
        Outgoing& out = outgoing_[event.ticket - 1];
        GC_ASSERT(out.busy);
        out.busy = false;
        complete(out.ticket, event.status, actions);
    }

    // ---- of both -----------------------------------------------------------------------------------------------------------------

    void run(const EdgesCommand::Abandon& command, Actions& actions) {
        const BlockOfStep& block = command.block;
        abandoned_.add(block);
        for (Rank rank = 0; rank < ranks_; ++rank) {
            cancel_waiting(peers_[rank], block, self_, actions);
            each_receive(rank, [&](Receive& receive) {
                const std::optional<Place>& landing = peers_[rank].landing;
                const bool begun = receive.got > 0 || (landing && landing->key == receive.key);
                return block.has(receive.key) && !begun && end(rank, receive, abandoned_by(self_, receive.key), actions);
            });
        }
        if (ranks_ > 1) word({0, others_.data()}, EdgeWord::abandon, block, actions);
    }

    void run(const EdgesCommand::Explain& command, Actions& actions) const {
        auto say = [&](const EdgeKey& key, std::string_view text) {
            complete(command.ticket, fail(Code::deadline, "{} {}", name_of(key), text), actions);
        };
        for (Rank rank = 0; rank < ranks_; ++rank) {
            for (const Receive& each : peers_[rank].receives)
                if (each.ticket == command.ticket)
                    return say(each.key, fmt::format("from rank {} is missing: {} of {} bytes are here, and rank {} has {} to send it",
                                                     rank, std::min(offset_of(each.got), each.place.bytes), each.place.bytes, rank,
                                                     each.landed > 0 ? "begun" : "not begun"));
            for (const Waiting& each : peers_[rank].waiting)
                if (each.ticket == command.ticket)
                    return say(each.key, fmt::format("to rank {} waits: 0 of {} bytes are sent, because rank {} has not posted its receive",
                                                     rank, each.value.bytes, rank));
        }
        for (const Outgoing& each : outgoing_)
            if (each.busy && each.ticket == command.ticket)
                return say(each.key, fmt::format("to rank {} is on its way: rank {} has not acknowledged all of its {} bytes", each.to,
                                                 each.to, each.bytes));
    }

    /// Where the rank was lost, neither side keeps anything from before but what this rank has abandoned.
    void up(Rank rank, Actions& actions) {
        if (std::exchange(peers_[rank].lost, Status{}).ok()) return;
        for (const BlockOfStep& block : abandoned_.all()) word({rank}, EdgeWord::abandon, block, actions);
    }

    void lost(Rank rank, const Status& why, Actions& actions) {
        Peer& peer = peers_[rank];
        peer.lost = why.ok() ? fail(Code::peer_lost, "rank {} is lost", rank) : why;
        peer.landing.reset();
        peer.asks.clear();
        peer.abandoned.clear();
        each_receive(rank, [&](Receive& receive) { return end(rank, receive, peer.lost, actions); });
        for (const Waiting& each : peer.waiting) complete(each.ticket, peer.lost, actions);
        peer.waiting.clear();
    }

    const Rank self_;
    const uint32_t ranks_, segment_bytes_;
    const std::vector<uint64_t> others_;   // all ranks but this one
    std::vector<Peer> peers_;
    std::vector<Outgoing> outgoing_;
    Abandoned abandoned_;   // by this rank
    int64_t ending_ = 0;    // receives with an error in `ended`
};

}   // namespace

std::unique_ptr<Protocol> edges_protocol(Rank self, uint32_t ranks, uint32_t segment_bytes) {
    return std::make_unique<EdgesProtocol>(self, ranks, segment_bytes);
}

void Edges::send(Rank to, const EdgeKey& key, Buffer value, uint64_t ticket) {
    host_.post(channel_, command_event<EdgesCommand>({EdgesCommand::Send{to, key, value, ticket}}));
}
void Edges::receive(Rank from, const EdgeKey& key, Buffer place, uint64_t ticket) {
    host_.post(channel_, command_event<EdgesCommand>({EdgesCommand::Receive{from, key, place, ticket}}));
}
void Edges::abandon(uint32_t step, uint32_t block) {
    host_.post(channel_, command_event<EdgesCommand>({EdgesCommand::Abandon{{step, block}}}));
}
void Edges::explain(uint64_t ticket) { host_.post(channel_, command_event<EdgesCommand>({EdgesCommand::Explain{ticket}})); }

}   // namespace gradcast
