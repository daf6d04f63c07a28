// Lanes: the threads of a rank that compute blocks side by side.  Which lane computes a block changes no bit of it.
// They yield to the network thread (niceness), which has little to do but at once: on a busy machine whole links stand idle for it.
#pragma once
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/core/types.h"

namespace gradcast {

class Lanes {
public:
    Lanes() = default;
    Lanes(const Lanes&) = delete;
    Lanes& operator=(const Lanes&) = delete;
    ~Lanes();
    /// count threads, each of which runs `start` first (pinning, thread settings of libraries).  count 0: the caller of run() is lane 0
    /// (the simulator).
    void open(uint32_t count, const std::function<void(uint32_t lane)>& start = {});
    uint32_t count() const { return threads_.empty() ? 1 : static_cast<uint32_t>(threads_.size()); }
    /// Runs task(lane, i) for i = 0 .. items-1, each once, and returns when all are done.  One caller at a time.  Does not allocate.
    void run(uint32_t items, const std::function<void(uint32_t lane, uint32_t item)>& task);

private:
    static constexpr int niceness = 10;
    void loop(uint32_t lane);
    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::condition_variable wake_, done_;
    const std::function<void(uint32_t, uint32_t)>* task_ = nullptr;
    uint32_t next_ = 0, items_ = 0, running_ = 0;
    bool stop_ = false;
};

}   // namespace gradcast
