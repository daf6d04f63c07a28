#include "runtime/job/run/job_check.h"

#include <unistd.h>

#include <algorithm>

#include "datasets/manifest.h"
#include "runtime/job/model/safetensors.h"
#include "runtime/job/run/exchange_choice.h"
#include "runtime/job/run/parts.h"

namespace gradcast {
namespace {

/// Whether this machine has the files of a pattern or manifest, and allows to read them.
bool readable(const std::string& pattern, size_t literal) {
    Manifest all;
    const Status found = is_manifest(pattern) ? manifest_read(pattern, &all) : shards_find(pattern, false, &all.shards, literal);
    return found.ok() && std::ranges::all_of(all.shards, [](const auto& each) { return ::access(each.path.c_str(), R_OK) == 0; });
}

/// Memory, and what the exchange and the algorithm ask for.
Status plan(const EngineConfig& config, const JobCheckOptions& options, JobParts& parts, Report& report) {
    const JobConfig& job = config.job;
    GC_TRY(parts.plan_examined(config, "cpu", report));
    ExchangeChoice choice;
    if (options.nodes > 0) GC_TRY(choice.open(config, parts, report));
    if (options.nodes == 0 && parts.algorithm->server && job.settings.workers == 0) return {};   // one worker a node
    const std::unique_ptr<Algorithm> algorithm = JobParts::exact(job) ? parts.algorithm->exact() : parts.algorithm->create();
    Arena arena;   // the algorithm's workers are those of one node
    return algorithm->plan({.settings = job.settings,
                            .net = *parts.compute.net,
                            .workers = static_cast<uint32_t>(parts.block_sizes.size()),
                            .own_workers = {},
                            .checkpoints = job.checkpoint_keep > 0,
                            .state_size = parts.optimiser_values(),
                            .scales = parts.compute.codec->exponents().size(),
                            .optimiser = parts.schedule,
                            .local = parts.local.get(),
                            .updates = parts.updates,
                            .rounds = parts.steps,
                            .servers = job.servers,
                            .folder = {},
                            .job = parts.facts(job),
                            .arena = arena});
}

}   // namespace

Status job_check(const JobConfig& job, const std::string& path, const JobCheckOptions& options, JobCheck* check) {
    EngineConfig config;
    config.job = job;
    config.lanes = options.lanes;
    const uint32_t nodes = options.nodes > 0 ? options.nodes : job.stages;   // where nobody says how many: of one replica
    for (uint32_t node = 0; node < nodes; ++node) config.roster.push_back({fmt::format("node{}", node), {}, 1});
    JobCheck result;
    if (!options.here) {
        if (!readable(job.train, job.literal(job.train))) return *check = result, Status{};
        if (!job.test.empty() && !readable(job.test, job.literal(job.test))) config.job.test.clear();
        if (::access(job.start.c_str(), R_OK) != 0) config.job.start.clear();
    }
    Report report{Log()};
    JobParts parts;
    auto mistake = [&](const Status& status) {
        return fail(status.code, "{}", job_mistake(job.text, path, parts.about, status.what).text);
    };
    if (const Status status = parts.examine(config, options.verify, report); !status.ok()) return mistake(status);
    if (!config.job.start.empty()) {
        parts.about = "net.start";
        std::vector<float> parameters(layers_layout(parts.layers, 1).elements);
        std::string digest, note;
        if (const Status status = safetensors_read(job.start, parts.spec, parameters, &digest, &note); !status.ok()) return mistake(status);
    }
    if (job.device == "cpu" && job.precision == Precision::f32) {
        parts.about = "algorithm.kind";
        if (const Status status = plan(config, options, parts, report); !status.ok()) return mistake(status);
        result.memory = parts.arena.use("job");
    }
    const DataInfo& info = parts.train->info();
    result.complete = true;
    result.train = info.count;
    result.test = parts.test ? parts.test->info().count : 0;
    result.sample = {info.C, info.H, info.W};
    result.classes = info.target_scale > 0 ? 0 : info.classes;
    for (const Layer& layer : parts.layers) result.parameters += layer.parameters();
    result.layers = std::move(parts.layers);
    result.steps = parts.steps;
    result.epochs = parts.sampler->epoch_of(parts.steps - 1) + 1;
    result.warnings = report.status().warnings;
    *check = std::move(result);
    return {};
}

}   // namespace gradcast
