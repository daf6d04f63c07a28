// Convolution (cross-correlation) with bias:  y[n,k,p,q] = b[k] + sum over c,r,s of w[k,c,r,s] x[n,c, p stride + r - pad, q stride + s -
// pad].
//
// In groups, output k reads the channels of its group alone; with a dilation, pixels r and s of a window lie so many steps apart.
// Transposed, the formula is that of the gradient of x: each pixel of x is added to a window of y.
//
// Each pass uses the order of its best oneDNN kernel and has its tensors reordered: for few channels no order has fast kernels for all
// three passes.
#include "nn/cpu/build.h"
#include "nn/cpu/narrow.h"

namespace gradcast::cpu {

namespace {

/// oneDNN's descriptions of the passes.
struct Passes {
    decltype(&dnnl_dilated_convolution_forward_desc_init) forward;
    decltype(&dnnl_dilated_convolution_backward_weights_desc_init) weights;
    decltype(&dnnl_dilated_convolution_backward_data_desc_init) data;
    dnnl_alg_kind_t algorithm;
};
constexpr Passes straight{dnnl_dilated_convolution_forward_desc_init, dnnl_dilated_convolution_backward_weights_desc_init,
                          dnnl_dilated_convolution_backward_data_desc_init, dnnl_convolution_direct};
constexpr Passes transposed{dnnl_dilated_deconvolution_forward_desc_init, dnnl_dilated_deconvolution_backward_weights_desc_init,
                            dnnl_dilated_deconvolution_backward_data_desc_init, dnnl_deconvolution_direct};

/// Canonical weights as oneDNN reads them: [K,C,R,S], in groups [g,K/g,C/g,R,S], which is the same order; transposed they lie as [C,K,R,S].
dnnl_memory_desc_t canonical_of(const Layer& l) {
    const uint64_t K = l.out.C, C = l.in.C, side = l.window.kernel;
    if (l.groups > 1) return Build::plain({l.groups, K / l.groups, C / l.groups, side, side});
    if (!l.is(conv_transposed_kind)) return Build::plain({K, C, side, side});
    dnnl_memory_desc_t desc;
    const auto signed_side = static_cast<dnnl_dim_t>(side);
    const dnnl_dims_t dims = {l.out.C, l.in.C, signed_side, signed_side};
    GC_ASSERT(dnnl_memory_desc_init_by_tag(&desc, 4, dims, dnnl_f32, dnnl_iohw) == dnnl_success);
    return desc;
}

Status by_onednn(Build& b, const Passes& passes) {
    const Layer& l = *b.layer;
    const Activation x = b.activation;
    Operations& list = *b.operations;
    dnnl_memory_desc_t canonical = canonical_of(l), bias = Build::plain({l.out.C});
    const dnnl_memory_desc_t in = Build::plain({b.samples, l.in.C, l.in.H, l.in.W}),
                             out = Build::plain({b.samples, l.out.C, l.out.H, l.out.W});
    dnnl_memory_desc_t any_x = Build::any(in, b.type), any_w = Build::any(canonical, b.type), any_y = Build::any(out, b.output_type());
    const dnnl_dim_t gap = l.window.dilation - 1;
    dnnl_dims_t strides = {l.window.stride, l.window.stride}, gaps = {gap, gap}, pad = {l.window.pad, l.window.pad};

    dnnl_convolution_desc_t op;
    Pd forward;
    const dnnl_memory_desc_t* with_bias = l.biases ? &bias : nullptr;
    GC_ASSERT(passes.forward(&op, b.training ? dnnl_forward_training : dnnl_forward_inference, passes.algorithm, &any_x, &any_w, with_bias,
                             &any_y, strides, gaps, pad, pad) == dnnl_success);
    GC_TRY(b.describe("forward", &op, nullptr, &forward));
    Tensor x1, w1;
    GC_TRY(b.consume({x.value}, Build::query(forward, dnnl_query_src_md), list.forward, &x1));
    GC_TRY(b.weights_as(canonical, Build::query(forward, dnnl_query_weights_md), &w1));
    const Activation y = b.activation = b.flows(Build::query(forward, dnnl_query_dst_md), true);
    std::vector<std::pair<int, Tensor>> tensors = {{DNNL_ARG_SRC, x1}, {DNNL_ARG_WEIGHTS, w1}, {DNNL_ARG_DST, y.value}};
    if (l.biases) tensors.emplace_back(DNNL_ARG_BIAS, b.bias(Place::parameters));
    GC_TRY(b.primitive(forward, std::move(tensors), list.forward));
    if (!b.training) return {};

    Pd backward;
    dnnl_memory_desc_t any_dy = Build::any(out, b.type), any_dw = Build::any(canonical, dnnl_f32);
    Tensor x2, dy2, dw;
    std::vector<Operation> after;
    if (l.is(conv_kind) && conv_wide_weights_fits(l)) {   // bf16 alone gets here: in float conv_wide() computes all passes
        GC_TRY(conv_wide_weights(b, x.value, y.gradient));
        dy2 = y.gradient;
    } else if (b.type == dnnl_bf16 && nn_isa() == Isa::amx && l.is(conv_kind) && l.whole_windows() && l.window.kernel == 1 &&
               l.window.stride == 1 && l.window.pad == 0) {
        GC_TRY(b.consume({x.value, x1}, b.channels_last(l.in, dnnl_bf16), list.weights, &x2));
        GC_TRY(b.consume({y.gradient}, b.channels_last(l.out, dnnl_bf16), list.gradient, &dy2));
        const NarrowShape shape{b.samples * l.in.H * l.in.W, l.in.C, l.out.C};
        const NarrowKernels& kernels = amx::narrow_kernels;
        const Tensor scratch = b.scratch(kernels.scratch(shape)), db = l.biases ? b.bias(Place::gradient) : Tensor{};
        list.weights.emplace_back(
            [=, &kernels, x = x2, dy = dy2, dw_ = b.weight(Place::gradient, canonical), biased = l.biases > 0](Frame& frame) {
                kernels.backward_weights(frame.at(dw_), biased ? frame.at(db) : nullptr, frame.bf16_at(dy), frame.bf16_at(x),
                                         frame.at(scratch), shape);
                return Status{};
            });
    } else {
        GC_ASSERT(passes.weights(&op, passes.algorithm, &any_x, &any_dw, with_bias, &any_dy, strides, gaps, pad, pad) == dnnl_success);
        GC_TRY(b.describe("backward weights", &op, forward.get(), &backward));
        GC_TRY(b.consume({x.value, x1}, Build::query(backward, dnnl_query_src_md), list.weights, &x2));
        GC_TRY(b.consume({y.gradient}, Build::query(backward, dnnl_query_diff_dst_md), list.gradient, &dy2));
        GC_TRY(
            b.produce(b.weight(Place::gradient, canonical), Build::query(backward, dnnl_query_diff_weights_md), after, &dw, Place::beside));
        tensors = {{DNNL_ARG_SRC, x2}, {DNNL_ARG_DIFF_DST, dy2}, {DNNL_ARG_DIFF_WEIGHTS, dw}};
        if (l.biases) tensors.emplace_back(DNNL_ARG_DIFF_BIAS, b.bias(Place::gradient));
        GC_TRY(b.primitive(backward, std::move(tensors), list.weights));
        list.weights.insert(list.weights.end(), after.begin(), after.end());
    }
    if (!x.learns) return {};

    dnnl_memory_desc_t any_dx = Build::any(in, x.gradient.desc.data_type);
    GC_ASSERT(passes.data(&op, passes.algorithm, &any_dx, &any_w, &any_dy, strides, gaps, pad, pad) == dnnl_success);
    GC_TRY(b.describe("backward data", &op, forward.get(), &backward));
    Tensor dy3, w3, dx;
    after.clear();
    GC_TRY(b.consume({y.gradient, dy2}, Build::query(backward, dnnl_query_diff_dst_md), list.data, &dy3));
    GC_TRY(b.weights_as(canonical, Build::query(backward, dnnl_query_weights_md), &w3));
    GC_TRY(b.produce(x.gradient, Build::query(backward, dnnl_query_diff_src_md), after, &dx, Place::beside));
    GC_TRY(b.primitive(backward, {{DNNL_ARG_DIFF_DST, dy3}, {DNNL_ARG_WEIGHTS, w3}, {DNNL_ARG_DIFF_SRC, dx}}, list.data));
    list.data.insert(list.data.end(), after.begin(), after.end());
    return {};
}

}   // namespace

Status conv(Build& b) {
    const Layer& l = *b.layer;
    if (!l.slices.empty()) return sliced(b, conv);
    if (conv_few_fits(l)) return conv_few(b);
    if (conv_wide_fits(b, l)) return conv_wide(b);
    return by_onednn(b, straight);
}

Status conv_transposed(Build& b) { return by_onednn(b, transposed); }

}   // namespace gradcast::cpu
