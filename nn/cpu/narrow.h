// Gradients of the weights of 1x1 convolutions from bf16, on AMX: x [pixels, C], dy [pixels, K], with the pixels of all samples.
#pragma once
#include <cstdint>

#include "runtime/core/isa.h"

namespace gradcast {

struct NarrowShape {
    uint32_t pixels, C, K;
};
struct NarrowKernels {
    uint64_t (*scratch)(const NarrowShape& shape);   // floats
    /// dw [K, C], db [K] or null.
    void (*backward_weights)(float* dw, float* db, const uint16_t* dy, const uint16_t* x, float* scratch, const NarrowShape& shape);
};
namespace amx {
extern const NarrowKernels narrow_kernels;
}

}   // namespace gradcast
