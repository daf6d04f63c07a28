#include <algorithm>
#include <cstdlib>

#include "datasets/image.h"
#include "runtime/core/status.h"

namespace gradcast {
namespace {

/// The pixels of a line of `in` that make pixel i of a line of `out`, with their weights.  In units of 1 / (2 out) of a source pixel,
/// pixel j has its centre at (2 j + 1) out and pixel i at (2 i + 1) in; the triangle's half width is 2 max(in, out).
struct Taps {
    uint64_t first = 0, sum = 0;
    std::vector<uint64_t> weights;
};
Taps taps_of(uint64_t i, uint64_t in, uint64_t out) {
    Taps taps;
    const auto centre = static_cast<int64_t>((2 * i + 1) * in), half = static_cast<int64_t>(2 * std::max(in, out));
    for (uint64_t j = 0; j < in; ++j) {
        const int64_t weight = half - std::abs(static_cast<int64_t>((2 * j + 1) * out) - centre);
        if (weight <= 0) {
            if (taps.sum > 0) break;
            continue;
        }
        if (taps.sum == 0) taps.first = j;
        taps.weights.push_back(static_cast<uint64_t>(weight));
        taps.sum += static_cast<uint64_t>(weight);
    }
    return taps;
}

/// from [lines, in, inner] to [lines, side, inner]: resizes the middle axis to `out` and keeps `side` of it from `first` on.
std::vector<uint8_t> axis_fit(const std::vector<uint8_t>& from, uint64_t in, uint64_t inner, uint64_t out, uint64_t first, uint64_t side) {
    const uint64_t lines = from.size() / (in * inner);
    std::vector<uint8_t> to(lines * side * inner);
    for (uint64_t i = 0; i < side; ++i) {
        const Taps taps = taps_of(first + i, in, out);
        for (uint64_t line = 0; line < lines; ++line)
            for (uint64_t x = 0; x < inner; ++x) {
                uint64_t sum = taps.sum / 2;
                for (uint64_t j = 0; j < taps.weights.size(); ++j) sum += taps.weights[j] * from[(line * in + taps.first + j) * inner + x];
                to[(line * side + i) * inner + x] = static_cast<uint8_t>(sum / taps.sum);
            }
    }
    return to;
}

/// from [lines, in, inner] to [lines, side, inner]: of each pixel of `out` the nearest of `in`, from `first` on.
std::vector<uint8_t> axis_nearest(const std::vector<uint8_t>& from, uint64_t in, uint64_t inner, uint64_t out, uint64_t first,
                                  uint64_t side) {
    const uint64_t lines = from.size() / (in * inner);
    std::vector<uint8_t> to(lines * side * inner);
    for (uint64_t i = 0; i < side; ++i) {
        const uint64_t centre = (2 * (first + i) + 1) * in;   // in units of 1 / (2 out)
        const uint64_t nearest = std::min((centre - (centre > 0 ? 1 : 0)) / (2 * out), in - 1);
        for (uint64_t line = 0; line < lines; ++line)
            std::copy_n(&from[(line * in + nearest) * inner], inner, &to[(line * side + i) * inner]);
    }
    return to;
}

/// Resizes with `axis` so that the short side has `side` pixels, and cuts the middle out where `cut`.
template <typename Axis>
void fit(uint32_t side, bool cut, Planes* planes, Axis axis) {
    const uint64_t H = planes->H, W = planes->W, shorter = std::min(H, W);
    const uint64_t high = side * H / shorter, wide = side * W / shorter, rows = cut ? side : high, columns = cut ? side : wide;
    planes->pixels = axis(planes->pixels, W, 1, wide, (wide - columns) / 2, columns);
    planes->pixels = axis(planes->pixels, H, columns, high, (high - rows) / 2, rows);
    planes->H = static_cast<uint32_t>(rows);
    planes->W = static_cast<uint32_t>(columns);
}

}   // namespace

void image_turn(uint32_t orientation, Planes* planes) {
    GC_ASSERT(orientation >= 1 && orientation <= 8);
    if (orientation == 1) return;
    // Of the upright image: rows are columns of the stored one; the stored one is read from its last row or column on.
    const bool swap = orientation >= 5;
    const bool last_row = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
    const bool last_column = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
    const uint64_t h = planes->H, w = planes->W, H = swap ? w : h, W = swap ? h : w;
    std::vector<uint8_t> turned(planes->pixels.size());
    for (uint64_t c = 0, at = 0; c < planes->C; ++c)
        for (uint64_t y = 0; y < H; ++y)
            for (uint64_t x = 0; x < W; ++x, ++at) {
                const uint64_t row = swap ? x : y, column = swap ? y : x;
                turned[at] = planes->pixels[(c * h + (last_row ? h - 1 - row : row)) * w + (last_column ? w - 1 - column : column)];
            }
    planes->H = static_cast<uint32_t>(H);
    planes->W = static_cast<uint32_t>(W);
    planes->pixels = std::move(turned);
}

void image_fit(uint32_t side, Planes* planes) { fit(side, true, planes, axis_fit); }
void image_resize(uint32_t side, Planes* planes) { fit(side, false, planes, axis_fit); }
void mask_fit(uint32_t side, Planes* mask) { fit(side, true, mask, axis_nearest); }

}   // namespace gradcast
