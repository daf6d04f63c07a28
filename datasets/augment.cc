#include "datasets/augment.h"

#include <algorithm>
#include <cstring>

#include "runtime/core/rng.h"
#include "runtime/core/status.h"

namespace gradcast {
namespace {

/// new[y][x] = old[y + down][x + right], 0 outside the plane.
void shift(uint8_t* plane, int64_t H, int64_t W, int64_t down, int64_t right) {
    const auto kept = static_cast<size_t>(W - std::abs(right));
    for (int64_t i = 0; i < H; ++i) {
        // In the direction in which no row is overwritten before it is read.
        int64_t y = down < 0 ? H - 1 - i : i, from = y + down;
        uint8_t* row = plane + y * W;
        if (from < 0 || from >= H) {
            std::memset(row, 0, static_cast<size_t>(W));
            continue;
        }
        std::memmove(row + std::max(-right, int64_t{0}), plane + from * W + std::max(right, int64_t{0}), kept);
        std::memset(right > 0 ? row + kept : row, 0, static_cast<size_t>(std::abs(right)));
    }
}

}   // namespace

void augment(const Augment& how, const DataInfo& info, uint64_t epoch, uint64_t sample, uint8_t* image) {
    GC_ASSERT(how.crop < info.H && how.crop < info.W);
    const Philox random = random4(Purpose::augment, how.seed, sample, static_cast<uint32_t>(epoch));
    auto move = [&](uint32_t bits) {   // -crop .. crop
        return static_cast<int64_t>(uint64_t{bits} * (2 * uint64_t{how.crop} + 1) >> 32) - static_cast<int64_t>(how.crop);
    };
    const int64_t down = move(random[0]), right = move(random[1]);
    const bool mirrored = how.flip && random[2] >> 31;
    for (uint32_t c = 0; c < info.C; ++c) {
        uint8_t* plane = image + uint64_t{c} * info.H * info.W;
        if (down != 0 || right != 0) shift(plane, info.H, info.W, down, right);
        for (uint32_t y = 0; mirrored && y < info.H; ++y) std::reverse(plane + uint64_t{y} * info.W, plane + uint64_t{y + 1} * info.W);
    }
}

}   // namespace gradcast
