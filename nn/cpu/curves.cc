// y = f(x), dx = dy f'(x): gelu, silu, sigmoid and tanh (nn/curves.h).
#include "nn/graph/curves.h"

#include <algorithm>

#include "nn/cpu/build.h"
#include "nn/curves.h"

namespace gradcast::cpu {
namespace {

/// Padding of blocked orders is zero and stays so, if f(0) is.
bool padded(const dnnl_memory_desc_t& desc) { return !std::equal(desc.dims, desc.dims + desc.ndims, desc.padded_dims); }

Status curve(Build& b) {
    b.operations->unit = 1;
    const Layer& l = *b.layer;
    const CurveKernels& kernels = curve_kernels(curve_of(l));
    const Activation before = b.activation;
    Operations& list = *b.operations;
    const bool as_it_is = before.value.desc.data_type == dnnl_f32 && (!l.is(sigmoid_kind) || !padded(before.value.desc));
    const dnnl_memory_desc_t order = as_it_is ? before.value.desc : Build::plain({b.samples, l.in.C, l.in.H, l.in.W});
    Tensor x;
    GC_TRY(b.consume({before.value}, order, list.forward, &x));
    const Activation y = b.activation = b.flows(order, before.learns);
    const uint64_t all = y.value.bytes() / sizeof(float);
    const uint32_t samples = b.samples;
    list.forward.emplace_back([&kernels, x, y, all, samples](Frame& frame) {
        kernels.forward(frame.at(y.value), frame.at(x), frame.part(all, samples));
        return Status{};
    });
    if (!y.learns) return {};
    Tensor dx;
    std::vector<Operation> after;
    GC_TRY(b.produce(before.gradient, order, after, &dx));
    list.data.emplace_back([&kernels, x, y, dx, all, samples](Frame& frame) {
        kernels.backward(frame.at(dx), frame.at(y.gradient), frame.at(x), frame.part(all, samples));
        return Status{};
    });
    list.data.insert(list.data.end(), after.begin(), after.end());
    return {};
}

}   // namespace

Status gelu(Build& b) { return curve(b); }
Status silu(Build& b) { return curve(b); }
Status sigmoid(Build& b) { return curve(b); }
Status tanh(Build& b) { return curve(b); }

}   // namespace gradcast::cpu
