#include "runtime/core/lanes.h"

#include <sys/resource.h>
#include <unistd.h>

#include "runtime/core/status.h"

namespace gradcast {

Lanes::~Lanes() {
    {
        std::lock_guard lock(mutex_);
        stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

void Lanes::open(uint32_t count, const std::function<void(uint32_t)>& start) {
    GC_ASSERT(threads_.empty());
    for (uint32_t lane = 1; lane < count; ++lane)
        threads_.emplace_back([this, lane, start] {
            if (start) start(lane);
            loop(lane);
        });
}

void Lanes::run(uint32_t items, const std::function<void(uint32_t, uint32_t)>& task) {
    std::unique_lock lock(mutex_);
    GC_ASSERT(!task_);
    task_ = &task, next_ = 0, items_ = items;
    if (items > 1) wake_.notify_all();
    while (next_ < items_) work(lock, 0);
    done_.wait(lock, [this] { return running_ == 0; });
    task_ = nullptr;
}

void Lanes::work(std::unique_lock<std::mutex>& lock, uint32_t lane) {
    const auto* task = task_;
    const uint32_t item = next_++;
    ++running_;
    lock.unlock();
    (*task)(lane, item);
    lock.lock();
    if (--running_ == 0 && next_ == items_) done_.notify_all();
}

void Lanes::loop(uint32_t lane) {
    std::unique_lock lock(mutex_);
    for (;;) {
        wake_.wait(lock, [this] { return stop_ || (task_ && next_ < items_); });
        if (stop_) return;
        work(lock, lane);
    }
}

void yield_to_network() {
    constexpr int niceness = 10;
    (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), niceness);
}

}   // namespace gradcast
