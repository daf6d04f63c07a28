// plan JOB.toml: which grids the job can have over so many nodes, and what each costs, before anything runs.
#include <fmt/ranges.h>

#include "runtime/core/amount.h"
#include "runtime/core/cpu_room.h"
#include "runtime/core/net/interface.h"
#include "runtime/job/file/cells.h"
#include "runtime/job/run/grid_plan.h"
#include "tools/gradcastctl/commands.h"
#include "tools/gradcastctl/job_input.h"
#include "tools/gradcastctl/print.h"
#include "transport/link/link.h"

namespace gradcast {
namespace {

constexpr uint32_t mtu_assumed = 1500;

struct PlanFlags {
    std::string path, memory, rate = "1gbit", latency = "50us";
    uint32_t nodes = 0, lanes = 0;
    bool no_times = false;
};

bool fits(const PlannedGrid& grid, uint64_t memory) { return memory == 0 || grid.cost.memory <= memory; }
std::string step_text(const GridCost& cost) {
    return cost.step == 0 ? "-" : cost.step < 1 ? fmt::format("{:.1f} ms", cost.step * 1e3) : fmt::format("{:.2f} s", cost.step);
}
std::string cuts_text(const PlannedGrid& grid) { return grid.cuts.empty() ? "-" : fmt::format("{}", fmt::join(grid.cuts, ", ")); }

/// The grid that the job takes, where it names a number of stages or of slice groups; null: a whole net, or none fits.
const PlannedGrid* own_grid(const GridPlan& plan, const JobConfig& job, uint64_t memory) {
    std::vector<const PlannedGrid*> its;
    std::vector<GridCost> costs;
    for (const PlannedGrid& each : plan.grids)
        if ((job.stages == stages_auto || each.stages == job.stages) &&
            (job.slice_groups == slice_groups_auto || each.slice_groups == job.slice_groups))
            its.push_back(&each), costs.push_back(each.cost);
    const size_t best = grid_choose(costs, its.size() > 1 ? memory : 0, needs_replicas(job));
    const bool whole = job.stages == 1 && job.slice_groups == 1;
    return best < its.size() && !whole ? its[best] : nullptr;
}

Json json_of(const PlannedGrid& grid, uint64_t memory) {
    const MemoryByUse uses = memory_by_use(grid.memory);
    Json purposes;
    for (size_t i = 0; i < uses.size(); ++i) purposes[memory_for_names[i]] = uses[i];
    Json json = {{"stages", grid.stages},
                 {"replicas", grid.replicas},
                 {"slice_groups", grid.slice_groups},
                 {"cuts", grid.cuts},
                 {"memory", {{"bytes", grid.cost.memory}, {"stage", grid.cost.fullest + 1}, {"purposes", purposes}}},
                 {"sent", {{"edges", grid.cost.edges}, {"words", grid.cost.words}}},
                 {"fits", fits(grid, memory)}};
    json["idle"] = grid.cost.step > 0 ? Json(grid.cost.idle) : Json();
    json["step_s"] = grid.cost.step > 0 ? Json(grid.cost.step) : Json();
    return json;
}

Json json_of(const GridPlan& plan, const EngineConfig& config, const GridPlanOptions& options) {
    Json grids = Json::array();
    for (const PlannedGrid& each : plan.grids) grids.push_back(json_of(each, options.memory));
    Json json = {{"nodes", config.nodes()},
                 {"lanes", config.lanes},
                 {"rate_bits_per_s", options.wire.bits_per_s},
                 {"latency_s", options.wire.latency_s},
                 {"parameters", plan.parameters},
                 {"grids", grids},
                 {"notes", plan.notes}};
    json["memory"] = options.memory > 0 ? Json(options.memory) : Json();
    json["block_s"] = plan.block_s > 0 ? Json(plan.block_s) : Json();
    json["auto"] = plan.chosen() ? Json(plan.chosen()->stages) : Json();
    json["auto_slice_groups"] = plan.chosen() ? Json(plan.chosen()->slice_groups) : Json();
    const PlannedGrid* const own = own_grid(plan, config.job, options.memory);
    json["job"] = own ? Json(own->stages) : Json();
    json["job_slice_groups"] = own ? Json(own->slice_groups) : Json();
    json["alone"] = plan.alone ? json_of(*plan.alone, options.memory) : Json();
    return json;
}

void print(const GridPlan& plan, const EngineConfig& config, const GridPlanOptions& options, const PlanFlags& flags) {
    auto line = [](const char* name, const std::string& value) { fmt::print("{:<11} {}\n", name, value); };
    const JobConfig& job = config.job;
    line("job", fmt::format("{}: {} parameters, {} blocks of up to {} samples in a step, over {} node{}", job.name, plan.parameters,
                            job.blocks, plan.block_samples, config.nodes(), config.nodes() == 1 ? "" : "s"));
    if (plan.block_s > 0)
        line("times", fmt::format("measured here on one lane: a block takes {:.2f} ms; a node has {} lane{} (--lanes)", plan.block_s * 1e3,
                                  config.lanes, config.lanes == 1 ? "" : "s"));
    line("wire", fmt::format("{} and {} for a message, assumed: --rate, --latency", flags.rate, flags.latency));
    if (job.slice_groups > 1) line("slices", fmt::format("{} nodes share the slices of each stage (slice_groups)", job.slice_groups));
    const bool groups = job.slice_groups == slice_groups_auto;   // a column
    line("memory", options.memory > 0 ? fmt::format("{} a node", text_bytes(options.memory)) : "not limited: --memory 8GiB");
    std::vector<std::vector<std::string>> rows = {
        {"", "stages", "replicas", "step", "idle", "edges sent", "words sent", "memory", "fits", "begin at"}};
    std::vector<std::vector<std::string>> memory = {{"stages", "memory", "at stage"}};
    for (const char* name : memory_for_names) memory[0].emplace_back(name);
    if (groups) rows[0].insert(rows[0].begin() + 2, "slice groups"), memory[0].insert(memory[0].begin() + 1, "slice groups");
    auto add = [&](const char* mark, const PlannedGrid& grid) {
        rows.push_back({mark, std::to_string(grid.stages), std::to_string(grid.replicas), step_text(grid.cost),
                        grid.cost.step > 0 ? fmt::format("{:.2f}", grid.cost.idle) : "-",
                        text_bytes(static_cast<uint64_t>(grid.cost.edges)), text_bytes(static_cast<uint64_t>(grid.cost.words)),
                        text_bytes(grid.cost.memory), fits(grid, options.memory) ? "yes" : "no", cuts_text(grid)});
        if (groups) rows.back().insert(rows.back().begin() + 2, std::to_string(grid.slice_groups));
        std::vector<std::string>& row = memory.emplace_back();
        row = {std::to_string(grid.stages), text_bytes(grid.cost.memory), std::to_string(grid.cost.fullest + 1)};
        for (const uint64_t bytes : memory_by_use(grid.memory)) row.push_back(text_bytes(bytes));
        if (groups) row.insert(row.begin() + 1, std::to_string(grid.slice_groups));
    };
    const PlannedGrid* const own = own_grid(plan, job, options.memory);
    for (const PlannedGrid& each : plan.grids) add(&each == plan.chosen() ? "auto" : &each == own ? "job" : "", each);
    fmt::print("\n");
    print_table(rows);
    fmt::print("\nmemory of the fullest node\n");
    print_table(memory);
    fmt::print("\n");
    for (const std::string& note : plan.notes) line("note", note);
    const bool named = (job.stages > 1 && job.stages != stages_auto) || job.slice_groups > 1;
    if (!own && named)
        line("note", fmt::format("the job file's {} are not among these grids: over {} node{} they are not possible", cells_text(job),
                                 config.nodes(), config.nodes() == 1 ? "" : "s"));
    if (!plan.chosen()) line("auto", plan.none_fits(options));
    if (!plan.alone || config.nodes() == 1) return;
    const PlannedGrid& alone = *plan.alone;
    const bool faster = plan.chosen() && alone.cost.step > 0 && alone.cost.step <= plan.chosen()->cost.step;
    line("one host", fmt::format("{} a step, {}{}{}", step_text(alone.cost), text_bytes(alone.cost.memory),
                                 fits(alone, options.memory) ? "" : ", which does not fit", faster ? ": one host alone is faster" : ""));
}

int command_plan(const Options& options, const PlanFlags& flags) {
    EngineConfig config;
    GridPlanOptions wanted;
    wanted.times = !flags.no_times;
    uint64_t bits_per_s = 0;
    double latency_us = 0;
    if (Status status = rate_parse(flags.rate, &bits_per_s); !status.ok()) return complain(exit_usage, "--rate {}", status.what);
    if (Status status = microseconds_parse(flags.latency, &latency_us); !status.ok())
        return complain(exit_usage, "--latency {}", status.what);
    if (Status status = flags.memory.empty() ? Status{} : bytes_parse(flags.memory, &wanted.memory); !status.ok())
        return complain(exit_usage, "--memory {}", status.what);
    wanted.wire = {.bits_per_s = static_cast<double>(bits_per_s), .latency_s = latency_us * 1e-6};
    if (Status status = job_input(flags.path, options.sets, &config.job); !status.ok()) return complain(exit_usage, "{}", status.what);
    config.lanes = flags.lanes > 0 ? flags.lanes : cpu_room().threads();
    if (config.job.transport != "tcp") config.datagram_bytes = datagram_segment(mtu_assumed, false);
    for (uint32_t node = 0; node < flags.nodes; ++node) config.roster.push_back({fmt::format("node{}", node), {}, 1});
    GridPlan plan;
    std::string about;
    if (const Status status = grid_plan(config, wanted, &plan, &about); !status.ok())
        return complain(exit_usage, "{}", job_mistake(config.job.text, flags.path == "-" ? "stdin" : flags.path, about, status.what).text);
    if (options.json) fmt::print("{}\n", json_text(json_of(plan, config, wanted), 2));
    else print(plan, config, wanted, flags);
    return exit_done;
}

}   // namespace

// ---- command line --------------------------------------------------------------------------------------------------------------

void add_plan(Cli& cli) {
    PlanFlags& f = cli.keep<PlanFlags>();
    CLI::App* command = cli.add(jobs_group, "plan", "show how a net can be cut over nodes: memory, bytes and time of a step of each grid",
                                [&] { return command_plan(cli.options, f); });
    cli.job_file(command, f.path);
    cli.set(command);
    command->add_option("--nodes", f.nodes, "how many the job would have")->required()->check(CLI::Range(1, int{ranks_max}));
    command->add_option("--memory", f.memory, "what the job may take of a node, as 8GiB; grids that need more do not fit");
    command->add_option("--rate", f.rate, "of a node's link, in each direction")->capture_default_str();
    command->add_option("--latency", f.latency, "of a message between two nodes")->capture_default_str();
    command->add_option("--lanes", f.lanes, "CPUs of a node that compute (default: those of this machine)")->check(CLI::Range(1, 4096));
    command->add_flag("--no-times", f.no_times, "run no layer: memory and bytes alone, with cuts by counted work");
    command->footer("the layers are run on this machine, and the data must be on it; memory is what the nodes will take");
}

}   // namespace gradcast
