// Convolutions over 16 samples side by side: x [N/16, C, H, W, 16], y [N/16, K, P, Q, 16], stride 1, no padding, so P = H - R + 1.  A
// vector holds one pixel of 16 samples (or of 8 or 4 of them), so that no number of channels is too small for it: oneDNN's kernels want 8
// or 16.  Three builds of one file, with fused multiply-add where there is: each has bits of its own (nn_isa).
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
/// A max pooling 2x2 (and ReLU after it) is computed with the convolution before it, where P and Q are even: y and dy are [N/16, K, P/2,
/// Q/2, 16] then, and so is `winners`, whose numbers say which of a window's places was taken (the first of equals, NaN before all), row by
/// row.
struct Conv16Kernels {
    /// Samples [N, elements] and side by side [N/16, elements, 16], where there are zeros for those that are none.
    void (*beside)(float* to, const float* from, uint64_t elements, uint32_t samples);
    void (*apart)(float* to, const float* from, uint64_t elements, uint32_t samples);
    /// The weights [K, C, R, S] in the order that a pass reads them, and how many floats that are.
    uint64_t (*packed)(const Conv16Shape& shape, WeightOrder order);
    void (*pack)(float* packed, const float* w, const Conv16Shape& shape, WeightOrder order);
    void (*forward)(float* y, const float* x, const float* packed, const float* bias, const Conv16Shape& shape);
    void (*forward_pooled)(float* y, int32_t* winners, const float* x, const float* packed, const float* bias, const Conv16Shape& shape);
    /// winners null: of forward.  The weights are in the order for that.  scratch: one group's dy with S-1 zeros at both ends of
    /// each row, K P (Q + 2(S-1)) 16 floats.
    void (*backward_data)(float* dx, const float* dy, const int32_t* winners, const float* packed, float* scratch,
                          const Conv16Shape& shape);
    /// Floats of scratch that both want.  Samples that are none have dy = 0.
    uint64_t (*weights_scratch)(const Conv16Shape& shape);
    void (*backward_weights)(float* dw, float* db, const float* dy, const float* x, float* scratch, const Conv16Shape& shape);
    void (*backward_weights_pooled)(float* dw, float* db, const float* dy, const int32_t* winners, const float* x, float* scratch,
                                    const Conv16Shape& shape);
};
const Conv16Kernels& conv16_kernels(Isa isa);

}   // namespace gradcast
