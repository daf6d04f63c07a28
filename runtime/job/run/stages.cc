#include "runtime/job/run/stages.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "algos/grid/cuts.h"
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

Grid stages_grid(std::span<const NodeId> nodes, uint32_t stages) {
    std::vector<uint32_t> cells;
    for (const NodeId node : nodes) cells.push_back(stage_of(node, stages));
    return Grid::of(cells, stages, 1);
}

Status stages_plan(const JobConfig& job, const NetSpec& spec, uint32_t n, NodeId self, uint32_t lanes, PipelineConfig* config,
                   std::string* about) {
    *about = "parallel.stages";
    GC_TRY(net_cpu_order(spec, &config->order));
    const NetOrder& order = config->order;
    if (order.reads.size() > UINT16_MAX) return fail(Code::invalid, "a net of {} layers is too large to be cut", order.names.size());
    if (const uint32_t most = cuts_most(order.learns, order.begins); job.stages > most)
        return fail(Code::invalid, "{} stages are more than the {} that this net can be cut into", job.stages, most);
    Grid grid;   // of the first view
    GC_TRY(Grid::make(n, job.stages, 1, &grid));
    if (grid.spares() > 0 && !job.survive)
        return fail(Code::invalid,
                    "{} stages take {}, {}, ... nodes, and the job has {}: each node computes one; survive = true keeps spare nodes",
                    job.stages, job.stages, 2 * job.stages, n);
    *about = "parallel.cuts";
    if (job.cuts.empty()) config->begins = cuts_even({order.work}, order.learns, order.begins, job.stages);
    else GC_TRY(named_cuts(job, order, &config->begins));
    config->schedule = *pipeline_schedule_find(job.stage_schedule);   // its rule has checked the name
    config->own_stage = stage_of(self, job.stages);
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
