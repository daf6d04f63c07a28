// How many nodes a replica of a job has, by its file, and what follows for the nodes that the job needs.
#pragma once
#include <algorithm>
#include <string>

#include "runtime/job/file/job_file.h"

namespace gradcast {

constexpr uint32_t slice_groups_auto = 0;   // JobConfig::slice_groups: as the coordinator plans

/// Nodes of a replica.  What is auto, and nobody has chosen for, counts as 1.
inline uint32_t cells_of(const JobConfig& job) { return std::max(job.stages, 1u) * std::max(job.slice_groups, 1u); }
/// "2 stages", "2 slice groups", "2 stages x 2 slice groups".
std::string cells_text(const JobConfig& job);

/// Only another replica goes on where a node is lost: the job has `survive` and no `buddy`.
inline bool needs_replicas(const JobConfig& job) { return job.survive && !job.buddy; }
/// One line: the job has `survive`, and over so many nodes one replica alone, so that a loss may end it.  Empty otherwise.
std::string one_replica_text(const JobConfig& job, uint32_t nodes);

/// job.min_nodes is less than the nodes of one replica, without which the job cannot go on.
inline bool min_nodes_below_replica(const JobConfig& job) { return job.min_nodes > 0 && !job.buddy && job.min_nodes < cells_of(job); }
/// Error: job.min_nodes is more than the nodes that the job has.
Status min_nodes_check(const JobConfig& job, uint32_t nodes);

}   // namespace gradcast
