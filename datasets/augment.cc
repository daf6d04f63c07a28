#include "datasets/augment.h"

#include <algorithm>
#include <cstring>

#include "runtime/core/rng.h"
#include "runtime/core/status.h"

namespace gradcast {
namespace {

/// What is done to each plane of a sample.
struct Change {
    int64_t H, W, down, right;
    bool mirrored;

    /// new[y][x] = old[y + down][x + right], `outside` beyond the plane; then mirrored.
    template <typename T>
    void operator()(T* plane, T outside) const {
        if (down != 0 || right != 0) shift(plane, outside);
        for (int64_t y = 0; mirrored && y < H; ++y) std::reverse(plane + y * W, plane + (y + 1) * W);
    }

private:
    template <typename T>
    void shift(T* plane, T outside) const {
        const int64_t beyond = std::abs(right), kept = W - beyond;
        for (int64_t i = 0; i < H; ++i) {
            // In the direction in which no row is overwritten before it is read.
            const int64_t y = down < 0 ? H - 1 - i : i, from = y + down;
            T* row = plane + y * W;
            if (from < 0 || from >= H) {
                std::fill_n(row, W, outside);
                continue;
            }
            std::memmove(row + std::max(-right, int64_t{0}), plane + from * W + std::max(right, int64_t{0}),
                         static_cast<size_t>(kept) * sizeof(T));
            std::fill_n(right > 0 ? row + kept : row, beyond, outside);
        }
    }
};

}   // namespace

void augment(const Augment& how, const DataInfo& info, uint64_t epoch, uint64_t sample, uint8_t* image, std::byte* targets) {
    GC_ASSERT(how.crop < info.H && how.crop < info.W);
    const Philox random = random4(Purpose::augment, how.seed, sample, static_cast<uint32_t>(epoch));
    auto move = [&](uint32_t bits) {   // -crop .. crop
        return static_cast<int64_t>(uint64_t{bits} * (2 * uint64_t{how.crop} + 1) >> 32) - static_cast<int64_t>(how.crop);
    };
    const Change change{info.H, info.W, move(random[0]), move(random[1]), how.flip && random[2] >> 31};
    for (uint32_t c = 0; c < info.C; ++c) change(image + uint64_t{c} * info.H * info.W, uint8_t{0});
    if (!targets || !info.masks()) return;
    const uint32_t outside = info.ignore < 0 ? 0 : static_cast<uint32_t>(info.ignore);
    if (info.target_element == Element::u8) change(reinterpret_cast<uint8_t*>(targets), static_cast<uint8_t>(outside));
    else change(reinterpret_cast<uint16_t*>(targets), static_cast<uint16_t>(outside));
}

}   // namespace gradcast
