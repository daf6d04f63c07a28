// Inner product with bias:  y[n,k] = b[k] + sum over c of w[k,c] x[n,c].  A row n is a flattened sample, or of `linear` a position.
//
// Rows lie one after another.  Float has own kernels; in bf16 inner_product is oneDNN's, and `linear` is computed in float.
#include <algorithm>

#include "nn/cpu/build.h"
#include "nn/cpu/inner.h"

namespace gradcast::cpu {
namespace {

constexpr uint32_t few_samples = 48, few_outputs = 16;     // below them weights are not packed
constexpr uint32_t tiled_samples = 32, tiled_least = 12;   // AMX: of blocks computed together, of each block
constexpr uint64_t tiled_weights = 128 * 1024;
constexpr uint32_t tiled_rows = 64;   // of a piece on AMX
// Parameters from which a gradient is offered in pieces: more than the second-level cache keeps, with several blocks more than the first.
constexpr uint64_t in_pieces_from = 256 * 1024, in_pieces_of_several = 32 * 1024;
constexpr uint32_t piece = 16 * 1024;   // parameters

/// rows_each: rows of one sample.
Status inner_float(Build& b, const dnnl_memory_desc_t& order, const dnnl_memory_desc_t& out, uint32_t rows_each) {
    const Layer& l = *b.layer;
    const Activation x = b.activation;
    Operations& list = *b.operations;
    const auto C = static_cast<uint32_t>(l.in.elements() / rows_each), K = l.out.C;
    if (uint64_t{b.samples} * rows_each > INT32_MAX)
        return fail(Code::unsupported, "layer {}: {} samples of {} positions are too many: take smaller blocks", l.spec.name, b.samples,
                    rows_each);
    const uint64_t rows_least = uint64_t{b.least} * rows_each;
    const Isa level = b.level(b.training && rows_least >= tiled_least && rows_least * b.together >= tiled_samples &&
                              l.weights > tiled_weights && K > few_outputs);
    const InnerKernels& kernels = inner_kernels(level);
    const bool tiled = level == Isa::amx;
    auto shape = [C, K, rows_each](uint32_t samples) { return InnerShape{samples * rows_each, C, K}; };
    const dnnl_memory_desc_t weights = Build::plain({l.weights});
    const Tensor w = b.weight(Place::parameters, weights), dw = b.weight(Place::gradient, weights);
    const bool biased = l.biases > 0;
    const Tensor bias = biased ? b.bias(Place::parameters) : Tensor{}, dbias = biased ? b.bias(Place::gradient) : Tensor{};

    Tensor x1;
    GC_TRY(b.consume({x.value}, order, list.forward, &x1));
    const Activation y = b.activation = b.flows(out, true);
    const bool packed_forward =
        tiled || (K > few_outputs && (!b.training || uint64_t{b.samples} * rows_each >= few_samples));   // evaluations: all
    const Tensor memory = b.scratch(kernels.memory);
    list.forward.emplace_back([=, &kernels](Frame& frame) {
        float *const to = frame.at(y.value), *const biases = biased ? frame.at(bias) : nullptr;
        if (packed_forward) kernels.forward_packed(to, frame.at(x1), frame.at(w), biases, frame.at(memory), shape(frame.samples));
        else kernels.forward(to, frame.at(x1), frame.at(w), biases, shape(frame.samples));
        return Status{};
    });
    if (!b.training) return {};

    // Scratch from the first piece to the last: packed x of each block, and the rows of a piece.  The codec takes rows in one run where
    // they follow one another.  Tiles of AMX need an odd number of cache lines from row to row: else the rows of a tile share sets of the
    // first-level cache.
    const uint64_t packs = kernels.packed({b.most * rows_each, C, K}), made = packs * b.together,
                   apart = tiled ? (C + 15) / 16 / 2 * 32 + 16 : C;
    const uint32_t step = std::min(std::max(piece / C, tiled ? tiled_rows : 1), K);
    const bool in_pieces = l.weights + l.biases >= (b.together > 1 ? in_pieces_of_several : in_pieces_from);
    const Tensor space = b.scratch(made + (in_pieces ? step * apart : 0));
    auto rows = [=, &kernels](Frame& frame, float* to, uint64_t to_apart, uint32_t first, uint32_t end) {
        const uint64_t before = uint64_t{frame.first} * rows_each;
        const float *of = frame.at(x1) + before * C, *dy = frame.at(y.gradient) + before * K;
        float* const strips = frame.at(space) + frame.block * packs;
        if (first == 0) kernels.pack(strips, of, shape(frame.count));
        kernels.backward_weights(to, to_apart, dy, strips, shape(frame.count), first, end);
    };
    auto biases = [=, &kernels](Frame& frame) {
        float* const to = frame.at(dbias);
        kernels.backward_bias(to, frame.at(y.gradient) + uint64_t{frame.first} * rows_each * K, shape(frame.count));
        return to;
    };
    list.weights.emplace_back([=](Frame& frame) {
        rows(frame, frame.at(dw), C, 0, K);
        if (biased) biases(frame);
        return Status{};
    });
    if (in_pieces)
        list.pieces = [=](Frame& frame, uint64_t first) {
            const auto row = static_cast<uint32_t>(first / C), end = std::min(row + step, K);
            if (row == K) return GradientPart{biases(frame), K};
            float* const to = frame.at(space) + made;
            rows(frame, to, apart, row, end);
            return GradientPart{to, C, end - row, apart};
        };
    if (!x.learns) return {};

    Tensor dx;
    std::vector<Operation> after;
    GC_TRY(b.produce(x.gradient, order, after, &dx));
    list.data.emplace_back([=, &kernels](Frame& frame) {
        kernels.backward_data(frame.at(dx), frame.at(y.gradient), frame.at(w), frame.at(memory), shape(frame.samples));
        return Status{};
    });
    list.data.insert(list.data.end(), after.begin(), after.end());
    return {};
}

}   // namespace

Status linear(Build& b) {
    b.operations->unit = 1;
    if (!b.layer->slices.empty()) return sliced(b, linear);
    const Layer& l = *b.layer;
    return inner_float(b, b.position_rows(l.in), b.position_rows(l.out), l.in.H * l.in.W);
}

Status inner_product(Build& b) {
    b.operations->unit = 1;
    if (!b.layer->slices.empty()) return sliced(b, inner_product);
    const Layer& l = *b.layer;
    if (b.type == dnnl_f32)
        return inner_float(b, Build::plain({b.samples, l.in.C, l.in.H, l.in.W}), Build::plain({b.samples, l.out.C, 1, 1}), 1);
    const Activation x = b.activation;
    Operations& list = *b.operations;
    dnnl_memory_desc_t spatial = Build::plain({b.samples, l.in.C, l.in.H, l.in.W}, b.type),
                       flat = Build::plain({b.samples, l.in.elements()}, b.type), dst = Build::plain({b.samples, l.out.C}),
                       weights = Build::plain({l.out.C, l.in.elements()}, b.type), bias = Build::plain({l.out.C}),
                       canonical = Build::plain({l.out.C, l.in.elements()});
    const dnnl_memory_desc_t* with_bias = l.biases ? &bias : nullptr;

    dnnl_inner_product_desc_t op;
    Pd forward;
    GC_ASSERT(dnnl_inner_product_forward_desc_init(&op, b.training ? dnnl_forward_training : dnnl_forward_inference, &flat, &weights,
                                                   with_bias, &dst) == dnnl_success);
    GC_TRY(b.describe("forward", &op, nullptr, &forward));
    Tensor x1, w;
    GC_TRY(b.weights_as(canonical, weights, &w));
    GC_TRY(b.consume({x.value}, spatial, list.forward, &x1));
    x1.desc = flat;
    const Activation y = b.flows(dst, true);
    std::vector<std::pair<int, Tensor>> tensors = {{DNNL_ARG_SRC, x1}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, y.value}};
    if (l.biases) tensors.emplace_back(DNNL_ARG_BIAS, b.bias(Place::parameters));
    GC_TRY(b.primitive(forward, std::move(tensors), list.forward));
    b.activation = y;
    b.activation.value.desc = b.activation.gradient.desc = Build::plain({b.samples, l.out.C, 1, 1});
    if (!b.training) return {};

    Pd backward;
    dnnl_memory_desc_t ddst = Build::plain({b.samples, l.out.C}, b.type);
    Tensor dy;
    GC_TRY(b.consume({y.gradient}, ddst, list.gradient, &dy));
    GC_ASSERT(dnnl_inner_product_backward_weights_desc_init(&op, &flat, &canonical, with_bias, &ddst) == dnnl_success);
    GC_TRY(b.describe("backward weights", &op, forward.get(), &backward));
    tensors = {{DNNL_ARG_SRC, x1}, {DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_DIFF_WEIGHTS, b.weight(Place::gradient, canonical)}};
    if (l.biases) tensors.emplace_back(DNNL_ARG_DIFF_BIAS, b.bias(Place::gradient));
    GC_TRY(b.primitive(backward, std::move(tensors), list.weights));
    if (!x.learns) return {};

    const dnnl_memory_desc_t dspatial = Build::plain({b.samples, l.in.C, l.in.H, l.in.W});
    dnnl_memory_desc_t dflat = Build::plain({b.samples, l.in.elements()});
    GC_ASSERT(dnnl_inner_product_backward_data_desc_init(&op, &dflat, &weights, &ddst) == dnnl_success);
    GC_TRY(b.describe("backward data", &op, forward.get(), &backward));
    Tensor dx;
    std::vector<Operation> after;
    GC_TRY(b.produce(x.gradient, dspatial, after, &dx));
    dx.desc = dflat;
    GC_TRY(b.primitive(backward, {{DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DIFF_SRC, dx}}, list.data));
    list.data.insert(list.data.end(), after.begin(), after.end());
    return {};
}

}   // namespace gradcast::cpu
