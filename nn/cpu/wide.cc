#include "nn/cpu/wide.h"

#include <algorithm>

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
    switch (isa) {
        case Isa::portable: return portable::wide_kernels;
        case Isa::common: return wide_kernels(std::min(isa_best(), Isa::avx512));
        case Isa::avx2: return avx2::wide_kernels;
        case Isa::avx512:
        case Isa::avx512_bf16: return avx512::wide_kernels;
        case Isa::amx: return amx::wide_kernels;
    }
    return portable::wide_kernels;
}

}   // namespace gradcast
