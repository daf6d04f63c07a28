#include "nn/cuda/apply.h"

namespace gradcast::cuda {
namespace {

/// apart: the weights decay by themselves, and AdamStep::weight_decay has lr in it.
template <bool apart>
struct Adam {
    static constexpr uint32_t vectors_max = 2;
    static __device__ void element(float& w, float& m, float& v, uint32_t, float g, const StepRates& rates) {
        const AdamStep& now = reinterpret_cast<const AdamStep&>(rates);
        const float d = apart ? g : g + now.weight_decay * w;
        if (apart) w -= now.weight_decay * w;
        m = now.beta1 * m + now.rest1 * d;
        v = now.beta2 * v + now.rest2 * (d * d);
        w -= now.rate * m / (sqrtf(v) * now.root + now.epsilon);
    }
};

}   // namespace

extern const UpdateKernels adam_kernels = update_kernels<Adam<false>>();
extern const UpdateKernels adamw_kernels = update_kernels<Adam<true>>();

}   // namespace gradcast::cuda
