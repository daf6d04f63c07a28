#include "nn/cpu/inner.h"

#include <array>
#include <utility>

#include "nn/cpu/vector.h"

namespace gradcast {
namespace GC_ISA {
namespace {

// A pass is a product of two matrices in tiles, whose sums fill the registers.  The right-hand matrix is copied to panels, in which what a
// tile reads lies together: rows that are 4096 bytes apart would fall into one set of the cache.  Each result is one chain of
// multiply-adds, in order, so it has the same bits in whatever tile it is.
constexpr uint32_t vectors_max = width == 16 ? 4 : 2, rows_max = width == 4 ? 4 : 6;
constexpr uint32_t panel_floats = 8192;     // of a panel that stays in the first-level cache
constexpr uint32_t weights_together = 48;   // rows of weights that stay in the second-level cache

/// to[i][v] = (to[i][v] +) sum over j < terms of factor[i][j] panel[j][v].
struct Tile {
    float* to;
    const float *factor, *panel, *fetch;   // fetch: read soon, `fetch_step` floats a term
    uint64_t to_row, factor_row;
    uint32_t terms, fetch_step;
    bool add;
};

template <uint32_t rows, uint32_t vectors>
void tile(const Tile& t) {
    V sum[rows][vectors];
    float* const to = t.to;
    const uint64_t to_row = t.to_row;
    for (uint32_t i = 0; i < rows; ++i)
        for (uint32_t v = 0; v < vectors; ++v) sum[i][v] = t.add ? load(to + i * to_row + v * width) : V{};
    const float *factor = t.factor, *panel = t.panel, *fetch = t.fetch;
    for (uint32_t j = 0; j < t.terms; ++j, ++factor, panel += vectors * width, fetch += t.fetch_step) {
        __builtin_prefetch(fetch, 0, 2);
        V value[vectors];
        for (uint32_t v = 0; v < vectors; ++v) value[v] = load(panel + v * width);
        for (uint32_t i = 0; i < rows; ++i) {
            const V times = all(factor[i * t.factor_row]);
            for (uint32_t v = 0; v < vectors; ++v) multiply_add(sum[i][v], times, value[v]);
        }
    }
    for (uint32_t i = 0; i < rows; ++i)
        for (uint32_t v = 0; v < vectors; ++v) store(to + i * to_row + v * width, sum[i][v]);
}

template <size_t... i>
constexpr std::array<void (*)(const Tile&), sizeof...(i)> tiles_of(std::index_sequence<i...>) {
    return {tile<i / vectors_max + 1, i % vectors_max + 1>...};
}
constexpr auto tiles = tiles_of(std::make_index_sequence<rows_max * vectors_max>());

/// How many of `left` come next, such that none is left for itself.
uint32_t part(uint32_t left, uint32_t most) { return left <= most ? left : left < 2 * most ? (left + 1) / 2 : most; }
constexpr uint32_t vectors_of(uint32_t floats) { return (floats + width - 1) / width; }
/// Of the panel at column `at` of `columns`, which are filled up to whole vectors.
uint32_t panel_width(uint32_t at, uint32_t columns) { return part(vectors_of(columns - at), vectors_max) * width; }

/// A tile's job for all rows; `columns` of the panel's `breadth` exist in `to`.
void product(Tile t, uint32_t rows, uint32_t breadth, uint32_t columns) {
    for (uint32_t height = 0; rows; rows -= height) {
        height = part(rows, rows_max);
        const auto run = tiles[(height - 1) * vectors_max + breadth / width - 1];
        if (columns >= breadth) {
            run(t);
        } else {
            float edge[rows_max * vectors_max * width];
            Tile inside = t;
            inside.to = edge, inside.to_row = breadth;
            for (uint32_t i = 0; i < height && t.add; ++i)
                __builtin_memcpy(edge + i * breadth, t.to + i * t.to_row, columns * sizeof(float));
            run(inside);
            for (uint32_t i = 0; i < height; ++i) __builtin_memcpy(t.to + i * t.to_row, edge + i * breadth, columns * sizeof(float));
        }
        t.to += height * t.to_row, t.factor += height * t.factor_row, t.fetch += uint64_t{t.terms} * t.fetch_step;
    }
}

// ---- copies ------------------------------------------------------------------------------------------------------------------------

inline V load_some(const float* from, uint32_t count) {
    if (count >= width) return load(from);
    V v{};
    __builtin_memcpy(&v, from, count * sizeof(float));
    return v;
}

/// Panels [columns / breadth][rows][breadth].
void pack(float* to, const float* from, uint64_t from_row, uint32_t rows, uint32_t columns) {
    for (uint32_t c = 0, breadth = 0; c < columns; c += breadth) {
        breadth = panel_width(c, columns);
        for (uint32_t i = 0; i < rows; ++i)
            for (uint32_t v = 0; v < breadth; v += width, to += width)
                store(to, c + v < columns ? load_some(from + i * from_row + c + v, columns - c - v) : V{});
    }
}

template <bool second, int... lane>
inline __attribute__((always_inline)) V interleaved(const V& a, const V& b, std::integer_sequence<int, lane...>) {
    return __builtin_shufflevector(a, b, (lane / 2 + (second ? width / 2 : 0) + (lane % 2 ? width : 0))...);
}

/// to[c][r] = from[r][c]; with `fill` rows of `to` are filled up with zeros to whole vectors.
void transpose(float* to, uint64_t to_row, const float* from, uint64_t from_row, uint32_t rows, uint32_t columns, bool fill) {
    using Lanes = std::make_integer_sequence<int, width>;
    for (uint32_t r = 0; r < rows; r += width)
        for (uint32_t c = 0; c < columns; c += width) {
            V v[width], mixed[width];
            for (uint32_t i = 0; i < width; ++i) v[i] = r + i < rows ? load_some(from + (r + i) * from_row + c, columns - c) : V{};
            for (uint32_t round = 1; round < width; round *= 2) {
                for (uint32_t i = 0; i < width / 2; ++i) {
                    mixed[2 * i] = interleaved<false>(v[i], v[i + width / 2], Lanes());
                    mixed[2 * i + 1] = interleaved<true>(v[i], v[i + width / 2], Lanes());
                }
                __builtin_memcpy(v, mixed, sizeof v);
            }
            for (uint32_t i = 0; i < least(width, columns - c); ++i) {
                if (fill || rows - r >= width) store(to + (c + i) * to_row + r, v[i]);
                else __builtin_memcpy(to + (c + i) * to_row + r, &v[i], (rows - r) * sizeof(float));
            }
        }
}

// ---- passes ------------------------------------------------------------------------------------------------------------------------

constexpr uint32_t terms_together = 64;   // rows of weights that backward data packs
constexpr uint32_t samples_together = 128;

uint64_t scratch(const InnerShape& s) {
    const uint64_t N = vectors_of(s.N) * width, C = vectors_of(s.C) * width;
    const uint64_t forward = N * s.C, data = terms_together * C, weights = s.N * C + weights_together * N;
    return forward > data ? (forward > weights ? forward : weights) : (data > weights ? data : weights);
}

/// 16 samples lie in a vector, so weights are read as they are.
void forward(float* y, const float* x, const float* w, const float* bias, float* memory, const InnerShape& s) {
    for (uint32_t n = 0, breadth = 0; n < s.N; n += breadth) {
        breadth = panel_width(n, s.N);
        transpose(memory + uint64_t{n} * s.C, breadth, x + uint64_t{n} * s.C, s.C, least(breadth, s.N - n), s.C, true);
    }
    float sums[weights_together * vectors_max * width];
    for (uint32_t k = 0; k < s.K; k += weights_together) {
        const uint32_t outputs = least(weights_together, s.K - k);
        const float* from = w + uint64_t{k} * s.C;
        for (uint32_t n = 0, breadth = 0; n < s.N; n += breadth) {
            breadth = panel_width(n, s.N);
            for (uint32_t i = 0; i < outputs; ++i)
                for (uint32_t v = 0; v < breadth; v += width) store(sums + i * breadth + v, all(bias ? bias[k + i] : 0.0f));
            const uint32_t together = panel_floats / breadth;
            const bool ahead = n == 0 && k + outputs < s.K;   // the next rows
            for (uint32_t c = 0; c < s.C; c += together)
                product({.to = sums,
                         .factor = from + c,
                         .panel = memory + uint64_t{n} * s.C + uint64_t{c} * breadth,
                         .fetch = from + (ahead ? uint64_t{outputs} * (s.C + c) : 0),
                         .to_row = breadth,
                         .factor_row = s.C,
                         .terms = least(together, s.C - c),
                         .fetch_step = ahead ? rows_max : 0,
                         .add = true},
                        outputs, breadth, breadth);
            transpose(y + uint64_t{n} * s.K + k, s.K, sums, breadth, outputs, least(breadth, s.N - n), false);
        }
    }
}

void backward_data(float* dx, const float* dy, const float* w, float* memory, const InnerShape& s) {
    for (uint32_t k = 0; k < s.K; k += terms_together) {
        const uint32_t terms = least(terms_together, s.K - k);
        const float* from = w + uint64_t{k} * s.C;
        pack(memory, from, s.C, terms, s.C);
        const bool ahead = k + terms < s.K;
        for (uint32_t c = 0, breadth = 0; c < s.C; c += breadth) {
            breadth = panel_width(c, s.C);
            product({.to = dx + c,
                     .factor = dy + k,
                     .panel = memory + uint64_t{c} * terms,
                     .fetch = from + (ahead ? uint64_t{terms} * (s.C + c) : 0),
                     .to_row = s.C,
                     .factor_row = s.K,
                     .terms = terms,
                     .fetch_step = ahead ? least(16, breadth * rows_max / s.N) : 0,
                     .add = k > 0},
                    s.N, breadth, s.C - c);
        }
    }
}

void backward_weights(float* dw, float* db, const float* dy, const float* x, float* memory, const InnerShape& s) {
    const uint32_t N = vectors_of(s.N) * width;
    float* turned = memory + uint64_t{s.N} * vectors_of(s.C) * width;   // dy [outputs, N]
    pack(memory, x, s.C, s.N, s.C);
    for (uint32_t k = 0; k < s.K; k += weights_together) {
        const uint32_t outputs = least(weights_together, s.K - k);
        transpose(turned, N, dy + k, s.K, s.N, outputs, true);
        for (uint32_t n = 0; n < s.N; n += samples_together)
            for (uint32_t c = 0, breadth = 0; c < s.C; c += breadth) {
                breadth = panel_width(c, s.C);
                product({.to = dw + uint64_t{k} * s.C + c,
                         .factor = turned + n,
                         .panel = memory + uint64_t{c} * s.N + uint64_t{n} * breadth,
                         .fetch = turned,
                         .to_row = s.C,
                         .factor_row = N,
                         .terms = least(samples_together, s.N - n),
                         .fetch_step = 0,
                         .add = n > 0},
                        outputs, breadth, s.C - c);
            }
    }
    for (uint32_t n = 0; n < s.N && db; ++n)
        for (uint32_t k = 0; k < s.K; ++k) db[k] = (n ? db[k] : 0.0f) + dy[uint64_t{n} * s.K + k];
}

}   // namespace

extern const InnerKernels inner_kernels;
const InnerKernels inner_kernels = {scratch, forward, backward_data, backward_weights};

}   // namespace GC_ISA
}   // namespace gradcast
