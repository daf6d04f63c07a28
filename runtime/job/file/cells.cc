#include "runtime/job/file/cells.h"

#include <fmt/format.h>

namespace gradcast {

std::string cells_text(const JobConfig& job) {
    const uint32_t stages = std::max(job.stages, 1u), groups = std::max(job.slice_groups, 1u);
    if (groups == 1) return fmt::format("{} stage{}", stages, stages == 1 ? "" : "s");
    return stages > 1 ? fmt::format("{} stages x {} slice groups", stages, groups) : fmt::format("{} slice groups", groups);
}

std::string one_replica_text(const JobConfig& job, uint32_t nodes) {
    const uint32_t cells = cells_of(job);
    if (!needs_replicas(job) || cells < 2 || nodes >= 2 * cells) return {};
    const std::string other = job.slice_groups > 1 ? "" : ", or buddy = true";
    return fmt::format(
        "survive = true, but {} nodes are one replica of {}: the loss of a node that alone has its part ends the job; take {} "
        "nodes for two replicas, or fewer {}{}",
        nodes, cells_text(job), 2 * cells, job.stages > 1 ? "stages" : "slice groups", other);
}

Status min_nodes_check(const JobConfig& job, uint32_t nodes) {
    if (job.min_nodes <= nodes) return {};
    return fail(Code::invalid, "job.min_nodes = {}, but the job has {} node{}", job.min_nodes, nodes, nodes == 1 ? "" : "s");
}

}   // namespace gradcast
