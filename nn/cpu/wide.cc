#include "nn/cpu/wide.h"

#include "runtime/core/isa_build.h"

namespace gradcast {

namespace portable {
extern const WideKernels wide_kernels;
}
namespace avx2 {
extern const WideKernels wide_kernels;
}
namespace avx512 {
extern const WideKernels wide_kernels;
}
namespace amx {
extern const WideKernels wide_kernels;
}

const WideKernels& wide_kernels(Isa isa) {
    if (isa == Isa::amx) return amx::wide_kernels;
    return isa_build(isa, portable::wide_kernels, avx2::wide_kernels, avx512::wide_kernels);
}

}   // namespace gradcast
