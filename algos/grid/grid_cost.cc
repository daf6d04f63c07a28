#include "algos/grid/grid_cost.h"

#include <algorithm>
#include <utility>

namespace gradcast {

std::vector<uint32_t> stage_counts(uint32_t nodes, uint32_t most) {
    std::vector<uint32_t> counts;
    for (uint32_t stages = 1; stages <= std::min(nodes, most); ++stages)
        if (nodes % stages == 0) counts.push_back(stages);
    return counts;
}

std::vector<uint32_t> slice_group_counts(uint32_t slices) {
    std::vector<uint32_t> counts;
    for (uint32_t groups = 1; groups <= slices && slices % groups == 0; groups *= 2) counts.push_back(groups);
    return counts;
}

double rows_named(uint64_t all, uint64_t own, uint64_t tokens) {
    double missed = 1, power = 1 - 1 / static_cast<double>(all);   // that none of the tokens names a given row
    for (; tokens > 0; tokens /= 2, power *= power)
        if (tokens % 2 > 0) missed *= power;
    return static_cast<double>(own) * (1 - missed);
}

GridCost grid_cost(const GridLoad& load, const GridWire& wire) {
    const auto shares = [](uint32_t count, uint32_t size) { return (count + size - 1) / size; };
    const auto seconds = [&](double bytes) { return bytes * 8 / wire.bits_per_s; };
    const bool cut = load.stages.size() > 1 || load.stages[0].slices_sent > 0;
    // Blocks of an uncut net go to the lanes as these get free, those of a micro-batch together.
    const uint32_t micro_batch = cut ? load.micro_batch : load.lanes, waves = shares(micro_batch, load.lanes);
    std::vector<StageTimes> times;
    double edge = 0;
    for (const StageLoad& each : load.stages) {
        times.push_back({waves * each.block.forward, waves * each.block.data, waves * each.block.weights, each.block.waits});
        edge = std::max(edge, seconds(micro_batch * std::max(each.values_sent, each.gradients_sent)));
    }
    const PipelineCost passes = pipeline_cost(load.schedule, times, shares(load.blocks, micro_batch), cut ? edge + wire.latency_s : 0);
    GridCost cost;
    for (uint32_t stage = 0; stage < load.stages.size(); ++stage) {
        const StageLoad& each = load.stages[stage];
        const double edges_sent = load.blocks * (each.values_sent + each.gradients_sent + each.slices_sent);
        const double on_link =
            std::max(edges_sent + each.words_sent, load.blocks * (each.edges_received + each.slices_sent) + each.words_received);
        const double exchange = seconds(std::max(each.words_sent, each.words_received)) + each.words_rounds * wire.latency_s;
        cost.step = std::max({cost.step, passes.ends[stage] + exchange + each.apply, seconds(on_link)});
        cost.idle += std::max(passes.idle[stage], 0.0) / static_cast<double>(load.stages.size());   // of one stage it is rounding
        if (edges_sent + each.words_sent > cost.edges + cost.words) cost.edges = edges_sent, cost.words = each.words_sent;
        if (each.memory > cost.memory) cost.memory = each.memory, cost.fullest = stage;
    }
    if (cut) cost.step += 2 * wire.latency_s;
    return cost;
}

size_t grid_choose(std::span<const GridCost> costs, uint64_t memory, bool survive) {
    const auto order = [survive](const GridCost& cost) { return std::pair(survive && cost.replicas < 2, cost.step); };
    size_t best = costs.size();
    for (size_t i = 0; i < costs.size(); ++i)
        if ((memory == 0 || costs[i].memory <= memory) && (best == costs.size() || order(costs[i]) < order(costs[best]))) best = i;
    return best;
}

}   // namespace gradcast
