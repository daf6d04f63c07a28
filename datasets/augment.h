// Random crop and flip of training samples and their masks, keyed by (seed, epoch, sample): the result does not depend on who reads a
// sample, or when.
#pragma once
#include <cstddef>
#include <cstdint>

#include "datasets/shard.h"

namespace gradcast {

struct Augment {
    uint32_t crop = 0;   // pad each side with `crop` zeros, then cut a random H x W window; below H and W
    bool flip = false;   // mirror left to right with probability 1/2
    uint64_t seed = 0;
    bool any() const { return crop > 0 || flip; }
};
/// Changes image [C, H, W] and, of masks, its targets [H, W] in place, both alike.  Pixels from outside are 0, labels DataInfo::ignore or
/// 0. `sample`: its index in the data set.  Any thread; O(C H W).
void augment(const Augment& how, const DataInfo& info, uint64_t epoch, uint64_t sample, uint8_t* image, std::byte* targets = nullptr);

}   // namespace gradcast
