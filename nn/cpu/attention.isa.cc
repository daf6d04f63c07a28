#include "nn/cpu/attention.h"

#include "nn/cpu/lane_sum.h"
#include "runtime/core/elementary.h"

namespace gradcast::cpu {
namespace GC_ISA {
namespace {

constexpr uint32_t lanes = 16;

/// NaN is larger than all others.
float largest(const float* x, uint32_t count) {
    float lane[lanes];
    for (float& each : lane) each = x[0];
    const auto take = [](float& best, float each) {
        best = each > best || each != each ? each : best;
    };   // NOLINT(misc-redundant-expression)
    uint32_t i = 0;
    for (; i + lanes <= count; i += lanes)
        for (uint32_t k = 0; k < lanes; ++k) take(lane[k], x[i + k]);
    for (; i < count; ++i) take(lane[0], x[i]);
    for (uint32_t k = 1; k < lanes; ++k) take(lane[0], lane[k]);
    return lane[0];
}

uint32_t seen(const ScoreRows& shape, uint32_t row) { return shape.causal ? shape.first + row + 1 : shape.keys; }

void softmax(float* s, float scale, const ScoreRows& shape) {
    for (uint32_t row = 0; row < shape.rows; ++row, s += shape.keys) {
        const uint32_t count = seen(shape, row);
        const float best = largest(s, count);
        for (uint32_t k = 0; k < count; ++k) s[k] = elementary::exp(scale * (s[k] - best));
        const float inverse = 1 / lane_sum<float>(count, [s](uint64_t k) { return s[k]; });
        for (uint32_t k = 0; k < count; ++k) s[k] *= inverse;
        for (uint32_t k = count; k < shape.keys; ++k) s[k] = 0;
    }
}

void slope(float* dp, const float* p, float scale, const ScoreRows& shape) {
    for (uint32_t row = 0; row < shape.rows; ++row, dp += shape.keys, p += shape.keys) {
        const uint32_t count = seen(shape, row);
        const float mean = lane_sum<float>(count, [dp, p](uint64_t k) { return p[k] * dp[k]; });
#pragma GCC ivdep
        for (uint32_t k = 0; k < count; ++k) dp[k] = scale * p[k] * (dp[k] - mean);
        for (uint32_t k = count; k < shape.keys; ++k) dp[k] = 0;
    }
}

}   // namespace

extern const AttentionKernels attention_kernels;
const AttentionKernels attention_kernels = {softmax, slope};

}   // namespace GC_ISA
}   // namespace gradcast::cpu
