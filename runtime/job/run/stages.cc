#include "runtime/job/run/stages.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "algos/grid/cuts.h"
#include "nn/graph/layers.h"
#include "runtime/job/file/cells.h"
#include "transport/exchange/exchange.h"

namespace gradcast {
namespace {

Status named_cuts(const JobConfig& job, const NetOrder& order, std::vector<uint32_t>* begins) {
    std::vector<std::string_view> possible;
    for (const uint32_t begin : order.begins)
        if (begin > 0) possible.push_back(order.names[begin]);
    begins->assign(1, 0);
    for (const std::string& name : job.cuts) {
        const auto at = std::ranges::find(order.names, name);
        const auto layer = static_cast<uint32_t>(at - order.names.begin());
        if (at == order.names.end() || !std::ranges::binary_search(order.begins, layer) || layer == 0)
            return fail(Code::invalid, "\"{}\" {}; stages can begin at {}", name,
                        at == order.names.end() ? "is no layer of the net"
                        : layer == 0            ? "is the first layer"
                                                : "is computed with the layers before it",
                        fmt::join(possible, ", "));
        if (layer <= begins->back()) return fail(Code::invalid, "\"{}\" is not behind the layer that begins the stage before", name);
        begins->push_back(layer);
    }
    for (size_t i = 0; i < begins->size(); ++i) {
        const size_t end = i + 1 < begins->size() ? (*begins)[i + 1] : order.names.size();
        if (std::find(order.learns.begin() + (*begins)[i], order.learns.begin() + static_cast<ptrdiff_t>(end), true) ==
            order.learns.begin() + static_cast<ptrdiff_t>(end))
            return fail(Code::invalid, "the stage that begins at {} has no parameters: choose other layers", order.names[(*begins)[i]]);
    }
    return {};
}

}   // namespace

ViewStages::ViewStages(std::span<const NodeId> nodes, uint32_t stages, bool buddy, uint32_t slice_groups) : there(stages), buddies(buddy) {
    GC_ASSERT(!buddy || slice_groups == 1);
    for (const NodeId node : nodes) {
        own.push_back(cell_of_node(node, stages, slice_groups).stage);
        there[own.back()] = true;
    }
    runs = runs_of_view(buddy ? there : std::vector<bool>(stages, true));
    std::vector<uint32_t> cells;
    for (size_t i = 0; i < nodes.size(); ++i)
        cells.push_back(cell_number({cell_of(own[i]), cell_of_node(nodes[i], stages, slice_groups).slice_group}, slice_groups));
    grid = Grid::of(cells, static_cast<uint32_t>(runs.size()), slice_groups, buddy ? 1 : ~0u);
}

uint32_t ViewStages::cell_of(uint32_t stage) const {
    const auto run = std::ranges::find_if(runs, [&](const StageRun& each) { return each.has(stage); });
    return static_cast<uint32_t>(run - runs.begin());
}

std::vector<uint32_t> ViewStages::kept(Rank rank) const {
    if (!buddies || grid.is_spare(rank)) return {};
    return kept_in_view(own[rank], there);
}

std::vector<Rank> ViewStages::holders(uint32_t stage, uint32_t slice_group) const {
    std::vector<Rank> ranks = grid.replica_group({cell_of(stage), slice_group});
    for (Rank rank = 0; rank < own.size(); ++rank)
        if (const auto all = kept(rank); std::ranges::find(all, stage) != all.end()) ranks.push_back(rank);
    return ranks;
}

std::optional<Cell> ViewStages::missing() const {
    const std::vector<Cell> cells = grid.missing();
    return cells.empty() ? std::nullopt : std::optional(Cell{runs[cells[0].stage].first, cells[0].slice_group});
}

PipelineConfig ViewStages::pipeline(const PipelineConfig& cut, Rank rank) const {
    PipelineConfig config = cut;
    config.begins.clear();
    for (const StageRun& run : runs) config.begins.push_back(cut.begins[run.first]);
    const Cell own_cell = grid.cell_of(rank);
    config.own_stage = own_cell.stage;
    config.own_slice_group = own_cell.slice_group;
    return config;
}

PipelineConfig pipeline_of_run(const PipelineConfig& cut, const StageRun& run) {
    std::vector<NodeId> nodes;
    Rank own = 0;
    for (uint32_t stage = 0; stage < cut.stages(); ++stage) {
        if (stage == cut.own_stage) own = static_cast<Rank>(nodes.size());
        if (stage == cut.own_stage || !run.has(stage)) nodes.push_back(NodeId{stage});
    }
    const ViewStages view(nodes, cut.stages(), true);
    GC_ASSERT(view.run_of(own) == run);
    return view.pipeline(cut, own);
}

Status stages_plan(const JobConfig& job, const NetSpec& spec, uint32_t n, NodeId self, uint32_t lanes, PipelineConfig* config,
                   std::string* about) {
    const uint32_t groups = std::max(job.slice_groups, 1u), stages = std::max(job.stages, 1u), cells = cells_of(job);
    *about = stages > 1 ? "parallel.stages" : "parallel.slice_groups";
    GC_TRY(job.device == "cpu" ? net_cpu_order(spec, &config->order) : net_gpu_order(spec, &config->order));
    const NetOrder& order = config->order;
    if (order.reads.size() > UINT16_MAX) return fail(Code::invalid, "a net of {} layers is too large to be cut", order.names.size());
    if (const uint32_t most = cuts_most(order.learns, order.begins); stages > most)
        return fail(Code::invalid, "{} stages are more than the {} that this net can be cut into", stages, most);
    Grid grid;   // of the first view
    GC_TRY(Grid::make(n, stages, groups, &grid));
    if (grid.spares() > 0 && !job.survive) {
        return fail(Code::invalid,
                    "{} take {}, {}, ... nodes, and the job has {}: each node computes one; survive = true keeps spare nodes",
                    cells_text(job), cells, 2 * cells, n);
    }
    *about = "parallel.cuts";
    if (job.cuts.empty()) config->begins = cuts_even({order.work}, order.learns, order.begins, stages);
    else GC_TRY(named_cuts(job, order, &config->begins));
    *about = "parallel.buddy";
    if (job.buddy && grid.replicas() > 1)
        return fail(Code::invalid,
                    "keeps a stage at a second node where it has one; {} nodes of {} stages are {} replicas, which survive losses without: "
                    "take buddy = false, or fewer than {} nodes",
                    n, job.stages, grid.replicas(), 2 * job.stages);
    config->schedule = *pipeline_schedule_find(job.stage_schedule);   // its rule has checked the name
    config->slice_groups = groups;
    const Cell own = cell_of_node(self, stages, groups);
    config->own_stage = own.stage;
    config->own_slice_group = own.slice_group;
    config->recompute = job.recompute;
    config->micro_batch = job.micro_batch;
    config->lanes = lanes;
    uint32_t each = grid.replicas();   // that compute a block; of `auto` as many as there are
    if (const ExchangeKind* kind = nullptr; exchange_find(job.exchange, job.quantiser, &kind).ok())
        each = kind->codes ? job.m + job.s : kind->shares ? job.r : 1;
    config->blocks_most = std::min(job.blocks, each * ((job.blocks + grid.replicas() - 1) / grid.replicas()));
    if (job.survive) config->blocks_most = job.blocks;   // one replica may be left with all of them
    return {};
}

}   // namespace gradcast
