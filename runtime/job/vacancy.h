// Stands on a channel for the exchange that `auto` chooses while the job runs.  Until it is there, what others who have it already send is
// held up (streams) or lost and sent again (datagrams).
#pragma once
#include "runtime/core/protocol.h"

namespace gradcast {

class Vacancy final : public Protocol {
public:
    explicit Vacancy(bool datagrams) : landing_(datagrams ? Landing::drop : Landing::later) {}

    /// Trainer thread, once, with the host's channel on which this stands.
    void fill(Protocol& next, Host& host, uint16_t channel) {
        next_ = &next;
        host.post(channel, command_event(Command::filled));   // which hands next_ to the network thread
    }

    void on(std::span<const Event> events, Actions& actions) override {
        for (; !inner_ && !events.empty(); events = events.subspan(1)) {
            if (events[0].kind == Event::Kind::peer_lost) lost_.push_back(events[0]);
            if (events[0].kind != Event::Kind::command || events[0].command != static_cast<uint32_t>(Command::filled)) continue;
            inner_ = next_;
            if (!lost_.empty()) inner_->on(lost_, actions);
        }
        if (!events.empty()) inner_->on(events, actions);
    }
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override {
        return inner_ ? inner_->land(packet, bytes, place) : landing_;
    }

private:
    enum class Command : uint32_t { filled = 1 };
    const Landing landing_;
    Protocol *next_ = nullptr, *inner_ = nullptr;
    std::vector<Event> lost_;   // ranks
};

}   // namespace gradcast
