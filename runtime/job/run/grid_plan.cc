#include "runtime/job/run/grid_plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "algos/grid/cuts.h"
#include "nn/frozen.h"
#include "nn/graph/slices.h"
#include "nn/measure.h"
#include "runtime/core/clock.h"
#include "runtime/core/isa.h"
#include "runtime/job/file/cells.h"
#include "runtime/job/file/job_rules.h"
#include "runtime/job/run/memory_check.h"
#include "runtime/job/run/part_holders.h"
#include "runtime/job/run/planned_job.h"
#include "transport/code/kernels.h"

namespace gradcast {
namespace {

constexpr uint32_t passes = 2;                 // over each layer, the faster counts: the first one finds cold caches
constexpr uint64_t quantised_most = 1 << 22;   // elements

/// The key that a purpose of an arena begins with, in the order of the search.
constexpr std::pair<std::string_view, MemoryFor> purpose_uses[] = {
    {"parameters", MemoryFor::parameters}, {"copies of weights", MemoryFor::parameters},
    {"optimiser", MemoryFor::optimiser},   {"activation", MemoryFor::activations},
    {"gradients", MemoryFor::gradients},   {"edges", MemoryFor::edges},
    {"own words", MemoryFor::words},       {"sums", MemoryFor::words},
    {"words of", MemoryFor::words},        {"coded words", MemoryFor::words},
    {"records", MemoryFor::words},         {"bulk", MemoryFor::words},
    {"evaluation", MemoryFor::evaluation}};

/// Why the net of this job cannot be cut; empty: it can be.
std::string uncut_because(JobConfig job) {
    job.stages = 2;
    job.cuts.clear();
    for (const BrokenRule& each : job_rules_broken({.job = job}))
        if (each.key == "parallel.stages") return each.text;
    return {};
}

/// Of an element of a gradient that becomes a word and is added to those of other blocks: the faster of two passes.
double quantise_seconds(uint64_t elements) {
    std::vector<float> gradient(elements, 0.5f);
    std::vector<int32_t> words(elements);
    double least = std::numeric_limits<double>::max();
    for (uint32_t pass = 0; pass < passes; ++pass) {
        const uint64_t begin_ns = clock_ns();
        word_kernels(isa_best()).quantise_i32(words.data(), gradient.data(), elements, {1, 1e6, INT32_MAX}, true);
        least = std::min(least, static_cast<double>(clock_ns() - begin_ns) * 1e-9);
    }
    return least / static_cast<double>(std::max<uint64_t>(elements, 1));
}

class Planner {
public:
    Planner(const EngineConfig& config, const GridPlanOptions& options, std::string* about)
        : config_(config), options_(options), about_(*about) {}

    Status run(GridPlan* plan) {
        about_ = "net.device";
        if (config_.job.device != "cpu") return fail(Code::invalid, "{}: a plan is made of jobs on CPUs", config_.job.device);
        Report report{Log::none()};
        JobParts whole;
        const EngineConfig uncut = of_grid(1, 1, {});
        if (const Status status = whole.examine(uncut, false, report); !status.ok()) return about_ = whole.about, status;
        GC_TRY(net_cpu_order(whole.spec, &order_));
        const std::vector<uint32_t> sizes = whole.local ? whole.local->block_sizes() : whole.block_sizes;
        samples_ = plan_.block_samples = *std::ranges::max_element(sizes);
        for (const Layer& layer : whole.layers) plan_.parameters += layer.parameters();
        const std::string uncut_why = config_.nodes() > 1 ? uncut_because(config_.job) : "";
        if (!uncut_why.empty()) plan_.notes.push_back(fmt::format("stages: {}", uncut_why));
        GC_TRY(measure(whole));
        sliced_ = sliced_layers(whole.layers);
        const uint32_t most = uncut_why.empty() ? cuts_most(order_.learns, order_.begins) : 1;
        const std::vector<Shape> all = shapes(most);
        for (const Shape& shape : all) {
            const Status status = add(shape);
            // Of several grids some may not go with the exchange: too few replicas.
            const bool refused = status.code == Code::invalid || status.code == Code::unsupported;
            if (!refused || all.size() == 1) GC_TRY(status);
            else plan_.notes.push_back(fmt::format("{}: {}", keys_text(shape), status.what));
        }
        if (plan_.grids.empty()) return fail(Code::invalid, "{}", plan_.notes.back());
        std::vector<GridCost> costs;
        for (const PlannedGrid& each : plan_.grids) costs.push_back(each.cost);
        plan_.best = grid_choose(costs, options_.memory, needs_replicas(config_.job));
        if (needs_replicas(config_.job)) note_replicas();
        if (options_.stages > 0) return *plan = std::move(plan_), Status{};
        EngineConfig one = uncut;
        one.roster = std::vector<Member>{config_.roster[0]};
        one.first_nodes = 1;
        PlannedGrid alone;
        if (config_.nodes() == 1) plan_.alone = plan_.grids[0];
        else if (grid(one, &alone).ok()) plan_.alone = std::move(alone);
        *plan = std::move(plan_);
        return {};
    }

private:
    /// The update of a tensor that layers of several units take.
    struct TiedUpdate {
        uint32_t layer;   // the first one of a unit
        double seconds;   // of that unit's update, for this tensor
    };
    struct Shape {
        uint32_t stages = 1, groups = 1;
    };

    EngineConfig of_grid(uint32_t stages, uint32_t groups, const std::vector<std::string>& cuts) const {
        EngineConfig config = config_;
        config.job.stages = stages;
        config.job.slice_groups = groups;
        config.job.cuts = cuts;
        config.job.buddy = config_.job.buddy && stages > 1 && config_.nodes() < 2 * stages;
        config.self = NodeId{0};
        return config;
    }

    /// What the cuts go by: measured times, else counted work.
    Status measure(const JobParts& whole) {
        if (options_.times && !whole.kernels_measured()) plan_.notes.push_back("steps are not predicted: that is for ssgd");
        if (options_.times && whole.kernels_measured()) {
            NetMeasure measured;
            const NetConfig net{.samples_max = samples_, .block_sizes = whole.block_sizes, .precision = config_.job.precision};
            OptimiserConfig optimiser = config_.job.optimiser;
            optimiser.steps = whole.steps;
            const Status status = net_measure(whole.spec, net, passes, config_.stop, &measured, &optimiser);
            if (status.code == Code::node_memory) plan_.notes.push_back(fmt::format("steps are not predicted: {}", status.what));
            else GC_TRY(status);
            units_ = std::move(measured.units);
            if (!units_.empty()) quantise_s_ = quantise_seconds(std::min(plan_.parameters, quantised_most));
        }
        weights_.resize(order_.names.size());
        gradients_.resize(order_.names.size());
        std::vector<uint64_t> outputs(weights_.size());
        for (const Layer& layer : whole.layers) {
            const uint32_t at = place_of(layer);
            weights_[at] = static_cast<double>(layer.parameters());
            gradients_[at] = static_cast<double>(layer.weights + layer.biases);   // also where it takes another layer's weights
            outputs[at] = layer.out.elements();
        }
        if (units_.empty()) return work_ = order_.work, Status{};
        find_tied(whole);
        GC_TRY(find_frozen(whole));
        work_.assign(order_.names.size(), 0);
        for (UnitTimes& unit : units_) {
            if (unit.end <= frozen_) unit.weights = 0;   // of zeros, which become words as others do
            unit.weights += quantise_s_ * std::accumulate(&gradients_[unit.first], gradients_.data() + unit.end, 0.0);
            plan_.block_s += unit.forward + data_made(unit, 1) + unit.weights;
            work_[unit.first] = unit.forward + data_made(unit, config_.job.slice_groups) + unit.weights +
                                unit.apply / static_cast<double>(whole.block_sizes.size());
        }
        // Lanes share the node's link.
        const double link_s = 8.0 * sizeof(float) * samples_ * std::max(config_.lanes, 1u) / options_.wire.bits_per_s;
        for (const uint64_t elements : cuts_crossed(outputs, order_.reads)) edges_.push_back(static_cast<double>(elements) * link_s);
        return {};
    }

    /// The layer's place in the order of the units.
    uint32_t place_of(const Layer& layer) const {
        return static_cast<uint32_t>(std::ranges::find(order_.names, layer.spec.name) - order_.names.begin());
    }

    /// A unit that has a layer with the weights of another unit's layer updates these weights, too.
    void find_tied(const JobParts& whole) {
        for (const Layer& owner : whole.layers) {
            if (owner.uses == 1) continue;
            std::vector<uint32_t> takers;   // places of the layers that take its weights
            for (const Layer& layer : whole.layers)
                if (layer.number == owner.number || layer.tied == owner.number) takers.push_back(place_of(layer));
            std::vector<TiedUpdate> updates;
            for (const UnitTimes& unit : units_) {
                const auto takes = [&](uint32_t place) { return place >= unit.first && place < unit.end; };
                if (std::ranges::none_of(takers, takes)) continue;
                const auto all = static_cast<double>(layers_layout(whole.layers, 0, {unit.first, unit.end}).elements);
                updates.push_back({unit.first, unit.apply * static_cast<double>(owner.weights + owner.biases) / all});
            }
            if (updates.size() > 1) tied_.push_back(std::move(updates));
        }
    }

    /// Seconds by which the updates of the stage's units are longer than that of the stage, which updates each tensor once.
    double updates_repeated(const Stage& own) const {
        double seconds = 0;
        for (const std::vector<TiedUpdate>& updates : tied_) {
            double all = 0, most = 0;
            for (const TiedUpdate& each : updates)
                if (own.has(each.layer)) all += each.seconds, most = std::max(most, each.seconds);
            seconds += all - most;
        }
        return seconds;
    }

    /// Layers that do not learn, below all that do (nn/frozen.h).
    Status find_frozen(const JobParts& whole) {
        OptimiserConfig optimiser = config_.job.optimiser;
        GC_TRY(optimiser_ranges(whole.layers, &optimiser));
        const uint32_t frozen = layers_frozen(whole.layers, optimiser);
        frozen_ = static_cast<uint32_t>(order_.names.size());
        if (frozen < whole.layers.size()) frozen_ = place_of(whole.layers[frozen]);
        return {};
    }

    /// Seconds of a unit's data passes: only layers above the first one that learns have such a pass.  Several slice groups make all of
    /// them.
    double data_made(const UnitTimes& unit, uint32_t groups) const {
        if (groups != 1 || frozen_ == 0 || unit.first > frozen_) return unit.data;
        double all = 0, made = 0;
        for (uint32_t layer = unit.first; layer < unit.end; ++layer) {
            all += order_.work[layer];
            made += layer > frozen_ ? order_.work[layer] : 0;
        }
        return all > 0 ? unit.data * made / all : 0;
    }

    /// Ascending.  Where no grid has as many nodes, the first one says why.
    std::vector<Shape> shapes(uint32_t most) const {
        const uint32_t nodes = config_.nodes(), only = options_.stages;
        const bool any = config_.job.slice_groups == slice_groups_auto;
        const std::vector<uint32_t> counts = any ? slice_group_counts(config_.job.slices) : std::vector{config_.job.slice_groups};
        std::vector<Shape> all;
        for (const uint32_t groups : counts)
            if (only > 0 && (groups == counts[0] || nodes % (only * groups) == 0)) all.push_back({only, groups});
            else if (only == 0 && nodes % groups == 0)
                for (const uint32_t stages : stage_counts(nodes / groups, most)) all.push_back({stages, groups});
        if (all.empty()) all.push_back({1, counts[0]});
        std::ranges::sort(all, {}, [](const Shape& shape) { return std::pair(shape.stages, shape.groups); });
        return all;
    }

    /// Of a job with survive, which grids of one replica do not serve.
    void note_replicas() {
        const auto one = [](const PlannedGrid& each) { return each.replicas < 2 && each.stages * each.slice_groups > 1; };
        if (std::ranges::none_of(plan_.grids, one)) return;
        const PlannedGrid* const chosen = plan_.chosen();
        if (chosen && one(*chosen))
            plan_.notes.push_back(fmt::format("survive: no grid of two replicas {}: with one the loss of any node ends the job",
                                              std::ranges::all_of(plan_.grids, one) ? "is possible" : "fits in memory"));
        else plan_.notes.push_back("survive: grids of one replica come last: with one the loss of any node ends the job");
    }

    std::string keys_text(const Shape& shape) const {
        const std::string groups =
            config_.job.slice_groups == slice_groups_auto ? fmt::format(", slice_groups = {}", shape.groups) : std::string();
        return fmt::format("stages = {}{}", shape.stages, groups);
    }

    std::vector<std::string> cuts(const CutCosts& costs, uint32_t stages) const {
        const std::vector<uint32_t> begins = cuts_even(costs, order_.learns, order_.begins, stages);
        std::vector<std::string> names;
        for (size_t i = 1; i < begins.size(); ++i) names.push_back(order_.names[begins[i]]);
        return names;
    }

    Status add(const Shape& shape) {
        const auto& [stages, groups] = shape;
        const bool given = stages == config_.job.stages && !config_.job.cuts.empty();
        PlannedGrid made;
        GC_TRY(grid(of_grid(stages, groups, given ? config_.job.cuts : cuts({work_, edges_}, stages)), &made));
        if (!given && stages > 1 && options_.memory > 0 && made.cost.memory > options_.memory) {
            PlannedGrid other;   // a slower one may fit
            GC_TRY(grid(of_grid(stages, groups, cuts({weights_}, stages)), &other));
            if (other.cost.memory <= options_.memory) made = std::move(other);
        }
        plan_.grids.push_back(std::move(made));
        return {};
    }

    /// One grid, stage by stage.
    Status grid(EngineConfig config, PlannedGrid* made) {
        GridLoad load{.lanes = std::max(config.lanes, 1u), .micro_batch = config.job.micro_batch, .stages = {}};
        PlannedGrid result;
        about_ = "job.min_nodes";
        if (min_nodes_below_replica(config.job))
            return fail(Code::invalid, "job.min_nodes = {} is less than the {} nodes of one replica: take at least {}, or 0",
                        config.job.min_nodes, cells_of(config.job), cells_of(config.job));
        about_ = "job.checkpoint_copies";
        GC_TRY(copies_check(config.job, config.nodes()));
        result.stages = config.job.stages;
        result.slice_groups = config.job.slice_groups;
        result.replicas = std::max(config.nodes() / cells_of(config.job), 1u);
        result.cuts = config.job.cuts;
        std::vector<std::vector<MemoryUse>> memory;
        std::vector<uint32_t> groups;   // by stage, the fullest
        for (uint32_t cell = 0; cell < config.job.stages * result.slice_groups; ++cell) {
            if (config.stop && config.stop->load(std::memory_order_relaxed))
                return fail(Code::cancelled, "stopped while grids are planned");
            config.self = NodeId{cell};
            Report report{Log::none()};
            PlannedJob planned;
            about_ = "parallel.stages";
            if (const Status status = planned.parts.examine(config, false, report); !status.ok())
                return about_ = planned.parts.about, status;
            GC_TRY(planned.plan(config, "cpu", report));
            std::vector<MemoryUse> its = planned.memory();
            StageLoad its_load = loaded(planned, result.replicas, &load);
            for (const MemoryUse& each : its) its_load.memory += each.total();
            const uint32_t group = cell % result.slice_groups;
            if (group == 0) memory.emplace_back(), load.stages.emplace_back(), groups.push_back(0);
            else if (its_load.memory <= load.stages.back().memory) continue;
            memory.back() = std::move(its), load.stages.back() = its_load, groups.back() = group;
        }
        result.cost = grid_cost(load, options_.wire);
        result.cost.replicas = result.replicas;
        if (units_.empty()) result.cost.step = result.cost.idle = 0;
        result.memory = std::move(memory[result.cost.fullest]);
        result.fullest_group = groups[result.cost.fullest];
        *made = std::move(result);
        return {};
    }

    StageLoad loaded(const PlannedJob& planned, uint32_t replicas, GridLoad* grid) const {
        const JobParts& parts = planned.parts;
        const Stage own = parts.pipeline ? parts.pipeline->cell(parts.pipeline->own_cell()) : Stage{};
        StageLoad load;
        std::vector<Stage> kept;   // whose sums the node applies too
        if (parts.buddies)
            for (const uint32_t stage : kept_by(parts.run.first, parts.cut->stages())) kept.push_back(parts.cut->stage(stage));
        for (const UnitTimes& unit : units_) {
            for (const Stage& each : kept) load.apply += each.has(unit.first) ? unit.apply / grid->lanes : 0;
            if (!own.has(unit.first)) continue;
            const double share = share_of(unit, own.slice_groups);
            load.block.forward += share * unit.forward;
            load.block.data += share * data_made(unit, own.slice_groups);
            load.block.weights += share * unit.weights;
            load.apply += share * unit.apply / grid->lanes;
        }
        load.apply = std::max(load.apply - updates_repeated(own) / (own.slice_groups * grid->lanes), 0.0);
        if (parts.pipeline) {
            grid->schedule = parts.pipeline->schedule;
            const bool goes_back = own.slice_groups > 1 || own.end > frozen_;
            if (parts.pipeline->recomputes() && goes_back) load.block.data += load.block.forward;
            const Pipeline& pipeline = *planned.session->pipeline();
            const auto bytes = [&](bool comes, bool gradients) {
                return static_cast<double>(pipeline.edge_bytes(comes, gradients, samples_));
            };
            load.values_sent = bytes(false, false);
            load.gradients_sent = bytes(false, true);
            load.edges_received = bytes(true, false) + bytes(true, true);
            load.block.waits = bytes(true, true) > 0;
            if (own.slice_groups > 1) {   // passes wait for what the slice groups tell each other
                Net& net = *parts.compute.net;
                load.slices_sent = static_cast<double>(pipeline.slice_bytes(samples_)) - rows_spared(parts, own, net);
                // One after the other.  Where sizes vary, the receives are posted at the point, and the values wait for them.
                uint32_t messages = 0;
                for (const SlicePoint& point : net.slice_points()) messages += point.varies() ? 2 : 1;
                const double waits = load.slices_sent * 8 / options_.wire.bits_per_s + messages * options_.wire.latency_s;
                load.block.forward += waits / 2;
                load.block.data += waits / 2;
            }
        }
        // Of `auto` the exchange that is predicted to be the fastest.
        const Alternative* best = nullptr;
        double best_us = 0;
        for (const Alternative& each : planned.choice.all()) {
            const double us = predicted_us(each.cost(replicas, false), plan_.block_s * 1e6 * each.config.blocks / replicas,
                                           options_.wire.bits_per_s, options_.wire.latency_s * 1e6);
            if (!best || us < best_us) best = &each, best_us = us;
        }
        Alternative its = *best;
        its.config.layout = &parts.compute.codec->words();
        const Cost cost = its.cost(replicas, false);
        load.words_sent = cost.sent;
        load.words_received = cost.received;
        load.words_rounds = cost.rounds;
        if (const KeptStages* with = planned.session->kept()) {
            load.words_sent += static_cast<double>(with->bytes_sent());
            load.words_received += static_cast<double>(with->bytes_received());
        }
        if (const TiedSums* with = planned.session->tied()) {
            load.words_sent += static_cast<double>(with->bytes_sent());
            load.words_received += static_cast<double>(with->bytes_sent());
            load.words_rounds += 2;   // heads, then words
        }
        grid->blocks = best == &planned.choice.first() ? planned.session->blocks_most()
                                                       : static_cast<uint32_t>(cost.d * ((its.config.blocks + replicas - 1) / replicas));
        return load;
    }

    /// Bytes of a block by which a node sends fewer than the most to the other slice groups, on average: rows of sliced embeddings.
    double rows_spared(const JobParts& parts, const Stage& own, Net& net) const {
        double bytes = 0;
        const std::span<const SlicePoint> points = net.slice_points();
        for (size_t i = 0; i < points.size(); ++i) {
            if (!points[i].varies()) continue;
            const Layer& layer = parts.layers[points[i].layer];
            const uint64_t rows = own_parameters(layer, own).count / layer.out.C, tokens = uint64_t{samples_} * layer.out.H;
            const double named = rows_named(layer.weight_shape[0], rows, tokens), most = static_cast<double>(std::min(rows, tokens));
            bytes += (own.slice_groups - 1) * static_cast<double>(net.slice_bytes(i, own.slice_group, samples_, true)) *
                     (1 - std::min(named / most, 1.0));
        }
        return bytes;
    }

    /// Of a unit's time that a node of one of the slice groups takes.
    double share_of(const UnitTimes& unit, uint32_t groups) const {
        double all = 0, own = 0;
        for (uint32_t layer = unit.first; layer < unit.end; ++layer) {
            const bool sliced = std::ranges::find(sliced_, order_.names[layer]) != sliced_.end();
            all += order_.work[layer];
            own += order_.work[layer] / (sliced ? groups : 1);
        }
        return all > 0 ? own / all : 1;
    }

    const EngineConfig& config_;
    const GridPlanOptions& options_;
    std::string& about_;
    GridPlan plan_;
    NetOrder order_;
    std::vector<std::string> sliced_;             // layers
    std::vector<UnitTimes> units_;                // empty: not measured
    std::vector<double> work_, weights_;          // by layer: what cuts go by; parameters
    std::vector<double> gradients_;               // by layer: elements that a block's backward pass makes of parameters
    std::vector<std::vector<TiedUpdate>> tied_;   // by tensor that layers of several units take
    std::vector<double> edges_;   // by layer: seconds of a cut before it on the link, for a block; empty: times are not known
    uint32_t frozen_ = 0;         // the first layer that learns
    uint32_t samples_ = 0;        // of the largest block
    double quantise_s_ = 0;       // of an element of a block's gradient
};

}   // namespace

MemoryByUse memory_by_use(const std::vector<MemoryUse>& places) {
    MemoryByUse all{};
    for (const MemoryUse& place : places)
        for (const auto& [purpose, bytes] : place.bytes) {
            const auto* use = std::ranges::find_if(purpose_uses, [&](const auto& each) { return purpose.starts_with(each.first); });
            all[static_cast<size_t>(use == std::end(purpose_uses) ? MemoryFor::rest : use->second)] += bytes;
        }
    return all;
}

std::string PlannedGrid::text() const {
    const auto count = [](uint32_t of, const char* what) { return fmt::format("{} {}{}", of, what, of == 1 ? "" : "s"); };
    const std::string groups = slice_groups > 1 ? " in " + count(slice_groups, "slice group") : "";
    return fmt::format("{}{} of {}{}{}", count(stages, "stage"), groups, count(replicas, "replica"), cuts.empty() ? "" : ", cut at ",
                       fmt::join(cuts, ", "));
}

std::string PlannedGrid::costs_text() const {
    const std::string step = cost.step > 0 ? fmt::format("{:.1f} ms a step, ", cost.step * 1e3) : "";
    return fmt::format("{}: {}{:.1f} MiB a node", text(), step, mib(cost.memory));
}

std::string GridPlan::none_fits(const GridPlanOptions& options) const {
    const PlannedGrid& least = *std::ranges::min_element(grids, {}, [](const PlannedGrid& each) { return each.cost.memory; });
    const bool only = options.stages > 0 && grids.size() == 1;
    return fmt::format("{} of {:.1f} MiB a node; {}: {}", only ? "the job does not fit in memory" : "no grid fits in memory",
                       mib(options.memory), only ? "it is" : "the smallest is", least.costs_text());
}

std::string GridPlan::reason(const PlannedGrid& chosen, const GridPlanOptions& options) const {
    std::string all = chosen.costs_text();
    for (const PlannedGrid& each : grids)
        if (&each != &chosen)
            all += fmt::format("; {}{}", each.costs_text(),
                               options.memory > 0 && each.cost.memory > options.memory ? ", which does not fit" : "");
    if (chosen.cost.step > 0)
        all += fmt::format("; predicted at {:.0f} Mbit/s and {:.0f} us a message", options.wire.bits_per_s / 1e6,
                           options.wire.latency_s * 1e6);
    for (const std::string& note : notes) all += "; " + note;
    return all;
}

Status grid_plan(const EngineConfig& config, const GridPlanOptions& options, GridPlan* plan, std::string* about) {
    return Planner(config, options, about).run(plan);
}

}   // namespace gradcast
