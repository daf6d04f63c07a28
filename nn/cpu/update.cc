// The end of a step: sums are applied in pieces by all lanes, and copies of weights are made anew.
#include "nn/cpu/net.h"

namespace gradcast::cpu {
namespace {

constexpr uint64_t apply_alone = 128 * 1024;   // elements of a net that one thread updates

}   // namespace

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
    GC_ASSERT(sums.size() == layout_.buckets.size() && lanes.count() <= memory_.size());
    const bool alone = lanes.count() == 1 || layout_.elements < apply_alone;
    auto run = [&lanes, alone](size_t items, const std::function<void(uint32_t, uint32_t)>& task) {
        if (!alone) return lanes.run(static_cast<uint32_t>(items), task);
        for (uint32_t i = 0; i < items; ++i) task(0, i);
    };
    struct Step {   // behind one pointer: a std::function of it allocates nothing
        CpuNet& net;
        Optimiser& optimiser;
        const std::span<const BucketSum> sums;
    } const step{*this, optimiser, sums};
    run(pieces_.size(), [&step](uint32_t, uint32_t i) {
        SumPiece& piece = step.net.pieces_[i];
        sum_apply(piece, step.net.layout_, step.sums[piece.bucket], step.optimiser,
                  step.net.parameters().subspan(piece.offset, piece.count), piece.offset);
    });
    run(copied_.size(), [this](uint32_t lane, uint32_t i) { refresh_layer(lane, copied_[i]); });
    uint64_t own = 0;
    shared_digest_ = 0;
    for (const SumPiece& piece : pieces_) (layout_.groups[piece.group].shared ? shared_digest_ : own) += piece.digest;
    *digest = own + (layout_.answers ? shared_digest_ : 0);
    return {};
}

}   // namespace gradcast::cpu
