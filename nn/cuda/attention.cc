// attention; the kernels are in attention.cu.
#include <cmath>

#include "nn/cuda/build.h"

namespace gradcast::cuda {

Status attention(Build& b) {
    const Layer& l = *b.layer;
    if (l.value("rotary") != 0)
        return fail(Code::unsupported, "layer {}: GPUs do not compute rotary in this version: take device cpu", l.spec.name);
    const auto heads = static_cast<uint32_t>(l.value("heads"));
    const uint32_t width = l.out.C / heads, positions = l.in.H * l.in.W;
    const AttentionShape shape{
        b.samples, positions, heads, width, static_cast<float>(1 / std::sqrt(static_cast<double>(width))), l.value("causal") != 0};
    const uint64_t queries = uint64_t{b.samples} * positions * heads;
    if (queries > INT32_MAX)
        return fail(Code::unsupported, "layer {}: {} samples of {} positions and {} heads are too many: take smaller blocks", l.spec.name,
                    b.samples, positions, heads);
    const Activation x = b.activation, y = b.activation = b.flows(x.learns);
    const bool learns = b.training && x.learns;
    const Tensor kept = learns ? b.kept(queries * sizeof(AttentionKept)) : Tensor{};
    b.operations->forward.emplace_back([=](const Frame& f) {
        return attention_forward(f.stream, f.values(y.value), f.values(x.value), learns ? f.at<AttentionKept>(kept) : nullptr, shape);
    });
    if (!learns) return {};
    const Tensor delta = b.scratch(queries * sizeof(float));
    b.operations->data.emplace_back([=](const Frame& f) {
        return attention_backward(f.stream, f.values(x.gradient), f.values(y.gradient), f.values(x.value), f.values(y.value),
                                  f.at<AttentionKept>(kept), f.at(delta), shape);
    });
    return {};
}

}   // namespace gradcast::cuda
