#include "datasets/augment.h"

#include <algorithm>
#include <array>
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

constexpr int32_t unit = 1 << 16, half_unit = unit / 2;
uint8_t held(int32_t value) { return static_cast<uint8_t>(std::clamp(value, 0, 255)); }
int32_t luminance(int32_t red, int32_t green, int32_t blue) { return (19595 * red + 38470 * green + 7471 * blue + half_unit) >> 16; }
/// centre + (x - centre) factor.
uint8_t apart(int32_t x, int32_t centre, int32_t factor) { return held(((x - centre) * factor + centre * unit + half_unit) >> 16); }

}   // namespace

void colours_jitter(const Augment& how, const DataInfo& info, uint64_t epoch, uint64_t sample, uint8_t* image) {
    GC_ASSERT(info.element == Element::u8 && (info.C == 1 || info.C == 3));
    const Philox random = random4(Purpose::jitter, how.seed, sample, static_cast<uint32_t>(epoch));
    std::array<int32_t, 3> factors{};
    for (size_t i = 0; i < 3; ++i)
        factors[i] = static_cast<int32_t>(unit - how.jitter[i] + (uint64_t{random[i]} * (2 * uint64_t{how.jitter[i]} + 1) >> 32));
    const uint64_t pixels = uint64_t{info.H} * info.W, all = pixels * info.C;
    uint8_t *red = image, *green = info.C == 3 ? image + pixels : image, *blue = info.C == 3 ? image + 2 * pixels : image;
    std::array<uint8_t, 256> becomes;
    auto change = [&](int32_t centre, int32_t factor) {
        for (int32_t x = 0; x < 256; ++x) becomes[static_cast<size_t>(x)] = apart(x, centre, factor);
        for (uint64_t i = 0; i < all; ++i) image[i] = becomes[image[i]];
    };
    if (how.jitter[0] > 0) change(0, factors[0]);
    if (how.jitter[1] > 0) {
        uint64_t sum = pixels / 2;
        for (uint64_t i = 0; i < pixels; ++i) sum += static_cast<uint64_t>(luminance(red[i], green[i], blue[i]));
        change(static_cast<int32_t>(sum / pixels), factors[1]);
    }
    for (uint64_t i = 0; how.jitter[2] > 0 && info.C == 3 && i < pixels; ++i) {
        const int32_t grey = luminance(red[i], green[i], blue[i]);
        for (uint8_t* plane : {red, green, blue}) plane[i] = apart(plane[i], grey, factors[2]);
    }
}

void augment(const Augment& how, const DataInfo& info, uint64_t epoch, uint64_t sample, uint8_t* image, std::byte* targets) {
    GC_ASSERT(how.crop < info.H && how.crop < info.W);
    if (how.jitters()) colours_jitter(how, info, epoch, sample, image);
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
