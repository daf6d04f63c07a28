#include "nn/cuda/apply.h"

namespace gradcast::cuda {
namespace {

struct Adam {
    static __device__ void element(float* w, float* m, float* v, uint64_t i, float g, const StepRates& rates) {
        const AdamStep& now = reinterpret_cast<const AdamStep&>(rates);
        const float d = g + now.weight_decay * w[i];
        m[i] = now.beta1 * m[i] + now.rest1 * d;
        v[i] = now.beta2 * v[i] + now.rest2 * (d * d);
        w[i] -= now.rate * m[i] / (sqrtf(v[i]) * now.root + now.epsilon);
    }
};

}   // namespace

extern const UpdateKernels adam_kernels = update_kernels<Adam>();

}   // namespace gradcast::cuda
