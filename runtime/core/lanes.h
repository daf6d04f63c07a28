// Lanes: the threads of a rank that compute blocks concurrently.  A block's bits do not depend on its lane.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

#include "runtime/core/thread.h"
#include "runtime/core/types.h"

namespace gradcast {

class Lanes {
public:
    Lanes() = default;
    Lanes(const Lanes&) = delete;
    Lanes& operator=(const Lanes&) = delete;
    ~Lanes();
    /// Makes count - 1 threads; the caller of run() is lane 0.  Each thread runs `start` first (pinning, thread settings of libraries).
    /// count 0 is 1.  Error: a thread cannot be made.
    Status open(uint32_t count, const std::function<void(uint32_t lane)>& start = {});
    uint32_t count() const { return static_cast<uint32_t>(threads_.size()) + 1; }
    /// Runs task(lane, i) once for each i = 0 .. items-1; blocks until all are done.  One caller at a time.  Does not allocate.
    void run(uint32_t items, const std::function<void(uint32_t lane, uint32_t item)>& task);

private:
    void loop(uint32_t lane);
    /// Runs the next item, unlocked.
    void work(std::unique_lock<std::mutex>& lock, uint32_t lane);
    template <typename Until>
    void wait(std::unique_lock<std::mutex>& lock, const std::atomic<uint32_t>& awake, std::condition_variable& asleep, Until until);
    std::vector<Thread> threads_;
    std::mutex mutex_;
    std::condition_variable wake_, done_;
    const std::function<void(uint32_t, uint32_t)>* task_ = nullptr;
    uint32_t next_ = 0, items_ = 0, running_ = 0;
    std::atomic<uint32_t> begun_ = 0, ended_ = 0;   // spinning threads watch them: items to run; all done
    bool stop_ = false;
};

/// Lowers the priority of the calling thread, and of threads that it makes afterwards, below the network thread's, which needs the CPU
/// briefly but at once.
void yield_to_network();

}   // namespace gradcast
