// Which part of a net each rank computes: replicas x stages x slice groups.  Pure functions; nobody negotiates.
#pragma once
#include <span>
#include <vector>

#include "runtime/core/status.h"
#include "runtime/core/types.h"

namespace gradcast {

/// A part of a net: a stage, and of its sliced layers a run of slices.
struct Cell {
    uint32_t stage = 0, slice_group = 0;
    bool operator==(const Cell&) const = default;
};

/// The number of a cell: stage after stage, in a stage slice group after slice group.  cell_numbered() is the inverse.
constexpr uint32_t cell_number(const Cell& cell, uint32_t slice_groups) { return cell.stage * slice_groups + cell.slice_group; }
constexpr Cell cell_numbered(uint32_t number, uint32_t slice_groups) { return {number / slice_groups, number % slice_groups}; }

/// A rank has one cell.  Of the ranks with the same cell the lowest one belongs to replica 0, the next to replica 1, and so on; there are
/// as many replicas as have all cells, and the ranks behind them are spares.
class Grid {
public:
    Grid() = default;
    /// Makes the grid of n >= 1 ranks.  Rank r has the cell with the number r % cells(), so the ranks of a replica follow one another as
    /// the numbers of their cells do.  stages and slice_groups: at least 1.  Error: n is too small for one replica; it says how many nodes
    /// that needs.
    static Status make(uint32_t n, uint32_t stages, uint32_t slice_groups, Grid* grid);
    /// Makes the grid of ranks that have the cells with these numbers.  It may have no replica, and has at most replicas_most.
    static Grid of(std::span<const uint32_t> cells, uint32_t stages, uint32_t slice_groups, uint32_t replicas_most = ~0u);

    uint32_t replicas() const { return replicas_; }
    uint32_t stages() const { return stages_; }
    uint32_t slice_groups() const { return slice_groups_; }
    uint32_t cells() const { return stages_ * slice_groups_; }   // of a replica
    uint32_t spares() const { return static_cast<uint32_t>(numbers_.size()) - replicas_ * cells(); }
    bool is_spare(Rank rank) const { return orders_[rank] >= replicas_; }
    /// Returns the replica of a rank.  Not for spares.
    uint32_t replica_of(Rank rank) const { return orders_[rank]; }
    Cell cell(uint32_t number) const { return cell_numbered(number, slice_groups_); }
    uint32_t number_of(const Cell& cell) const { return cell_number(cell, slice_groups_); }
    Cell cell_of(Rank rank) const { return cell(numbers_[rank]); }
    Rank rank_of(uint32_t replica, const Cell& cell) const { return ranks_[number_of(cell)][replica]; }
    /// The ranks that have the same cell, ascending: they exchange the cell's gradients.
    std::vector<Rank> replica_group(const Cell& cell) const;
    /// The ranks of a replica that share the slices of a stage, ascending in slice groups.
    std::vector<Rank> slice_group(uint32_t replica, uint32_t stage) const;
    /// Cells that no rank has, ascending.
    std::vector<Cell> missing() const;

private:
    uint32_t replicas_ = 1, stages_ = 1, slice_groups_ = 1;
    std::vector<uint32_t> numbers_ = {0}, orders_ = {0};   // by rank: of its cell, and among the ranks that have it
    std::vector<std::vector<Rank>> ranks_ = {{0}};         // by number of the cell, ascending
};

}   // namespace gradcast
