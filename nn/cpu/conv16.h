// Convolutions over 16 samples side by side: x [N/16, C, H, W, 16], y [N/16, K, P, Q, 16], stride 1, no padding, so P = H - R + 1.  A
// vector holds one pixel of 16 samples (or of 8 or 4), so the number of channels need not be a multiple of anything.  Three builds of one
// file.  Those with fused multiply-add, avx2 and avx512, give the same bits.
#pragma once
#include <cstdint>

#include "runtime/core/isa.h"

namespace gradcast {

struct Conv16Shape {
    uint32_t groups, C, H, W, K, R, S;   // groups of 16 samples
    uint32_t P() const { return H - R + 1; }
    uint32_t Q() const { return W - S + 1; }
    uint64_t taps() const { return uint64_t{R} * S; }
};
/// forward; backward_data without and with winners.
enum class WeightOrder : uint8_t { forward, data, data_pooled };
/// `pooled`: a max pooling 2x2 and a ReLU are computed with the convolution, whose P and Q must be even.  y, dy and `winners` are then
/// [N/16, K, P/2, Q/2, 16]; a winner is the place in its window that was taken, row by row: the first of equals, NaN before all.
struct Conv16Kernels {
    /// From samples [N, elements] to [N/16, elements, 16], filled up with zeros, and back.
    void (*beside)(float* to, const float* from, uint64_t elements, uint32_t samples);
    void (*apart)(float* to, const float* from, uint64_t elements, uint32_t samples);
    /// Writes the weights [K, C, R, S] in a pass's order: packed() floats.
    uint64_t (*packed)(const Conv16Shape& shape, WeightOrder order);
    void (*pack)(float* packed, const float* w, const Conv16Shape& shape, WeightOrder order);
    void (*forward)(float* y, const float* x, const float* packed, const float* bias, const Conv16Shape& shape);
    void (*forward_pooled)(float* y, int32_t* winners, const float* x, const float* packed, const float* bias, const Conv16Shape& shape);
    /// winners: null without pooling; WeightOrder must be the same.  scratch: K P (Q + 2(S-1)) 16 floats, for one group's dy with S-1 zeros
    /// at both ends of each row.
    void (*backward_data)(float* dx, const float* dy, const int32_t* winners, const float* packed, float* scratch,
                          const Conv16Shape& shape);
    /// Floats of scratch that both need.  dy must be 0 for samples that fill up a group.
    uint64_t (*weights_scratch)(const Conv16Shape& shape);
    void (*backward_weights)(float* dw, float* db, const float* dy, const float* x, float* scratch, const Conv16Shape& shape);
    void (*backward_weights_pooled)(float* dw, float* db, const float* dy, const int32_t* winners, const float* x, float* scratch,
                                    const Conv16Shape& shape);
};
const Conv16Kernels& conv16_kernels(Isa isa);

}   // namespace gradcast
