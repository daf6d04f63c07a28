#include "runtime/job/run/job_check.h"

#include <unistd.h>

#include <algorithm>

#include "datasets/manifest.h"
#include "runtime/attach/process.h"
#include "runtime/job/file/cells.h"
#include "runtime/job/model/safetensors.h"
#include "runtime/job/run/memory_check.h"
#include "runtime/job/run/part_holders.h"
#include "runtime/job/run/planned_job.h"

namespace gradcast {
namespace {

/// Whether this machine has the files of a pattern or manifest, and allows to read them.
bool readable(const std::string& pattern, size_t literal) {
    Manifest all;
    const Status found = is_manifest(pattern) ? manifest_read(pattern, &all) : shards_find(pattern, false, &all.shards, literal);
    return found.ok() && std::ranges::all_of(all.shards, [](const auto& each) { return ::access(each.path.c_str(), R_OK) == 0; });
}

/// Some grid that the job may have does.
Status fits(const EngineConfig& config, uint64_t memory) {
    if (memory == 0) return {};
    const GridPlanOptions options{.memory = memory, .stages = config.job.stages, .times = false};
    GridPlan plan;
    std::string about;
    GC_TRY(grid_plan(config, options, &plan, &about));
    if (plan.chosen()) return {};
    return fail(Code::node_memory, "{}{}", plan.none_fits(options),
                config.job.stages == stages_auto ? "" : stages_that_fit(config, memory));
}

}   // namespace

Status job_check(const JobConfig& job, const std::string& path, const JobCheckOptions& options, JobCheck* check) {
    EngineConfig config;
    config.job = job;
    config.lanes = options.lanes;
    config.verified = options.verified;
    // Where nobody says how many: of one replica.
    const uint32_t nodes = options.nodes > 0 ? options.nodes : cells_of(job);
    for (uint32_t node = 0; node < nodes; ++node) config.roster.push_back({fmt::format("node{}", node), {}, 1});
    JobCheck result;
    if (!options.here && job.samples == 0) {
        if (!readable(job.train, job.literal(job.train))) return *check = result, Status{};
        if (!job.test.empty() && !readable(job.test, job.literal(job.test))) config.job.test.clear();
        if (::access(job.start.c_str(), R_OK) != 0) config.job.start.clear();
    }
    Report report{Log()};
    PlannedJob planned;
    JobParts& parts = planned.parts;
    auto mistake = [&](const Status& status) {
        return fail(status.code, "{}", job_mistake(job.text, path, parts.about, status.what).text);
    };
    const auto examined = [&] {   // of a program: nothing is started here
        return job.attached() ? parts.examine_data(config, options.verify, report) : parts.examine(config, options.verify, report);
    };
    if (const Status status = examined(); !status.ok()) return mistake(status);
    if (options.nodes > 0)
        if (const Status status = min_nodes_check(job, nodes); !status.ok()) {
            parts.about = "job.min_nodes";
            return mistake(status);
        }
    if (options.nodes > 0 && !options.resumes)
        if (const Status status = copies_check(job, nodes); !status.ok()) {
            parts.about = "job.checkpoint_copies";
            return mistake(status);
        }
    if (job.attached() && options.here) {
        parts.about = "net.command";
        if (const Status status = process_check(job.command, job.base, job.variables()); !status.ok()) return mistake(status);
    }
    if (!config.job.start.empty() && !job.attached()) {
        parts.about = "net.start";
        std::vector<float> parameters(layers_layout(parts.layers, 1).elements);
        std::string digest, note;
        if (const Status status =
                safetensors_read(job.start, parts.spec, parameters, &digest, &note, nullptr, {job.start_only, job.start_skip});
            !status.ok())
            return mistake(status);
    }
    if (job.device == "cpu" && job.precision == Precision::f32 && !job.attached()) {
        parts.about = "algorithm.kind";
        if (const Status status = planned.plan(config, "cpu", report, options.nodes > 0); !status.ok()) return mistake(status);
        result.memory = parts.arena.use("job");
        parts.about = "parallel.stages";
        if (const Status status = fits(config, options.memory); !status.ok()) return mistake(status);
    }
    const DataInfo& info = parts.train->info();
    result.complete = true;
    result.train = info.count;
    result.test = parts.test ? parts.test->info().count : 0;
    result.sample = {info.C, info.H, info.W};
    result.classes = info.regression() ? 0 : info.classes;
    for (const Layer& layer : parts.layers) result.parameters += layer.parameters();
    result.layers = std::move(parts.layers);
    result.steps = parts.steps;
    result.epochs = parts.sampler->epoch_of(parts.steps - 1) + 1;
    result.warnings = report.status().warnings;
    *check = std::move(result);
    return {};
}

}   // namespace gradcast
