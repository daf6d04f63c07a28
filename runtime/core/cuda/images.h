// A data set in GPU memory, from which samples are augmented: the same bytes as augment() (datasets/augment.cc) gives.
#pragma once
#include <cstdint>

#include "runtime/core/types.h"

namespace gradcast::cuda {

/// A GPU's copy of a data set, and its augmentation.
struct Images {
    const uint8_t* all = nullptr;   // [sample, C, H, W]
    uint32_t C = 0, H = 0, W = 0;
    uint32_t crop = 0, flip = 0;   // as in Augment; flip: 0 or 1
    uint64_t seed = 0;
};

}   // namespace gradcast::cuda
