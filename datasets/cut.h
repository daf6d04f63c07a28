// The part of a picture that becomes a sample, and its resampling: integer arithmetic, the same bits on every CPU.
#pragma once
#include <cstdint>
#include <vector>

namespace gradcast {

/// Pixels top .. top + H - 1, left .. left + W - 1 of a picture.
struct Part {
    uint32_t top = 0, left = 0, H = 0, W = 0;
};
/// side x side in the middle; top and left are rounded down.  Neither H nor W is below `side`.
Part part_centre(uint32_t H, uint32_t W, uint32_t side);
/// Returns `share`, above 0 and at most 1, in units of 2^-16: 1 .. 65536.
uint32_t share_units(double share);
/// A random part, keyed by (seed, epoch, sample): RandomResizedCrop of torchvision in integers.  Its area is a uniform share of the
/// picture's between share_min (share_units()) and 1, its ratio W / H is (4/3)^(k/32) with k uniform in -32 .. 32, its place is uniform.
/// The first of ten draws that lies within the picture counts; where none does, the largest part in the middle whose ratio is in 3/4 ..
/// 4/3. H and W at least 1, at most 65535.
Part part_drawn(uint32_t share_min, uint64_t seed, uint64_t epoch, uint64_t sample, uint32_t H, uint32_t W);

/// Makes `out` pixels of a line of `in` pixels.  A pixel is the mean of its neighbourhood weighted by a triangle, as wide as two pixels of
/// the coarser grid (image_fit() in datasets/image.h).  Weights are in units of 2^-14: each is rounded down, and what the sum lacks is
/// added to the largest one, the first of several.
class Resample {
public:
    static constexpr uint32_t one = 1 << 14;
    /// O(taps).  Allocates only beyond reserve().
    void plan(uint32_t in, uint32_t out);
    void reserve(uint32_t in_max, uint32_t out);
    struct Taps {
        uint32_t first = 0, count = 0, at = 0;   // at: of the first weight
    };
    const std::vector<Taps>& taps() const { return taps_; }
    const uint32_t* weights(const Taps& taps) const { return weights_.data() + taps.at; }

private:
    std::vector<Taps> taps_;   // [out]
    std::vector<uint32_t> weights_;
};

/// Takes the rows of a part one after another and makes the planes of a sample of them: columns first, then rows, each rounded to the
/// nearest integer (halves up).
class Cutter {
public:
    /// Memory for parts of at most `long_max` rows and columns: plan() and the rest then allocate nothing.
    void reserve(uint32_t C, uint32_t long_max, uint32_t side);
    void plan(uint32_t C, const Part& part, uint32_t side);
    /// Row y of the part: interleaved pixels [W of the part, C].
    void row(uint32_t y, const uint8_t* pixels);
    /// planes [C, side, side].
    void finish(uint8_t* planes);

private:
    uint32_t C_ = 0, H_ = 0, side_ = 0;
    Resample columns_, rows_;
    std::vector<uint8_t> narrow_;   // [C, H of the part, side]
    std::vector<uint32_t> sums_;    // [side]
};

}   // namespace gradcast
