#include "runtime/job/run/alone.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "runtime/core/clock.h"
#include "transport/code/kernels.h"

namespace gradcast {

uint64_t Alone::now_us() { return clock_us(); }

void Alone::post(uint16_t channel, const Event& event) {
    std::lock_guard lock(mutex_);
    if (!protocols_.contains(channel)) return;
    inbox_.emplace_back(channel, event);
    changed_.notify_one();
}

Status Alone::wait(std::vector<Completion>* out, uint64_t until_us) {
    std::unique_lock lock(mutex_);
    while (done_.empty()) {
        if (inbox_.empty()) {
            const uint64_t now = now_us();
            if (now >= until_us) return fail(Code::deadline, "nothing was completed");
            changed_.wait_for(lock, std::chrono::microseconds(std::min<uint64_t>(until_us - now, 10'000)));
            continue;
        }
        const auto batch = std::exchange(inbox_, {});
        lock.unlock();
        for (const auto& [channel, event] : batch) give(channel, event);
        lock.lock();
    }
    out->insert(out->end(), done_.begin(), done_.end());
    done_.clear();
    return {};
}

void Alone::open_view(uint32_t, std::span<const Attachment> attachments) {
    std::lock_guard lock(mutex_);
    for (const Attachment& each : attachments) protocols_[each.channel] = each.protocol;
}

Status Alone::close_view(uint64_t) {
    std::lock_guard lock(mutex_);
    inbox_.clear(), done_.clear(), protocols_.clear();
    return {};
}

/// Trainer thread, as open_view() and close_view().
void Alone::give(uint16_t channel, const Event& event) {
    Actions actions;
    actions.now_us = now_us();
    protocols_.at(channel)->on({&event, 1}, actions);
    GC_ASSERT(actions.sends.empty());   // there is nobody
    for (const Compute& compute : actions.computes) {
        compute_now(compute);
        post(channel, {Event::Computed{compute.ticket}});
    }
    std::lock_guard lock(mutex_);
    for (Completion completion : actions.completions) {
        completion.channel = channel;
        done_.push_back(completion);
    }
}

}   // namespace gradcast
