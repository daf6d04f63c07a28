// How many lanes a job on CPUs has at a node: as many as the node's memory is enough for.  With net.command a lane has a process.
#pragma once
#include "runtime/job/file/engine_config.h"
#include "runtime/job/run/parts.h"

namespace gradcast {

/// After parts.examine(), which has started the first process.  Lowers config->lanes to the largest number with which the job fits into
/// what it may take here (job_room()).  If not even one lane fits, lanes become 1, and memory_check() refuses the job.  With net.command it
/// first measures that process, and then bounds the memory of each (NetProcesses::limit()).  The result does not depend on lanes; a warning
/// has the numbers.
/// Errors: those of planning and of NetProcesses::first(); Code::node_memory of memory_check() where one lane does not fit even before the
/// first process has its memory.
/// Cost: a plan of the job, some more if not all lanes fit; with net.command the start of the first process, a block and a batch of an
/// evaluation.
Status lanes_choose(EngineConfig* config, JobParts& parts, Report& report);

}   // namespace gradcast
