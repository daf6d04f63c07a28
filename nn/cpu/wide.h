// Convolutions of many channels, stride 1, kernels 1x1, 3x3 and 5x5: x [N, C/16, H, W, 16], y [N, K/16, P, Q, 16], so C and K are multiples
// of 16.  3x3 and 5x5 go Winograd's way: a tile of 4x4 outputs and what it is computed from become polynomials' values at 6 or 8 points
// each way, which are multiplied channel by channel, a matrix product for each pair of points: 2.25 or 4 multiplications for an output
// where 9 or 25 are said.  Three builds of one file, and AMX for 1x1; each is a kernel set of its own (nn_isa).  A sample's y and dx are
// the same whatever other samples there are.
#pragma once
#include <cstdint>

#include "runtime/core/isa.h"

namespace gradcast {

struct WideShape {
    uint32_t N, C, H, W, K, kernel, pad;   // pad < kernel
    uint32_t P() const { return H + 2 * pad - kernel + 1; }
    uint32_t Q() const { return W + 2 * pad - kernel + 1; }
    /// Of the convolution that is its backward data.
    WideShape turned() const { return {N, K, P(), Q(), C, kernel, kernel - 1 - pad}; }
};
struct WideKernels {
    /// The weights [K, C, kernel, kernel] in the order of `forward`, or where `turned` of the turned convolution's: packed(shape) floats.
    uint64_t (*packed)(const WideShape& shape);
    void (*pack)(float* packed, const float* w, const WideShape& shape, bool turned);
    /// Floats of scratch memory.
    uint64_t (*forward_scratch)(const WideShape& shape);
    uint64_t (*weights_scratch)(const WideShape& shape);
    /// bias may be null.  rectify: y = max(y, 0), NaN stays NaN.  mask (may be null, in the order of y): y = 0 where it is not above 0.
    void (*forward)(float* y, const float* x, const float* packed, const float* bias, bool rectify, const float* mask, float* scratch,
                    const WideShape& shape);
    /// db may be null.
    void (*backward_weights)(float* dw, float* db, const float* dy, const float* x, float* scratch, const WideShape& shape);
};
/// Those of amx are for 1x1 alone.
const WideKernels& wide_kernels(Isa isa);
/// Multiply bf16, with AVX512-BF16 alone: 1x1; and any kernel up to 8x8 of fewer than 16 channels, x [N, C, H, W], which is never `turned`.
/// What is read and written is float.
const WideKernels& wide_bf16_kernels();

}   // namespace gradcast
