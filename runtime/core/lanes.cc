#include "runtime/core/lanes.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>

#include "runtime/core/status.h"

namespace gradcast {

/// Spins for 50 us before it sleeps: a wake-up takes as long as a layer of a small net.
template <typename Until>
void Lanes::wait(std::unique_lock<std::mutex>& lock, const std::atomic<uint32_t>& awake, std::condition_variable& asleep, Until until) {
    using Clock = std::chrono::steady_clock;
    if (until()) return;
    const uint32_t seen = awake;
    lock.unlock();
    for (const auto end = Clock::now() + std::chrono::microseconds(50); awake == seen && Clock::now() < end;) __builtin_ia32_pause();
    lock.lock();
    asleep.wait(lock, until);
}

Lanes::~Lanes() {
    {
        std::lock_guard lock(mutex_);
        stop_ = true;
        ++begun_;
    }
    wake_.notify_all();
    for (Thread& thread : threads_) thread.join();
}

Status Lanes::open(uint32_t count, const std::function<void(uint32_t)>& start) {
    GC_ASSERT(threads_.empty());
    for (uint32_t lane = 1; lane < count; ++lane) {
        Thread thread;
        GC_TRY(thread.start([this, lane, start] {
            if (start) start(lane);
            loop(lane);
        }));
        threads_.push_back(std::move(thread));
    }
    return {};
}

void Lanes::run(uint32_t items, const std::function<void(uint32_t, uint32_t)>& task) {
    std::unique_lock lock(mutex_);
    GC_ASSERT(!task_);
    task_ = &task;
    next_ = 0;
    items_ = items;
    begun_ += items > 1;
    if (items > 1) wake_.notify_all();
    while (next_ < items_) work(lock, 0);
    wait(lock, ended_, done_, [this] { return running_ == 0; });
    task_ = nullptr;
}

void Lanes::work(std::unique_lock<std::mutex>& lock, uint32_t lane) {
    const auto* task = task_;
    const uint32_t item = next_++;
    ++running_;
    lock.unlock();
    (*task)(lane, item);
    lock.lock();
    if (--running_ == 0 && next_ == items_) {
        ++ended_;
        done_.notify_all();
    }
}

void Lanes::loop(uint32_t lane) {
    std::unique_lock lock(mutex_);
    for (;;) {
        wait(lock, begun_, wake_, [this] { return stop_ || (task_ && next_ < items_); });
        if (stop_) return;
        work(lock, lane);
    }
}

void yield_to_network() {
    constexpr int niceness = 10;
    (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), niceness);
}

}   // namespace gradcast
