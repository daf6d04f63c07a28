#include "nn/curves.h"

#include "runtime/core/isa.h"

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

const CurveKernels& curve_kernels(Curve which) {
    const Isa isa = isa_best();
    const CurveKernels* const all = isa >= Isa::avx512 ? avx512::curve_kernels
                                    : isa == Isa::avx2 ? avx2::curve_kernels
                                                       : portable::curve_kernels;
    return all[static_cast<size_t>(which)];
}

}   // namespace gradcast
