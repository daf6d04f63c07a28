// Convolution of many channels, on own kernels (nn/cpu/wide.h): 3x3 and 5x5, and with AMX 1x1.
#include <algorithm>

#include "nn/cpu/build.h"
#include "nn/cpu/wide.h"

namespace gradcast::cpu {
namespace {

bool any_fits(const Layer& l) {
    return l.whole_windows() && l.in.C % 16 == 0 && l.out.C % 16 == 0 && l.window.stride == 1 && l.window.pad < l.window.kernel;
}

/// Whether tiles of Winograd's compute the layer: they have fewer products than their outputs have taps.  An image of 2x2 has as many for
/// 3x3, and 4 times the weights to read.  The kernel set `common` has no other kernel.
bool tiles_fit(const Layer& l) {
    const uint32_t kernel = l.window.kernel, points = kernel + wide_tile - 1;
    if (!any_fits(l) || (kernel != 3 && kernel != 5)) return false;
    if (nn_isa() == Isa::common) return true;
    return std::min(l.out.H, wide_tile) * std::min(l.out.W, wide_tile) * kernel * kernel > points * points;
}

WideShape shape_of(const Build& b, const Layer& l) { return {b.samples, l.in.C, l.in.H, l.in.W, l.out.C, l.window.kernel, l.window.pad}; }

void weights_operation(Build& b, const WideKernels& kernels, const WideShape& shape, const Tensor& x, const Tensor& dy) {
    const Layer& l = *b.layer;
    const bool biased = l.biases > 0;
    const Tensor dw = b.weight(Place::gradient, Build::plain({l.weights})), db = biased ? b.bias(Place::gradient) : Tensor{},
                 scratch = b.scratch(kernels.weights_scratch(shape));
    b.operations->weights.emplace_back([=, &kernels](Frame& frame) {
        kernels.backward_weights(frame.at(dw), biased ? frame.at(db) : nullptr, frame.at(dy), frame.at(x), frame.at(scratch), shape);
        return Status{};
    });
}

}   // namespace

bool conv_wide_weights_fits(const Layer& l) { return tiles_fit(l) && l.window.kernel == 5; }

Status conv_wide_weights(Build& b, const Tensor& x, const Tensor& dy) {
    Tensor x1, dy1;
    GC_TRY(b.consume({x}, b.blocked(b.layer->in, 16), b.operations->weights, &x1));
    GC_TRY(b.consume({dy}, b.blocked(b.layer->out, 16), b.operations->weights, &dy1));
    weights_operation(b, wide_kernels(b.level(false)), shape_of(b, *b.layer), x1, dy1);
    return {};
}

bool conv_wide_fits(const Build& b, const Layer& l) {
    const uint32_t kernel = l.window.kernel;
    // In bf16 without AMX alone: with AMX oneDNN's bf16 is faster than Winograd's way in float.
    if (b.type == dnnl_bf16 && (nn_isa() == Isa::amx || kernel == 1)) return false;
    const bool by_amx = any_fits(l) && kernel == 1 && nn_isa() == Isa::amx && l.in.H * l.in.W >= 16;
    return by_amx || tiles_fit(l);
}

Status conv_wide(Build& b) {
    const Layer& l = *b.layer;
    const Activation x = b.activation;
    Operations& list = *b.operations;
    const WideKernels& kernels = wide_kernels(b.level(l.window.kernel == 1));
    const WideShape shape = shape_of(b, l), turned = shape.turned();
    const Tensor w = b.weight(Place::parameters, Build::plain({l.weights}));
    const bool biased = l.biases > 0;
    const Tensor bias = biased ? b.bias(Place::parameters) : Tensor{};
    auto packed = [&](bool backward) {
        return b.packed(backward, kernels.packed(shape),
                        [&kernels, shape, w, backward](float* to, Frame& frame) { kernels.pack(to, frame.at(w), shape, backward); });
    };

    Tensor x1;
    GC_TRY(b.consume({x.value}, b.blocked(l.in, 16), list.forward, &x1));
    const Tensor w1 = packed(false), scratch1 = b.scratch(kernels.forward_scratch(shape));
    const Activation y = b.activation = b.flows(b.blocked(l.out, 16), true);
    list.forward.emplace_back([=, &kernels](Frame& frame) {
        kernels.forward(frame.at(y.value), frame.at(x1), frame.at(w1), biased ? frame.at(bias) : nullptr, frame.at(scratch1), shape);
        return Status{};
    });
    if (!b.training) return {};

    weights_operation(b, kernels, shape, x1, y.gradient);
    if (!x.learns) return {};

    const Tensor w2 = packed(true), scratch3 = b.scratch(kernels.forward_scratch(turned));
    Tensor dx;
    std::vector<Operation> after;
    GC_TRY(b.produce(x.gradient, x1.desc, after, &dx, Place::beside));
    list.data.emplace_back([=, &kernels](Frame& frame) {
        kernels.forward(frame.at(dx), frame.at(y.gradient), frame.at(w2), nullptr, frame.at(scratch3), turned);
        return Status{};
    });
    list.data.insert(list.data.end(), after.begin(), after.end());
    return {};
}

}   // namespace gradcast::cpu
