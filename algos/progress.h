// How far a trainer is, for those who watch it.
#pragma once
#include <atomic>
#include <cstdint>

namespace gradcast {

/// How far a rank's trainer is: written by it and its lanes, looked at by the job protocol on the network thread.  Counters, so relaxed.
struct Progress {
    std::atomic<uint64_t> step{0};
    std::atomic<uint64_t> done{0};   // grows with every bucket computed, every step applied, every batch evaluated, and while packets come
    std::atomic<bool> waiting{false};   // for other ranks
    void advance() { done.fetch_add(1, std::memory_order_relaxed); }
};

/// The trainer waits for others as long as this lives.
struct Waiting {
    explicit Waiting(Progress& p) : progress(p) { progress.waiting.store(true, std::memory_order_relaxed); }
    ~Waiting() {
        progress.advance();
        progress.waiting.store(false, std::memory_order_relaxed);
    }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    Progress& progress;
};

}   // namespace gradcast
