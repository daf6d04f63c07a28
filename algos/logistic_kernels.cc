#include "algos/logistic_kernels.h"

#include "runtime/core/isa_build.h"

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

const LogisticKernels& logistic_kernels() { return isa_build(isa_best(), portable::logistic, avx2::logistic, avx512::logistic); }

}   // namespace gradcast
