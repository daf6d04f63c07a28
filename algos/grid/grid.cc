#include "algos/grid/grid.h"

#include <fmt/format.h>

#include <algorithm>

namespace gradcast {

Status Grid::make(uint32_t n, uint32_t stages, uint32_t slice_groups, Grid* grid) {
    GC_ASSERT(n >= 1 && stages >= 1 && slice_groups >= 1);
    const uint64_t cells = uint64_t{stages} * slice_groups;
    if (cells > n)
        return fail(Code::invalid, "{} stages{} need {} nodes, and there {} {}: take fewer stages, or more nodes", stages,
                    slice_groups > 1 ? fmt::format(" x {} slice groups", slice_groups) : "", cells, n == 1 ? "is" : "are", n);
    std::vector<uint32_t> numbers(n);
    for (uint32_t rank = 0; rank < n; ++rank) numbers[rank] = static_cast<uint32_t>(rank % cells);
    *grid = of(numbers, stages, slice_groups);
    return {};
}

Grid Grid::of(std::span<const uint32_t> cells, uint32_t stages, uint32_t slice_groups, uint32_t replicas_most) {
    Grid grid;
    grid.stages_ = stages;
    grid.slice_groups_ = slice_groups;
    grid.numbers_.assign(cells.begin(), cells.end());
    grid.ranks_.assign(grid.cells(), {});
    grid.orders_.clear();
    for (const uint32_t number : cells) {
        GC_ASSERT(number < grid.cells());
        std::vector<Rank>& same = grid.ranks_[number];
        same.push_back(static_cast<Rank>(grid.orders_.size()));
        grid.orders_.push_back(static_cast<uint32_t>(same.size()) - 1);
    }
    const auto fewest = std::ranges::min_element(grid.ranks_, {}, [](const auto& same) { return same.size(); });
    grid.replicas_ = std::min(static_cast<uint32_t>(fewest->size()), replicas_most);
    return grid;
}

std::vector<Cell> Grid::missing() const {
    std::vector<Cell> all;
    for (uint32_t number = 0; number < cells(); ++number)
        if (ranks_[number].empty()) all.push_back(cell(number));
    return all;
}

std::vector<Rank> Grid::replica_group(const Cell& cell) const {
    const std::vector<Rank>& same = ranks_[number_of(cell)];
    return {same.begin(), same.begin() + replicas_};
}

std::vector<Rank> Grid::slice_group(uint32_t replica, uint32_t stage) const {
    std::vector<Rank> ranks;
    for (uint32_t slice = 0; slice < slice_groups_; ++slice) ranks.push_back(rank_of(replica, {stage, slice}));
    return ranks;
}

}   // namespace gradcast
