#include "nn/kernels.h"

namespace gradcast {
namespace GC_ISA {
namespace {

void normalise(float* __restrict dst, const uint8_t* __restrict src, uint64_t count, float scale, float shift) {
    for (uint64_t i = 0; i < count; ++i) dst[i] = static_cast<float>(src[i]) * scale + shift;
}

void relu(float* x, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) x[i] = x[i] < 0 ? 0.0f : x[i];
}

void relu_backward(float* __restrict dx, const float* __restrict y, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) dx[i] = y[i] > 0 ? dx[i] : 0.0f;
}

template <typename Word>
void dequantise(float* __restrict dst, const Word* __restrict words, uint64_t count, double unit) {
    for (uint64_t i = 0; i < count; ++i) dst[i] = static_cast<float>(static_cast<double>(words[i]) * unit);
}

void sgd(float* __restrict w, float* __restrict v, const float* __restrict g, uint64_t count, float lr, float momentum, float weight_decay) {
    if (!v) {
        for (uint64_t i = 0; i < count; ++i) w[i] -= lr * (g[i] + weight_decay * w[i]);
        return;
    }
    for (uint64_t i = 0; i < count; ++i) {
        v[i] = momentum * v[i] + (g[i] + weight_decay * w[i]);
        w[i] -= lr * v[i];
    }
}

}   // namespace
extern const FloatKernels float_kernels = {normalise, relu, relu_backward, dequantise<int32_t>, dequantise<int64_t>, sgd};
}   // namespace GC_ISA
}   // namespace gradcast
