#include "runtime/job/run/buddy_parts.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "algos/context.h"
#include "nn/frozen.h"
#include "runtime/job/model/safetensors.h"
#include "runtime/job/run/parts.h"
#include "runtime/job/run/stages.h"

namespace gradcast {
namespace {

StateMemory memory_of_net(const JobParts& parts, const StageRun& run, const Computer& computer) {
    return {parts.state_runs_of(run), writable_state(computer)};
}

/// The elements of `what`, by their places; both have them.
void copy(const StateMemory& from, const StateMemory& to, const StateRuns& what) {
    for (const StateVector which : state_vectors)
        for (const Layout::Run& run : what[which]) {
            const std::span<std::byte> source = from.at(which, run.place, run.count), target = to.at(which, run.place, run.count);
            GC_ASSERT(!source.empty() && source.size() == target.size());
            if (source.data() != target.data()) std::memcpy(target.data(), source.data(), source.size());
        }
}

}   // namespace

std::span<std::byte> StateMemory::at(StateVector which, uint64_t place, uint64_t count) const {
    for (const Layout::Run& run : runs[which])
        if (place >= run.place && place + count <= run.place + run.count)
            return vectors[which].subspan((run.offset + place - run.place) * kind_of(which).width, count * kind_of(which).width);
    return {};
}

Status BuddyParts::plan(JobParts& parts, const EngineConfig& config, const NetConfig& like) {
    const JobConfig& job = config.job;
    const PipelineConfig& cut = *parts.cut;
    const CodecConfig codec{job.quantiser, job.batch, job.blocks, job.seed};
    held_.assign(cut.stages(), Context::no_part);
    const std::vector<StageRun> runs = runs_possible(cut.own_stage, cut.stages());
    longest_ = runs.back();
    for (const StageRun& run : runs) {
        if (run == parts.run) continue;
        const PipelineConfig pipeline = pipeline_of_run(cut, run);
        NetConfig net = like;
        net.stage = pipeline.stage(pipeline.own_stage);
        net.slots = pipeline.slots();
        net.recompute = pipeline.recomputes();
        Other& other = others_.emplace_back();
        other.run = run;
        GC_TRY(other.computer.plan(parts.spec, net, parts.schedule, codec, arena_, layers_frozen(parts.layers, parts.schedule)));
    }
    const std::vector<uint32_t> stages = kept_by(cut.own_stage, cut.stages());
    all_.resize(stages.size());
    for (size_t i = 0; i < stages.size(); ++i) {
        KeptStage& kept = all_[i];
        kept.stage = stages[i];
        kept.layout = layers_layout(parts.layers, like.bucket_bytes, cut.stage(kept.stage));
        kept.codec = codec_cpu(kept.layout, codec);
        if (parts.schedule.clip_norm > 0 || mean_over_valid(parts.spec)) kept.scaled.emplace(kept.layout);
        kept.groups = parts.state_runs_of(StageRun{kept.stage, kept.stage + 1}, 0, false)[StateVector::exponents];
        const Computer& computer = longest(parts);
        kept.net = computer.net.get();
        kept.optimiser = computer.optimiser.get();
        kept.open();
    }
    std::vector<NodeId> first;   // view; a node that joins comes into a later one
    for (uint32_t node = 0; node < config.nodes(); ++node) first.push_back(NodeId{node});
    if (!config.join) keeps_ = ViewStages(first, cut.stages(), true).kept(static_cast<Rank>(config.self));
    return {};
}

Status BuddyParts::ready(const EngineConfig& config) {
    GC_TRY(arena_.seal());
    std::string digest, notes;
    for (Other& other : others_) {
        Net& net = *other.computer.net;
        GC_TRY(net_cpu_ready(net));
        if (config.job.start.empty()) continue;
        GC_TRY(safetensors_read(config.job.start, net.spec(), net.parameters(), &digest, &notes, &net.layout(),
                                {config.job.start_only, config.job.start_skip}));
        net.refresh();
    }
    return {};
}

const Computer& BuddyParts::longest(const JobParts& parts) const {
    if (parts.run == longest_) return parts.compute;
    return std::ranges::find(others_, longest_, &Other::run)->computer;
}

Computer& BuddyParts::computer_of(JobParts& parts, const StageRun& run) {
    if (parts.run == run) return parts.compute;
    const auto other = std::ranges::find(others_, run, &Other::run);
    GC_ASSERT(other != others_.end());
    return other->computer;
}

StepId BuddyParts::held(const JobParts& parts, uint32_t stage) const {
    const bool here = parts.run.has(stage) || std::ranges::find(keeps_, stage) != keeps_.end();
    return here ? held_[stage] : Context::no_part;
}

void BuddyParts::note(const JobParts& parts, StepId part_step) {
    if (part_step == Context::no_part) return;
    for (uint32_t stage = parts.run.first; stage < parts.run.end; ++stage) held_[stage] = part_step;
    for (const uint32_t stage : keeps_) held_[stage] = part_step;
}

std::vector<KeptStage*> BuddyParts::kept() {
    std::vector<KeptStage*> present;
    for (KeptStage& each : all_)
        if (std::ranges::find(keeps_, each.stage) != keeps_.end()) present.push_back(&each);
    return present;
}

/// Parameters and optimiser state lie in the net of the longest run, scales apart.
StateMemory BuddyParts::memory_of(const JobParts& parts, KeptStage& stage, bool owned) {
    const StageRun alone{stage.stage, stage.stage + 1};
    const StateRuns own = parts.state_runs_of(alone, 0, owned), all = parts.state_runs_of(longest_);
    StateMemory memory{own, writable_state(longest(parts))};
    for (const StateVector which : {StateVector::parameters, StateVector::optimiser})
        for (Layout::Run& run : memory.runs[which])
            (void)each_stretch(all[which], run.place, run.count, [&](uint64_t offset, uint64_t, uint64_t count) {
                GC_ASSERT(count == run.count);
                return run.offset = offset, Status{};
            });
    memory.vectors[StateVector::exponents] = std::as_writable_bytes(stage.codec->exponents());
    memory.kept = stage.stage;
    return memory;
}

std::vector<StateMemory> BuddyParts::kept_memory(const JobParts& parts, bool owned) {
    std::vector<StateMemory> all;
    for (KeptStage* each : kept()) all.push_back(memory_of(parts, *each, owned));
    return all;
}

void BuddyParts::turn(JobParts& parts, const ViewStages& view, Rank self) {
    const StageRun before = parts.run, now = view.run_of(self);
    const std::vector<uint32_t> keeps = view.kept(self);
    const StateMemory computed = memory_of_net(parts, before, parts.compute);
    const auto source = [&](uint32_t stage) {   // where this node has its state of a stage
        const auto kept = std::ranges::find(all_, stage, &KeptStage::stage);
        return before.has(stage) ? computed : memory_of(parts, *kept);
    };
    const StateMemory target = memory_of_net(parts, now, computer_of(parts, now));
    for (uint32_t stage = now.first; stage < now.end; ++stage) copy(source(stage), target, parts.state_runs_of(StageRun{stage, stage + 1}));
    for (KeptStage& each : all_)
        if (before.has(each.stage) && std::ranges::find(keeps, each.stage) != keeps.end())
            copy(computed, memory_of(parts, each), parts.state_runs_of(StageRun{each.stage, each.stage + 1}));
    keeps_ = keeps;
    if (before != now) {
        Computer& next = computer_of(parts, now);
        std::swap(parts.compute, next);
        std::ranges::find(others_, now, &Other::run)->run = before;
        parts.run = now;
        parts.runs = parts.state_runs_of(now, 0, false);
        parts.refresh();
    }
    parts.pipeline = view.pipeline(*parts.cut, self);
}

}   // namespace gradcast
