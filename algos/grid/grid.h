// Which part of a net each rank computes: replicas x stages x slice groups.  A pure function of the grid; nobody negotiates.
#pragma once
#include <vector>

#include "runtime/core/status.h"
#include "runtime/core/types.h"

namespace gradcast {

/// A part of a net: a stage, and of its sliced layers a run of slices.
struct Cell {
    uint32_t stage = 0, slice_group = 0;
    bool operator==(const Cell&) const = default;
};

/// Ranks of a replica follow one another: stage after stage, in a stage slice group after slice group.  Ranks behind the last replica are
/// spares.
class Grid {
public:
    Grid() = default;
    /// Of n ranks, n >= 1: as many replicas as fit.  stages and slice_groups: at least 1.  Error: n is too small for one replica; it says
    /// how many nodes that needs.
    static Status make(uint32_t n, uint32_t stages, uint32_t slice_groups, Grid* grid);

    uint32_t replicas() const { return replicas_; }
    uint32_t stages() const { return stages_; }
    uint32_t cells() const { return stages_ * slice_groups_; }   // of a replica
    uint32_t spares() const { return n_ - replicas_ * cells(); }
    bool is_spare(Rank rank) const { return rank >= replicas_ * cells(); }
    /// Of ranks that are not spares.
    uint32_t replica_of(Rank rank) const { return rank / cells(); }
    Cell cell_of(Rank rank) const { return {rank % cells() / slice_groups_, rank % slice_groups_}; }
    Rank rank_of(uint32_t replica, const Cell& cell) const {
        return static_cast<Rank>(replica * cells() + cell.stage * slice_groups_ + cell.slice_group);
    }
    /// The ranks that have the same cell, ascending: they exchange the cell's gradients.
    std::vector<Rank> replica_group(const Cell& cell) const;
    /// The ranks of a replica that share the slices of a stage, ascending.
    std::vector<Rank> slice_group(uint32_t replica, uint32_t stage) const;

private:
    uint32_t n_ = 1, replicas_ = 1, stages_ = 1, slice_groups_ = 1;
};

}   // namespace gradcast
