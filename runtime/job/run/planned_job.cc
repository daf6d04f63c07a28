#include "runtime/job/run/planned_job.h"

#include "datasets/picture_memory.h"
#include "runtime/job/file/cells.h"
#include "runtime/job/run/gathered_model.h"
#include "runtime/job/run/part_copies.h"
#include "runtime/job/run/part_holders.h"

namespace gradcast {

Status PlannedJob::plan(const EngineConfig& config, const std::string& device, Report& report, bool nodes_known) {
    const JobConfig& job = config.job;
    config_ = &config;
    GC_TRY(parts.plan_examined(config, device, report));
    algorithm = parts.exact(job) ? parts.algorithm->exact() : parts.algorithm->create();
    if (nodes_known) {
        if (const std::string text = one_replica_text(job, config.nodes()); !text.empty() && !config.join) report.warn(text);
        GC_TRY(choice.open(config, parts, report));
        SessionConfig first;
        first.exchange = choice.first();
        first.first_step = config.resume.steps;
        for (uint32_t node = 0; node < config.nodes() && !config.join; ++node) first.nodes.push_back(NodeId{node});
        if (config.join) {   // never opened: of this node alone
            first.view = 0;
            first.nodes = {config.self};
            GC_TRY(choice.alone(&first.exchange));
        }
        if (parts.pipeline && job.survive) GC_TRY(choice.alone(&first.spare));
        session = std::make_unique<Session>(first, config, parts, report);
        GC_TRY(session->plan());
    }
    if (!nodes_known && parts.algorithm->server && job.settings.workers == 0) return {};   // one worker a node
    return algorithm->plan({.settings = job.settings,
                            .net = *parts.compute.net,
                            .workers = static_cast<uint32_t>(parts.block_sizes.size()),
                            .own_workers = session ? std::span<const uint32_t>(session->own_blocks()) : std::span<const uint32_t>(),
                            .checkpoints = job.checkpoint_keep > 0,
                            .state_size = parts.optimiser_values(),
                            .scales = parts.compute.codec->exponents().size(),
                            .optimiser = parts.schedule,
                            .local = parts.local.get(),
                            .updates = parts.updates,
                            .rounds = config.until > 0 ? std::min(config.until, parts.steps) : parts.steps,
                            .servers = job.servers,
                            .folder = config.folder,
                            .job = parts.facts(job),
                            .arena = parts.arena});
}

std::vector<MemoryUse> PlannedJob::memory() {
    std::vector<MemoryUse> all = parts.compute.memory(parts.arena);
    const uint32_t lanes = parts.compute.device ? parts.compute.device->lane_count() : std::max(config_->lanes, 1u);
    uint64_t decoders = decoders_bytes(*parts.train, parts.loader && config_->loader_threaded ? 1 : lanes);   // workers read their own
    if (parts.test) decoders += decoders_bytes(*parts.test, lanes);
    if (decoders > 0) all.push_back({"pictures", {{"decoders", decoders}}});
    if (parts.buddies) all.push_back(parts.buddies->arena().use("buddy"));
    const auto snapshot = [&](const char* what) { all.push_back({what, {{what, parts.state_bytes()}}}); };
    if (config_->job.checkpoint_keep > 0) snapshot("checkpoint");
    if (parts.pipeline && parts_travel(config_->job, config_->nodes()))
        all.back().bytes.emplace_back("copies of other parts", PartCopies::rooms_bytes(parts));
    if (config_->job.survive && config_->until == 0 && !parts.pipeline) snapshot("state before another node's");
    const bool writes = config_->job.survive || (session && session->self() <= session->ranks_tolerated());   // the model, some time
    if (parts.pipeline && writes) all.push_back({"model", {{"model", GatheredModel(parts).rooms_bytes()}}});
    if (session) all.push_back(session->arena().use("view"));
    return all;
}

}   // namespace gradcast
