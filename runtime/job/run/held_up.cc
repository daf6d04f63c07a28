#include "runtime/job/run/held_up.h"

#include <algorithm>

namespace gradcast {

uint64_t HeldUp::look(std::span<const Standing> all, const std::function<bool(std::span<const Rank>)>& spare, uint64_t now_us) {
    step_ = ~uint64_t{0};
    for (const Standing& each : all) step_ = std::min(step_, each.step);
    behind_.clear();
    uint64_t done = step_;
    bool all_wait = true;
    for (const Standing& each : all) {
        if (each.step == step_) {
            behind_.push_back(each.rank);
        } else {
            all_wait &= each.waits;
            done += each.step + each.done;
        }
    }
    const bool held = all_wait && 2 * behind_.size() <= all.size() && spare(behind_);
    if (!held || done != done_) {
        done_ = done;
        since_us_ = now_us;
    }
    return now_us - since_us_;
}

}   // namespace gradcast
