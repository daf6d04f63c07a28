// How many lanes a job with net.command has at a node: one process each, and as many as the node's memory is enough for.
#pragma once
#include "runtime/job/file/engine_config.h"
#include "runtime/job/run/parts.h"

namespace gradcast {

/// After parts.examine(), which has started the first process.  Measures that process, and lowers config->lanes to the largest number that
/// fits into what the job may take here (job_room()), beside all else that the job plans.  Where not even one fits, lanes become 1, and
/// memory_check() refuses the job.  Bounds the memory of each process (NetProcesses::limit()).  The result does not depend on lanes; a
/// warning has the numbers.
/// Errors: those of NetProcesses::first() and of planning; Code::node_memory of memory_check() where one lane does not fit even before the
/// first process has its memory.
/// Cost: the start of the first process, a block and a batch of an evaluation; some plans of the job where not all lanes fit.
Status lanes_choose(EngineConfig* config, JobParts& parts, Report& report);

}   // namespace gradcast
