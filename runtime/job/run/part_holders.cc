#include "runtime/job/run/part_holders.h"
#include "runtime/job/file/cells.h"

#include <algorithm>

namespace gradcast {

std::vector<PartHolders> part_holders(const Grid& grid, const std::function<bool(Rank)>& lost, uint64_t number, uint32_t copies,
                                      bool travel) {
    std::vector<PartHolders> all(grid.cells());
    if (copies == 0) copies = grid.replicas() == 1 ? 2 : 1;
    for (uint32_t cell = 0; cell < grid.cells(); ++cell) {
        auto& [writers, receivers] = all[cell];
        writers = grid.replica_group(grid.cell(cell));
        std::erase_if(writers, lost);
        if (writers.empty()) continue;
        std::ranges::rotate(writers, writers.begin() + static_cast<ptrdiff_t>(number % writers.size()));
        if (writers.size() > copies) writers.resize(copies);
        const uint32_t first = grid.replica_of(writers[0]);
        for (uint32_t replica = 0; travel && replica < grid.replicas(); ++replica)
            for (uint32_t next = 1; next < grid.cells() && writers.size() + receivers.size() < copies; ++next) {
                const Rank rank = grid.rank_of((first + replica) % grid.replicas(), grid.cell((cell + next) % grid.cells()));
                if (!lost(rank)) receivers.push_back(rank);
            }
    }
    return all;
}

bool parts_travel(const JobConfig& job, uint32_t nodes) {
    const uint32_t cells = cells_of(job);
    if (cells < 2 || job.checkpoint_keep == 0 || job.s > 0) return false;
    const uint32_t replicas = job.survive ? 1 : std::max(nodes / cells, 1u);   // the fewest
    return (job.checkpoint_copies == copies_auto ? 2 : job.checkpoint_copies) > replicas;
}

uint32_t copies_most(const JobConfig& job, uint32_t nodes) {
    const uint32_t cells = cells_of(job), replicas = std::max(nodes / cells, 1u);
    return cells == 1 || job.s > 0 ? replicas : replicas * cells;   // spare nodes hold nothing
}

Status copies_check(const JobConfig& job, uint32_t nodes) {
    const uint32_t most = copies_most(job, nodes);
    if (job.checkpoint_copies <= most) return {};
    const std::string possible = most == 1 ? "only 1 is possible" : fmt::format("1 to {} are possible", most);
    if (cells_of(job) < 2 || job.s == 0)
        return fail(Code::invalid, "job.checkpoint_copies = {}, but the job has {} node{}: {}, or \"auto\"", job.checkpoint_copies, nodes,
                    nodes == 1 ? "" : "s", possible);
    return fail(Code::invalid,
                "job.checkpoint_copies = {}, but each {} is computed at {} node{}: where replicas may be lost, only these write its "
                "part; {}, or \"auto\"",
                job.checkpoint_copies, job.slice_groups > 1 ? "slice group" : "stage", most, most == 1 ? "" : "s", possible);
}

}   // namespace gradcast
