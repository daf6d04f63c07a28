// What a stage of a net does in a step, and what it waits for.  Statistics: nothing depends on them.
#pragma once
#include <array>
#include <cstdint>

#include "algos/grid/schedule.h"

namespace gradcast {

/// Passes of all micro-batches, then waits: for values of the stages before, for gradients of the stages behind, until the link has sent
/// what it was given, for the sums of the ranks with the same stage, and for the reports of the other cells.
enum class StageTime : uint8_t { forward, backward, weights, values, gradients, unsent, sums, reports };
constexpr size_t stage_times = 8;
constexpr size_t stage_passes = 3;   // of them, the first ones; the others are waits

/// backward where passes_apart(): the data pass.
constexpr StageTime stage_time_of(StagePass pass) {
    return pass == StagePass::forward ? StageTime::forward : pass == StagePass::weights ? StageTime::weights : StageTime::backward;
}

struct PassTime {
    uint32_t begin_us = 0, end_us = 0;   // since the step began at this rank
    bool operator==(const PassTime&) const = default;
};

/// The record of one step.  Trainer thread.  Does not allocate.
struct StageRecord {
    static constexpr uint32_t passes_max = 128;

    uint64_t begin_us = 0;   // of the host's clock
    uint32_t micro_batches = 0;
    std::array<uint64_t, stage_times> us{};
    uint32_t passes = 0;   // in `times`: the first passes_max of the stage's tasks, in their order (stage_tasks())
    std::array<PassTime, passes_max> times{};

    void begin(uint64_t now_us) {
        begin_us = now_us;
        micro_batches = passes = 0;
        us = {};
    }
    void wait(StageTime what, uint64_t waited_us) { us[static_cast<size_t>(what)] += waited_us; }
    void pass(StagePass pass, uint64_t from_us, uint64_t to_us) {
        us[static_cast<size_t>(stage_time_of(pass))] += to_us - from_us;
        if (passes < passes_max) times[passes++] = {static_cast<uint32_t>(from_us - begin_us), static_cast<uint32_t>(to_us - begin_us)};
    }
};

}   // namespace gradcast
