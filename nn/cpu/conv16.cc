#include "nn/cpu/conv16.h"

#include "runtime/core/isa_build.h"

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
    return isa_build(isa, portable::conv16_kernels, avx2::conv16_kernels, avx512::conv16_kernels);
}

}   // namespace gradcast
