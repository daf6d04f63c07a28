// Progress of a trainer, for observers.
#pragma once
#include <atomic>
#include <cstdint>

namespace gradcast {

/// Written by a rank's trainer and its lanes, read by the job protocol on the network thread.  Counters, so relaxed.
struct Progress {
    std::atomic<uint64_t> step{0};
    std::atomic<uint64_t> done{0};      // grows with every computed bucket, applied step, evaluated batch, and received packet
    std::atomic<bool> waiting{false};   // for other ranks
    void advance() { done.fetch_add(1, std::memory_order_relaxed); }
};

/// The trainer waits for other ranks during the lifetime of this object.
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
