// Random changes of the samples that are learned from.  Keyed by (seed, epoch, sample): who reads a sample, and when, changes nothing.
#pragma once
#include <cstdint>

#include "datasets/shard.h"

namespace gradcast {

struct Augment {
    uint32_t crop = 0;   // a random part of the size of the sample is cut from it with this many zeros on each side; below H and W
    bool flip = false;   // half of them are mirrored, left to right
    uint64_t seed = 0;
    bool any() const { return crop > 0 || flip; }
};
/// image [C, H, W], changed in place.  `sample`: its index in the data set.
void augment(const Augment& how, const DataInfo& info, uint64_t epoch, uint64_t sample, uint8_t* image);

}   // namespace gradcast
