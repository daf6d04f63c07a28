// Forward on AMX: a tile is 16 output channels by 16 samples, and four of them are the pixels of a window.  An image's channels c and c + 1
// are pairs, whose parts stand pixel by pixel, so that a row of taps reads what lies side by side: 16 pairs are the terms of a tile.
#include "nn/cpu/conv16.h"
#include "nn/cpu/tiles.h"

namespace gradcast {
namespace avx512 {
extern const Conv16Kernels conv16_kernels;
}
namespace GC_ISA {
namespace {

/// Of channels in pairs.
uint32_t pairs(const Conv16Shape& s) { return blocks(s.C, 2); }
/// Tiles of terms in a row of taps.
uint32_t tiles(const Conv16Shape& s) { return blocks(s.S * pairs(s), side); }
uint64_t panel_of(const Conv16Shape& s) { return uint64_t{s.R} * tiles(s) * panel_bytes; }

uint64_t packed(const Conv16Shape& s, WeightOrder order) {
    return order == WeightOrder::forward ? blocks(s.K, side) * panel_of(s) / sizeof(float) : avx512::conv16_kernels.packed(s, order);
}

void pack(float* packed, const float* w, const Conv16Shape& s, WeightOrder order) {
    if (order != WeightOrder::forward) return avx512::conv16_kernels.pack(packed, w, s, order);
    auto* to = reinterpret_cast<uint8_t*>(packed);
    for (uint32_t k = 0; k < s.K; k += side)
        for (uint32_t r = 0; r < s.R; ++r)
            for (uint32_t tile = 0; tile < tiles(s); ++tile, to += panel_bytes)
                for (uint32_t row = 0; row < side; ++row) {
                    alignas(64) float terms[2][side] = {};
                    for (uint32_t i = 0; i < side; ++i) {
                        const uint32_t tap = (tile * side + i) / pairs(s), c = (tile * side + i) % pairs(s) * 2;
                        for (uint32_t j = 0; j < 2 && tap < s.S && c + j < s.C && k + row < s.K; ++j)
                            terms[j][i] = w[((uint64_t{k + row} * s.C + c + j) * s.R + r) * s.S + tap];
                    }
                    split(to + row * 64, load(terms[0]), load(terms[1]));
                }
}

/// Of a part of an image; a last tile reads what is behind it.
uint64_t part_of(const Conv16Shape& s) { return (uint64_t{s.H} * s.W * pairs(s) + side) * 64; }
uint64_t forward_scratch(const Conv16Shape& s) { return parts * part_of(s) / sizeof(float); }

/// [part][H][W][pairs][16]
void split_image(uint8_t* to, const float* x, const Conv16Shape& s) {
    const uint64_t plane = uint64_t{s.H} * s.W * 16, part = part_of(s);
    for (uint32_t i = 0; i < parts; ++i) __builtin_memset(to + (i + 1) * part - side * 64, 0, side * 64);
    for (const float* const end = x + plane; x < end; x += 16)
        for (uint32_t c = 0; c < s.C; c += 2, to += 64) split(to, load(x + c * plane), c + 1 < s.C ? load(x + (c + 1) * plane) : V{}, part);
}

/// The sums of four pixels that begin at so many bytes of the image, [4][16 channels][16].
void four_pixels(float* sums, const uint8_t* image, const uint64_t (&pixel)[4], const uint8_t* a, const Conv16Shape& s) {
    const uint64_t part = part_of(s), row = uint64_t{s.W} * pairs(s) * 64;
    auto b = [&]<int i>(std::integral_constant<int, i>, uint32_t number, const uint8_t* from) {
        tile_load<6 + i % 2>(from + pixel[i] + number * part);
    };
    auto each = [](auto f) {
        f(std::integral_constant<int, 0>()), f(std::integral_constant<int, 1>());
        f(std::integral_constant<int, 2>()), f(std::integral_constant<int, 3>());
    };
    tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
    for (uint32_t r = 0; r < s.R; ++r, image += row)
        for (uint32_t tile = 0; tile < tiles(s); ++tile, a += panel_bytes) {   // small ones first
            const uint8_t* const from = image + tile * tile_bytes;
            tile_load<4>(a + 2 * tile_bytes), tile_load<5>(a + tile_bytes);
            each([&]<int i>(std::integral_constant<int, i> at) {
                b(at, 0, from), tile_multiply<i, 4, 6 + i % 2>(), tile_multiply<i, 5, 6 + i % 2>();
            });
            tile_load<4>(a);
            each([&]<int i>(std::integral_constant<int, i> at) {
                b(at, 1, from), tile_multiply<i, 5, 6 + i % 2>(), tile_multiply<i, 4, 6 + i % 2>();
            });
            each([&]<int i>(std::integral_constant<int, i> at) { b(at, 2, from), tile_multiply<i, 4, 6 + i % 2>(); });
            each([&]<int i>(std::integral_constant<int, i> at) { b(at, 0, from), tile_multiply<i, 4, 6 + i % 2>(); });
        }
    each([&]<int i>(std::integral_constant<int, i>) { tile_store<i>(sums + i * side * side, 64); });
}

/// Calls f(group, first channel, how many, row, column, sums [4][16][16]) with four pixels each: of a window, or of a row (some twice at
/// its end).
template <bool pooled, typename F>
void each_four(const float* x, const float* packed, float* scratch, const Conv16Shape& s, F f) {
    auto* const image = reinterpret_cast<uint8_t*>(scratch);
    const uint64_t column = uint64_t{pairs(s)} * 64, row = s.W * column;
    const TileRegisters registers(side);
    alignas(64) float sums[4 * side * side];
    for (uint32_t g = 0; g < s.groups; ++g, x += uint64_t{s.C} * s.H * s.W * 16) {
        split_image(image, x, s);
        for (uint32_t p = 0; p < s.P(); p += pooled ? 2 : 1)
            for (uint32_t k = 0; k < s.K; k += side)
                for (uint32_t q = 0; q < s.Q(); q += pooled ? 2 : 4) {
                    auto at = [&](uint32_t i) { return pooled ? i / 2 * row + (q + i % 2) * column : least(q + i, s.Q() - 1) * column; };
                    four_pixels(sums, image + p * row, {at(0), at(1), at(2), at(3)},
                                reinterpret_cast<const uint8_t*>(packed) + k / side * panel_of(s), s);
                    f(g, k, least(side, s.K - k), p, q, sums);
                }
    }
}

void forward(float* y, const float* x, const float* packed, const float* bias, float* scratch, const Conv16Shape& s) {
    each_four<false>(x, packed, scratch, s, [&](uint32_t g, uint32_t k, uint32_t channels, uint32_t p, uint32_t q, const float* sums) {
        for (uint32_t i = 0; i < channels; ++i)
            for (uint32_t j = 0; j < 4 && q + j < s.Q(); ++j)
                store(y + (((uint64_t{g} * s.K + k + i) * s.P() + p) * s.Q() + q + j) * 16,
                      load(sums + (j * side + i) * side) + all(bias[k + i]));
    });
}

void forward_pooled(float* y, int32_t* winners, const float* x, const float* packed, const float* bias, float* scratch,
                    const Conv16Shape& s) {
    each_four<true>(x, packed, scratch, s, [&](uint32_t g, uint32_t k, uint32_t channels, uint32_t p, uint32_t q, const float* sums) {
        for (uint32_t i = 0; i < channels; ++i) {
            const uint64_t to = (((uint64_t{g} * s.K + k + i) * (s.P() / 2) + p / 2) * (s.Q() / 2) + q / 2) * 16;
            V value[4];
            for (uint32_t j = 0; j < 4; ++j) value[j] = load(sums + (j * side + i) * side) + all(bias[k + i]);
            pool(y + to, winners + to, value);
        }
    });
}

}   // namespace

Conv16Kernels conv16_kernels() {
    Conv16Kernels made = avx512::conv16_kernels;
    made.packed = packed, made.pack = pack;
    made.forward_scratch = forward_scratch, made.forward = forward, made.forward_pooled = forward_pooled;
    return made;
}

}   // namespace GC_ISA
}   // namespace gradcast
