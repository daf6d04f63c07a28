#include "runtime/job/run/lane_choice.h"

#include <algorithm>

#include "runtime/job/run/memory_check.h"
#include "runtime/job/run/planned_job.h"

namespace gradcast {
namespace {

/// What the job would plan with so many lanes.
Status planned_for(uint32_t lanes, const EngineConfig& config, JobParts& parts, std::vector<MemoryUse>* uses) {
    EngineConfig tried = config;
    tried.lanes = lanes;
    Report silent{Log::none()};
    PlannedJob job;
    GC_TRY(job.parts.examine_data(tried, false, silent));
    job.parts.spec = parts.spec;
    job.parts.layers = parts.layers;
    job.parts.processes = std::move(parts.processes);
    const Status status = job.plan(tried, "cpu", silent);
    if (status.ok()) *uses = job.memory();
    job.parts.compute.net.reset();   // before the processes, which it uses
    parts.processes = std::move(job.parts.processes);
    return status;
}

uint64_t total(const std::vector<MemoryUse>& uses) {
    uint64_t bytes = 0;
    for (const MemoryUse& each : uses) bytes += each.total();
    return bytes;
}

}   // namespace

Status lanes_choose(EngineConfig* config, JobParts& parts, Report& report) {
    const uint32_t most = std::max(config->lanes, 1u);
    std::vector<MemoryUse> uses;
    if (parts.processes) {
        EngineConfig one = *config;
        one.lanes = 1;
        GC_TRY(planned_for(1, one, parts, &uses));
        GC_TRY(memory_check(one, uses, parts.processes->taken(), nullptr));
        GC_TRY(parts.processes->first());
    }
    const MemoryRoom room = job_room(*config, parts.processes ? parts.processes->taken() : 0);
    // More lanes never take less: the largest number that fits is between one that does, or 1, and one that does not.
    uint32_t lanes = most, too_many = most + 1;
    uint64_t all = 0, needed = 0;
    for (uint32_t fits = 0; fits + 1 < too_many;) {
        const uint32_t tried = too_many > most ? most : fits + (too_many - fits) / 2;
        GC_TRY(planned_for(tried, *config, parts, &uses));
        const uint64_t bytes = total(uses);
        if (tried == most) all = bytes;
        if (bytes <= room.bytes || tried == 1) needed = bytes, lanes = tried;
        if (bytes <= room.bytes) fits = tried;
        else too_many = tried;
    }
    if (lanes < most) {
        config->lanes = lanes;
        const std::string lane =
            parts.processes ? parts.processes->process_text() : fmt::format("{:.1f} MiB", mib((all - needed) / (most - lanes)));
        report.warn(fmt::format(
            "this node has {} of {} lanes: with {} the job would take {:.1f} MiB, and {:.1f} MiB are available ({}); a lane takes {}",
            lanes, most, most, mib(all), mib(room.bytes), room.where, lane));
    }
    if (parts.processes) parts.processes->limit(lanes, room.bytes - std::min(room.bytes, needed));
    return {};
}

}   // namespace gradcast
