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

/// What a logical worker has computed at one node, so far.
struct WorkerCounts {
    uint32_t worker = 0;
    uint64_t rounds = 0;       // in which it has computed there
    uint64_t last_round = 0;   // of them, from 1 on
    uint64_t samples = 0;      // that it has trained on, each as often as a step took it
    uint64_t gradients = 0;    // of samples, also where no step took them
    uint64_t forwards = 0;     // samples that were only evaluated
    uint64_t compute_us = 0;   // time of all that
    bool operator==(const WorkerCounts&) const = default;
};
constexpr size_t workers_told_max = 256;   // of a node, to observers

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
