// Whether a job's memory is there, before any of it is taken.
#pragma once
#include "runtime/core/memory_room.h"
#include "runtime/core/memory_use.h"
#include "runtime/job/file/engine_config.h"
#include "runtime/job/run/grid_plan.h"

namespace gradcast {

inline double mib(uint64_t bytes) { return static_cast<double>(bytes) / 0x1p20; }

/// The most that a job may take at this node: the least of what the daemon's budget has left, and of what the machine has with the bytes
/// that the job has `taken` already.
MemoryRoom job_room(const EngineConfig& config, uint64_t taken);

/// Takes the memory that a job has planned at this node from the daemon's budget, and looks whether the machine has it.  taken: as of
/// job_room().  share: null: nothing is taken.  Error: Code::node_memory with what it needs, what there is, and what would need less: a
/// number of stages; of net.command smaller blocks.
Status memory_check(const EngineConfig& config, const std::vector<MemoryUse>& planned, uint64_t taken, MemoryBudget::Share* share);

/// Returns advice for a job that needs more than `memory` bytes a node: "; parallel.stages = 4 would need 213.4 MiB a node", with the
/// fewest stages that fit over its nodes, or that none fits.  Empty where stages are not possible.
std::string stages_that_fit(const EngineConfig& config, uint64_t memory);

}   // namespace gradcast
