#include "nn/kernels.h"

#include <algorithm>

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

const FloatKernels& float_kernels(Isa isa) {
    switch (isa) {
        case Isa::portable: return portable::float_kernels;
        case Isa::common: return float_kernels(std::min(isa_best(), Isa::avx512));
        case Isa::avx2: return avx2::float_kernels;
        case Isa::avx512:
        case Isa::avx512_bf16:
        case Isa::amx: return avx512::float_kernels;
    }
    return portable::float_kernels;
}

}   // namespace gradcast
