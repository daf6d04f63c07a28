// What logical workers keep between rounds and no sum has, such as multipliers: so many bytes a worker.  A node holds the states of its own
// workers; where a job writes checkpoints, all nodes get the states of all workers before each of them.
#pragma once
#include <span>
#include <vector>

#include "algos/algorithm.h"

namespace gradcast {

class WorkerStates {
public:
    /// Zeros at first.  Memory: `bytes` of each own worker, or with checkpoints of each worker of the job.
    void plan(const char* what, const AlgorithmPlan& plan, uint64_t bytes);
    /// Returns the state of worker WorkerSum::own()[own].
    template <typename T>
    std::span<T> of(size_t own) {
        return std::span(buffer_.as<T>() + slot(own) * bytes_ / sizeof(T), bytes_ / sizeof(T));
    }
    /// All of them, by worker; whole after gather() and until a worker's state changes.
    std::span<std::byte> all() { return {buffer_.host, buffer_.bytes}; }
    /// At all ranks between the same rounds: blocks until this one has the states of all workers.  Every rank sends those of its own
    /// workers to all others.  Error: peer_lost where nobody has the state of a worker.
    Status gather(Context& context);

private:
    uint64_t slot(size_t own) const { return by_worker_ ? own_[own] : own; }

    std::vector<uint32_t> own_;
    bool by_worker_ = false;
    uint64_t bytes_ = 0;
    Buffer buffer_;
    // Bits of ranks, which mail reads: all others, and by worker those that do not hold it.
    std::vector<uint64_t> others_;
    std::vector<std::vector<uint64_t>> lacking_;
};

}   // namespace gradcast
