// A profile of one step of one rank: the phases of its threads as a Chrome trace ("traceEvents", chrome://tracing or Perfetto).
#pragma once
#include <array>
#include <atomic>
#include <string>
#include <string_view>

#include "runtime/core/clock.h"
#include "runtime/core/status.h"

namespace gradcast {

/// Events of all threads, up to events_max; further ones are counted only.  Does not allocate after its construction.
class Profile {
public:
    static constexpr uint32_t events_max = 1 << 14;
    /// Thread numbers besides those of lanes.
    static constexpr uint32_t trainer = 1000, network = 1001;

    explicit Profile(uint64_t of) : step(of) {}
    const uint64_t step;                                              // the recorded step
    bool on() const { return on_.load(std::memory_order_relaxed); }   // relaxed: orders nothing
    void on(bool is) { on_.store(is, std::memory_order_relaxed); }
    /// phase: a string literal; what: a layer or bucket, of which the first 23 letters are kept.
    void add(uint32_t thread, const char* phase, std::string_view what, uint64_t begin_ns, uint64_t end_ns);
    /// The trace of this rank.  Call after the step: events that are being added are left out.
    std::string json(uint32_t rank, const std::string& node) const;

private:
    struct Event {
        std::atomic<bool> ready{false};
        uint32_t thread = 0;
        const char* phase = nullptr;
        std::array<char, 24> what{};
        uint64_t begin_ns = 0, end_ns = 0;
    };
    std::atomic<bool> on_{false};
    std::atomic<uint32_t> count_{0};
    std::array<Event, events_max> events_;
};

/// Adds an event that lasts for its lifetime; no-op if profile is null or off.
class Span {
public:
    Span(Profile* profile, uint32_t thread, const char* phase, std::string_view what = {})
        : profile_(profile && profile->on() ? profile : nullptr), thread_(thread), phase_(phase), what_(what) {
        if (profile_) begin_ns_ = clock_ns();
    }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;
    ~Span() {
        if (profile_) profile_->add(thread_, phase_, what_, begin_ns_, clock_ns());
    }

private:
    Profile* profile_;
    uint32_t thread_;
    const char* phase_;
    std::string_view what_;
    uint64_t begin_ns_ = 0;
};

}   // namespace gradcast
