// Where a job's net is cut, and which rank computes which stage.
#pragma once
#include <optional>
#include <span>

#include "algos/grid/buddies.h"
#include "algos/pipeline.h"
#include "runtime/job/file/job_file.h"

namespace gradcast {

/// Which stage a node of the job computes as long as it runs, alone or in a run of several.
constexpr uint32_t stage_of(NodeId node, uint32_t stages) { return static_cast<uint32_t>(node) % stages; }

/// Which ranks of a view compute the stages that the net is cut into, and which keep them.
struct ViewStages {
    /// Of a view with these nodes, by rank.  buddy: without it each stage is a run of its own.
    ViewStages(std::span<const NodeId> nodes, uint32_t stages, bool buddy);
    ViewStages() = default;

    std::vector<uint32_t> own;    // by rank: its stage, in whatever run
    std::vector<bool> there;      // by stage: some rank has it
    std::vector<StageRun> runs;   // cells of the grid
    Grid grid;
    bool buddies = false;

    uint32_t cell_of(uint32_t stage) const;
    StageRun run_of(Rank rank) const { return runs[grid.cell_of(rank).stage]; }
    /// Stages that a rank keeps beside its run.
    std::vector<uint32_t> kept(Rank rank) const;
    /// Ranks that compute the stage, ascending, then the one that keeps it.
    std::vector<Rank> holders(uint32_t stage) const;
    /// The first stage that nobody computes; nothing: the grid has a replica.
    std::optional<uint32_t> missing() const;
    /// `cut`, as the job's first view has it, with the runs as stages and that of `rank` as its own.
    PipelineConfig pipeline(const PipelineConfig& cut, Rank rank) const;
};

/// `cut` where the rank of stage cut.own_stage computes this run, and all other stages are apart.
PipelineConfig pipeline_of_run(const PipelineConfig& cut, const StageRun& run);

/// Of a job with stages, which n nodes begin.  *about becomes the key that an error is about.  Errors: more
/// stages than the net has, a layer that cannot begin one, nodes that the stages do not fill.
Status stages_plan(const JobConfig& job, const NetSpec& spec, uint32_t n, NodeId self, uint32_t lanes, PipelineConfig* config,
                   std::string* about);

}   // namespace gradcast
