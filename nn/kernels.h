// Element-wise float kernels, in three builds of one file (portable, AVX2, AVX-512).  Without fused multiply-add (-ffp-contract=off) and
// without reductions each element has the same bits in every build, so the best one of this CPU is taken whatever nn_isa() said.
#pragma once
#include <cstdint>

#include "runtime/core/isa.h"

namespace gradcast {

struct FloatKernels {
    /// dst = src * scale + shift, src in 0..255.
    void (*normalise)(float* dst, const uint8_t* src, uint64_t count, float scale, float shift);
    /// x = max(x, 0), NaN stays NaN.
    void (*relu)(float* x, uint64_t count);
    /// dx = y > 0 ? dx : 0.
    void (*relu_backward)(float* dx, const float* y, uint64_t count);
    /// dst = (float)((double)words * unit).
    void (*dequantise_i32)(float* dst, const int32_t* words, uint64_t count, double unit);
    void (*dequantise_i64)(float* dst, const int64_t* words, uint64_t count, double unit);
    /// v = momentum v + (g + weight_decay w);  w = w - lr v.   v may be null when momentum is 0.
    void (*sgd)(float* w, float* v, const float* g, uint64_t count, float lr, float momentum, float weight_decay);
};
const FloatKernels& float_kernels(Isa isa);

}   // namespace gradcast
