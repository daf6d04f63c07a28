// Convolutions of many channels, stride 1, kernels 1x1, 3x3 and 5x5: x [N, C/16, H, W, 16], y [N, K/16, P, Q, 16], so C and K are multiples
// of 16.  3x3 and 5x5 are Winograd's: a tile of 4x4 outputs and its inputs become values of polynomials at 6 or 8 points each way, and each
// pair of points is a matrix product over channels.  Three builds of one file, of which avx2 and avx512 give the same
// bits; 1x1 is for AMX alone.  A sample's y and dx do not depend on the other samples.
#pragma once
#include <cstdint>

#include "runtime/core/isa.h"

namespace gradcast {

constexpr uint32_t wide_tile = 4;   // outputs of a tile each way

struct WideShape {
    uint32_t N, C, H, W, K, kernel, pad;   // pad < kernel
    uint32_t P() const { return H + 2 * pad - kernel + 1; }
    uint32_t Q() const { return W + 2 * pad - kernel + 1; }
    /// The convolution that is the backward pass for data.
    WideShape turned() const { return {N, K, P(), Q(), C, kernel, kernel - 1 - pad}; }
};
struct WideKernels {
    /// Writes the weights [K, C, kernel, kernel] in the order of `forward`, or of the turned convolution's: packed(shape) floats.
    uint64_t (*packed)(const WideShape& shape);
    void (*pack)(float* packed, const float* w, const WideShape& shape, bool turned);
    /// Floats of scratch.
    uint64_t (*forward_scratch)(const WideShape& shape);
    uint64_t (*weights_scratch)(const WideShape& shape);
    /// bias may be null.
    void (*forward)(float* y, const float* x, const float* packed, const float* bias, float* scratch, const WideShape& shape);
    /// db may be null.
    void (*backward_weights)(float* dw, float* db, const float* dy, const float* x, float* scratch, const WideShape& shape);
};
/// Returns the kernels of an instruction set: amx has those for 1x1, all others those for 3x3 and 5x5.
const WideKernels& wide_kernels(Isa isa);

}   // namespace gradcast
