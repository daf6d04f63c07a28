// y = x + other, the residual sum.  The gradient passes through to x where it is, and is copied to `other`.
#include "nn/cpu/build.h"
#include "nn/kernels.h"

namespace gradcast::cpu {

Status add(Build& b) {
    const FloatKernels& kernels = float_kernels(isa_best());
    Activation x = b.activation, other = b.other;
    if (!x.learns) std::swap(x, other);   // then only `other` can be one that does not learn
    Tensor addend;
    GC_TRY(b.consume({other.value}, x.value.desc, b.operations->forward, &addend));
    Activation y{.value = b.kept(x.value.desc), .gradient = x.gradient, .learns = x.learns};
    uint64_t count = y.value.bytes() / sizeof(float);
    b.operations->forward.emplace_back([&kernels, x, addend, y, count](Frame& frame) {
        kernels.add(frame.at(y.value), frame.at(x.value), frame.at(addend), count);
        return Status{};
    });
    if (other.learns) GC_TRY(b.reorder(y.gradient, other.gradient, b.operations->data));
    b.activation = y;
    return {};
}

}   // namespace gradcast::cpu
