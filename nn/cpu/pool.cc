// Max pooling:  y[n,c,p,q] = max over r,s of x[n,c, p stride + r - pad, q stride + s - pad]; padding never wins, NaN always does.
// The gradient goes to the first maximum.  Average pooling: the mean over the same window, of what is inside; the global one is a window
// over the whole plane.  On own kernels (nn/kernels.h).
#include "nn/cpu/build.h"
#include "nn/kernels.h"

namespace gradcast::cpu {
namespace {

struct Pool {
    PoolShape shape;
    Activation x, y;
    std::vector<Operation> after;   // of the backward pass
};

/// 16 samples, or 8, 16 or all channels, lie together, as convolutions leave them; any other order is brought to 16 channels.
Status begin(Build& b, Pool* pool) {
    const Layer& l = *b.layer;
    const Activation before = pool->x = b.activation;
    const dnnl_memory_desc_t samples = Build::side_by_side(b.samples, l.in);
    const bool few = dnnl_memory_desc_equal(&before.value.desc, &samples);
    const uint32_t width = few ? 16 : b.input_width();
    const dnnl_memory_desc_t last = b.channels_last(l.in);
    const bool all = l.in.C % 16 == 0 && !few && dnnl_memory_desc_equal(&before.value.desc, &last);
    const dnnl_memory_desc_t in = few ? samples : all ? last : b.blocked(l.in, width);
    GC_TRY(b.consume({before.value}, in, b.operations->forward, &pool->x.value));
    pool->y = b.activation = b.flows(few ? Build::side_by_side(b.samples, l.out) : b.blocked(l.out, width), before.learns);
    if (pool->y.learns) GC_TRY(b.produce(before.gradient, in, pool->after, &pool->x.gradient));
    pool->shape = {.planes = few ? (b.samples + 15) / 16 * l.in.C : b.samples * ((l.in.C + width - 1) / width),
                   .H = l.in.H,
                   .W = l.in.W,
                   .P = l.out.H,
                   .Q = l.out.W,
                   .kernel = l.window.kernel,
                   .stride = l.window.stride,
                   .pad = l.window.pad,
                   .width = width,
                   .apart = all ? l.in.C : width};
    return {};
}

}   // namespace

Status max_pool(Build& b) {
    const Layer& l = *b.layer;
    const FloatKernels& kernels = float_kernels(isa_best());
    if (l.window.kernel > pool_kernel_max)
        return fail(Code::unsupported, "layer {}: kernel {}x{}: max_pool takes at most {}x{}", l.spec.name, l.window.kernel,
                    l.window.kernel, pool_kernel_max, pool_kernel_max);
    Pool pool;
    GC_TRY(begin(b, &pool));
    const Activation x = pool.x, y = pool.y;
    const PoolShape shape = pool.shape;
    Tensor winners = b.kept(Build::plain({(y.value.bytes() / sizeof(float) + 3) / 4}));   // a byte each: which place of its window won
    b.operations->forward.emplace_back([&kernels, x, y, winners, shape](Frame& frame) {
        kernels.max_pool(frame.at(y.value), reinterpret_cast<uint8_t*>(frame.at(winners)), frame.at(x.value), shape);
        return Status{};
    });
    if (!y.learns) return {};
    b.operations->data.emplace_back([&kernels, x, y, winners, shape](Frame& frame) {
        kernels.max_pool_backward(frame.at(x.gradient), frame.at(y.gradient), reinterpret_cast<const uint8_t*>(frame.at(winners)), shape);
        return Status{};
    });
    b.operations->data.insert(b.operations->data.end(), pool.after.begin(), pool.after.end());
    return {};
}

Status average_pool(Build& b) {
    const FloatKernels& kernels = float_kernels(isa_best());
    Pool pool;
    GC_TRY(begin(b, &pool));
    const Activation x = pool.x, y = pool.y;
    const PoolShape shape = pool.shape;
    b.operations->forward.emplace_back([&kernels, x, y, shape](Frame& frame) {
        kernels.average_pool(frame.at(y.value), frame.at(x.value), shape);
        return Status{};
    });
    if (!y.learns) return {};
    b.operations->data.emplace_back([&kernels, x, y, shape](Frame& frame) {
        kernels.average_pool_backward(frame.at(x.gradient), frame.at(y.gradient), shape);
        return Status{};
    });
    b.operations->data.insert(b.operations->data.end(), pool.after.begin(), pool.after.end());
    return {};
}
Status global_average_pool(Build& b) { return average_pool(b); }

}   // namespace gradcast::cpu
