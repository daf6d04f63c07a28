// Sums of a step, applied piece by piece to parameters on the host: to those of a net, or to those of other layers that a node keeps.
#pragma once
#include <span>
#include <vector>

#include "nn/net.h"
#include "nn/optimiser.h"

namespace gradcast {

/// Elements of a piece, the most.  Norms of tensors are added piece by piece, so results of optimisers with such norms depend on it.
constexpr uint64_t piece_most = 64 * 1024;

/// A part of one group, which a lane applies at a time.
struct SumPiece {
    uint32_t bucket, group;   // of the layout
    uint64_t offset, count;
    uint64_t digest = 0;   // of the new values
};
std::vector<SumPiece> sum_pieces(const Layout& layout);
/// Computes value = (float)((double)S * unit) of each element of the piece, and applies it: by the optimiser, and of statistics as a moving
/// mean.  values [piece.count]: the parameters.  at: where the optimiser has the first of them.  Sets piece.digest: that of the parameters
/// and, behind them, of the optimiser's state.  Any thread; several at a time on disjoint pieces.
void sum_apply(SumPiece& piece, const Layout& layout, const BucketSum& from, Optimiser& optimiser, std::span<float> values, uint64_t at);
/// Runs task(lane, i) for i = 0 .. count-1: on all lanes, or on this thread, lane 0, where the elements of all of them are few.
void pieces_run(Lanes& lanes, uint64_t elements, size_t count, const std::function<void(uint32_t lane, uint32_t i)>& task);
/// sum_apply() of all pieces of a layout.  values [layout.elements]: the parameters.  sums: of every bucket in order.
void sums_apply(Lanes& lanes, std::span<SumPiece> pieces, const Layout& layout, std::span<const BucketSum> sums, Optimiser& optimiser,
                std::span<float> values);

}   // namespace gradcast
