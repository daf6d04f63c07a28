// Inner products in canonical order: x [N, C], w [K, C], y [N, K].  Three builds of one file, of which avx2 and avx512 give the same bits,
// and AMX.  A sample's y and dx do not depend on the other samples.  Terms whose x (forward_packed) or dy (backward) is 0 may be left out,
// so 0 times Inf or NaN may count as 0.
#pragma once
#include <cstdint>

#include "runtime/core/isa.h"

namespace gradcast {

struct InnerShape {
    uint32_t N, C, K;
};
struct InnerKernels {
    uint32_t memory;   // floats that `memory` of a call must have
    /// bias may be null.  forward is for few samples or outputs, forward_packed for more; their bits differ.
    void (*forward)(float* y, const float* x, const float* w, const float* bias, const InnerShape& shape);
    void (*forward_packed)(float* y, const float* x, const float* w, const float* bias, float* memory, const InnerShape& shape);
    void (*backward_data)(float* dx, const float* dy, const float* w, float* memory, const InnerShape& shape);
    /// Floats of x in the order that backward_weights() reads; fewer samples need no more.
    uint64_t (*packed)(const InnerShape& shape);
    void (*pack)(float* to, const float* x, const InnerShape& shape);
    /// Computes dw of outputs first .. end - 1: it has their rows alone, `apart` floats from each other.
    void (*backward_weights)(float* dw, uint64_t apart, const float* dy, const float* packed, const InnerShape& shape, uint32_t first,
                             uint32_t end);
    void (*backward_bias)(float* db, const float* dy, const InnerShape& shape);
};
const InnerKernels& inner_kernels(Isa isa);

}   // namespace gradcast
