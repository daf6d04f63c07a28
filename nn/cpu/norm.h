// Loops of layer_norm, rms_norm and group_norm over rows of floats, in three builds of one file with the same bits.  Sums have 16 lanes of
// double.
#pragma once
#include <cstdint>

#include "runtime/core/isa.h"

namespace gradcast::cpu {

/// What a row is normalised by: z = (x - mean) inverse.
struct RowScale {
    float mean, inverse;   // inverse = 1 / sqrt(variance + epsilon)
};

struct NormKernels {
    RowScale (*scale)(const float* x, uint64_t count, double epsilon);
    /// That of rms_norm: mean 0, inverse = 1 / sqrt(mean of x^2 + epsilon).
    RowScale (*rms_scale)(const float* x, uint64_t count, double epsilon);
    /// y = z weight + bias: of each element, or of all.  The bias of each element may be null.
    void (*forward)(float* y, const float* x, uint64_t count, RowScale by, const float* weight, const float* bias);
    void (*forward_all)(float* y, const float* x, uint64_t count, RowScale by, float weight, float bias);
    /// Sums of g and of g z; g = dy weight, or dy where weight is null.
    void (*sums)(const float* dy, const float* x, uint64_t count, RowScale by, const float* weight, double* g, double* gz);
    /// dx = inverse (g - a - z b).
    void (*backward)(float* dx, const float* dy, const float* x, uint64_t count, RowScale by, const float* weight, float a, float b);
    void (*backward_all)(float* dx, const float* dy, const float* x, uint64_t count, RowScale by, float weight, float a, float b);
    /// Adds dy z to dweight and, if it is not null, dy to dbias.
    void (*weights)(double* dweight, double* dbias, const float* dy, const float* x, uint64_t count, RowScale by);
};
const NormKernels& norm_kernels(Isa isa = isa_best());

}   // namespace gradcast::cpu
