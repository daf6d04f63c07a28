// Max pooling:  y[n,c,p,q] = max over r,s of x[n,c, p stride + r - pad, q stride + s - pad], padding never wins; the gradient goes to the first maximum.
#include "nn/cpu/build.h"

namespace gradcast::cpu {

Status max_pool(Build& b) {
    const Layer& l = *b.layer;
    const Activation x = b.activation;
    dnnl_memory_desc_t dst = Build::any(Build::plain({b.samples, l.out.C, l.out.H, l.out.W}));
    dnnl_dims_t strides = {l.spec.stride, l.spec.stride}, kernel = {l.spec.kernel, l.spec.kernel}, pad = {l.spec.pad, l.spec.pad};
    // Where stride and size do not match, the last rows belong to no window: less padding (even negative) on that side says so.
    auto right = [&](uint32_t in, uint32_t out) { return (int64_t{out} - 1) * l.spec.stride + l.spec.kernel - in - l.spec.pad; };
    dnnl_dims_t pad_right = {right(l.in.H, l.out.H), right(l.in.W, l.out.W)};

    dnnl_pooling_desc_t op;
    Pd forward, backward;
    GC_ASSERT(dnnl_pooling_forward_desc_init(&op, b.training ? dnnl_forward_training : dnnl_forward_inference, dnnl_pooling_max, &x.value.desc, &dst, strides, kernel,
                                             pad, pad_right) == dnnl_success);
    GC_TRY(b.describe("forward", &op, nullptr, nullptr, &forward));
    dst = Build::query(forward, dnnl_query_dst_md);
    Activation y = b.flows(dst, x.learns);
    std::vector<std::pair<int, Tensor>> tensors = {{DNNL_ARG_SRC, x.value}, {DNNL_ARG_DST, y.value}};
    if (b.training) tensors.emplace_back(DNNL_ARG_WORKSPACE, b.kept(Build::query(forward, dnnl_query_workspace_md)));
    GC_TRY(b.primitive(forward, tensors, b.operations->forward));
    b.activation = y;
    if (!y.learns) return {};

    GC_ASSERT(dnnl_pooling_backward_desc_init(&op, dnnl_pooling_max, &x.gradient.desc, &dst, strides, kernel, pad, pad_right) == dnnl_success);
    GC_TRY(b.describe("backward data", &op, nullptr, forward.get(), &backward));
    return b.primitive(backward, {{DNNL_ARG_DIFF_DST, y.gradient}, {DNNL_ARG_WORKSPACE, tensors.back().second}, {DNNL_ARG_DIFF_SRC, x.gradient}},
                       b.operations->data);
}

}   // namespace gradcast::cpu
