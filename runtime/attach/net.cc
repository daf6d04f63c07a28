#include "runtime/attach/net.h"

#include <algorithm>

#include "nn/graph/layers.h"
#include "runtime/core/clock.h"

namespace gradcast {

AttachedNet::AttachedNet(const Parts& parts, Layout layout, const NetConfig& config)
    : parts_(parts), layout_(std::move(layout)), seed_(config.seed), samples_max_(config.samples_max), pieces_(sum_pieces(layout_)) {
    if (!config.block_sizes.empty()) block_max_ = *std::ranges::max_element(config.block_sizes);
}

Status AttachedNet::block(uint32_t lane, BlockId id, const Samples& samples, GradientSink& sink) {
    GC_ASSERT(lane < parts_.lanes.size() && samples.count <= samples_max_);
    if (!samples.places) GC_TRY(samples_check(parts_.spec, samples));
    const uint64_t seed = splitmix64(splitmix64(splitmix64(seed_) + id.step) + id.block);
    const ProcessChannel::Wait wait{clock_us() + parts_.deadline_us.load(std::memory_order_relaxed),
                                    [this, step = id.step] { return ending() || cancelled_.load(std::memory_order_relaxed) == step; }};
    return parts_.lanes[lane].train(lane, id, seed, samples, layout_, wait, sink);
}

Status AttachedNet::evaluate(uint32_t lane, const Samples& samples, uint32_t* right, double* loss, int32_t* predicted, float* outputs) {
    GC_ASSERT(lane < parts_.lanes.size() && samples.count <= samples_max_);
    if (outputs) return fail(Code::unsupported, "the outputs of a net of net.command are its process's own");
    if (!samples.places) GC_TRY(samples_check(parts_.spec, samples));
    gc_attach_loss found;
    // A batch may be larger than a block, for which the deadline is.
    const uint64_t deadlines = (samples.count + block_max_ - 1) / block_max_;
    const ProcessChannel::Wait wait{clock_us() + deadlines * parts_.deadline_us.load(std::memory_order_relaxed),
                                    [this] { return ending(); }};
    GC_TRY(parts_.lanes[lane].evaluate(samples, wait, &found, predicted));
    const bool classes = found.right != UINT32_MAX;
    for (uint32_t i = 0; predicted && i < samples.count; ++i)
        if (!classes || predicted[i] < 0 || static_cast<uint32_t>(predicted[i]) >= parts_.spec.classes) predicted[i] = 0;
    *right = classes ? found.right : no_classes;
    *loss = found.loss;
    return {};
}

Status AttachedNet::apply(Lanes& lanes, Optimiser& optimiser, std::span<const BucketSum> sums, uint64_t* digest) {
    sums_apply(lanes, pieces_, layout_, sums, optimiser, parameters());
    *digest = 0;
    for (const SumPiece& piece : pieces_) *digest += piece.digest;
    return {};
}

}   // namespace gradcast
