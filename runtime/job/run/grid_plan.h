// Which grids a job's net can have over its nodes, before anything runs: for each number of stages and slice groups the cuts, the memory of
// the fullest node by purpose, the bytes of a step and its predicted time.  Memory is that of the planning of PREPARE, which is done for
// each stage.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "algos/grid/grid_cost.h"
#include "runtime/core/memory_use.h"
#include "runtime/job/file/engine_config.h"

namespace gradcast {

struct GridPlanOptions {
    uint64_t memory = 0;   // bytes that the job may take of the node that has least; 0: any
    GridWire wire = {};
    uint32_t stages = 0;   // the only number that is planned; 0: all
    bool times = true;     // layers are run here, each on one thread; false: steps are not predicted, and cuts follow counted work
};

/// The uses of memory by which people ask.  `words` are those of the exchange.
enum class MemoryFor : uint8_t { parameters, optimiser, activations, gradients, edges, words, evaluation, rest };
constexpr std::array memory_for_names = {"parameters", "optimiser", "activations", "gradients", "edges", "words", "evaluation", "rest"};
using MemoryByUse = std::array<uint64_t, memory_for_names.size()>;
MemoryByUse memory_by_use(const std::vector<MemoryUse>& places);

struct PlannedGrid {
    uint32_t stages = 1, replicas = 1, slice_groups = 1;
    std::vector<std::string> cuts;   // as parallel.cuts
    GridCost cost;                   // cost.step 0: not predicted
    std::vector<MemoryUse> memory;   // of the fullest node, as JobStatus::memory
    uint32_t fullest_group = 0;      // slice group of that node, whose stage is cost.fullest
    /// "2 stages of 3 replicas, cut at fc1", "2 stages in 4 slice groups of 1 replica"; with the memory of the fullest node, and the step
    /// where it is predicted.
    std::string text() const;
    std::string costs_text() const;
};

struct GridPlan {
    std::vector<PlannedGrid> grids;     // ascending numbers of stages, then of slice groups
    size_t best = 0;                    // what `auto` takes (grid_choose()); grids.size(): none fits
    std::optional<PlannedGrid> alone;   // the whole net on one host; none where the job needs several
    double block_s = 0;                 // of the whole net on one lane; 0: not known
    uint32_t block_samples = 0;
    uint64_t parameters = 0;
    std::vector<std::string> notes;   // what is not there, and why
    const PlannedGrid* chosen() const { return best < grids.size() ? &grids[best] : nullptr; }
    /// One line: that there is no grid, and what the smallest one needs.
    std::string none_fits(const GridPlanOptions& options) const;
    /// One line: why one of `grids` was chosen, beside the others.
    std::string reason(const PlannedGrid& chosen, const GridPlanOptions& options) const;
};

/// Plans `config.job` over `config.nodes()` nodes with `config.lanes` lanes each.  Its stages and self do not matter; its cuts are those of
/// their number of stages.  Each grid has the job's slice groups; where these are auto, each number of slice_group_counts() is tried with
/// each number of stages, if the nodes fill the grid.  Takes the memory of the largest unit of the net (nn/measure.h) and the
/// time of some blocks, with options.times; without, neither.  Several threads may call.  *about becomes the key of the job file that an
/// error is about.  Errors: as of PREPARE; the job computes on GPUs; cancelled.
Status grid_plan(const EngineConfig& config, const GridPlanOptions& options, GridPlan* plan, std::string* about);

}   // namespace gradcast
