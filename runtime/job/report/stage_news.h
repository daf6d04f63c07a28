// What the ranks of a net in stages tell each other of their stages: how long passes and waits of the last steps have taken, and when the
// passes of one step began and ended.
#pragma once
#include <array>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "algos/stage_record.h"
#include "runtime/core/le.h"
#include "runtime/core/types.h"

namespace gradcast {

struct StageNews {
    uint32_t steps = 0;           // that the means are of; 0: nothing is known
    uint32_t micro_batches = 0;   // of the last step
    // Microseconds, means of the last steps, so that parts add up: of a step until all sums are reported; of what the stage did and waited
    // for in it.
    uint32_t step_us = 0;
    std::array<uint32_t, stage_times> us{};
    uint64_t shown = 0;                  // the step, from 1 on, that these passes are of
    std::vector<PassTime> passes = {};   // the first ones of that step, StageRecord::passes_max at most, in the order of the schedule

    uint32_t of(StageTime what) const { return us[static_cast<size_t>(what)]; }
    /// The share of a step in which the stage computed nothing; below 0: not known.
    double idle() const;
    bool operator==(const StageNews&) const = default;
};

/// The wire form of StageNews, behind the news of a rank (job_news.h).  `passes` of its pairs of numbers follow, in 65535ths of span_us.
struct StageNewsWire {
    Le64 shown;
    Le32 steps, step_us, span_us, us[stage_times];
    Le16 micro_batches, passes;
};
static_assert(sizeof(StageNewsWire) == 24 + 4 * stage_times && alignof(StageNewsWire) == 1);
constexpr size_t stage_news_bytes_max = sizeof(StageNewsWire) + StageRecord::passes_max * 2 * sizeof(Le16);

/// Returns the bytes written, at most stage_news_bytes_max; 0 where nothing is known.
size_t stage_news_write(const StageNews& news, std::span<std::byte, stage_news_bytes_max> to);
/// False: the bytes are none.
bool stage_news_read(std::span<const std::byte> bytes, StageNews* news);

/// The last steps of this rank.  step(): trainer thread, without allocation; read(): any thread.
class StageLog {
public:
    static constexpr uint32_t recent_steps = 16;
    /// Passes are kept of steps whose number is a multiple of a power of two that follows from step_us, about one a second: so most ranks
    /// show the same step.
    void step(uint64_t number, const StageRecord& record, uint64_t step_us);
    StageNews read() const;

private:
    struct Times {
        uint32_t step_us = 0;
        std::array<uint32_t, stage_times> us{};
    };
    mutable std::mutex mutex_;
    std::array<Times, recent_steps> times_;
    uint32_t count_ = 0, micro_batches_ = 0;
    uint64_t shown_ = 0;
    uint32_t passes_ = 0;
    std::array<PassTime, StageRecord::passes_max> kept_;
};

/// The newest news of each node: set() by the network thread, get() by any.
class StagesOfNodes {
public:
    void plan(size_t nodes);   // before the first step
    void set(size_t node, StageNews news);
    StageNews get(size_t node) const;

private:
    mutable std::mutex mutex_;
    std::vector<StageNews> news_;
};

}   // namespace gradcast
