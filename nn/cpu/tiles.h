// Products of float matrices on AMX, for *.amx.cc alone.
//
// A float is the sum of three bf16: its first, second and last 8 binary digits.  A product of two floats is nine products of bf16, of which
// the three smallest (2^-22 of it at most) are left out.  Inf becomes NaN, and products below 2^-105 lose digits: AMX reads subnormal
// numbers as 0.
//
// A matrix is read in panels of 16 rows of a (or columns of b).  Each chunk of 32 terms is a tile of 1 KiB for each part: a's lines are
// rows, b's are pairs of terms.  Terms j and j + 8 of 16 are a pair, so that neither has to be interleaved.
#pragma once
#include "nn/cpu/transpose.h"

#if !defined(GC_TILES)   // tests have others
#define GC_TILES "nn/cpu/tile_registers.h"
#endif
#include GC_TILES

namespace gradcast {
namespace GC_ISA {

constexpr uint32_t side = 16, chunk = 32, parts = 3, tile_bytes = 1024;
constexpr uint32_t panel_bytes = parts * tile_bytes;   // of a panel's chunk
constexpr uint32_t blocks(uint32_t count, uint32_t size) { return (count + size - 1) / size; }
/// Bytes of the panels of `count` rows or columns.
constexpr uint64_t panels_bytes(uint32_t count, uint32_t terms) {
    return uint64_t{blocks(count, side)} * blocks(terms, chunk) * panel_bytes;
}

// ---- floats in parts -------------------------------------------------------------------------------------------------------------------

/// Writes a line of each part's tile; a pair is a value of `first` and one of `second`.
inline __attribute__((always_inline)) void split(uint8_t* to, V first, V second, uint64_t part_stride = tile_bytes) {
    GC_UNROLL for (uint32_t part = 0; part < parts; ++part, to += part_stride) {
        typedef uint32_t U __attribute__((vector_size(64)));
        const U a = (U)first, b = (U)second;
        _mm512_storeu_si512(to, _mm512_mask_blend_epi16(0xaaaaaaaa, (__m512i)(a >> 16), (__m512i)b));
        first -= (V)(a & ~0xffffu);
        second -= (V)(b & ~0xffffu);
    }
}

/// Writes a row of a: 32 terms, 16 from each pointer.
inline void split_row(uint8_t* to, const float* from, const float* others, uint64_t part_stride = tile_bytes) {
    auto both = [=](uint32_t at) {
        return (V)_mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(from + at)), _mm256_loadu_ps(others + at), 1);
    };
    split(to, both(0), both(8), part_stride);
}
inline void split_row(uint8_t* to, const float* from) { split_row(to, from, from + side); }

/// Copies from [down][across] to [16][16] and fills up with zeros.
inline const float* padded(float* to, const float* from, uint64_t stride, uint32_t down, uint32_t across) {
    for (uint32_t i = 0; i < side; ++i) {
        const __mmask16 some = i < down ? static_cast<__mmask16>((1u << across) - 1) : __mmask16{0};
        store(to + i * side, (V)_mm512_maskz_loadu_ps(some, from + i * stride));
    }
    return to;
}

/// A matrix [terms, columns]; `turned`: stored as [columns, terms].
struct Matrix {
    const float* first;
    uint64_t stride;
    bool turned;
    const float* at(uint32_t term, uint32_t column) const {
        return turned ? first + column * stride + term : first + term * stride + column;
    }
};

/// The part of a matrix that becomes panels of b.
struct Strip {
    uint8_t* to;
    uint32_t term, column, terms, columns;   // first ones, and their numbers
    uint32_t chunks() const { return blocks(terms, chunk); }
    uint32_t squares() const { return 2 * chunks() * blocks(columns, side); }   // of 16 terms and 16 columns
};

constexpr uint32_t pauses = 6;   // calls of `meanwhile` in a chunk of tiles_product()

/// Makes panels of b step by step, a square of 16 x 16 in `pauses` steps, so that a step overlaps with the tile instructions around it.
class Maker {
public:
    /// ahead: where the strip to be prefetched begins, or null.
    Maker(const Matrix& matrix, const Strip& strip, const float* ahead = nullptr) : matrix_(matrix), strip_(strip), ahead_(ahead) {}
    Maker(const Maker&) = delete;   // from_ may point into square_
    Maker& operator=(const Maker&) = delete;

    /// Does the next step.  False: all is made.
    bool make() {
        switch (step_) {
            case 0: return step<0>();
            case 1: return step<1>();
            case 2: return step<2>();
            case 3: return step<3>();
            case 4: return step<4>();
            default: return step<5>();
        }
    }
    /// The same; i is the number of the next step.
    template <uint32_t i>
    bool step() {
        if (column_ >= strip_.columns || strip_.terms == 0) return false;
        if constexpr (i == 0) begin();
        if constexpr (i % 3 != 0) split_lines(i / 3 * 4 + (i % 3 - 1) * 2);
        else if (matrix_.turned) turn(i / 3 * 4);
        if constexpr (i + 1 == pauses) next();
        step_ = (i + 1) % pauses;
        return true;
    }

private:
    void begin() {
        from_ = matrix_.at(strip_.term + term_, strip_.column + column_);
        stride_ = matrix_.stride;
        line_ = ahead_ ? ahead_ + (from_ - matrix_.at(strip_.term, strip_.column)) : nullptr;
        const uint32_t down = term_ < strip_.terms ? least(side, strip_.terms - term_) : 0, across = least(side, strip_.columns - column_);
        if (down < side || across < side) {
            from_ = padded(square_, from_, stride_, matrix_.turned ? across : down, matrix_.turned ? down : across);
            stride_ = side;
        }
    }
    /// Transposes terms j to j + 3 and their partners.
    void turn(uint32_t j) {
        transpose_four(turned_ + j * side, side, from_ + j, stride_);
        transpose_four(turned_ + (j + 8) * side, side, from_ + j + 8, stride_);
    }
    void split_lines(uint32_t j) {
        const float* const from = matrix_.turned ? turned_ : from_;
        const uint64_t stride = matrix_.turned ? side : stride_;
        const V a = load(from + j * stride), b = load(from + (j + 8) * stride), c = load(from + (j + 1) * stride),
                d = load(from + (j + 9) * stride);
        split(strip_.to + j * 64, a, b), split(strip_.to + (j + 1) * 64, c, d);
        if (!line_) return;
        for (uint32_t i = 0; i < 4; ++i, line_ += matrix_.stride) __builtin_prefetch(line_, 0, 2);
    }
    void next() {
        term_ += side;
        strip_.to += term_ % chunk ? tile_bytes / 2 : panel_bytes - tile_bytes / 2;
        if (term_ == strip_.chunks() * chunk) {
            term_ = 0;
            column_ += side;
        }
    }

    alignas(64) float square_[side * side], turned_[side * side];
    Matrix matrix_;
    Strip strip_;
    const float *ahead_, *line_ = nullptr, *from_ = nullptr;
    uint64_t stride_ = 0;
    uint32_t step_ = 0, term_ = 0, column_ = 0;   // of the square
};

/// Does all steps that are left.
template <typename T>
inline void make_all(T& maker) {
    while (maker.make()) {
    }
}
inline void make_all(const Matrix& matrix, const Strip& strip) {
    Maker maker(matrix, strip);
    make_all(maker);
}

/// Writes a panel of a from [terms][across rows], across <= 16.
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

// For up to 16 last terms a pair holds two parts of one term: (first, second) and (first, last) of b, (first, first), (second, second) and
// (last, first) of a.  Three tile products are then all six products, where a chunk takes six tile products.

struct Terms {
    uint32_t chunks;
    bool sixteen = false;                                                              // up to 16 terms come last
    constexpr uint64_t last_bytes() const { return sixteen ? panel_bytes : 0; }        // of a panel's last terms; b leaves one tile unused
    constexpr uint64_t bytes() const { return chunks * panel_bytes + last_bytes(); }   // of a panel
};
constexpr Terms terms_of(uint32_t count) {
    const uint32_t left = count % chunk;
    return {count / chunk + (left > side), left > 0 && left <= side};
}

struct Words {   // the parts of 16 floats, each in the upper half of a word
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

/// Writes last terms of b from [terms][columns].
inline void split_last_terms(uint8_t* to, const float* from, uint64_t stride, uint32_t terms, uint32_t columns) {
    const __mmask16 some = static_cast<__mmask16>((1u << columns) - 1);
    for (uint32_t j = 0; j < side; ++j, to += 64) {
        const Words w(j < terms ? (V)_mm512_maskz_loadu_ps(some, from + j * stride) : V{});
        _mm512_storeu_si512(to, Words::pair(w.first, w.second));
        _mm512_storeu_si512(to + tile_bytes, Words::pair(w.first, w.last));
    }
}

/// Writes last terms of a from [terms][rows].
inline void split_last_turned(uint8_t* to, const float* from, uint64_t stride, uint32_t terms, uint32_t across) {
    alignas(64) float square[side * side], turned[side][side];
    transpose(turned[0], side, padded(square, from, stride, terms, across), side);
    for (uint32_t row = 0; row < side; ++row, to += 64) {
        const Words w(load(turned[row]));
        _mm512_storeu_si512(to, Words::pair(w.first, w.first));
        _mm512_storeu_si512(to + tile_bytes, Words::pair(w.second, w.second));
        _mm512_storeu_si512(to + 2 * tile_bytes, Words::pair(w.last, w.first));
    }
}

// ---- products --------------------------------------------------------------------------------------------------------------------------

/// The result of up to two panels of a and two of b.
struct TileSums {
    float* to;
    uint64_t stride;          // floats
    uint32_t rows;            // of a panel of a
    uint32_t height, width;   // of the result
    bool add;                 // to what `to` holds
};

/// a, b: two panels and behind them the last terms of both.  meanwhile(0) to meanwhile(5) are called between the products of a chunk.
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
        if (down > 1) tile_multiply<2, 5, 6>();
        if (across > 1) tile_multiply<1, 4, 7>();
        if (down > 1 && across > 1) tile_multiply<3, 5, 7>();
    };
    for (uint32_t i = 0; i < terms.chunks; ++i, a += panel_bytes, b += panel_bytes) {   // the smallest products first
        load_a(2), load_b(0), products(), meanwhile(std::integral_constant<uint32_t, 0>());
        load_a(1), products(), meanwhile(std::integral_constant<uint32_t, 1>());
        load_b(1), products(), meanwhile(std::integral_constant<uint32_t, 2>());
        load_a(0), products(), meanwhile(std::integral_constant<uint32_t, 3>());
        load_b(2), products(), meanwhile(std::integral_constant<uint32_t, 4>());
        load_b(0), products(), meanwhile(std::integral_constant<uint32_t, 5>());
    }
    a += next;
    b += next;
    next = terms.last_bytes();
    if (terms.sixteen) {
        load_a(2), load_b(1), products();
        load_a(1), load_b(0), products();
        load_a(0), products();
    }
    tile_store<0>(to, stride * 4);
    if (across > 1) tile_store<1>(to + side, stride * 4);
    if (down > 1) tile_store<2>(to + lower, stride * 4);
    if (down > 1 && across > 1) tile_store<3>(to + lower + side, stride * 4);
    if (!whole)
        for (uint32_t i = 0; i < t.height; ++i)
            for (uint32_t j = 0; j < across; ++j)
                _mm512_mask_storeu_ps(t.to + i * t.stride + j * side, some[j], (__m512)load(edge[i] + j * side));
}

/// t.height: at most two panels of a; t.width: at most two of b.
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
