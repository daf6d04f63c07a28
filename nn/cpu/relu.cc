// y = max(x, 0), in place: no layer before it needs x again.  dx = dy where y > 0, in place too.
#include "nn/cpu/build.h"
#include "nn/kernels.h"

namespace gradcast::cpu {

Status relu(Build& b) {
    const FloatKernels& kernels = float_kernels(isa_best());
    Activation x;
    std::vector<Operation> after;
    GC_TRY(b.in_place(b.activation.value.desc, after, &x));
    b.activation = x;
    uint64_t count = x.value.bytes() / sizeof(float);   // padding of blocked orders included: it is zero and stays so
    b.operations->forward.emplace_back([&kernels, x, count](Frame& frame) {
        kernels.relu(frame.at(x.value), count);
        return Status{};
    });
    if (!x.learns) return {};
    b.operations->data.emplace_back([&kernels, x, count](Frame& frame) {
        kernels.relu_backward(frame.at(x.gradient), frame.at(x.value), count);
        return Status{};
    });
    b.operations->data.insert(b.operations->data.end(), after.begin(), after.end());
    return {};
}

}   // namespace gradcast::cpu
