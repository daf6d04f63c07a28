// The memory that the jobs of a daemon may take together (`memory` in gradcastd.toml).
#pragma once
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

namespace gradcast {

/// Any thread.
class MemoryBudget {
public:
    /// limit: in bytes; 0: there is none.  `setting`: what messages call it.
    MemoryBudget(uint64_t limit, std::string setting) : limit_(limit), setting_(std::move(setting)) {}
    /// Returns the bytes that are not taken; UINT64_MAX without a limit.
    uint64_t remaining() const {
        std::lock_guard lock(mutex_);
        return limit_ == 0 ? UINT64_MAX : limit_ - taken_;
    }
    const std::string& setting() const { return setting_; }

    /// A part of it, which goes back with the object.
    class Share {
    public:
        Share() = default;
        Share(const Share&) = delete;
        Share& operator=(const Share&) = delete;
        ~Share() {
            if (!budget_) return;
            std::lock_guard lock(budget_->mutex_);
            budget_->taken_ -= bytes_;
        }
        /// Once.  False: less remains.  `budget` outlives this.
        bool take(MemoryBudget& budget, uint64_t bytes) {
            std::lock_guard lock(budget.mutex_);
            if (budget.limit_ > 0 && bytes > budget.limit_ - budget.taken_) return false;
            budget_ = &budget;
            budget.taken_ += bytes_ = bytes;
            return true;
        }

    private:
        MemoryBudget* budget_ = nullptr;
        uint64_t bytes_ = 0;
    };

private:
    const uint64_t limit_;
    const std::string setting_;
    mutable std::mutex mutex_;
    uint64_t taken_ = 0;
};

}   // namespace gradcast
