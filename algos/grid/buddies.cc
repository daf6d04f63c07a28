#include "algos/grid/buddies.h"

#include <algorithm>

#include "runtime/core/status.h"

namespace gradcast {

uint32_t buddy_of(uint32_t stage, uint32_t stages) {
    GC_ASSERT(stages >= 2 && stage < stages);
    return stage % 2 == 1 || stage + 1 == stages ? stage - 1 : stage + 1;
}

std::vector<uint32_t> kept_by(uint32_t stage, uint32_t stages) {
    std::vector<uint32_t> all;
    for (uint32_t each = 0; each < stages; ++each)
        if (buddy_of(each, stages) == stage) all.push_back(each);
    return all;
}

std::vector<StageRun> runs_possible(uint32_t stage, uint32_t stages) {
    std::vector<uint32_t> firsts = {stage}, ends = {stage + 1};   // a rank keeps neighbours alone
    for (const uint32_t kept : kept_by(stage, stages)) (kept < stage ? firsts : ends).push_back(kept < stage ? kept : kept + 1);
    std::vector<StageRun> all;
    for (const uint32_t first : firsts)
        for (const uint32_t end : ends) all.push_back({first, end});
    return all;
}

std::vector<StageRun> runs_of_view(const std::vector<bool>& there) {
    const auto stages = static_cast<uint32_t>(there.size());
    std::vector<StageRun> runs;
    uint32_t before = stages;   // who computes the stage before
    for (uint32_t stage = 0; stage < stages; ++stage) {
        const uint32_t buddy = stages > 1 ? buddy_of(stage, stages) : stage;
        const uint32_t by = there[stage] || !there[buddy] ? stage : buddy;
        if (by == before) runs.back().end = stage + 1;
        else runs.push_back({stage, stage + 1});
        before = by;
    }
    return runs;
}

std::vector<uint32_t> kept_in_view(uint32_t stage, const std::vector<bool>& there) {
    std::vector<uint32_t> all;
    const std::vector<StageRun> runs = runs_of_view(there);
    if (there.size() < 2) return all;
    for (const uint32_t kept : kept_by(stage, static_cast<uint32_t>(there.size())))
        if (there[kept] && std::ranges::find(runs, StageRun{kept, kept + 1}) != runs.end()) all.push_back(kept);
    return all;
}

}   // namespace gradcast
