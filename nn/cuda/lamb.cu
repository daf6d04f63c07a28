#include "nn/cuda/apply.h"

namespace gradcast::cuda {
namespace {

// As nn/optimisers/lamb.cc.
struct Lamb {
    static __device__ float look(float w, float& m, float& v, float g, const StepRates& rates) {
        const AdamStep& now = reinterpret_cast<const AdamStep&>(rates);
        m = now.beta1 * m + now.rest1 * g;
        v = now.beta2 * v + now.rest2 * (g * g);
        return m / (sqrtf(v) * now.root + now.epsilon) + now.weight_decay * w;
    }
    static __device__ void element(float& w, float& m, float& v, uint32_t, float g, const StepRates& rates) {
        const float step = look(w, m, v, g, rates);
        w -= reinterpret_cast<const AdamStep&>(rates).rate * step;
    }
    static __device__ void scale(StepRates& rates, const TensorNorms& norms) {
        if (norms.w == 0 || norms.step == 0) return;
        float& rate = reinterpret_cast<AdamStep&>(rates).rate;
        rate = static_cast<float>(static_cast<double>(rate) * (sqrt(norms.w) / sqrt(norms.step)));
    }
};

}   // namespace

extern const UpdateKernels lamb_kernels = update_kernels_by_tensor<Lamb>();

}   // namespace gradcast::cuda
