// Tiles are made from up to 256 pixels at a time: b's lines are pairs of pixels of 16 channels of x, a's the same of dy, transposed.  32
// channels are two tiles, of the even and of the odd ones; their sums are interleaved once, at the end.
#include "nn/cpu/narrow.h"

#include "nn/cpu/tiles.h"

namespace gradcast {
namespace GC_ISA {
namespace {

constexpr uint32_t panel = 2 * side, pair_bytes = 2 * tile_bytes, pixels_most = 8 * chunk;   // channels; their tiles; pixels at a time
typedef uint32_t U __attribute__((vector_size(64)));

struct Lines {
    U even, odd;
};
/// Of the channels in `some` of two pixels; a null pixel is 0.
inline Lines lines(const uint16_t* first, const uint16_t* second, __mmask32 some) {
    const U a = (U)_mm512_maskz_loadu_epi16(first ? some : 0, first), b = (U)_mm512_maskz_loadu_epi16(second ? some : 0, second);
    constexpr __mmask32 upper = 0xaaaaaaaa;
    return {(U)_mm512_mask_blend_epi16(upper, (__m512i)a, (__m512i)(b << 16)),
            (U)_mm512_mask_blend_epi16(upper, (__m512i)(a >> 16), (__m512i)b)};
}

/// Calls f(line, lines) for 32 pixels from `from` on; from number `pixels` on they are 0.
template <typename F>
void each_line(const uint16_t* from, uint32_t pixels, uint64_t stride, __mmask32 some, F f) {
    for (uint32_t line = 0; line < side; ++line) {
        const uint16_t* const at = from + line * stride;
        f(line, lines(line < pixels ? at : nullptr, line + side < pixels ? at + side * stride : nullptr, some));
    }
}

__mmask32 channels(uint32_t count) { return count < panel ? (1u << count) - 1 : ~0u; }

void make_b(uint8_t* to, const uint16_t* x, uint32_t pixels, uint64_t stride, uint32_t count) {
    each_line(x, pixels, stride, channels(count), [to](uint32_t line, const Lines& l) {
        _mm512_storeu_si512(to + line * 64, (__m512i)l.even);
        _mm512_storeu_si512(to + tile_bytes + line * 64, (__m512i)l.odd);
    });
}

/// Adds all pixels to sums[0] (even channels) and sums[1] (odd ones), if not null.
void make_a(uint8_t* to, V* sums, const uint16_t* dy, uint32_t pixels, uint64_t stride, uint32_t count) {
    alignas(64) float even[side][side], odd[side][side];
    V all[2] = {};
    each_line(dy, pixels, stride, channels(count), [&](uint32_t line, const Lines& l) {
        store(even[line], (V)l.even), store(odd[line], (V)l.odd);
        all[0] += (V)(l.even << 16) + (V)(l.even & ~0xffffu);
        all[1] += (V)(l.odd << 16) + (V)(l.odd & ~0xffffu);
    });
    if (sums) {
        sums[0] += all[0];
        sums[1] += all[1];
    }
    transpose(reinterpret_cast<float*>(to), side, even[0], side);
    transpose(reinterpret_cast<float*>(to + tile_bytes), side, odd[0], side);
}

/// [panels of K][panels of C][even, odd of K][even, odd of C] tiles of sums, and behind them the panels of a and b.
uint64_t sums_bytes(const NarrowShape& s) { return uint64_t{blocks(s.K, panel)} * blocks(s.C, panel) * 4 * tile_bytes; }
constexpr uint64_t panel_of_pixels = pixels_most / chunk * pair_bytes;
uint64_t scratch(const NarrowShape& s) {
    return (sums_bytes(s) + (blocks(s.K, panel) + blocks(s.C, panel)) * panel_of_pixels) / sizeof(float) + blocks(s.K, panel) * panel;
}

void products(uint8_t* sums, const uint8_t* a, const uint8_t* b, uint32_t chunks, bool add) {
    if (add) {
        tile_load<0>(sums), tile_load<1>(sums + tile_bytes), tile_load<2>(sums + 2 * tile_bytes), tile_load<3>(sums + 3 * tile_bytes);
    } else {
        tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
    }
    for (uint32_t i = 0; i < chunks; ++i, a += pair_bytes, b += pair_bytes) {
        tile_load<4>(a), tile_load<6>(b), tile_load<7>(b + tile_bytes), tile_load<5>(a + tile_bytes);
        tile_multiply<0, 4, 6>(), tile_multiply<1, 4, 7>(), tile_multiply<2, 5, 6>(), tile_multiply<3, 5, 7>();
    }
    tile_store<0>(sums, 64), tile_store<1>(sums + tile_bytes, 64), tile_store<2>(sums + 2 * tile_bytes, 64),
        tile_store<3>(sums + 3 * tile_bytes, 64);
}

/// Interleaves `count` values.
void weave(float* to, const float* even, const float* odd, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) to[i] = i % 2 ? odd[i / 2] : even[i / 2];
}

void backward_weights(float* dw, float* db, const uint16_t* dy, const uint16_t* x, float* scratch, const NarrowShape& s) {
    const uint32_t down = blocks(s.K, panel), across = blocks(s.C, panel);
    uint8_t *const sums = reinterpret_cast<uint8_t*>(scratch), *const a = sums + sums_bytes(s), *const b = a + down * panel_of_pixels;
    V* const biases = reinterpret_cast<V*>(b + across * panel_of_pixels);
    for (uint32_t i = 0; i < 2 * down; ++i) biases[i] = V{};
    const TileRegisters registers(side);
    for (uint32_t first = 0; first < s.pixels; first += pixels_most) {
        const uint32_t pixels = least(pixels_most, s.pixels - first), chunks = blocks(pixels, chunk);
        for (uint32_t i = 0; i < chunks; ++i) {
            const uint64_t pixel = first + uint64_t{i} * chunk;
            const uint32_t here = least(chunk, s.pixels - static_cast<uint32_t>(pixel));
            for (uint32_t k = 0; k < down; ++k)
                make_a(a + k * panel_of_pixels + i * pair_bytes, biases + 2 * k, dy + pixel * s.K + k * panel, here, s.K,
                       least(panel, s.K - k * panel));
            for (uint32_t c = 0; c < across; ++c)
                make_b(b + c * panel_of_pixels + i * pair_bytes, x + pixel * s.C + c * panel, here, s.C, least(panel, s.C - c * panel));
        }
        for (uint32_t c = 0; c < across; ++c)
            for (uint32_t k = 0; k < down; ++k)
                products(sums + (uint64_t{k} * across + c) * 4 * tile_bytes, a + k * panel_of_pixels, b + c * panel_of_pixels, chunks,
                         first > 0);
    }
    for (uint32_t k = 0; k < s.K; ++k)
        for (uint32_t c = 0; c < across; ++c) {
            const auto* const even = reinterpret_cast<const float*>(sums + (uint64_t{k / panel} * across + c) * 4 * tile_bytes +
                                                                    k % 2 * 2 * tile_bytes + k % panel / 2 * 64);
            weave(dw + uint64_t{k} * s.C + c * panel, even, even + tile_bytes / sizeof(float), least(panel, s.C - c * panel));
        }
    for (uint32_t k = 0; db && k < down; ++k) {
        alignas(64) float of[2][side];
        store(of[0], biases[2 * k]), store(of[1], biases[2 * k + 1]);
        weave(db + k * panel, of[0], of[1], least(panel, s.K - k * panel));
    }
}

}   // namespace

extern const NarrowKernels narrow_kernels;
const NarrowKernels narrow_kernels = {scratch, backward_weights};

}   // namespace GC_ISA
}   // namespace gradcast
