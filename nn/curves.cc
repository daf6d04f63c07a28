#include "nn/curves.h"

#include "runtime/core/isa_build.h"

namespace gradcast {

namespace portable {
extern const CurveKernels curve_kernels[curve_count];
}
namespace avx2 {
extern const CurveKernels curve_kernels[curve_count];
}
namespace avx512 {
extern const CurveKernels curve_kernels[curve_count];
}

const CurveKernels& curve_kernels(Curve which, Isa isa) {
    return isa_build(isa, portable::curve_kernels, avx2::curve_kernels, avx512::curve_kernels)[static_cast<size_t>(which)];
}

}   // namespace gradcast
