// How long the phases of each step take at one rank; and of one step, what its threads did as a Chrome trace ("traceEvents",
// chrome://tracing or Perfetto).
#pragma once
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/core/clock.h"
#include "runtime/core/status.h"

namespace gradcast {

/// The phases of a step.  load and quantise are the lanes', within compute; encode, send, decode and add are the network thread's, beside
/// it.  edges is a stage's wait for other stages, a part of wait.
enum class StepPhase : uint8_t { load, compute, quantise, encode, send, wait, edges, decode, add, apply };
constexpr size_t step_phases = 10;
const char* step_phase_name(StepPhase phase);

/// Which micro-batch of a stage an event is of, both from 1 on; stage 0: of none.
struct MicroBatchPlace {
    uint32_t stage = 0, micro_batch = 0;
};

/// Times of all steps; and events of all threads in one step, up to events_max, further ones are counted only.  Does not allocate after its
/// construction.
class Profile {
public:
    static constexpr uint32_t events_max = 1 << 14;
    /// Thread numbers besides those of lanes.
    static constexpr uint32_t trainer = 1000, network = 1001;

    static constexpr uint64_t no_step = ~uint64_t{0};

    explicit Profile(uint64_t of = no_step) : step(of), events_(of == no_step ? nullptr : std::make_unique<Event[]>(events_max)) {}
    const uint64_t step;   // whose events are recorded
    // relaxed: times of one step may count in the next
    void time(StepPhase phase, uint64_t ns) { times_[static_cast<size_t>(phase)].fetch_add(ns, std::memory_order_relaxed); }
    /// Returns the time that was added since the last call.
    uint64_t take_ns(StepPhase phase) { return times_[static_cast<size_t>(phase)].exchange(0, std::memory_order_relaxed); }
    bool on() const { return on_.load(std::memory_order_relaxed); }   // relaxed: orders nothing
    void on(bool is) { on_.store(is, std::memory_order_relaxed); }
    /// phase: a string literal; what: a layer or bucket, of which the first 23 letters are kept.  A place is the event's "args"; an
    /// event with a place and without `what` is named by its micro-batch.
    void add(uint32_t thread, const char* phase, std::string_view what, uint64_t begin_ns, uint64_t end_ns, MicroBatchPlace place = {});
    /// The trace of this rank.  Call after the step: events that are being added are omitted.
    std::string json(uint32_t rank, const std::string& node) const;

private:
    struct Event {
        std::atomic<bool> ready{false};
        uint32_t thread = 0;
        const char* phase = nullptr;
        std::array<char, 24> what{};
        uint64_t begin_ns = 0, end_ns = 0;
        MicroBatchPlace place;
    };
    std::atomic<bool> on_{false};
    std::atomic<uint32_t> count_{0};
    std::array<std::atomic<uint64_t>, step_phases> times_{};
    const std::unique_ptr<Event[]> events_;
};

/// Times a phase for its lifetime, and adds an event while the profile is on; no-op if profile is null.
class Span {
public:
    Span(Profile* profile, uint32_t thread, StepPhase phase, std::string_view what = {})
        : profile_(profile), thread_(thread), phase_(phase), what_(what) {
        if (profile_) begin_ns_ = clock_ns();
    }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;
    ~Span() {
        if (!profile_) return;
        const uint64_t end_ns = clock_ns();
        profile_->time(phase_, end_ns - begin_ns_);
        if (profile_->on()) profile_->add(thread_, step_phase_name(phase_), what_, begin_ns_, end_ns);
    }

private:
    Profile* profile_;
    uint32_t thread_;
    StepPhase phase_;
    std::string_view what_;
    uint64_t begin_ns_ = 0;
};

}   // namespace gradcast
