#include "nn/cpu/inner.h"

namespace gradcast {

namespace portable {
extern const InnerKernels inner_kernels;
}
namespace avx2 {
extern const InnerKernels inner_kernels;
}
namespace avx512 {
extern const InnerKernels inner_kernels;
}

const InnerKernels& inner_kernels(Isa isa) {
    switch (isa) {
        case Isa::portable: return portable::inner_kernels;
        case Isa::avx2: return avx2::inner_kernels;
        case Isa::avx512:
        case Isa::avx512_bf16:
        case Isa::amx: return avx512::inner_kernels;
    }
    return portable::inner_kernels;
}

}   // namespace gradcast
