// Element-wise float kernels, in three builds of one file (portable, AVX2, AVX-512).  Without fused multiply-add (-ffp-contract=off) and
// without reductions each element has the same bits in every build, so nn_isa() does not matter and the best one of this CPU is taken.
#pragma once
#include <cstdint>

#include "runtime/core/isa.h"

namespace gradcast {

/// x is [planes, H, W, width], y [planes, P, Q, width]; a plane is `width` channels of one sample.  Or x is [samples, H, W, apart]: all
/// channels of a pixel lie together.
struct PoolShape {
    uint32_t planes, H, W, P, Q, kernel, stride, pad, width;   // width 8 or 16
    uint32_t apart = width;                                    // floats from a pixel of x to the next one
    uint64_t pixels() const { return uint64_t{H} * W; }
    uint32_t together() const { return apart / width; }   // planes whose pixels lie together
    /// Where a plane of x begins.
    uint64_t begin(uint32_t plane) const { return plane / together() * pixels() * apart + plane % together() * width; }
};
constexpr uint32_t pool_kernel_max = 16;   // a place in a window is a byte

/// x is [samples, groups, pixels, width]: `width` channels lie together.  Values by channel are arrays [groups * width].
struct ChannelShape {
    uint32_t samples, groups, width;   // width 8 or 16
    uint64_t pixels;
};

/// Element j takes number j % 8 of draw first + j / 8 * stride of (seed, sample).  A number below `drop` drops the element.
struct DropoutKey {
    uint64_t seed, sample;
    uint32_t first, stride;
    uint32_t drop;   // of 65536
    float scale;     // of elements that stay
};

/// d = g + weight_decay w;  m = beta1 m + rest1 d;  v = beta2 v + rest2 d d;  w = w - rate m / (sqrt(v) root + epsilon).
struct AdamStep {
    float beta1, rest1, beta2, rest2, rate, root, epsilon, weight_decay;
};

struct FloatKernels {
    /// dst = src * scale + shift, src in 0..255.
    void (*normalise)(float* dst, const uint8_t* src, uint64_t count, float scale, float shift);
    /// The same for up to 16 samples, `stride` bytes apart: dst [count, 16], filled up with zeros.
    void (*normalise16)(float* dst, const uint8_t* src, uint64_t stride, uint32_t samples, uint64_t count, float scale, float shift);
    /// x = max(x, 0), NaN stays NaN.
    void (*relu)(float* x, uint64_t count);
    /// dx = y > 0 ? dx : 0.
    void (*relu_backward)(float* dx, const float* y, uint64_t count);
    /// The same of bf16, the upper half of a float.
    void (*relu_bf16)(uint16_t* x, uint64_t count);
    void (*relu_backward_bf16)(uint16_t* dx, const uint16_t* y, uint64_t count);
    /// y = the greatest of each window, winners [planes, P, Q, width] = its place in the window; the first of equals, NaN before all.
    void (*max_pool)(float* y, uint8_t* winners, const float* x, const PoolShape& shape);
    /// dx = dy at the winners, 0 elsewhere (summed where windows overlap).  All of dx is written.
    void (*max_pool_backward)(float* dx, const float* dy, const uint8_t* winners, const PoolShape& shape);
    /// y = the mean of each window's pixels inside the image.  dx = dy / their number, summed where windows overlap; all of dx is written.
    void (*average_pool)(float* y, const float* x, const PoolShape& shape);
    void (*average_pool_backward)(float* dx, const float* dy, const PoolShape& shape);
    /// sums = sum of x, or where mean is not null of (x - mean)^2, over samples and pixels.
    void (*channel_sums)(double* sums, const float* x, const float* mean, const ChannelShape& shape);
    /// Sums of dy and of dy (x - mean).
    void (*channel_products)(double* dy_sums, double* dyx_sums, const float* dy, const float* x, const float* mean,
                             const ChannelShape& shape);
    /// y = (x - mean) scale + shift.
    void (*channel_affine)(float* y, const float* x, const float* mean, const float* scale, const float* shift, const ChannelShape& shape);
    /// dx = dy a + (x - mean) b + c.
    void (*channel_affine_backward)(float* dx, const float* dy, const float* x, const float* mean, const float* a, const float* b,
                                    const float* c, const ChannelShape& shape);
    /// x = 0 or x scale, as random4(Purpose::dropout, ...) says.
    void (*dropout)(float* x, uint64_t count, const DropoutKey& key);
    /// y = a + b; y may be one of them.
    void (*add)(float* y, const float* a, const float* b, uint64_t count);
    /// y = a b; y may be one of them.
    void (*multiply)(float* y, const float* a, const float* b, uint64_t count);
    /// dst = (float)((double)words * unit).
    void (*dequantise_i16)(float* dst, const int16_t* words, uint64_t count, double unit);
    void (*dequantise_i32)(float* dst, const int32_t* words, uint64_t count, double unit);
    void (*dequantise_i64)(float* dst, const int64_t* words, uint64_t count, double unit);
    /// v = momentum v + (g + weight_decay w);  w = w - lr v.   v may be null when momentum is 0.
    void (*sgd)(float* w, float* v, const float* g, uint64_t count, float lr, float momentum, float weight_decay);
    /// d = g + weight_decay w;  v = momentum v + d;  w = w - lr (d + momentum v).
    void (*nesterov)(float* w, float* v, const float* g, uint64_t count, float lr, float momentum, float weight_decay);
    void (*adam)(float* w, float* m, float* v, const float* g, uint64_t count, const AdamStep& step);
};
const FloatKernels& float_kernels(Isa isa);

}   // namespace gradcast
