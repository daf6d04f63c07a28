#include "nn/cuda/apply.h"
#include "nn/optimisers/sgd.h"

namespace gradcast::cuda {
namespace {

struct Sgd {
    static __device__ void element(float* w, float* v, float*, uint64_t i, float g, const StepRates& rates) {
        const SgdStep& now = reinterpret_cast<const SgdStep&>(rates);
        const float d = g + now.weight_decay * w[i];
        if (!v) {
            w[i] -= now.lr * d;
            return;
        }
        v[i] = now.momentum * v[i] + d;
        w[i] -= now.lr * (now.nesterov != 0 ? d + now.momentum * v[i] : v[i]);
    }
};

}   // namespace

extern const UpdateKernels sgd_kernels = update_kernels<Sgd>();

}   // namespace gradcast::cuda
