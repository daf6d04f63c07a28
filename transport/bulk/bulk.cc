#include "transport/bulk/bulk.h"

#include <algorithm>

#include "transport/bulk/receiver.h"
#include "transport/bulk/sender.h"

namespace gradcast {
namespace bulk {
namespace {

constexpr uint64_t tick = uint64_t{1} << 63;   // of bulk's own timer
constexpr uint32_t batch_max = 512;            // packets given to the user at a time

class Bulk final : public Protocol {
public:
    Bulk(const BulkConfig& config, Protocol& user, Arena& arena, BulkCounters* counters)
        : config_(config), user_(user), sender_(config, arena, counters), receiver_(config, user, arena, counters) {
        packets_.reserve(batch_max);
        events_.reserve(2 * batch_max);
    }

    void on(std::span<const Event> events, Actions& actions) override {
        inner_.clear();
        inner_.now_us = actions.now_us;
        for (const Event& event : events) take(event, actions);
        do {
            give(actions);
            for (const Send& send : inner_.sends) sender_.enqueue(send);
            inner_.sends.clear();
            receiver_.emit(sender_, actions, &packets_);
            announce();
            sender_.emit(actions, &events_);
        } while (!events_.empty());
        const uint64_t due = std::min(sender_.due_us(), receiver_.due_us());
        if (due != due_us_ && due != ~uint64_t{0}) actions.timers.push_back({tick, std::max(due, actions.now_us + 1)});
        due_us_ = due;
    }

    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override { return receiver_.land(packet, bytes, place); }

private:
    void take(const Event& event, Actions& actions) {
        if (const auto* received = event.is<Event::Received>()) return take(*received->packet, actions);
        if (const auto* sent = event.is<Event::Sent>()) return sender_.sent(sent->ticket);
        if (const auto* timer = event.is<Event::TimerExpired>(); timer && timer->id == tick) {
            due_us_ = 0;
            return;
        }
        if (const auto* lost = event.is<Event::PeerLost>()) {
            sender_.peer_lost(lost->rank, lost->status);
            receiver_.peer_lost(lost->rank);
        }
        events_.push_back(event);
    }

    void take(const Packet& packet, Actions& actions) {
        if (packet.type == PacketType::feedback) {
            if (packet.sender >= config_.ranks || packet.sender == config_.self) return;
            if (receiver_.feedback(packet, actions.now_us)) sender_.feedback(packet, actions.now_us);
            return;
        }
        if (packets_.capacity() < packets_.size() + Receiver::given_max) give(actions);
        receiver_.take(packet, actions.now_us, &packets_);
        announce();
    }

    /// Makes events for new packets.
    void announce() {
        for (; announced_ < packets_.size(); ++announced_) events_.push_back({Event::Received{&packets_[announced_]}});
    }

    /// Gives the events to the user, whose actions are collected in inner_.
    void give(Actions& actions) {
        if (events_.empty()) return;
        user_.on(events_, inner_);
        events_.clear();
        packets_.clear();
        announced_ = 0;
        auto move = [](auto& from, auto& to) {
            to.insert(to.end(), from.begin(), from.end());
            from.clear();
        };
        move(inner_.timers, actions.timers);
        move(inner_.computes, actions.computes);
        move(inner_.completions, actions.completions);
    }

    const BulkConfig config_;
    Protocol& user_;
    Sender sender_;
    Receiver receiver_;
    Actions inner_;
    std::vector<Event> events_;     // for the user
    std::vector<Packet> packets_;   // that the events point to
    size_t announced_ = 0;
    uint64_t due_us_ = ~uint64_t{0};
};

}   // namespace
}   // namespace bulk

std::unique_ptr<Protocol> bulk_create(const BulkConfig& config, Protocol& user, Arena& arena, BulkCounters* counters) {
    GC_ASSERT(config.self < config.ranks && config.ranks <= ranks_max && counters);
    GC_ASSERT(config.segment_bytes >= bulk_segment_min && config.segment_bytes <= bulk_segment_max && config.segment_bytes % 8 == 0);
    return std::make_unique<bulk::Bulk>(config, user, arena, counters);
}

}   // namespace gradcast
