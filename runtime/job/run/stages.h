// Where a job's net is cut, and which rank computes which stage and slices.
#pragma once
#include <optional>
#include <span>

#include "algos/grid/buddies.h"
#include "algos/pipeline.h"
#include "runtime/job/file/job_file.h"

namespace gradcast {

/// Which cell a node of the job computes as long as it runs; with `buddy` its stage may be one of a run.
constexpr Cell cell_of_node(NodeId node, uint32_t stages, uint32_t slice_groups = 1) {
    return cell_numbered(static_cast<uint32_t>(node) % (stages * slice_groups), slice_groups);
}

/// Which ranks of a view compute the stages that the net is cut into, and which keep them.
struct ViewStages {
    /// For a view with these nodes, by rank.  Without `buddy` each stage is a run of its own; with it there is one slice group.
    ViewStages(std::span<const NodeId> nodes, uint32_t stages, bool buddy, uint32_t slice_groups = 1);
    ViewStages() = default;

    std::vector<uint32_t> own;    // by rank: its stage, in whatever run
    std::vector<bool> there;      // by stage: some rank has it
    std::vector<StageRun> runs;   // stages of the grid
    Grid grid;
    bool buddies = false;

    /// The grid's stage that has it.
    uint32_t cell_of(uint32_t stage) const;
    StageRun run_of(Rank rank) const { return runs[grid.cell_of(rank).stage]; }
    /// Stages that a rank keeps beside its run.
    std::vector<uint32_t> kept(Rank rank) const;
    /// Ranks that compute the stage with the slices of that group, ascending, then the one that keeps it.
    std::vector<Rank> holders(uint32_t stage, uint32_t slice_group = 0) const;
    /// The first stage, and slice group of it, that nobody computes; nothing: the grid has a replica.
    std::optional<Cell> missing() const;
    /// `cut`, as the job's first view has it, with the runs as stages and that of `rank` as its own.
    PipelineConfig pipeline(const PipelineConfig& cut, Rank rank) const;
};

/// `cut` where the rank of stage cut.own_stage computes this run, and all other stages are apart.
PipelineConfig pipeline_of_run(const PipelineConfig& cut, const StageRun& run);

/// Plans a job with stages or slice groups, which n nodes begin.  *about becomes the key that an error is about.  Errors: more
/// stages than the net has, a layer that cannot begin one, nodes that the stages do not fill.
Status stages_plan(const JobConfig& job, const NetSpec& spec, uint32_t n, NodeId self, uint32_t lanes, PipelineConfig* config,
                   std::string* about);

}   // namespace gradcast
