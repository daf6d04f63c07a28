// y = x other, by element; dx = dy other, dother = dy x.
#include "nn/cpu/build.h"
#include "nn/kernels.h"

namespace gradcast::cpu {

Status multiply(Build& b) {
    const FloatKernels& kernels = float_kernels(isa_best());
    const Activation before = b.activation, other = b.other;
    // The order of x, if that is one of floats.
    const Layer& l = *b.layer;
    const bool as_it_is = before.value.desc.data_type == dnnl_f32;
    const dnnl_memory_desc_t order = as_it_is ? before.value.desc : Build::plain({b.samples, l.in.C, l.in.H, l.in.W});
    Operations& list = *b.operations;
    Tensor x, factor;
    GC_TRY(b.consume({before.value}, order, list.forward, &x));
    GC_TRY(b.consume({other.value}, order, list.forward, &factor));
    const Activation y = b.activation = b.flows(order, before.learns || other.learns);
    const uint64_t count = y.value.bytes() / sizeof(float);
    list.forward.emplace_back([=, &kernels](Frame& frame) {
        kernels.multiply(frame.at(y.value), frame.at(x), frame.at(factor), count);
        return Status{};
    });
    const auto gradient = [&](const Activation& of, const Tensor& by) {
        if (!of.learns) return Status{};
        Tensor to;
        std::vector<Operation> after;
        GC_TRY(b.produce(of.gradient, order, after, &to));
        list.data.emplace_back([=, &kernels](Frame& frame) {
            kernels.multiply(frame.at(to), frame.at(y.gradient), frame.at(by), count);
            return Status{};
        });
        list.data.insert(list.data.end(), after.begin(), after.end());
        return Status{};
    };
    if (!y.learns) return {};
    GC_TRY(gradient(before, factor));
    return gradient(other, x);
}

}   // namespace gradcast::cpu
