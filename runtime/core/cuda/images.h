// Augmented samples of a data set in GPU memory: augment() (datasets/augment.cc) as a gather, byte for byte.
#pragma once
#include <cstdint>

#include "runtime/core/types.h"

namespace gradcast::cuda {

/// A GPU's copy of a data set, and its augmentation.
struct Images {
    const uint8_t* all = nullptr;   // [sample, C, H, W]
    uint32_t C = 0, H = 0, W = 0;
    uint32_t crop = 0, flip = 0;
    uint64_t seed = 0;
};

}   // namespace gradcast::cuda
