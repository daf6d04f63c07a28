// y = max(x, 0), in place: no layer before it reads x again.  dx = dy where y > 0, in place too.
#include "nn/cpu/build.h"
#include "nn/kernels.h"

namespace gradcast::cpu {

Status relu(Build& b) {
    b.operations->unit = 1;
    const FloatKernels& kernels = float_kernels(isa_best());
    Activation x;
    std::vector<Operation> after;
    GC_TRY(b.in_place(b.activation.value.desc, after, &x));
    b.activation = x;
    const bool narrow = x.value.desc.data_type == dnnl_bf16;
    const uint64_t all = x.value.bytes() / (narrow ? 2 : 4);   // padding of blocked orders included: it is zero and stays so
    const uint32_t samples = b.samples;
    b.operations->forward.emplace_back([&kernels, x, all, samples, narrow](Frame& frame) {
        const uint64_t count = frame.part(all, samples);
        narrow ? kernels.relu_bf16(frame.bf16_at(x.value), count) : kernels.relu(frame.at(x.value), count);
        return Status{};
    });
    if (!x.learns) return {};
    b.operations->data.emplace_back([&kernels, x, all, samples, narrow](Frame& frame) {
        const uint64_t count = frame.part(all, samples);
        if (narrow) kernels.relu_backward_bf16(frame.bf16_at(x.gradient), frame.bf16_at(x.value), count);
        else kernels.relu_backward(frame.at(x.gradient), frame.at(x.value), count);
        return Status{};
    });
    b.operations->data.insert(b.operations->data.end(), after.begin(), after.end());
    return {};
}

}   // namespace gradcast::cpu
