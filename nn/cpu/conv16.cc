#include "nn/cpu/conv16.h"

#include <algorithm>

namespace gradcast {

namespace portable {
extern const Conv16Kernels conv16_kernels;
}
namespace avx2 {
extern const Conv16Kernels conv16_kernels;
}
namespace avx512 {
extern const Conv16Kernels conv16_kernels;
}

const Conv16Kernels& conv16_kernels(Isa isa) {
    switch (isa) {
        case Isa::portable: return portable::conv16_kernels;
        case Isa::common: return conv16_kernels(std::min(isa_best(), Isa::avx512));
        case Isa::avx2: return avx2::conv16_kernels;
        case Isa::avx512:
        case Isa::avx512_bf16:
        case Isa::amx: return avx512::conv16_kernels;
    }
    return portable::conv16_kernels;
}

}   // namespace gradcast
