#include "nn/cuda/apply.h"
#include "nn/optimisers/sgd.h"

namespace gradcast::cuda {
namespace {

struct Sgd {
    static constexpr uint32_t vectors_max = 1;
    static __device__ void element(float& w, float& v, float&, uint32_t vectors, float g, const StepRates& rates) {
        const SgdStep& now = reinterpret_cast<const SgdStep&>(rates);
        const float d = g + now.weight_decay * w;
        if (vectors == 0) {
            w -= now.lr * d;
            return;
        }
        v = now.momentum * v + d;
        w -= now.lr * (now.nesterov != 0 ? d + now.momentum * v : v);
    }
};

}   // namespace

extern const UpdateKernels sgd_kernels = update_kernels<Sgd>();

}   // namespace gradcast::cuda
