// embedding: y[n,p] = w[x[n,p]], of the tokens of a text.  positions: y[n,p] = x[n,p] + w[p].  A position's channels lie together.
//
// Gradients of weights are added up in the order of samples and positions.
#include <algorithm>

#include "nn/cpu/build.h"
#include "nn/graph/layers.h"
#include "nn/kernels.h"

namespace gradcast::cpu {
Status embedding(Build& b) {
    const Layer& l = *b.layer;
    b.operations->unit = 1;
    const uint32_t width = l.out.C, positions = l.out.H;
    const Tensor w = b.weight(Place::parameters, Build::plain({l.weights})), dw = b.weight(Place::gradient, Build::plain({l.weights}));
    const Activation y = b.activation = b.flows(b.position_rows(l.out), true);
    const Tensor tokens = b.kept(Build::plain({b.samples, positions}));   // uint32: the samples may be gone in the backward pass
    b.operations->forward.emplace_back([=, of = b.spec.W, element = b.spec.element](Frame& frame) {
        auto* token = reinterpret_cast<uint32_t*>(frame.at(tokens));
        float* to = frame.at(y.value);
        for (const Block& block : frame.blocks)
            for (uint32_t n = 0; n < block.samples.count; ++n)
                for (uint32_t at = 0; at < positions; ++at, ++token) {
                    *token = element_number(element, reinterpret_cast<const std::byte*>(block.samples.images), uint64_t{n} * of + at);
                    to = std::copy_n(frame.at(w) + uint64_t{*token} * width, width, to);
                }
        std::fill(to, frame.at(y.value) + uint64_t{frame.samples} * positions * width, 0.0f);   // of an evaluation
        return Status{};
    });
    if (!b.training) return {};
    b.operations->weights.emplace_back([=, &kernels = float_kernels(isa_best()), weights = l.weights](Frame& frame) {
        float* const to = frame.at(dw);
        const uint64_t first = uint64_t{frame.first} * positions, count = uint64_t{frame.count} * positions;
        const auto* token = reinterpret_cast<const uint32_t*>(frame.at(tokens)) + first;
        const float* dy = frame.at(y.gradient) + first * width;
        std::fill_n(to, weights, 0.0f);
        for (uint64_t row = 0; row < count; ++row) {
            float* const sum = to + uint64_t{token[row]} * width;
            kernels.add(sum, sum, dy + row * width, width);
        }
        return Status{};
    });
    return {};
}

Status positions(Build& b) {
    const Layer& l = *b.layer;
    b.operations->unit = 1;
    const uint64_t elements = l.in.elements();
    const FloatKernels& kernels = float_kernels(isa_best());
    const Activation before = b.activation;
    const dnnl_memory_desc_t order = b.position_rows(l.in);
    Tensor x, dx;
    std::vector<Operation> after;
    GC_TRY(b.consume({before.value}, order, b.operations->forward, &x));
    const Tensor w = b.weight(Place::parameters, Build::plain({elements})), dw = b.weight(Place::gradient, Build::plain({elements}));
    const Activation y = b.activation = b.flows(order, true);
    b.operations->forward.emplace_back([=, &kernels](Frame& frame) {
        for (uint64_t n = 0; n < frame.samples; ++n)
            kernels.add(frame.at(y.value) + n * elements, frame.at(x) + n * elements, frame.at(w), elements);
        return Status{};
    });
    if (!b.training) return {};
    b.operations->weights.emplace_back([=, &kernels](Frame& frame) {
        const float* dy = frame.at(y.gradient) + frame.first * elements;
        std::copy_n(dy, elements, frame.at(dw));
        for (uint32_t n = 1; n < frame.count; ++n) kernels.add(frame.at(dw), frame.at(dw), dy + n * elements, elements);
        return Status{};
    });
    if (before.learns) GC_TRY(b.reorder(y.gradient, before.gradient, b.operations->data));
    return {};
}

}   // namespace gradcast::cpu
