#include "datasets/in_order.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "runtime/core/thread.h"

namespace gradcast {
namespace {

class Work {
public:
    explicit Work(const InOrder& work) : work_(work), slots_(in_order_slots(work.threads)), made_(slots_) {}

    Status run() {
        std::vector<Thread> threads(static_cast<size_t>(std::min<uint64_t>(work_.threads, work_.count)));
        Status status;
        size_t started = 0;
        for (Thread& thread : threads) {
            status = thread.start([this] { make(); });
            if (!status.ok()) break;
            ++started;
        }
        if (started > 0) status = take();   // those that run can do all of it
        {
            std::lock_guard lock(mutex_);
            stop_ = true;
        }
        room_.notify_all();
        for (size_t i = 0; i < started; ++i) threads[i].join();
        return status;
    }

private:
    /// Items are claimed in order, so the one that is taken next is never without memory.
    bool may_claim() const { return claimed_ < taken_ + slots_ && (bytes_ == 0 || bytes_ + work_.bytes(claimed_) <= work_.bytes_max); }
    void make() {
        std::unique_lock lock(mutex_);
        for (;;) {
            room_.wait(lock, [&] { return stop_ || claimed_ == work_.count || may_claim(); });
            if (stop_ || claimed_ == work_.count) return;
            const uint64_t item = claimed_++;
            bytes_ += work_.bytes(item);
            lock.unlock();
            const auto slot = static_cast<uint32_t>(item % slots_);
            work_.make(item, slot);
            lock.lock();
            made_[slot] = true;
            ready_.notify_one();
        }
    }
    Status take() {
        for (uint64_t item = 0; item < work_.count; ++item) {
            const auto slot = static_cast<uint32_t>(item % slots_);
            {
                std::unique_lock lock(mutex_);
                ready_.wait(lock, [&] { return made_[slot]; });
                made_[slot] = false;
            }
            GC_TRY(work_.take(item, slot));
            {
                std::lock_guard lock(mutex_);
                ++taken_;
                bytes_ -= work_.bytes(item);
            }
            room_.notify_all();
        }
        return {};
    }

    const InOrder& work_;
    const uint32_t slots_;
    std::mutex mutex_;
    std::condition_variable room_, ready_;
    // Of all items from the first one on: claimed by a thread, taken.
    uint64_t claimed_ = 0, taken_ = 0;
    uint64_t bytes_ = 0;       // of those between
    std::vector<bool> made_;   // by slot: waits to be taken
    bool stop_ = false;
};

}   // namespace

uint32_t in_order_slots(uint32_t threads) { return threads > 1 ? 2 * threads : 1; }

Status in_order(const InOrder& work) {
    GC_ASSERT(work.threads > 0);
    if (work.threads > 1) return Work(work).run();
    for (uint64_t item = 0; item < work.count; ++item) {
        work.make(item, 0);
        GC_TRY(work.take(item, 0));
    }
    return {};
}

}   // namespace gradcast
