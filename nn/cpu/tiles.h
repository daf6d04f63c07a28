// Products of float matrices on AMX, for *.amx.cc alone.
//
// A float is the sum of three bf16, which are its first, second and last 8 binary digits.  A product of two floats is nine of bf16, of
// which the three smallest are left out: 2^-22 of it at most, 2^-24 on average.  The other six take half of the time that AVX-512 needs.  A
// tile instruction adds up 32 products before it touches the sum: sums are off by 0.8 to 1.6 times as much as those of float instructions
// (1e-7 to 2.6e-7 of their root mean square).  Inf becomes NaN, and products below 2^-105 lose digits, as AMX takes
// subnormal numbers for 0.
//
// A matrix is read in panels of 16 rows of a (or columns of b) by any number of terms; each chunk of 32 terms is a tile of 1 KiB a part:
// a's lines are rows, b's are pairs of terms.  Terms j and j + 8 of 16 are a pair, so that neither has to be woven.
#pragma once
#include "nn/cpu/transpose.h"

#if !defined(GC_TILES)   // tests have others
#define GC_TILES "nn/cpu/tile_registers.h"
#endif
#include GC_TILES

namespace gradcast {
namespace GC_ISA {

constexpr uint32_t side = 16, chunk = 32, parts = 3, tile_bytes = 1024, panel_bytes = parts * tile_bytes;   // of a chunk
constexpr uint32_t blocks(uint32_t count, uint32_t size) { return (count + size - 1) / size; }
/// Of so many rows or columns.
constexpr uint64_t panels_bytes(uint32_t count, uint32_t terms) {
    return uint64_t{blocks(count, side)} * blocks(terms, chunk) * panel_bytes;
}

// ---- floats in parts -------------------------------------------------------------------------------------------------------------------

/// A line of each part's tile: a value of `first` and one of `second` are a pair.
inline __attribute__((always_inline)) void split(uint8_t* to, V first, V second, uint64_t part_stride = tile_bytes) {
    GC_UNROLL for (uint32_t part = 0; part < parts; ++part, to += part_stride) {
        typedef uint32_t U __attribute__((vector_size(64)));
        const U a = (U)first, b = (U)second;
        _mm512_storeu_si512(to, _mm512_mask_blend_epi16(0xaaaaaaaa, (__m512i)(a >> 16), (__m512i)b));
        first -= (V)(a & ~0xffffu), second -= (V)(b & ~0xffffu);
    }
}

/// A row of a's: 32 terms, the first 16 and the others.
inline void split_row(uint8_t* to, const float* from, const float* others, uint64_t part_stride = tile_bytes) {
    auto both = [=](uint32_t at) {
        return (V)_mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(from + at)), _mm256_loadu_ps(others + at), 1);
    };
    split(to, both(0), both(8), part_stride);
}
inline void split_row(uint8_t* to, const float* from) { split_row(to, from, from + side); }

/// 16 terms of a panel of b: half a tile.
inline void split_terms(uint8_t* to, const float* from, uint64_t stride) {
    GC_UNROLL for (uint32_t j = 0; j < side / 2; ++j) split(to + j * 64, load(from + j * stride), load(from + (j + 8) * stride));
}

/// to [16][16], zeros where from [down][across] is not.
inline const float* padded(float* to, const float* from, uint64_t stride, uint32_t down, uint32_t across) {
    for (uint32_t i = 0; i < side; ++i) {
        const __mmask16 some = i < down ? static_cast<__mmask16>((1u << across) - 1) : __mmask16{0};
        store(to + i * side, (V)_mm512_maskz_loadu_ps(some, from + i * stride));
    }
    return to;
}

/// [terms, columns], or where turned [columns, terms].
struct Matrix {
    const float* first;
    uint64_t stride;
    bool turned;
    const float* at(uint32_t term, uint32_t column) const {
        return turned ? first + column * stride + term : first + term * stride + column;
    }
};

/// Two panels of b, made a square of 16 terms and 16 columns at a time.
struct Strip {
    const Matrix* matrix;
    uint8_t* to;
    uint32_t term, column, terms, columns;   // where it begins and how many there are
    const float* ahead = nullptr;            // where the one begins that is fetched meanwhile
    uint32_t made = 0;
    uint32_t chunks() const { return blocks(terms, chunk); }
    uint32_t squares() const { return 2 * chunks() * blocks(columns, side); }
    /// False: all are made.
    bool make() {
        if (made == squares()) return false;
        const uint32_t half = made % (2 * chunks()), number = made / (2 * chunks()), j = half * side, c = number * side;
        uint8_t* const lines = to + (number * chunks() + half / 2) * panel_bytes + half % 2 * tile_bytes / 2;
        const float* from = matrix->at(term + j, column + c);
        uint64_t stride = matrix->stride;
        if (ahead) {
            const float* line = ahead + (from - matrix->at(term, column));
            for (uint32_t i = 0; i < side; ++i, line += stride) __builtin_prefetch(line, 0, 2);
        }
        alignas(64) float square[side * side], turned[side * side];
        const uint32_t down = j < terms ? least(side, terms - j) : 0, across = least(side, columns - c);
        if (down < side || across < side)
            from = padded(square, from, stride, matrix->turned ? across : down, matrix->turned ? down : across), stride = side;
        if (matrix->turned) transpose(turned, side, from, stride), from = turned, stride = side;
        split_terms(lines, from, stride);
        return ++made, true;
    }
};

/// What is left of a Strip, or of whatever is made step by step.
template <typename Maker>
inline void make_all(Maker& maker) {
    while (maker.make()) {
    }
}

/// A panel of a from [terms][16 rows], of which there may be fewer.
inline void split_turned(uint8_t* to, const float* from, uint64_t stride, uint32_t terms, uint32_t across) {
    for (uint32_t j = 0; j < terms; j += chunk, to += panel_bytes) {
        alignas(64) float square[side * side], turned[side][chunk] = {};
        for (uint32_t half = 0; half < chunk && j + half < terms; half += side) {
            const uint32_t down = least(side, terms - j - half);
            const bool whole = down == side && across == side;
            const float* const at = from + (j + half) * stride;
            transpose(turned[0] + half, chunk, whole ? at : padded(square, at, stride, down, across), whole ? stride : side);
        }
        for (uint32_t row = 0; row < side; ++row) split_row(to + row * 64, turned[row]);
    }
}

// ---- few terms -------------------------------------------------------------------------------------------------------------------------

// A chunk of fewer terms takes as long.  So the last ones have lines of pairs of their own parts: b's are (first, second) and (first,
// last), a's (first, first), (second, second) and (last, first), which makes three lines a term of all six products: 16 terms are
// three tiles instead of six, 5 are one.
constexpr uint32_t few = 5;

/// How many terms are multiplied in which way.
struct Terms {
    uint32_t chunks, sixteen = 0, five = 0;   // the last two: 0 or 1
    constexpr uint64_t last_bytes() const {
        return (sixteen * parts + five) * tile_bytes;
    }                                                                                  // of a panel's last terms; b's leave a tile out
    constexpr uint64_t bytes() const { return chunks * panel_bytes + last_bytes(); }   // of a panel
};
constexpr Terms terms_of(uint32_t count) {
    const uint32_t left = count % chunk;
    if (left > side + few) return {count / chunk + 1};
    return {count / chunk, left > few, left > 0 && (left <= few || left > side)};
}

struct Words {   // the parts of 16 floats, in the upper half
    typedef uint32_t U __attribute__((vector_size(64)));
    U first, second, last;
    explicit Words(V value) {
        first = (U)value & ~0xffffu;
        const V rest = value - (V)first;
        second = (U)rest & ~0xffffu;
        last = (U)(rest - (V)second) & ~0xffffu;
    }
    static __m512i pair(U low, U high) { return (__m512i)(high | low >> 16); }
};

/// b's from [terms][columns].
inline void split_last_terms(uint8_t* to, const float* from, uint64_t stride, const Terms& t, uint32_t terms, uint32_t columns) {
    const __mmask16 some = static_cast<__mmask16>((1u << columns) - 1);
    auto words = [&](uint32_t j) { return Words(j < terms ? (V)_mm512_maskz_loadu_ps(some, from + j * stride) : V{}); };
    if (t.sixteen) {
        for (uint32_t j = 0; j < side; ++j) {
            const Words w = words(j);
            _mm512_storeu_si512(to + j * 64, Words::pair(w.first, w.second));
            _mm512_storeu_si512(to + tile_bytes + j * 64, Words::pair(w.first, w.last));
        }
        to += parts * tile_bytes, from += side * stride, terms -= least(side, terms);
    }
    if (!t.five) return;
    _mm512_storeu_si512(to + 3 * few * 64, __m512i{});
    for (uint32_t j = 0; j < few; ++j) {
        const Words w = words(j);
        _mm512_storeu_si512(to + j * 64, Words::pair(w.first, w.second));
        _mm512_storeu_si512(to + (few + j) * 64, Words::pair(w.first, w.second));
        _mm512_storeu_si512(to + (2 * few + j) * 64, Words::pair(w.first, w.last));
    }
}

/// a's from [terms][rows].
inline void split_last_turned(uint8_t* to, const float* from, uint64_t stride, const Terms& t, uint32_t terms, uint32_t across) {
    alignas(64) float square[side * side], turned[side][side];
    auto turn = [&] { transpose(turned[0], side, padded(square, from, stride, least(side, terms), across), side); };
    if (t.sixteen) {
        turn();
        for (uint32_t row = 0; row < side; ++row, to += 64) {
            const Words w(load(turned[row]));
            _mm512_storeu_si512(to, Words::pair(w.first, w.first));
            _mm512_storeu_si512(to + tile_bytes, Words::pair(w.second, w.second));
            _mm512_storeu_si512(to + 2 * tile_bytes, Words::pair(w.last, w.first));
        }
        to += (parts - 1) * tile_bytes, from += side * stride, terms -= least(side, terms);
    }
    if (!t.five) return;
    turn();
    for (uint32_t row = 0; row < side; ++row, to += 64) {   // behind the last there are zeros
        const Words w(load(turned[row]));
        _mm512_storeu_si512(to, Words::pair(w.first, w.first));
        _mm512_mask_storeu_epi32(to + few * 4, 0x7ff, Words::pair(w.second, w.second));
        _mm512_mask_storeu_epi32(to + 2 * few * 4, 0x3f, Words::pair(w.last, w.first));
    }
}

// ---- products --------------------------------------------------------------------------------------------------------------------------

/// Where the sums of up to two panels of a and two of b go.
struct TileSums {
    float* to;
    uint64_t stride;                     // floats
    uint32_t rows, height, width, add;   // of a panel of a; of all; add to what is there
};

/// a, b: panels; behind two of them their last terms.
template <uint32_t down, uint32_t across, typename Meanwhile>
void tiles_product(const TileSums& t, const uint8_t* a, const uint8_t* b, const Terms& terms, Meanwhile meanwhile) {
    alignas(64) float edge[2 * side][2 * side];
    const bool whole = t.height == down * t.rows && t.width == across * side;
    float* const to = whole ? t.to : edge[0];
    const uint64_t stride = whole ? t.stride : 2 * side, lower = t.rows * stride;
    const __mmask16 some[2] = {static_cast<__mmask16>((1u << least(t.width, side)) - 1),
                               static_cast<__mmask16>(t.width > side ? (1u << (t.width - side)) - 1 : 0)};
    if (t.add && !whole)
        for (uint32_t i = 0; i < t.height; ++i)
            for (uint32_t j = 0; j < across; ++j)
                store(edge[i] + j * side, (V)_mm512_maskz_loadu_ps(some[j], t.to + i * t.stride + j * side));
    if (t.add) {
        tile_load<0>(to, stride * 4);
        if (across > 1) tile_load<1>(to + side, stride * 4);
        if (down > 1) tile_load<2>(to + lower, stride * 4);
        if (down > 1 && across > 1) tile_load<3>(to + lower + side, stride * 4);
    } else {
        tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
    }
    uint64_t next = uint64_t{terms.chunks} * panel_bytes;
    auto load_a = [&](uint32_t tile) {
        tile_load<4>(a + tile * tile_bytes);
        if (down > 1) tile_load<5>(a + next + tile * tile_bytes);
    };
    auto load_b = [&](uint32_t tile) {
        tile_load<6>(b + tile * tile_bytes);
        if (across > 1) tile_load<7>(b + next + tile * tile_bytes);
    };
    auto products = [] {
        tile_multiply<0, 4, 6>();
        if (across > 1) tile_multiply<1, 4, 7>();
        if (down > 1) tile_multiply<2, 5, 6>();
        if (down > 1 && across > 1) tile_multiply<3, 5, 7>();
    };
    for (uint32_t i = 0; i < terms.chunks; ++i, a += panel_bytes, b += panel_bytes) {   // small ones first
        load_a(2), load_b(0), products(), meanwhile();
        load_a(1), products();
        load_b(1), products();
        load_a(0), products();
        load_b(2), products();
        load_b(0), products();
    }
    a += next, b += next, next = terms.last_bytes();
    if (terms.sixteen) {
        load_a(2), load_b(1), products();
        load_a(1), load_b(0), products();
        load_a(0), products();
        a += parts * tile_bytes, b += parts * tile_bytes;
    }
    if (terms.five) load_a(0), load_b(0), products();
    tile_store<0>(to, stride * 4);
    if (across > 1) tile_store<1>(to + side, stride * 4);
    if (down > 1) tile_store<2>(to + lower, stride * 4);
    if (down > 1 && across > 1) tile_store<3>(to + lower + side, stride * 4);
    if (!whole)
        for (uint32_t i = 0; i < t.height; ++i)
            for (uint32_t j = 0; j < across; ++j)
                _mm512_mask_storeu_ps(t.to + i * t.stride + j * side, some[j], (__m512)load(edge[i] + j * side));
}

/// Of t.height rows, at most two panels' of a, and t.width columns, at most two panels' of b.
template <typename Meanwhile>
void tiles_product(const TileSums& t, const uint8_t* a, const uint8_t* b, const Terms& terms, Meanwhile meanwhile) {
    if (t.height > t.rows) {
        if (t.width > side) tiles_product<2, 2>(t, a, b, terms, meanwhile);
        else tiles_product<2, 1>(t, a, b, terms, meanwhile);
    } else {
        if (t.width > side) tiles_product<1, 2>(t, a, b, terms, meanwhile);
        else tiles_product<1, 1>(t, a, b, terms, meanwhile);
    }
}

}   // namespace GC_ISA
}   // namespace gradcast
