// Inner products in canonical order: x [N, C], w [K, C], y [N, K].  Nothing is copied.  Three builds of one file; each is a kernel set of
// its own (nn_isa).  A sample's y and dx are the same whatever other samples there are.  Backward, terms with a dy of 0 may be left out:
// the sums are the same but for what 0 times Inf or NaN would have made of them, and the sign of a 0.
#pragma once
#include <cstdint>

#include "runtime/core/isa.h"

namespace gradcast {

struct InnerShape {
    uint32_t N, C, K;
};
struct InnerKernels {
    /// bias may be null.
    void (*forward)(float* y, const float* x, const float* w, const float* bias, const InnerShape& shape);
    void (*backward_data)(float* dx, const float* dy, const float* w, const InnerShape& shape);
    /// Of outputs first .. end - 1, whose rows alone are in dw.
    void (*backward_weights)(float* dw, const float* dy, const float* x, const InnerShape& shape, uint32_t first, uint32_t end);
    void (*backward_bias)(float* db, const float* dy, const InnerShape& shape);
};
const InnerKernels& inner_kernels(Isa isa);

}   // namespace gradcast
