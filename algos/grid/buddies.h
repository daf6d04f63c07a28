// With `buddy`: which rank keeps a stage's state beside its own, and which stages a rank computes when others are lost.  Pure functions.
// Stages are those that the net is cut into while no node is lost.
//
//     stage            0   1     2   3   4         buddies: (0, 1), (2, 3), and 4 is kept where 3 is computed
//     without 1, 4    [0   1]   [2] [3   4]        three runs on three ranks
#pragma once
#include <cstdint>
#include <vector>

namespace gradcast {

/// Neighbouring stages that one rank computes as one: first .. end - 1.
struct StageRun {
    uint32_t first = 0, end = 1;
    bool has(uint32_t stage) const { return stage >= first && stage < end; }
    uint32_t stages() const { return end - first; }
    bool operator==(const StageRun&) const = default;
};

/// Where the state of this stage is kept too: at the rank that computes the stage which this function returns.  stages >= 2.
uint32_t buddy_of(uint32_t stage, uint32_t stages);
/// The stages whose buddy it is, ascending.
std::vector<uint32_t> kept_by(uint32_t stage, uint32_t stages);
/// All runs that the rank of a stage may compute: the stage alone first, the run with all that it keeps last.
std::vector<StageRun> runs_possible(uint32_t stage, uint32_t stages);

/// The runs of a view, ascending.  there: by stage, whether the view has a rank with it.  A stage without one joins the run of its buddy.
/// If that one is not there either, the stage is a run of its own, without a rank.
std::vector<StageRun> runs_of_view(const std::vector<bool>& there);
/// The stages that the rank of `stage`, which is there, keeps in that view.  A run of several stages is kept by nobody.
std::vector<uint32_t> kept_in_view(uint32_t stage, const std::vector<bool>& there);

}   // namespace gradcast
