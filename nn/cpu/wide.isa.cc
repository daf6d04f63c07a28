#include "nn/cpu/wide.h"

#include "nn/cpu/product.h"

namespace gradcast {
namespace GC_ISA {
namespace {

// ---- Winograd's transforms -------------------------------------------------------------------------------------------------------------

template <uint32_t R, uint32_t C>
struct Matrix {
    static constexpr uint32_t height = R, length = C;
    float at[R][C];
    constexpr Matrix<C, R> transposed() const {
        Matrix<C, R> t{};
        for (uint32_t r = 0; r < R; ++r)
            for (uint32_t c = 0; c < C; ++c) t.at[c][r] = at[r][c];
        return t;
    }
};

constexpr uint32_t outputs = wide_tile;

/// Toom and Cook's matrices: a tile of outputs, each way, is  y (w w' * x x'), where * is element by element; n points, one of them
/// infinity.
template <uint32_t kernel>
struct Ways {
    static constexpr uint32_t n = kernel + outputs - 1;
    Matrix<n, n> x{};
    Matrix<n, kernel> w{};
    Matrix<outputs, n> y{};
    constexpr Ways() {
        constexpr double all[2][7] = {{0, 1, -1, 0.5, -2}, {0, 1, -1, 2, -2, 0.5, -0.5}};
        const double(&points)[7] = all[kernel == 5];
        for (uint32_t i = 0; i < n; ++i) {
            const bool infinite = i + 1 == n;
            double product[n] = {1}, scale = 1, power = 1;   // the polynomial whose roots are the other points, lowest power first
            uint32_t degree = 0;
            for (uint32_t j = 0; j + 1 < n; ++j) {
                if (j == i) continue;
                if (++degree < n) product[degree] = 0;
                for (uint32_t at = degree; at > 0; --at) product[at] = product[at - 1] - points[j] * product[at];
                product[0] *= -points[j];
                if (!infinite) scale *= points[i] - points[j];
            }
            for (uint32_t j = 0; j < n; ++j) x.at[i][j] = static_cast<float>(product[j]);
            for (uint32_t j = 0; j < n; ++j) {
                if (j < kernel) w.at[i][j] = static_cast<float>(infinite ? j + 1 == kernel : power / scale);
                if (j < outputs) y.at[j][i] = static_cast<float>(infinite ? j + 1 == outputs : power);
                power *= infinite ? 0 : points[i];
            }
        }
    }
};
template <uint32_t kernel>
constexpr Ways<kernel> ways;

/// A square of vectors, `step` floats apart in a line; columns before `begin` and from `end` on are 0.
template <uint32_t size>
struct Square {
    const float* line[size];
    uint64_t step;
    uint32_t begin = 0, end = size;
    Square(const float* first, uint64_t line_step, uint64_t column_step) : step(column_step) {
        for (uint32_t r = 0; r < size; ++r) line[r] = first + r * line_step;
    }
};

/// take(i, the sum over j of m[i][j] from[j]).
template <auto m, typename Take>
inline __attribute__((always_inline)) void times(const V* from, Take take) {
#pragma GCC unroll 8
    for (uint32_t i = 0; i < m.height; ++i) {
        V sum{};
#pragma GCC unroll 8
        for (uint32_t j = 0; j < m.length; ++j)
            if (m.at[i][j] != 0) multiply_add(sum, all(m.at[i][j]), from[j]);
        take(i, sum);
    }
}

/// take(i, j, element of  m from m').
template <auto m, typename Take>
inline __attribute__((always_inline)) void both_ways(const Square<m.length>& from, Take take) {
    V half[m.height][m.length];
    for (uint32_t c = 0; c < m.length; ++c) {
        if (c < from.begin || c >= from.end) {
            for (uint32_t i = 0; i < m.height; ++i) half[i][c] = V{};
            continue;
        }
        V column[m.length];
#pragma GCC unroll 8
        for (uint32_t r = 0; r < m.length; ++r) column[r] = load(from.line[r] + c * from.step);
        times<m>(column, [&](uint32_t i, const V& sum) { half[i][c] = sum; });
    }
    for (uint32_t i = 0; i < m.height; ++i) times<m>(half[i], [&](uint32_t j, const V& sum) { take(i, j, sum); });
}

/// Row i of  m from m'.
template <auto m, typename Take>
inline __attribute__((always_inline)) void one_row(const Square<m.length>& from, uint32_t i, Take take) {
    V half[m.length], factor[m.length];
#pragma GCC unroll 8
    for (uint32_t r = 0; r < m.length; ++r) factor[r] = all(m.at[i][r]);
    for (uint32_t c = 0; c < m.length; ++c) {
        V sum{};
        if (c >= from.begin && c < from.end)
#pragma GCC unroll 8
            for (uint32_t r = 0; r < m.length; ++r) multiply_add(sum, factor[r], load(from.line[r] + c * from.step));
        half[c] = sum;
    }
    times<m>(half, take);
}

/// Images [N, channels/16, H, W, 16] in tiles.
struct Tiles {
    uint32_t channels, H, W, pad;
    uint32_t down, across;   // tiles of an image
    uint64_t all(uint32_t N) const { return uint64_t{N} * down * across; }
    struct At {
        uint64_t offset;     // of the image's plane
        int32_t top, left;   // first pixel, perhaps in the padding
    };
    At at(uint64_t tile, uint32_t vector) const {
        const uint64_t image = tile / (down * across), rest = tile % (down * across), plane = uint64_t{H} * W * 16;
        return {image * channels / 16 * plane + place(vector, plane),
                static_cast<int32_t>(rest / across * outputs) - static_cast<int32_t>(pad),
                static_cast<int32_t>(rest % across * outputs) - static_cast<int32_t>(pad)};
    }
    /// The pixels of a tile; padding is 0.
    template <uint32_t size>
    Square<size> read(const float* image, uint64_t tile, uint32_t vector) const {
        alignas(64) static constexpr float zeros[size * 16] = {};
        const At from = at(tile, vector);
        Square<size> square(image + from.offset + (int64_t{from.top} * W + from.left) * 16, uint64_t{W} * 16, 16);
        for (uint32_t r = 0; r < size; ++r)
            if (from.top + r >= H) square.line[r] = zeros;   // wraps below 0
        square.begin = from.left < 0 ? least(size, static_cast<uint32_t>(-from.left)) : 0;
        square.end = from.left + static_cast<int32_t>(size) > static_cast<int32_t>(W) ? W - static_cast<uint32_t>(from.left) : size;
        return square;
    }
};

constexpr uint32_t together = 64;   // tiles at a time
/// Floats of a point's matrix of tiles; the 16 more keep a tile's points out of one set of the cache.
uint64_t point_size(uint32_t channels, uint32_t tiles) { return uint64_t{channels} * tiles + 16; }

/// Floats of a point's weights.
uint64_t weights_size(const WideShape& s) { return uint64_t{s.C} * s.K + 16; }

template <uint32_t kernel>
struct Winograd {
    static constexpr uint32_t n = kernel + outputs - 1, points = n * n, taps = kernel * kernel;
    static constexpr Matrix to_x = ways<kernel>.x, to_w = ways<kernel>.w, to_y = ways<kernel>.y;   // of the forward pass
    static constexpr Matrix from_y = to_y.transposed(), from_w = to_w.transposed();                // of the gradient of weights

    static Tiles in(const WideShape& s) { return {s.C, s.H, s.W, s.pad, down(s), across(s)}; }
    static Tiles out(const WideShape& s) { return {s.K, s.P(), s.Q(), 0, down(s), across(s)}; }
    static uint32_t down(const WideShape& s) { return (s.P() + outputs - 1) / outputs; }
    static uint32_t across(const WideShape& s) { return (s.Q() + outputs - 1) / outputs; }

    static void pack(float* packed, const float* w, const WideShape& s, bool turned) {
        const uint32_t C = turned ? s.K : s.C, K = turned ? s.C : s.K;
        alignas(64) float tap[taps][width];
        for (uint32_t c = 0; c < C; ++c)
            for (uint32_t vector = 0; vector < K / width; ++vector) {
                for (uint32_t at = 0; at < taps; ++at)
                    for (uint32_t lane = 0; lane < width; ++lane) {
                        const uint32_t k = vector * width + lane;
                        tap[at][lane] = turned ? w[(uint64_t{c} * s.C + k) * taps + taps - 1 - at] : w[(uint64_t{k} * s.C + c) * taps + at];
                    }
                float* to = packed + packed_place(c, vector, C, K);
                both_ways<to_w>(Square<kernel>(tap[0], kernel * width, width), [&](uint32_t i, uint32_t j, const V& value) {
                    store(to + (uint64_t{i} * n + j) * weights_size(s), value);
                });
            }
    }

    static uint64_t forward_scratch(const WideShape& s) { return points * (point_size(s.C, together) + point_size(s.K, together)); }

    static void forward(float* y, const float* x, const float* packed, const float* biases, float* scratch, const WideShape& s) {
        const Tiles from = in(s), to = out(s);
        const uint64_t tiles = to.all(s.N), x_size = point_size(s.C, together), y_size = point_size(s.K, together);
        float *const x_values = scratch, *const y_values = scratch + points * x_size;
        constexpr uint64_t plane = together * 16;
        for (uint64_t tile = 0; tile < tiles; tile += together) {
            const uint32_t count = least(together, static_cast<uint32_t>(tiles - tile));
            for (uint32_t vector = 0; vector < s.C / width; ++vector)
                for (uint32_t t = 0; t < count; ++t) {
                    float* value = x_values + place(vector, plane) + t * 16;
                    both_ways<to_x>(from.read<n>(x, tile + t, vector),
                                    [&](uint32_t i, uint32_t j, const V& each) { store(value + (i * n + j) * x_size, each); });
                }
            for (uint32_t p = 0; p < points; ++p)   // rows are rounded up to whole tiles; the last ones are not read
                rows_product({y_values + p * y_size, x_values + p * x_size, packed + p * weights_size(s), plane, s.C, s.K,
                              (count + rows - 1) / rows * rows});
            for (uint32_t vector = 0; vector < s.K / width; ++vector)
                for (uint32_t t = 0; t < count; ++t) {
                    const Tiles::At at = to.at(tile + t, vector);
                    const uint32_t top = static_cast<uint32_t>(at.top), left = static_cast<uint32_t>(at.left);
                    const V bias = biases ? load(biases + vector * width) : V{};
                    both_ways<to_y>(Square<n>(y_values + place(vector, plane) + t * 16, n * y_size, y_size),
                                    [&](uint32_t i, uint32_t j, const V& value) {
                                        if (top + i >= to.H || left + j >= to.W) return;
                                        store(y + at.offset + (uint64_t{top + i} * to.W + left + j) * 16, value + bias);
                                    });
                }
        }
    }

    static uint64_t weights_scratch(const WideShape& s) {
        return n * (point_size(s.C, together) + point_size(s.K, together)) + points * weights_size(s);
    }

    // By rows of points, so that their sums fit the second-level cache.
    static void backward_weights(float* dw, float* db, const float* dy, const float* x, float* scratch, const WideShape& s) {
        const Tiles from = in(s), to = out(s);
        const uint64_t tiles = to.all(s.N), x_size = point_size(s.C, together), y_size = point_size(s.K, together);
        float *const x_values = scratch, *const y_values = x_values + n * x_size, *const sums = y_values + n * y_size;
        constexpr uint64_t plane = together * 16;
        for (uint32_t i = 0; i < n; ++i)
            for (uint64_t tile = 0; tile < tiles; tile += together) {
                const uint32_t count = least(together, static_cast<uint32_t>(tiles - tile));
                for (uint32_t vector = 0; vector < s.C / width; ++vector)
                    for (uint32_t t = 0; t < count; ++t) {
                        float* value = x_values + place(vector, plane) + t * 16;
                        one_row<to_x>(from.read<n>(x, tile + t, vector), i,
                                      [&](uint32_t j, const V& each) { store(value + j * x_size, each); });
                    }
                for (uint32_t vector = 0; vector < s.K / width; ++vector)
                    for (uint32_t t = 0; t < count; ++t) {
                        float* value = y_values + place(vector, plane) + t * 16;
                        one_row<from_y>(to.read<outputs>(dy, tile + t, vector), i,
                                        [&](uint32_t j, const V& each) { store(value + j * y_size, each); });
                    }
                Sums t{.w = sums + uint64_t{i} * n * weights_size(s),
                       .x = x_values,
                       .y = y_values,
                       .plane = plane,
                       .C = s.C,
                       .K = s.K,
                       .terms = count,
                       .add = tile > 0};
                for (uint32_t j = 0; j < n; ++j, t.w += weights_size(s), t.x += x_size, t.y += y_size) sums_product(t);
                // The value at the points (1, 1) is the sum of a tile.
                if (i == 1 && db) sums_of_rows(db, y_values + y_size, plane, s.K, count);
            }
        for (uint32_t c = 0; c < s.C; ++c)
            for (uint32_t vector = 0; vector < s.K / width; ++vector) {
                both_ways<from_w>(Square<n>(sums + uint64_t{c} * s.K + vector * width, n * weights_size(s), weights_size(s)),
                                  [&](uint32_t i, uint32_t j, const V& value) {
                                      float* to_tap = dw + (uint64_t{vector} * width * s.C + c) * taps + i * kernel + j;
                                      for (uint32_t lane = 0; lane < width; ++lane) to_tap[uint64_t{lane} * s.C * taps] = value[lane];
                                  });
            }
    }
};

// ---- by size of kernel -----------------------------------------------------------------------------------------------------------------

uint64_t packed(const WideShape& s) {
    const uint64_t n = s.kernel + outputs - 1;
    return n * n * weights_size(s);
}

void pack(float* to, const float* w, const WideShape& s, bool turned) {
    (s.kernel == 5 ? Winograd<5>::pack : Winograd<3>::pack)(to, w, s, turned);
}

uint64_t forward_scratch(const WideShape& s) { return (s.kernel == 5 ? Winograd<5>::forward_scratch : Winograd<3>::forward_scratch)(s); }

uint64_t weights_scratch(const WideShape& s) { return (s.kernel == 5 ? Winograd<5>::weights_scratch : Winograd<3>::weights_scratch)(s); }

void forward(float* y, const float* x, const float* packed, const float* bias, float* scratch, const WideShape& s) {
    (s.kernel == 5 ? Winograd<5>::forward : Winograd<3>::forward)(y, x, packed, bias, scratch, s);
}

void backward_weights(float* dw, float* db, const float* dy, const float* x, float* scratch, const WideShape& s) {
    for (uint32_t k = 0; k < s.K && db; ++k) db[k] = 0;
    (s.kernel == 5 ? Winograd<5>::backward_weights : Winograd<3>::backward_weights)(dw, db, dy, x, scratch, s);
}

}   // namespace

extern const WideKernels wide_kernels;
const WideKernels wide_kernels = {packed, pack, forward_scratch, weights_scratch, forward, backward_weights};

}   // namespace GC_ISA
}   // namespace gradcast
