// Whether a job's memory is there, before any of it is taken.
#pragma once
#include "runtime/core/memory_use.h"
#include "runtime/job/file/engine_config.h"
#include "runtime/job/run/grid_plan.h"

namespace gradcast {

/// Takes the memory that a job has planned at this node from the daemon's budget, and looks whether the machine has it.  Error:
/// Code::node_memory with what it needs, what there is, and the number of stages that would fit.
Status memory_check(const EngineConfig& config, const std::vector<MemoryUse>& planned, MemoryBudget::Share* share);

/// Of a job that needs more than `memory` bytes a node: "; parallel.stages = 4 would need 213.4 MiB a node", with the fewest stages that
/// fit over its nodes, or that none fits.  Empty where stages are not possible.
std::string stages_that_fit(const EngineConfig& config, uint64_t memory);

}   // namespace gradcast
