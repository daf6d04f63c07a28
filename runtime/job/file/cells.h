// How many nodes a replica of a job has, by its file.
#pragma once
#include <algorithm>

#include "runtime/job/file/job_file.h"

namespace gradcast {

constexpr uint32_t slice_groups_auto = 0;   // JobConfig::slice_groups: as the coordinator plans

/// Nodes of a replica.  What is auto, and nobody has chosen for, counts as 1.
inline uint32_t cells_of(const JobConfig& job) { return std::max(job.stages, 1u) * std::max(job.slice_groups, 1u); }

}   // namespace gradcast
