// Lanes: the threads of a rank that compute blocks side by side.  Which lane computes a block changes no bit of it.
#pragma once
#include <atomic>
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
    /// The caller of run() is lane 0: what it has just computed is in its cache, and it need not be woken.  Each other lane is a thread,
    /// which runs `start` first (pinning, thread settings of libraries).  count 0 is 1.
    void open(uint32_t count, const std::function<void(uint32_t lane)>& start = {});
    uint32_t count() const { return static_cast<uint32_t>(threads_.size()) + 1; }
    /// Runs task(lane, i) for i = 0 .. items-1, each once, and returns when all are done.  One caller at a time.  Does not allocate.
    void run(uint32_t items, const std::function<void(uint32_t lane, uint32_t item)>& task);

private:
    void loop(uint32_t lane);
    /// The next item.
    void work(std::unique_lock<std::mutex>& lock, uint32_t lane);
    template <typename Until>
    void wait(std::unique_lock<std::mutex>& lock, const std::atomic<uint32_t>& awake, std::condition_variable& asleep, Until until);
    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::condition_variable wake_, done_;
    const std::function<void(uint32_t, uint32_t)>* task_ = nullptr;
    uint32_t next_ = 0, items_ = 0, running_ = 0;
    std::atomic<uint32_t> begun_ = 0, ended_ = 0;   // who is awake looks at them: items for others, and all done
    bool stop_ = false;
};

/// Lets the calling thread yield to the network thread, which has little to do but at once: on a busy machine whole links would stand idle
/// for it.  For good, and for threads that it makes afterwards, too.
void yield_to_network();

}   // namespace gradcast
