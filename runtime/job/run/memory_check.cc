#include "runtime/job/run/memory_check.h"

#include <fmt/format.h>

#include "runtime/attach/attach.h"
#include "runtime/core/memory_room.h"
#include "runtime/job/file/cells.h"

namespace gradcast {

std::string stages_that_fit(const EngineConfig& config, uint64_t memory) {
    GridPlan plan;
    std::string about;
    if (config.nodes() == 1 || !grid_plan(config, {.memory = memory, .times = false}, &plan, &about).ok()) return {};
    if (const PlannedGrid* grid = plan.chosen())
        return fmt::format("; parallel.stages = {}{} would need {:.1f} MiB a node", grid->stages,
                           config.job.slice_groups == slice_groups_auto ? fmt::format(" with slice_groups = {}", grid->slice_groups) : "",
                           mib(grid->cost.memory));
    return plan.grids.size() > 1 ? fmt::format("; over {} nodes no number of stages fits", config.nodes()) : "";
}

MemoryRoom job_room(const EngineConfig& config, uint64_t taken) {
    MemoryRoom room = memory_room();
    room.bytes += std::min(taken, UINT64_MAX - room.bytes);
    if (config.budget)
        if (const uint64_t remaining = config.budget->remaining(); remaining < room.bytes) room = {remaining, config.budget->setting()};
    return room;
}

Status memory_check(const EngineConfig& config, const std::vector<MemoryUse>& planned, uint64_t taken, MemoryBudget::Share* share) {
    uint64_t needed = 0, programs = 0;
    std::vector<MemoryUse> here;
    for (const MemoryUse& place : planned)
        if (!place.on_gpu) here.push_back(place);
    for (const MemoryUse& place : here) {
        needed += place.total();
        for (const auto& [purpose, bytes] : place.bytes)
            if (purpose == programs_purpose) programs += bytes;
    }
    const MemoryRoom room = job_room(config, taken);
    if (needed <= room.bytes && (!config.budget || !share || share->take(*config.budget, needed))) return {};
    std::string uses;
    if (programs > 0) uses = fmt::format("{} {:.1f}, ", programs_purpose, mib(programs));
    MemoryByUse by_use = memory_by_use(here);
    by_use[memory_for_names.size() - 1] -= programs;
    for (size_t i = 0; i < by_use.size(); ++i) uses += fmt::format("{}{} {:.1f}", i > 0 ? ", " : "", memory_for_names[i], mib(by_use[i]));
    std::string with, fits;
    if (config.job.attached()) {
        with = config.lanes > 1 ? fmt::format(" with {} lanes", config.lanes) : " with one lane";
        fits = "; more memory, a smaller batch (job.batch) or smaller blocks of it (more job.blocks) make it fit";
    } else {
        fits = stages_that_fit(config, room.bytes);
    }
    return fail(Code::node_memory, "the job needs {:.1f} MiB here{} ({}), {:.1f} MiB are available ({}){}", mib(needed), with, uses,
                mib(room.bytes), room.where, fits);
}

}   // namespace gradcast
