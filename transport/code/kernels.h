// The integer arithmetic of exchanges and codecs, in three builds of one file (portable, AVX2, AVX-512), all exact against each other.
#pragma once
#include <cstdint>

#include "runtime/core/isa.h"
#include "runtime/core/protocol.h"

namespace gradcast {

/// q(x) = clamp(rint((double)x / divisor * factor), -limit, limit), ties to even; NaN gives limit (and shows in the maximum).
struct Scale {
    double divisor, factor;   // divisor 1 costs nothing
    int32_t limit;            // >= 1
};
struct QuantiseResult {
    float maximum;      // max |x| before clipping; NaN or Inf when the input holds one
    uint64_t clipped;   // elements outside the limits
};
struct WordKernels {
    void (*add_i32)(int32_t* dst, const int32_t* src, uint64_t count);   // wrapping
    void (*add_i64)(int64_t* dst, const int64_t* src, uint64_t count);   // wrapping
    void (*add_i32_to_i64)(int64_t* dst, const int32_t* src, uint64_t count);
    /// dst = q(x), or dst += q(x) (wrapping) where `accumulate`.
    QuantiseResult (*quantise_i32)(int32_t* dst, const float* x, uint64_t count, const Scale& scale, bool accumulate);
    QuantiseResult (*quantise_i64)(int64_t* dst, const float* x, uint64_t count, const Scale& scale, bool accumulate);
};
const WordKernels& word_kernels(Isa isa);

/// Carries out one Compute action here and now.
void compute_now(const Compute& compute);

}   // namespace gradcast
