// attention; the kernels are in attention.cu.  With `rotary` they read a copy of the input whose queries and keys are turned.  The copy is
// scratch memory, so the backward pass makes it once more, and turns the gradients of queries and keys back.
#include "nn/graph/attention.h"

#include <cmath>

#include "nn/cuda/build.h"

namespace gradcast::cuda {

Status attention(Build& b) {
    const Layer& l = *b.layer;
    const auto heads = static_cast<uint32_t>(l.value("heads"));
    const uint32_t width = l.out.C / heads, positions = l.in.H * l.in.W;
    const AttentionShape shape{
        b.samples, positions, heads, width, static_cast<float>(1 / std::sqrt(static_cast<double>(width))), l.value("causal") != 0};
    const uint64_t queries = uint64_t{b.samples} * positions * heads;
    GC_TRY(b.rows_fit(queries));
    const Activation x = b.activation, y = b.activation = b.flows(x.learns);
    const bool learns = b.training && x.learns;
    const Tensor kept = learns ? b.kept(queries * sizeof(AttentionKept)) : Tensor{};

    const DropoutShare share = dropout_share(l.value("dropout"));
    const bool draws = b.training && layer_draws(l);
    const size_t seed = b.seed_number();
    const auto drops = [=](const Frame& f) {
        return draws && f.training ? AttentionDrops{f.seeds + seed, f.header, share.drop, share.scale} : AttentionDrops{};
    };
    RotaryTurns by = rotary_turns(l);
    const bool turns = !by.cosines.empty();
    by.cosines.insert(by.cosines.end(), by.sines.begin(), by.sines.end());
    const Tensor angles = turns ? b.constant(std::move(by.cosines)) : Tensor{};
    const uint64_t delta_bytes = learns ? aligned(queries * sizeof(float)) : 0;
    const Tensor delta = b.scratch(delta_bytes + (turns ? 3 * queries * width * b.value_bytes() : 0));
    const Tensor turned{delta.place, delta.offset + delta_bytes};
    /// What the kernels read.
    const auto input = [=](const Frame& f, Values* of) {
        *of = f.values(turns ? turned : x.value);
        return turns ? rotary(f.stream, *of, f.values(x.value), f.at(angles), shape) : Status{};
    };
    b.operations->forward.emplace_back([=](const Frame& f) {
        Values from;
        GC_TRY(input(f, &from));
        return attention_forward(f.stream, f.values(y.value), from, learns ? f.at<AttentionKept>(kept) : nullptr, shape, drops(f));
    });
    if (!learns) return {};
    b.operations->data.emplace_back([=](const Frame& f) {
        Values from;
        GC_TRY(input(f, &from));
        GC_TRY(attention_backward(f.stream, f.values(x.gradient), f.values(y.gradient), from, f.values(y.value), f.at<AttentionKept>(kept),
                                  f.at(delta), shape, drops(f)));
        return turns ? rotary_backward(f.stream, f.values(x.gradient), f.at(angles), shape) : Status{};
    });
    return {};
}

}   // namespace gradcast::cuda
