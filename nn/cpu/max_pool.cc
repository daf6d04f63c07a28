// Max pooling:  y[n,c,p,q] = max over r,s of x[n,c, p stride + r - pad, q stride + s - pad]; padding never wins, NaN always does.
// The gradient goes to the first maximum.  Own kernels (nn/kernels.h), because oneDNN's take as long as a convolution here.
#include "nn/cpu/build.h"
#include "nn/kernels.h"

namespace gradcast::cpu {

Status max_pool(Build& b) {
    const Layer& l = *b.layer;
    const Activation before = b.activation;
    const FloatKernels& kernels = float_kernels(isa_best());
    if (l.spec.kernel > pool_kernel_max)
        return fail(Code::unsupported, "layer {}: kernel {}x{}: max_pool takes at most {}x{}", l.spec.name, l.spec.kernel, l.spec.kernel,
                    pool_kernel_max, pool_kernel_max);
    auto blocked = [&](const Shape& shape, uint32_t width) {
        dnnl_dims_t dims = {b.samples, shape.C, shape.H, shape.W};
        dnnl_memory_desc_t desc;
        GC_ASSERT(dnnl_memory_desc_init_by_tag(&desc, 4, dims, dnnl_f32, width == 8 ? dnnl_nChw8c : dnnl_nChw16c) == dnnl_success);
        return desc;
    };
    // 8 or 16 channels lie together, as convolutions leave them; any other order is brought to 16.
    dnnl_memory_desc_t eight = blocked(l.in, 8);
    uint32_t width = dnnl_memory_desc_equal(&before.value.desc, &eight) ? 8 : 16;
    Activation x = before;
    GC_TRY(b.consume({before.value}, blocked(l.in, width), b.operations->forward, &x.value));
    Activation y = b.activation = b.flows(blocked(l.out, width), x.learns);
    uint32_t planes = b.samples * ((l.in.C + width - 1) / width);
    PoolShape shape{.planes = planes,
                    .H = l.in.H,
                    .W = l.in.W,
                    .P = l.out.H,
                    .Q = l.out.W,
                    .kernel = l.spec.kernel,
                    .stride = l.spec.stride,
                    .pad = l.spec.pad,
                    .width = width};
    Tensor winners = b.kept(Build::plain({(y.value.bytes() / sizeof(float) + 3) / 4}));   // a byte each: which place of its window won
    b.operations->forward.emplace_back([&kernels, x, y, winners, shape](Frame& frame) {
        kernels.max_pool(frame.at(y.value), reinterpret_cast<uint8_t*>(frame.at(winners)), frame.at(x.value), shape);
        return Status{};
    });
    if (!y.learns) return {};
    std::vector<Operation> after;
    GC_TRY(b.produce(before.gradient, blocked(l.in, width), after, &x.gradient));
    b.operations->data.emplace_back([&kernels, x, y, winners, shape](Frame& frame) {
        kernels.max_pool_backward(frame.at(x.gradient), frame.at(y.gradient), reinterpret_cast<const uint8_t*>(frame.at(winners)), shape);
        return Status{};
    });
    b.operations->data.insert(b.operations->data.end(), after.begin(), after.end());
    return {};
}

}   // namespace gradcast::cpu
