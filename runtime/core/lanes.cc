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
    for (uint32_t lane = 0; lane < count; ++lane)
        threads_.emplace_back([this, lane, start] {
            (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), niceness);
            if (start) start(lane);
            loop(lane);
        });
}

void Lanes::run(uint32_t items, const std::function<void(uint32_t, uint32_t)>& task) {
    if (threads_.empty()) {
        for (uint32_t item = 0; item < items; ++item) task(0, item);
        return;
    }
    std::unique_lock lock(mutex_);
    GC_ASSERT(!task_);
    task_ = &task, next_ = 0, items_ = items;
    wake_.notify_all();
    done_.wait(lock, [this] { return next_ == items_ && running_ == 0; });
    task_ = nullptr;
}

void Lanes::loop(uint32_t lane) {
    std::unique_lock lock(mutex_);
    for (;;) {
        wake_.wait(lock, [this] { return stop_ || (task_ && next_ < items_); });
        if (stop_) return;
        const auto* task = task_;
        uint32_t item = next_++;
        ++running_;
        lock.unlock();
        (*task)(lane, item);
        lock.lock();
        if (--running_ == 0 && next_ == items_) done_.notify_all();
    }
}

}   // namespace gradcast
