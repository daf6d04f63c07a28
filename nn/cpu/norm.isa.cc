#include "nn/cpu/norm.h"

#include <cmath>

#include "nn/cpu/lane_sum.h"

namespace gradcast::cpu {
namespace GC_ISA {
namespace {

RowScale scale(const float* x, uint64_t count, double epsilon) {
    const auto n = static_cast<double>(count);
    const double mean = lane_sum<double>(count, [=](uint64_t i) { return static_cast<double>(x[i]); }) / n;
    const double variance = lane_sum<double>(count,
                                             [=](uint64_t i) {
                                                 const double off = static_cast<double>(x[i]) - mean;
                                                 return off * off;
                                             }) /
                            n;
    return {static_cast<float>(mean), static_cast<float>(1 / std::sqrt(variance + epsilon))};
}

RowScale rms_scale(const float* x, uint64_t count, double epsilon) {
    const double squares = lane_sum<double>(count, [=](uint64_t i) { return static_cast<double>(x[i]) * static_cast<double>(x[i]); });
    return {0, static_cast<float>(1 / std::sqrt(squares / static_cast<double>(count) + epsilon))};
}

float z(float x, RowScale by) { return (x - by.mean) * by.inverse; }

/// value(i): of one element, or the same for all.
template <typename Weight, typename Bias>
void forward_by(float* y, const float* x, uint64_t count, RowScale by, Weight weight, Bias bias) {
#pragma GCC ivdep
    for (uint64_t i = 0; i < count; ++i) y[i] = z(x[i], by) * weight(i) + bias(i);
}
struct Each {
    const float* values;
    float operator()(uint64_t i) const { return values[i]; }
};
struct All {
    float value;
    float operator()(uint64_t) const { return value; }
};
void forward(float* y, const float* x, uint64_t count, RowScale by, const float* weight, const float* bias) {
    if (bias) forward_by(y, x, count, by, Each{weight}, Each{bias});
    else forward_by(y, x, count, by, Each{weight}, All{0});
}
void forward_all(float* y, const float* x, uint64_t count, RowScale by, float weight, float bias) {
    forward_by(y, x, count, by, All{weight}, All{bias});
}

template <typename Weight>
void sums_by(const float* dy, const float* x, uint64_t count, RowScale by, Weight weight, double* g, double* gz) {
    *g = lane_sum<double>(count, [=](uint64_t i) { return static_cast<double>(dy[i] * weight(i)); });
    *gz = lane_sum<double>(count, [=](uint64_t i) { return static_cast<double>(dy[i] * weight(i)) * static_cast<double>(z(x[i], by)); });
}
void sums(const float* dy, const float* x, uint64_t count, RowScale by, const float* weight, double* g, double* gz) {
    if (weight) sums_by(dy, x, count, by, Each{weight}, g, gz);
    else sums_by(dy, x, count, by, All{1}, g, gz);
}

template <typename Weight>
void backward_by(float* dx, const float* dy, const float* x, uint64_t count, RowScale by, Weight weight, float a, float b) {
#pragma GCC ivdep
    for (uint64_t i = 0; i < count; ++i) dx[i] = by.inverse * (dy[i] * weight(i) - a - z(x[i], by) * b);
}
void backward(float* dx, const float* dy, const float* x, uint64_t count, RowScale by, const float* weight, float a, float b) {
    backward_by(dx, dy, x, count, by, Each{weight}, a, b);
}
void backward_all(float* dx, const float* dy, const float* x, uint64_t count, RowScale by, float weight, float a, float b) {
    backward_by(dx, dy, x, count, by, All{weight}, a, b);
}

void weights(double* dweight, double* dbias, const float* dy, const float* x, uint64_t count, RowScale by) {
#pragma GCC ivdep
    for (uint64_t i = 0; i < count; ++i) dweight[i] += static_cast<double>(dy[i]) * static_cast<double>(z(x[i], by));
    if (!dbias) return;
#pragma GCC ivdep
    for (uint64_t i = 0; i < count; ++i) dbias[i] += static_cast<double>(dy[i]);
}

}   // namespace

extern const NormKernels norm_kernels;
const NormKernels norm_kernels = {scale, rms_scale, forward, forward_all, sums, backward, backward_all, weights};

}   // namespace GC_ISA
}   // namespace gradcast::cpu
