// Products of float matrices [columns/16][rows][16], for *.isa.cc and *.amx.cc alone.
#pragma once
#include "nn/cpu/vector.h"

namespace gradcast {
namespace GC_ISA {

// A tile is rows x panel vectors, which the registers hold.
constexpr uint32_t rows = width == 16 ? 8 : 4, panel = 3;

/// How many vectors come next of `left`, so that none is left alone.
inline uint32_t panel_of(uint32_t left) { return left == 4 ? 2 : least(left, panel); }

/// Where a vector of channels begins, by its number.
inline uint64_t place(uint32_t vector, uint64_t plane) { return vector * width / 16 * plane + vector * width % 16; }

/// sum += a b over `terms` terms.
template <uint32_t vectors, uint32_t a_row, uint32_t a_term>
inline __attribute__((always_inline)) void multiply(V (&sum)[rows][vectors], const float* a, const float* const (&b)[vectors],
                                                    uint64_t b_term, uint32_t terms) {
    for (uint32_t j = 0; j < terms; ++j) {
        V value[vectors];
#pragma GCC unroll 8
        for (uint32_t v = 0; v < vectors; ++v) value[v] = load(b[v] + j * b_term);
#pragma GCC unroll 8
        for (uint32_t i = 0; i < rows; ++i) {
            const V factor = all(a[i * a_row + uint64_t{j} * a_term]);
#pragma GCC unroll 8
            for (uint32_t v = 0; v < vectors; ++v) multiply_add(sum[i][v], factor, value[v]);
        }
    }
}

/// y = x w:  w is [panels][C][vectors of the panel].  `end` must be a multiple of `rows`.
struct Rows {
    float* y;
    const float *x, *w;
    uint64_t plane;   // of x and y
    uint32_t C, K, end;
};

template <uint32_t vectors>
void rows_panel(const Rows& t, uint32_t vector) {
    for (uint32_t row = 0; row < t.end; row += rows) {
        V sum[rows][vectors] = {};
        const float* b[vectors];
#pragma GCC unroll 8
        for (uint32_t v = 0; v < vectors; ++v) b[v] = t.w + uint64_t{vector} * width * t.C + v * width;
        const float* a = t.x + row * 16;
        for (uint32_t c = 0; c < t.C; c += 16, a += t.plane) {
            const float* const next =
                t.w + (uint64_t{vector + vectors} * width + row / rows * 16) * t.C + c * 16;   // the next panel's part
            for (uint32_t line = 0; line < 16; ++line) __builtin_prefetch(next + line * 16, 0, 2);
            multiply<vectors, 16, 1>(sum, a, b, vectors * width, least(16, t.C - c));
            for (const float*& each : b) each += 16 * vectors * width;
        }
#pragma GCC unroll 8
        for (uint32_t v = 0; v < vectors; ++v)
#pragma GCC unroll 8
            for (uint32_t i = 0; i < rows; ++i) store(t.y + place(vector + v, t.plane) + (row + i) * 16, sum[i][v]);
    }
}

inline void rows_product(const Rows& t) {
    for (uint32_t vector = 0, count = 0; vector < t.K / width; vector += count) {
        count = panel_of(t.K / width - vector);
        if (count == 3) rows_panel<3>(t, vector);
        else if (count == 2) rows_panel<2>(t, vector);
        else rows_panel<1>(t, vector);
    }
}

/// w [C][K] (+)= the sum over rows of x times y.
struct Sums {
    float* w;
    const float *x, *y;
    uint64_t plane;   // of x and y
    uint32_t C, K, terms;
    bool add;
};

template <uint32_t vectors>
void sums_panel(const Sums& t, uint32_t vector) {
    const uint64_t K = t.K;
    const bool add = t.add;
    const float* b[vectors];
#pragma GCC unroll 8
    for (uint32_t v = 0; v < vectors; ++v) b[v] = t.y + place(vector + v, t.plane);
    float* w = t.w + vector * width;
    for (uint32_t c = 0; c < t.C; c += rows, w += rows * K) {
        V sum[rows][vectors];
#pragma GCC unroll 8
        for (uint32_t i = 0; i < rows; ++i)
#pragma GCC unroll 8
            for (uint32_t v = 0; v < vectors; ++v) sum[i][v] = add ? load(w + i * K + v * width) : V{};
        multiply<vectors, 1, 16>(sum, t.x + c / 16 * t.plane + c % 16, b, 16, t.terms);
#pragma GCC unroll 8
        for (uint32_t i = 0; i < rows; ++i)
#pragma GCC unroll 8
            for (uint32_t v = 0; v < vectors; ++v) store(w + i * K + v * width, sum[i][v]);
    }
}

inline void sums_product(const Sums& t) {
    for (uint32_t vector = 0, count = 0; vector < t.K / width; vector += count) {
        count = panel_of(t.K / width - vector);
        if (count == 3) sums_panel<3>(t, vector);
        else if (count == 2) sums_panel<2>(t, vector);
        else sums_panel<1>(t, vector);
    }
}

/// to [K] += the sum of rows of y.
inline void sums_of_rows(float* to, const float* y, uint64_t plane, uint32_t K, uint32_t terms) {
    for (uint32_t vector = 0; vector < K / width; ++vector) {
        V sum = load(to + vector * width);
        for (uint32_t j = 0; j < terms; ++j) sum += load(y + place(vector, plane) + uint64_t{j} * 16);
        store(to + vector * width, sum);
    }
}

/// Weight [c][k] in the order of rows_product, [panels][C][vectors].
inline uint64_t packed_place(uint32_t c, uint32_t vector, uint32_t C, uint32_t K) {
    uint32_t begin = 0, count = 0;
    for (; begin + count <= vector; count = panel_of(K / width - begin)) begin += count;
    return uint64_t{begin} * width * C + (uint64_t{c} * count + vector - begin) * width;
}

}   // namespace GC_ISA
}   // namespace gradcast
