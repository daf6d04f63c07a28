// Calls something at a time of the simulator, as a daemon's thread would: a protocol of no view with a timer.
#pragma once
#include <functional>
#include <utility>

#include "transport/sim/sim.h"

namespace gradcast {

/// To be attached to a rank on `channel`, which no other protocol has.
class Alarm final : public Protocol {
public:
    static constexpr uint16_t channel = 1000;
    Alarm(uint64_t at_us, std::function<void()> what) : at_us_(at_us), what_(std::move(what)) {}
    void on(std::span<const Event> events, Actions& actions) override {
        if (!std::exchange(set_, true)) actions.timers.push_back({1, at_us_});
        for (const Event& event : events)
            if (event.is<Event::TimerExpired>()) what_();
    }
    Landing land(const Packet&, uint64_t, Buffer*) override { return Landing::drop; }

private:
    const uint64_t at_us_;
    const std::function<void()> what_;
    bool set_ = false;
};

}   // namespace gradcast
