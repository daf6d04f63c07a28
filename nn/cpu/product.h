// Products of matrices [columns/16][rows][16] of one word each, for *.isa.cc, *.bf16.cc and *.amx.cc alone: a word is a float or, where
// there is AVX512-BF16, two bf16 that are multiplied in pairs.  What is summed up is float.
#pragma once
#include "nn/cpu/vector.h"

namespace gradcast {
namespace GC_ISA {

// A tile is rows x panel vectors: what the registers hold.
constexpr uint32_t rows = width == 16 ? 8 : 4, panel = 3;

/// How many values a word holds.
template <typename Word>
constexpr uint32_t values_in = 1;
template <>
inline constexpr uint32_t values_in<int32_t> = 2;

/// How many vectors come next of `left`, such that none is left alone.
inline uint32_t panel_of(uint32_t left) { return left == 4 ? 2 : least(left, panel); }

/// Where a vector of channels begins, by its number.
inline uint64_t place(uint32_t vector, uint64_t plane) { return vector * width / 16 * plane + vector * width % 16; }

/// sum += a b, of so many terms; meanwhile as many lines of memory are fetched ahead.
template <uint32_t height, uint32_t vectors, uint32_t a_row, uint32_t a_term, typename Word>
inline __attribute__((always_inline)) void multiply(V (&sum)[height][vectors], const Word* a, const Word* const (&b)[vectors],
                                                    uint64_t b_term, uint32_t terms, const void* ahead) {
    for (uint32_t j = 0; j < terms; ++j) {
        decltype(load(a)) value[vectors];
        __builtin_prefetch(static_cast<const float*>(ahead) + j * 16, 0, 2);
#pragma GCC unroll 8
        for (uint32_t v = 0; v < vectors; ++v) value[v] = load(b[v] + j * b_term);
#pragma GCC unroll 8
        for (uint32_t i = 0; i < height; ++i) {
            const auto factor = all(a[i * a_row + uint64_t{j} * a_term]);
#pragma GCC unroll 8
            for (uint32_t v = 0; v < vectors; ++v) multiply_add(sum[i][v], factor, value[v]);
        }
    }
}

/// What becomes of sums before they are stored.
struct Finish {
    const float* bias = nullptr;   // [K]
    bool rectify = false;
    const float* mask = nullptr;   // in the order of y
    void operator()(float* y, uint64_t at, V value) const {
        if (rectify) value = value < 0 ? V{} : value;
        if (mask) value = load(mask + at) > 0 ? value : V{};
        store(y + at, value);
    }
    template <bool past_caches, uint32_t height, uint32_t vectors>
    void all_of(float* y, const uint64_t (&at)[vectors], const V (&sum)[height][vectors]) const {
        auto write = [&](auto change, auto to) {
#pragma GCC unroll 8
            for (uint32_t v = 0; v < vectors; ++v)
#pragma GCC unroll 8
                for (uint32_t i = 0; i < height; ++i) to(y + at[v] + i * 16, change(sum[i][v], at[v] + i * 16));
        };
        auto each = [&](auto change) { write(change, [](float* to, const V& value) { store(to, value); }); };
        auto masked = [this](V value, uint64_t where) { return load(mask + where) > 0 ? value : V{}; };
        if (mask && rectify) each([this](V value, uint64_t where) { return load(mask + where) > 0 && !(value < 0) ? value : V{}; });
        else if (past_caches && mask && reinterpret_cast<uintptr_t>(y) % sizeof(V) == 0)
            write(masked, [](float* to, const V& value) { stream(to, value); });
        else if (mask) each(masked);
        else if (rectify) each([](V value, uint64_t) { return value < 0 ? V{} : value; });
        else each([](V value, uint64_t) { return value; });
    }
    V start(uint32_t vector) const { return bias ? load(bias + vector * width) : V{}; }
};

/// y = x w:  w is [panels][C][vectors of the panel].
template <typename Word>
struct Rows {
    float* y;
    const Word *x, *w;
    uint64_t y_plane, x_plane;
    uint32_t C, K;   // C: words
    Finish finish;
    const float* next = nullptr;   // what x of the rows that come next is made of, fetched ahead; null: the weights are
    uint64_t next_plane = 0;
};

template <uint32_t height, uint32_t vectors, typename Word>
void rows_tile(const Rows<Word>& t, uint64_t row, uint32_t vector) {
    constexpr bool past_caches = values_in<Word> == 2;   // products of bf16 leave no time to read both the mask and what y is written over
    V sum[height][vectors];
    const Word* b[vectors];
    const Finish finish = t.finish;
    uint64_t at[vectors];
#pragma GCC unroll 8
    for (uint32_t v = 0; v < vectors; ++v) {
        const V start = finish.start(vector + v);
        at[v] = place(vector + v, t.y_plane) + row * 16;
#pragma GCC unroll 8
        for (uint32_t i = 0; i < height; ++i) {
            sum[i][v] = start;
            if (!past_caches || !finish.mask) __builtin_prefetch(t.y + at[v] + i * 16, 1);
        }
        if (finish.mask)
#pragma GCC unroll 8
            for (uint32_t i = 0; i < height; ++i) __builtin_prefetch(finish.mask + at[v] + i * 16);
        b[v] = t.w + uint64_t{vector} * width * t.C + v * width;
    }
    const Word* a = t.x + row * 16;
    for (uint32_t c = 0; c < t.C; c += 16, a += t.x_plane) {
        if (t.next && vector == 0)
#pragma GCC unroll 8
            for (uint32_t i = 0; i < height * values_in<Word>; ++i)
                __builtin_prefetch(t.next + (c / 16 * values_in<Word> + i / height) * t.next_plane + (row + i % height) * 16, 0, 2);
        const Word* ahead = t.next ? a : t.w + (uint64_t{vector + vectors} * width + row / rows * 16) * t.C + c * 16;
        multiply<height, vectors, 16, 1>(sum, a, b, vectors * width, least(16, t.C - c), ahead);
        for (const Word*& each : b) each += 16 * vectors * width;
    }
    finish.all_of<past_caches>(t.y, at, sum);
}

template <uint32_t vectors, typename Word>
void rows_panel(const Rows<Word>& t, uint64_t row, uint64_t end, uint32_t vector) {
    for (; row + rows <= end; row += rows) rows_tile<rows, vectors>(t, row, vector);
    for (; row < end; ++row) rows_tile<1, vectors>(t, row, vector);
}

template <typename Word>
void rows_product(const Rows<Word>& t, uint64_t row, uint64_t end) {
    for (uint32_t vector = 0, count = 0; vector < t.K / width; vector += count) {
        count = panel_of(t.K / width - vector);
        if (count == 3) rows_panel<3>(t, row, end, vector);
        else if (count == 2) rows_panel<2>(t, row, end, vector);
        else rows_panel<1>(t, row, end, vector);
    }
}

/// w [C][K] = the sum over rows of x and y (and of what is in w).
template <typename Word>
struct Sums {
    float* w;
    const Word *x, *y;
    uint64_t x_plane, y_plane;
    uint32_t C, K, terms;
    bool add;
    struct Runs {   // of memory, each of as many lines as there are values in a column
        const float* from;
        uint64_t stride;
        uint32_t count;
    };
    Runs ahead[2];   // what is needed next: a run, or its next part, is fetched with each tile
    uint32_t run = 0;
    const void* next() {
        const uint32_t i = run / values_in<Word>, part = run++ % values_in<Word> * terms * 16;
        if (i < ahead[0].count) return ahead[0].from + i * ahead[0].stride + part;
        if (i - ahead[0].count < ahead[1].count) return ahead[1].from + (i - ahead[0].count) * ahead[1].stride + part;
        return x;
    }
};

template <uint32_t vectors, typename Word>
void sums_panel(Sums<Word>& t, uint32_t vector) {
    const uint64_t K = t.K;
    const bool add = t.add;
    const Word* b[vectors];
#pragma GCC unroll 8
    for (uint32_t v = 0; v < vectors; ++v) b[v] = t.y + place(vector + v, t.y_plane);
    float* w = t.w + vector * width;
    for (uint32_t c = 0; c < t.C; c += rows, w += rows * K) {
        V sum[rows][vectors];
#pragma GCC unroll 8
        for (uint32_t i = 0; i < rows; ++i)
#pragma GCC unroll 8
            for (uint32_t v = 0; v < vectors; ++v) sum[i][v] = add ? load(w + i * K + v * width) : V{};
        multiply<rows, vectors, 1, 16>(sum, t.x + c / 16 * t.x_plane + c % 16, b, 16, t.terms, t.next());
#pragma GCC unroll 8
        for (uint32_t i = 0; i < rows; ++i)
#pragma GCC unroll 8
            for (uint32_t v = 0; v < vectors; ++v) store(w + i * K + v * width, sum[i][v]);
    }
}

template <typename Word>
void sums_product(Sums<Word>& t) {
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
