// Which ranks hold the others up: those of the lowest step, if they are not the most, while all others wait and nothing comes to these any
// more.  Such a rank is neither silent nor stuck: its news come, and its trainer may wait.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "runtime/core/types.h"

namespace gradcast {

class HeldUp {
public:
    /// How far a rank is that is not lost.
    struct Standing {
        Rank rank = 0;
        uint64_t step = 0, done = 0;
        bool waits = false;
    };
    explicit HeldUp(uint32_t ranks) { behind_.reserve(ranks); }
    /// Returns for how long ranks() have held the others up, in microseconds.  Returns 0 if no rank does, or the job cannot go on without
    /// those that do, as spare() says.
    uint64_t look(std::span<const Standing> all, const std::function<bool(std::span<const Rank>)>& spare, uint64_t now_us);
    std::span<const Rank> ranks() const { return behind_; }
    uint64_t step() const { return step_; }   // that these ranks are in

private:
    std::vector<Rank> behind_;
    uint64_t step_ = 0;
    uint64_t done_ = 0, since_us_ = 0;   // what the others had done, and since when they wait
};

}   // namespace gradcast
