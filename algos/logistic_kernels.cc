#include "algos/logistic_kernels.h"

#include "runtime/core/isa.h"

namespace gradcast {
namespace portable {
extern const LogisticKernels logistic;
}
namespace avx2 {
extern const LogisticKernels logistic;
}
namespace avx512 {
extern const LogisticKernels logistic;
}

const LogisticKernels& logistic_kernels() {
    const Isa isa = isa_best();
    return isa >= Isa::avx512 ? avx512::logistic : isa == Isa::avx2 ? avx2::logistic : portable::logistic;
}

}   // namespace gradcast
