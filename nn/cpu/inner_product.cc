// Inner product with bias over the flattened input:  y[n,k] = b[k] + sum over c of w[k,c] x[n,c].
#include "nn/cpu/build.h"

namespace gradcast::cpu {

Status inner_product(Build& b) {
    const Layer& l = *b.layer;
    const Activation x = b.activation;
    Operations& list = *b.operations;
    // The input is taken in canonical order, in which [C,H,W] is flat as the weights are.
    dnnl_memory_desc_t spatial = Build::plain({b.samples, l.in.C, l.in.H, l.in.W}), flat = Build::plain({b.samples, l.in.elements()});
    dnnl_memory_desc_t dst = Build::plain({b.samples, l.out.C}), bias = Build::plain({l.out.C});
    dnnl_memory_desc_t canonical = Build::plain({l.out.C, l.in.elements()}), any_w = Build::any(canonical);

    dnnl_inner_product_desc_t op;
    Pd forward;
    GC_ASSERT(dnnl_inner_product_forward_desc_init(&op, b.training ? dnnl_forward_training : dnnl_forward_inference, &flat, &any_w, &bias, &dst) == dnnl_success);
    GC_TRY(b.describe("forward", &op, nullptr, nullptr, &forward));
    Tensor x1, w1;
    GC_TRY(b.consume({x.value}, spatial, list.forward, &x1));
    x1.desc = flat;
    GC_TRY(b.weights_as(canonical, Build::query(forward, dnnl_query_weights_md), &w1));
    Activation y = b.flows(dst, true);
    GC_TRY(b.primitive(forward, {{DNNL_ARG_SRC, x1}, {DNNL_ARG_WEIGHTS, w1}, {DNNL_ARG_BIAS, b.bias(Place::parameters)}, {DNNL_ARG_DST, y.value}}, list.forward));
    b.activation = y;
    b.activation.value.desc = b.activation.gradient.desc = Build::plain({b.samples, l.out.C, 1, 1});
    if (!b.training) return {};

    Pd backward;
    GC_ASSERT(dnnl_inner_product_backward_weights_desc_init(&op, &flat, &any_w, &bias, &dst) == dnnl_success);
    GC_TRY(b.describe("backward weights", &op, nullptr, forward.get(), &backward));
    Tensor dw;
    std::vector<Operation> after;
    GC_TRY(b.produce(b.weight(Place::gradient, canonical), Build::query(backward, dnnl_query_diff_weights_md), after, &dw));
    GC_TRY(b.primitive(backward, {{DNNL_ARG_SRC, x1}, {DNNL_ARG_DIFF_DST, y.gradient}, {DNNL_ARG_DIFF_WEIGHTS, dw}, {DNNL_ARG_DIFF_BIAS, b.bias(Place::gradient)}}, list.weights));
    list.weights.insert(list.weights.end(), after.begin(), after.end());
    if (!x.learns) return {};

    GC_ASSERT(dnnl_inner_product_backward_data_desc_init(&op, &flat, &any_w, &dst) == dnnl_success);
    GC_TRY(b.describe("backward data", &op, nullptr, forward.get(), &backward));
    Tensor w2, dx;
    after.clear();
    GC_TRY(b.weights_as(canonical, Build::query(backward, dnnl_query_weights_md), &w2));
    GC_TRY(b.produce(x.gradient, spatial, after, &dx));
    dx.desc = flat;
    GC_TRY(b.primitive(backward, {{DNNL_ARG_DIFF_DST, y.gradient}, {DNNL_ARG_WEIGHTS, w2}, {DNNL_ARG_DIFF_SRC, dx}}, list.data));
    list.data.insert(list.data.end(), after.begin(), after.end());
    return {};
}

}   // namespace gradcast::cpu
