#include "datasets/cut.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "runtime/core/rng.h"
#include "runtime/core/status.h"

namespace gradcast {
namespace {

/// (4/3)^((i - 32) / 32) in units of 2^-16, rounded to the nearest.
constexpr std::array<uint32_t, 65> ratios = {49152, 49596, 50044, 50496, 50952, 51412, 51876, 52345, 52817, 53294, 53776, 54261, 54751,
                                             55246, 55744, 56248, 56756, 57268, 57786, 58307, 58834, 59365, 59901, 60442, 60988, 61539,
                                             62095, 62655, 63221, 63792, 64368, 64949, 65536, 66128, 66725, 67328, 67936, 68549, 69168,
                                             69793, 70423, 71059, 71701, 72348, 73002, 73661, 74326, 74997, 75674, 76358, 77047, 77743,
                                             78445, 79154, 79868, 80590, 81317, 82052, 82793, 83540, 84295, 85056, 85824, 86599, 87381};
constexpr uint32_t tries = 10;

/// floor(sqrt(x)), bit by bit.
uint64_t root(uint64_t x) {
    uint64_t result = 0;
    for (uint64_t bit = uint64_t{1} << 31; bit > 0; bit >>= 1)
        if ((result + bit) * (result + bit) <= x) result += bit;
    return result;
}

/// Uniform in 0 .. count - 1.
uint64_t below(uint32_t bits, uint64_t count) { return uint64_t{bits} * count >> 32; }

}   // namespace

Part part_centre(uint32_t H, uint32_t W, uint32_t side) {
    GC_ASSERT(side > 0 && side <= H && side <= W);
    return {(H - side) / 2, (W - side) / 2, side, side};
}

uint32_t share_units(double share) { return std::clamp(static_cast<uint32_t>(share * 65536 + 0.5), 1u, 65536u); }

Part part_drawn(uint32_t share_min, uint64_t seed, uint64_t epoch, uint64_t sample, uint32_t H, uint32_t W) {
    GC_ASSERT(H > 0 && W > 0 && H < 65536 && W < 65536 && share_min > 0 && share_min <= 65536);
    for (uint32_t i = 0; i < tries; ++i) {
        const Philox random = random4(Purpose::cut, seed, sample * 16 + i, static_cast<uint32_t>(epoch));
        const uint64_t share = share_min + below(random[0], 65536 - share_min + 1);
        const uint64_t area = uint64_t{H} * W * share >> 16, ratio = ratios[below(random[1], ratios.size())];
        const auto w = std::max<uint64_t>(root(area * ratio >> 16), 1), h = std::max<uint64_t>(root((area << 16) / ratio), 1);
        if (w > W || h > H) continue;
        return {static_cast<uint32_t>(below(random[2], H - h + 1)), static_cast<uint32_t>(below(random[3], W - w + 1)),
                static_cast<uint32_t>(h), static_cast<uint32_t>(w)};
    }
    const uint32_t w = std::min(W, std::max(H * 4 / 3, 1u)), h = std::min(H, std::max(W * 4 / 3, 1u));
    return {(H - h) / 2, (W - w) / 2, h, w};
}

void Resample::reserve(uint32_t in_max, uint32_t out) {
    taps_.reserve(out);
    // A triangle reaches over fewer than 2 max(in / out, 1) + 1 pixels.
    weights_.reserve(2 * uint64_t{std::max(in_max, out)} + 3 * uint64_t{out});
}

void Resample::plan(uint32_t in, uint32_t out) {
    taps_.clear();
    weights_.clear();
    // In units of 1 / (2 out) of a source pixel, pixel j has its centre at (2 j + 1) out and pixel i at (2 i + 1) in; the triangle's half
    // width is 2 max(in, out).
    const int64_t half = 2 * int64_t{std::max(in, out)}, step = 2 * int64_t{out};
    for (uint32_t i = 0; i < out; ++i) {
        const int64_t centre = (2 * int64_t{i} + 1) * in;
        // The first pixel with (2 j + 1) out > centre - half.
        const int64_t lowest = centre - half - out;
        const int64_t begin = lowest < 0 ? 0 : lowest / step + 1;
        Taps taps{static_cast<uint32_t>(begin), 0, static_cast<uint32_t>(weights_.size())};
        int64_t sum = 0;
        for (int64_t j = begin; j < in; ++j, ++taps.count) {
            const int64_t weight = half - std::abs((2 * j + 1) * out - centre);
            if (weight <= 0) break;
            weights_.push_back(static_cast<uint32_t>(weight));
            sum += weight;
        }
        const auto its = weights_.begin() + taps.at;
        const auto largest = std::max_element(its, weights_.end());
        uint32_t missing = one;
        for (auto weight = its; weight != weights_.end(); ++weight) {
            *weight = static_cast<uint32_t>(uint64_t{*weight} * one / static_cast<uint64_t>(sum));
            missing -= *weight;
        }
        *largest += missing;
        taps_.push_back(taps);
    }
}

void Cutter::reserve(uint32_t C, uint32_t long_max, uint32_t side) {
    columns_.reserve(long_max, side);
    rows_.reserve(long_max, side);
    narrow_.reserve(uint64_t{C} * long_max * side);
    sums_.reserve(side);
}

void Cutter::plan(uint32_t C, const Part& part, uint32_t side) {
    C_ = C;
    H_ = part.H;
    side_ = side;
    columns_.plan(part.W, side);
    rows_.plan(part.H, side);
    narrow_.resize(uint64_t{C} * part.H * side);
    sums_.resize(side);
}

void Cutter::row(uint32_t y, const uint8_t* pixels) {
    const uint64_t plane = uint64_t{H_} * side_;
    uint8_t* to = narrow_.data() + uint64_t{y} * side_;
    for (const Resample::Taps& taps : columns_.taps()) {
        const uint32_t* weights = columns_.weights(taps);
        const uint8_t* from = pixels + uint64_t{taps.first} * C_;
        if (C_ == 3) {
            uint32_t r = Resample::one / 2, g = r, b = r;
            for (uint32_t j = 0; j < taps.count; ++j, from += 3)
                r += weights[j] * from[0], g += weights[j] * from[1], b += weights[j] * from[2];
            to[0] = static_cast<uint8_t>(r / Resample::one);
            to[plane] = static_cast<uint8_t>(g / Resample::one);
            to[2 * plane] = static_cast<uint8_t>(b / Resample::one);
        } else {
            for (uint32_t c = 0; c < C_; ++c) {
                uint32_t sum = Resample::one / 2;
                for (uint32_t j = 0; j < taps.count; ++j) sum += weights[j] * from[j * C_ + c];
                to[c * plane] = static_cast<uint8_t>(sum / Resample::one);
            }
        }
        ++to;
    }
}

void Cutter::finish(uint8_t* planes) {
    for (uint32_t c = 0; c < C_; ++c) {
        const uint8_t* from = narrow_.data() + uint64_t{c} * H_ * side_;
        for (const Resample::Taps& taps : rows_.taps()) {
            const uint32_t* weights = rows_.weights(taps);
            std::ranges::fill(sums_, Resample::one / 2);
            for (uint32_t j = 0; j < taps.count; ++j) {
                const uint8_t* line = from + uint64_t{taps.first + j} * side_;
                for (uint32_t x = 0; x < side_; ++x) sums_[x] += weights[j] * line[x];
            }
            for (uint32_t x = 0; x < side_; ++x) planes[x] = static_cast<uint8_t>(sums_[x] / Resample::one);
            planes += side_;
        }
    }
}

}   // namespace gradcast
