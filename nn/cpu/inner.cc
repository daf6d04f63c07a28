#include "nn/cpu/inner.h"

#include <algorithm>

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
namespace amx {
InnerKernels inner_kernels();
}

const InnerKernels& inner_kernels(Isa isa) {
    switch (isa) {
        case Isa::portable: return portable::inner_kernels;
        case Isa::common: return inner_kernels(std::min(isa_best(), Isa::avx512));
        case Isa::avx2: return avx2::inner_kernels;
        case Isa::avx512:
        case Isa::avx512_bf16: return avx512::inner_kernels;
        case Isa::amx: {   // made on a CPU that has it
            static const InnerKernels tiled = amx::inner_kernels();
            return tiled;
        }
    }
    return portable::inner_kernels;
}

}   // namespace gradcast
