// A sample's pixels from a data set in GPU memory: augment() (datasets/augment.cc) as a gather, byte for byte:
// new[y][x] = old[y + down][x' + right] with x' = W-1-x if mirrored, else x; 0 outside the plane.  In .cu files only.
#pragma once
#include "runtime/core/cuda/images.h"
#include "runtime/core/cuda/philox.h"

namespace gradcast::cuda {

/// How one sample is taken; the draw depends on the seed, the sample and the epoch alone.
struct Taken {
    const uint8_t* from = nullptr;   // [C, H, W]
    int32_t down = 0, right = 0;
    bool mirrored = false;
};
__device__ inline Taken taken(const Images& images, const SamplePlace& place) {
    const Draw random = draw4(Purpose::augment, images.seed, place.index, place.epoch);
    const auto crop = static_cast<int32_t>(images.crop);
    return {images.all + place.index * (uint64_t{images.C} * images.H * images.W),
            static_cast<int32_t>(uint64_t{random.word[0]} * (2 * images.crop + 1) >> 32) - crop,
            static_cast<int32_t>(uint64_t{random.word[1]} * (2 * images.crop + 1) >> 32) - crop, images.flip && random.word[2] >> 31};
}
__device__ inline uint8_t pixel(const Images& images, const Taken& taken, uint32_t c, uint32_t h, uint32_t w) {
    const int32_t x = static_cast<int32_t>(taken.mirrored ? images.W - 1 - w : w) + taken.right, y = static_cast<int32_t>(h) + taken.down;
    const bool inside = x >= 0 && y >= 0 && x < static_cast<int32_t>(images.W) && y < static_cast<int32_t>(images.H);
    return inside ? taken.from[(c * images.H + static_cast<uint32_t>(y)) * images.W + static_cast<uint32_t>(x)] : uint8_t{0};
}

}   // namespace gradcast::cuda
