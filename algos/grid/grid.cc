#include "algos/grid/grid.h"

#include <fmt/format.h>

namespace gradcast {

Status Grid::make(uint32_t n, uint32_t stages, uint32_t slice_groups, Grid* grid) {
    GC_ASSERT(n >= 1 && stages >= 1 && slice_groups >= 1);
    const uint64_t cells = uint64_t{stages} * slice_groups;
    if (cells > n)
        return fail(Code::invalid, "{} stages{} need {} nodes, and there {} {}: take fewer stages, or more nodes", stages,
                    slice_groups > 1 ? fmt::format(" x {} slice groups", slice_groups) : "", cells, n == 1 ? "is" : "are", n);
    grid->n_ = n;
    grid->stages_ = stages;
    grid->slice_groups_ = slice_groups;
    grid->replicas_ = static_cast<uint32_t>(n / cells);
    return {};
}

std::vector<Rank> Grid::replica_group(const Cell& cell) const {
    std::vector<Rank> ranks;
    for (uint32_t replica = 0; replica < replicas_; ++replica) ranks.push_back(rank_of(replica, cell));
    return ranks;
}

std::vector<Rank> Grid::slice_group(uint32_t replica, uint32_t stage) const {
    std::vector<Rank> ranks;
    for (uint32_t slice = 0; slice < slice_groups_; ++slice) ranks.push_back(rank_of(replica, {stage, slice}));
    return ranks;
}

}   // namespace gradcast
