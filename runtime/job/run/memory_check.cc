#include "runtime/job/run/memory_check.h"

#include <fmt/format.h>

#include "runtime/attach/attach.h"
#include "runtime/core/memory_room.h"

namespace gradcast {
namespace {

double mib(uint64_t bytes) { return static_cast<double>(bytes) / 0x1p20; }

}   // namespace

std::string stages_that_fit(const EngineConfig& config, uint64_t memory) {
    GridPlan plan;
    std::string about;
    if (config.nodes() == 1 || !grid_plan(config, {.memory = memory, .times = false}, &plan, &about).ok()) return {};
    if (const PlannedGrid* grid = plan.chosen())
        return fmt::format("; parallel.stages = {} would need {:.1f} MiB a node", grid->stages, mib(grid->cost.memory));
    return plan.grids.size() > 1 ? fmt::format("; over {} nodes no number of stages fits", config.nodes()) : "";
}

Status memory_check(const EngineConfig& config, const std::vector<MemoryUse>& planned, MemoryBudget::Share* share) {
    uint64_t needed = 0, taken = 0;
    for (const MemoryUse& place : planned) {
        if (!place.place.starts_with("gpu")) needed += place.total();
        for (const auto& [purpose, bytes] : place.bytes)
            if (purpose == taken_purpose) taken += bytes;
    }
    constexpr uint64_t checked_from = 16 << 20;   // asking costs more than a smaller job could save
    MemoryRoom room = needed >= checked_from ? memory_room() : MemoryRoom{};
    if (room.bytes < UINT64_MAX - taken) room.bytes += taken;
    if (config.budget)
        if (const uint64_t left = config.budget->left(); left < room.bytes) room = {left, config.budget->setting()};
    if (needed <= room.bytes && (!config.budget || share->take(*config.budget, needed))) return {};
    std::string uses;
    const MemoryByUse by_use = memory_by_use(planned);
    for (size_t i = 0; i < by_use.size(); ++i) uses += fmt::format("{}{} {:.1f}", i > 0 ? ", " : "", memory_for_names[i], mib(by_use[i]));
    const std::string fits =
        config.job.attached() ? "; fewer lanes (`cpus` in gradcastd.toml) start fewer processes" : stages_that_fit(config, room.bytes);
    return fail(Code::node_memory, "the job needs {:.1f} MiB here ({}), {:.1f} MiB are available ({}){}", mib(needed), uses,
                mib(room.bytes), room.where, fits);
}

}   // namespace gradcast
