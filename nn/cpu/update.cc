// The end of a step: sums are applied in pieces by all lanes, and copies of weights are made anew.
#include "nn/cpu/net.h"

namespace gradcast::cpu {

void CpuNet::refresh_layer(uint32_t lane, size_t layer) {
    OneThread one;
    for (const Operation& operation : copies_[layer].refresh)
        GC_ASSERT(operation(frame_of(lane, 0)).ok());   // no block is running: the lane's scratch is free
}

uint64_t CpuNet::digest() {
    uint64_t sum = 0;
    for (const Layout::Run& run : runs_) sum += digest64(parameters().subspan(run.offset, run.count), run.place);
    return sum;
}

void CpuNet::refresh() {
    for (size_t layer : copied_) refresh_layer(0, layer);
}

Status CpuNet::apply(Lanes& lanes, Optimiser& optimiser, std::span<const BucketSum> sums, uint64_t* digest) {
    GC_ASSERT(lanes.count() <= memory_.size());
    sums_apply(lanes, pieces_, layout_, sums, optimiser, parameters());
    pieces_run(lanes, layout_.elements, copied_.size(), [this](uint32_t lane, uint32_t i) { refresh_layer(lane, copied_[i]); });
    *digest = shared_digest_ = 0;
    for (const SumPiece& piece : pieces_) {
        if (layout_.stands_for(layout_.groups[piece.group])) *digest += piece.digest;
        if (layout_.groups[piece.group].by_all) shared_digest_ += piece.digest;
    }
    return {};
}

}   // namespace gradcast::cpu
