// On AMX.  Forward a tile is 16 output channels by 16 samples, and four of them are the pixels of a window.  An image's channels c and c +
// 1 are pairs, whose parts stand pixel by pixel, so that a row of taps reads what lies side by side: 16 pairs are the terms of a tile. For
// gradients of weights a tile is 16 taps and channels of a row by 16 output channels; its terms are the samples of a pixel and of the one
// behind it, whose parts stand together.
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

// ---- gradients of weights behind a pooling ---------------------------------------------------------------------------------------------

/// Tiles of taps and channels: of a row, of all.
uint32_t row_tiles(const Conv16Shape& s) { return blocks(s.S * s.C, side); }
uint32_t all_tiles(const Conv16Shape& s) { return s.R * row_tiles(s); }
/// Bytes of a part of an image, whose last tile reads what is behind it; of the gradients of 16 channels.
uint64_t image_part(const Conv16Shape& s) { return (uint64_t{s.H} * s.W * s.C + side) * 64; }
uint64_t gradients_of(const Conv16Shape& s) { return uint64_t{s.P()} * s.Q() / 2 * panel_bytes; }
uint64_t weights_scratch(const Conv16Shape& s) {
    const uint64_t own =
        (parts * image_part(s) + gradients_of(s)) / sizeof(float) + uint64_t{blocks(s.K, side)} * all_tiles(s) * side * side;
    const uint64_t others = avx512::conv16_kernels.weights_scratch(s);
    return own > others ? own : others;
}

/// [part][H][W][C][16 samples of a pixel, 16 of the next]
void split_pixels(uint8_t* to, const float* x, const Conv16Shape& s) {
    alignas(64) static constexpr float zeros[16] = {};
    const uint64_t plane = uint64_t{s.H} * s.W * 16, part = image_part(s);
    for (uint32_t h = 0; h < s.H; ++h)
        for (uint32_t w = 0; w < s.W; ++w, x += 16)
            for (uint32_t c = 0; c < s.C; ++c, to += 64) split_row(to, x + c * plane, w + 1 < s.W ? x + c * plane + 16 : zeros, part);
}

/// [P][Q/2][part]: two pixels' gradients as they were before pooling, of up to 16 channels.
void split_gradients(uint8_t* to, const float* dy, const int32_t* winners, uint32_t channels, const Conv16Shape& s) {
    const uint32_t P = s.P() / 2, Q = s.Q() / 2;
    const uint64_t plane = uint64_t{P} * Q * 16, row = Q * panel_bytes;
    alignas(64) float d[side * side], gradient[side * side], w[side * side], winner[side * side];   // [channel][sample], and turned
    for (uint32_t i = channels * side; i < side * side; ++i) d[i] = w[i] = 0;
    for (uint32_t p = 0; p < P; ++p, to += 2 * row)
        for (uint32_t q = 0; q < Q; ++q, dy += 16, winners += 16) {
            for (uint32_t k = 0; k < channels; ++k)
                store(d + k * side, load(dy + k * plane)), store(w + k * side, (V)load(winners + k * plane));
            transpose(gradient, side, d, side), transpose(winner, side, w, side);
            for (int32_t place = 0; place < 4; ++place)
                for (uint32_t j = 0; j < side / 2; ++j) {
                    auto won = [&](uint32_t n) { return (I)load(winner + n * side) == place ? load(gradient + n * side) : V{}; };
                    split(to + place / 2 * row + q * panel_bytes + (place % 2 * side / 2 + j) * 64, won(j), won(j + side / 2));
                }
        }
}

/// Of so many tiles from `first` on: sums (+)= the products of an image's pixels and their gradients.
template <int count>
void add_products(float* sums, bool add, const uint8_t* image, const uint8_t* gradients, uint32_t first, const Conv16Shape& s) {
    auto each = [](auto f) {
        [&]<int... i>(std::integer_sequence<int, i...>) { (f(std::integral_constant<int, i>()), ...); }
        (std::make_integer_sequence<int, count>());
    };
    each([&]<int i>(std::integral_constant<int, i>) {
        if (add) tile_load<i>(sums + i * side * side);
        else tile_zero<i>();
    });
    uint64_t at[count];   // the tile's first line, in the image
    for (uint32_t i = 0; i < count; ++i)
        at[i] = (uint64_t{(first + i) / row_tiles(s)} * s.W * s.C + (first + i) % row_tiles(s) * side) * 64;
    for (uint32_t p = 0; p < s.P(); ++p)
        for (uint32_t q = 0; q < s.Q(); q += 2, gradients += panel_bytes) {
            const uint8_t* const pixel = image + (uint64_t{p} * s.W + q) * s.C * 64;
            tile_load<5>(gradients), tile_load<6>(gradients + tile_bytes), tile_load<7>(gradients + 2 * tile_bytes);
            each([&]<int i>(std::integral_constant<int, i>) {   // small ones first
                tile_load<4>(pixel + at[i] + 2 * image_part(s)), tile_multiply<i, 4, 5>();
                tile_load<4>(pixel + at[i] + image_part(s)), tile_multiply<i, 4, 6>(), tile_multiply<i, 4, 5>();
                tile_load<4>(pixel + at[i]), tile_multiply<i, 4, 7>(), tile_multiply<i, 4, 6>(), tile_multiply<i, 4, 5>();
            });
        }
    each([&]<int i>(std::integral_constant<int, i>) { tile_store<i>(sums + i * side * side, 64); });
}

void backward_weights_pooled(float* dw, float* db, const float* dy, const int32_t* winners, const float* x, float* scratch,
                             const Conv16Shape& s) {
    constexpr void (*some[])(float*, bool, const uint8_t*, const uint8_t*, uint32_t, const Conv16Shape&) = {
        add_products<1>, add_products<2>, add_products<3>, add_products<4>};
    const uint64_t plane = uint64_t{s.P() / 2} * (s.Q() / 2) * 16;
    auto* const image = reinterpret_cast<uint8_t*>(scratch);
    uint8_t* const gradients = image + parts * image_part(s);
    float* const sums = reinterpret_cast<float*>(gradients + gradients_of(s));
    for (uint32_t k = 0; k < s.K; ++k) db[k] = 0;
    {
        const TileRegisters registers(side);
        for (uint32_t g = 0; g < s.groups; ++g, x += uint64_t{s.C} * s.H * s.W * 16, dy += s.K * plane, winners += s.K * plane) {
            split_pixels(image, x, s);
            for (uint32_t k = 0; k < s.K; k += side) {
                split_gradients(gradients, dy + k * plane, winners + k * plane, least(side, s.K - k), s);
                for (uint32_t i = 0; i < all_tiles(s); i += 4)
                    some[least(4, all_tiles(s) - i) - 1](sums + (uint64_t{k / side} * all_tiles(s) + i) * side * side, g > 0, image,
                                                         gradients, i, s);
            }
            for (uint32_t k = 0; k < s.K; ++k) {
                V sum{};
                for (uint64_t i = 0; i < plane; i += 16) sum += load(dy + k * plane + i);
                for (uint32_t n = 0; n < 16; ++n) db[k] += sum[n];
            }
        }
    }
    for (uint32_t k = 0; k < s.K; ++k)
        for (uint32_t c = 0; c < s.C; ++c)
            for (uint32_t r = 0; r < s.R; ++r)
                for (uint32_t tap = 0; tap < s.S; ++tap) {
                    const uint32_t line = tap * s.C + c;   // of the row
                    *dw++ = sums[((uint64_t{k / side} * s.R + r) * row_tiles(s) * side + line) * side + k % side];
                }
}

}   // namespace

Conv16Kernels conv16_kernels() {
    Conv16Kernels made = avx512::conv16_kernels;
    made.packed = packed, made.pack = pack;
    made.forward_scratch = forward_scratch, made.forward = forward, made.forward_pooled = forward_pooled;
    made.weights_scratch = weights_scratch, made.backward_weights_pooled = backward_weights_pooled;
    return made;
}

}   // namespace GC_ISA
}   // namespace gradcast
