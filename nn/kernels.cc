#include "nn/kernels.h"

#include "runtime/core/isa_build.h"

namespace gradcast {

namespace portable {
extern const FloatKernels float_kernels;
}
namespace avx2 {
extern const FloatKernels float_kernels;
}
namespace avx512 {
extern const FloatKernels float_kernels;
}

const FloatKernels& float_kernels(Isa isa) { return isa_build(isa, portable::float_kernels, avx2::float_kernels, avx512::float_kernels); }

}   // namespace gradcast
