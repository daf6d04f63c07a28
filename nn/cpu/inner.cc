#include "nn/cpu/inner.h"

#include "runtime/core/isa_build.h"

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
    if (isa == Isa::amx) {   // made on a CPU that has it
        static const InnerKernels tiled = amx::inner_kernels();
        return tiled;
    }
    return isa_build(isa, portable::inner_kernels, avx2::inner_kernels, avx512::inner_kernels);
}

}   // namespace gradcast
