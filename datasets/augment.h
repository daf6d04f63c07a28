// Random crop, flip and colours of training samples, and of their masks crop and flip, keyed by (seed, epoch, sample): the result does not
// depend on who reads a sample, or when.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "datasets/shard.h"

namespace gradcast {

struct Augment {
    uint32_t crop = 0;   // pad each side with `crop` zeros, then cut a random H x W window; below H and W
    bool flip = false;   // mirror left to right with probability 1/2
    uint64_t seed = 0;
    uint32_t area = 0;   // of pictures: the smallest share of a random part (share_units() in datasets/cut.h); 0: the middle is cut out.
                         // DataSet::read() does this, not augment()
    /// How far the factors of brightness, contrast and saturation may be from 1: in units of 2^-16, at most 65536.
    std::array<uint32_t, 3> jitter = {};
    bool jitters() const { return jitter != std::array<uint32_t, 3>{}; }
    bool any() const { return crop > 0 || flip || jitters(); }
};
/// Brightness, contrast and saturation of an image [C, H, W], C 1 or 3, in this order, which torchvision's ColorJitter draws.  With a
/// factor f = 1 + u, u uniform in -jitter .. jitter in steps of 2^-16, drawn for each of the three by (seed, epoch, sample):
///   brightness   x f
///   contrast     m + (x - m) f     m: the image's mean luminance, rounded
///   saturation   g + (x - g) f     g: the pixel's luminance; of C = 3
/// each rounded to the nearest integer (halves up) and held in 0 .. 255.  The luminance is (19595 R + 38470 G + 7471 B) 2^-16, rounded.
/// Integer arithmetic: the same bits on every CPU.
void colours_jitter(const Augment& how, const DataInfo& info, uint64_t epoch, uint64_t sample, uint8_t* image);
/// Changes image [C, H, W] and, of masks, its targets [H, W] in place, both alike.  Pixels from outside are 0, labels DataInfo::ignore or
/// 0.  colours_jitter() comes first.  `sample`: its index in the data set.  Any thread; O(C H W).
void augment(const Augment& how, const DataInfo& info, uint64_t epoch, uint64_t sample, uint8_t* image, std::byte* targets = nullptr);

}   // namespace gradcast
