// Matrices are read as they are: packing them takes longer than it saves, even where rows are 4096 bytes apart and fall into one set of the
// first-level cache.  What counts is how often something comes from which cache: each pass cuts its matrices such that what is used again
// is still in the second level.  Loops over sums are unrolled, or GCC keeps them in memory.
#include "nn/cpu/inner.h"

#include <array>
#include <utility>

#include "nn/cpu/vector.h"

#define GC_UNROLL _Pragma("GCC unroll 16")

namespace gradcast {
namespace GC_ISA {
namespace {

// What the registers hold: sums of a tile, forward samples * outputs of them, backward rows * columns.
#if defined(__AVX512F__)
constexpr uint32_t outputs = 4, samples = 6, rows = 6, columns = 4;
#elif defined(__AVX2__)
constexpr uint32_t outputs = 4, samples = 2, rows = 4, columns = 2;
#else
constexpr uint32_t outputs = 4, samples = 1, rows = 4, columns = 2;
#endif

/// Some lanes of a register: those that a row's end leaves.
struct Some {
    uint32_t count;
#if defined(__AVX512F__)
    __mmask16 mask() const { return static_cast<__mmask16>((1u << count) - 1); }
    V load(const float* from) const { return static_cast<V>(_mm512_maskz_loadu_ps(mask(), from)); }   // zeros behind them
    void store(float* to, const V& v) const { _mm512_mask_storeu_ps(to, mask(), static_cast<__m512>(v)); }
#elif defined(__AVX2__)
    __m256i mask() const {
        return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    }
    V load(const float* from) const { return static_cast<V>(_mm256_maskload_ps(from, mask())); }
    void store(float* to, const V& v) const { _mm256_maskstore_ps(to, mask(), static_cast<__m256>(v)); }
#else
    V load(const float* from) const {
        V v{};
        __builtin_memcpy(&v, from, count * sizeof(float));
        return v;
    }
    void store(float* to, const V& v) const { __builtin_memcpy(to, &v, count * sizeof(float)); }
#endif
};

/// How many of `left` come next, such that none is left to be computed alone.
uint32_t part(uint32_t left, uint32_t most) { return left <= most ? left : left < 2 * most ? (left + 1) / 2 : most; }

// ---- forward -----------------------------------------------------------------------------------------------------------------------

/// Lanes in runs of `half`: of a the sums of the first and the second run where the first was, of b where the second was, and so on.
template <uint32_t half, int... lane>
inline __attribute__((always_inline)) V folded(const V& a, const V& b, std::integer_sequence<int, lane...>) {
    constexpr int run = half, other = width;
    return __builtin_shufflevector(a, b, (lane & run ? lane + other : lane)...) +
           __builtin_shufflevector(a, b, (lane & run ? lane + other - run : lane + run)...);
}

/// result[i] = the sum over the lanes of v[i].
template <uint32_t half = width / 2>
inline __attribute__((always_inline)) V lane_sums(V* v) {
    GC_UNROLL for (uint32_t i = 0; i < half; ++i) v[i] = folded<half>(v[i], v[i + half], std::make_integer_sequence<int, width>());
    if constexpr (half > 1) return lane_sums<half / 2>(v);
    else return v[0];
}

/// y of `height` samples and `count` outputs, at most `outputs` of them.
template <uint32_t height, bool fetch>
void dots(float* y, const float* x, const float* w, const float* bias, uint32_t count, const InnerShape& s) {
    typedef float Results __attribute__((vector_size(outputs * sizeof(float))));
    constexpr uint32_t sums = (height * outputs + width - 1) / width * width;
    const uint64_t C = s.C, whole = C / width * width;
    const float* row[outputs];   // at the edge some twice, to be thrown away
    for (uint32_t i = 0; i < outputs; ++i) row[i] = w + least(i, count - 1) * C;
    V sum[sums] = {};
    for (uint64_t c = 0; c < whole; c += width) {
        V weight[outputs];
        GC_UNROLL for (uint32_t i = 0; i < outputs; ++i) {
            weight[i] = load(row[i] + c);
            if (fetch) __builtin_prefetch(row[i] + outputs * C + c);   // the next ones: each row is a page
        }
        GC_UNROLL for (uint32_t j = 0; j < height; ++j) {
            const V value = load(x + j * C + c);
            GC_UNROLL for (uint32_t i = 0; i < outputs; ++i) multiply_add(sum[j * outputs + i], weight[i], value);
        }
    }
    if (const Some some{static_cast<uint32_t>(C - whole)}; some.count) {
        V weight[outputs];
        GC_UNROLL for (uint32_t i = 0; i < outputs; ++i) weight[i] = some.load(row[i] + whole);
        GC_UNROLL for (uint32_t j = 0; j < height; ++j) {
            const V value = some.load(x + j * C + whole);
            GC_UNROLL for (uint32_t i = 0; i < outputs; ++i) multiply_add(sum[j * outputs + i], weight[i], value);
        }
    }
    float results[sums], biases[outputs] = {};
    GC_UNROLL for (uint32_t i = 0; i < sums; i += width) store(results + i, lane_sums(sum + i));
    if (bias && count == outputs) __builtin_memcpy(biases, bias, sizeof biases);   // in place: the call takes longer
    else if (bias) __builtin_memcpy(biases, bias, count * sizeof(float));
    for (uint32_t j = 0; j < height; ++j, y += s.K) {
        Results result, each;
        __builtin_memcpy(&result, results + j * outputs, sizeof result);
        __builtin_memcpy(&each, biases, sizeof each);
        result += each;
        if (count == outputs) __builtin_memcpy(y, &result, sizeof result);
        else __builtin_memcpy(y, &result, count * sizeof(float));
    }
}

template <size_t... i>
constexpr auto dots_of(std::index_sequence<i...>) {
    return std::array{dots<i / 2 + 1, i % 2 != 0>...};
}

void forward(float* y, const float* x, const float* w, const float* bias, const InnerShape& s) {
    constexpr auto each = dots_of(std::make_index_sequence<2 * samples>());
    constexpr uint32_t together = 128 * 1024;   // weights that stay in the second-level cache while all samples use them
    const uint32_t fit = together / s.C / outputs * outputs, step = fit ? fit : outputs;
    for (uint32_t first = 0; first < s.K; first += step)
        for (uint32_t n = 0, height = 0; n < s.N; n += height) {
            height = part(s.N - n, samples);
            for (uint32_t k = first, end = least(first + step, s.K); k < end; k += outputs)
                each[2 * (height - 1) + (n == 0)](y + uint64_t{n} * s.K + k, x + uint64_t{n} * s.C, w + uint64_t{k} * s.C,
                                                  bias ? bias + k : nullptr, least(outputs, end - k), s);
        }
}

// ---- backward: sums over the rows of a matrix, each times a number ----------------------------------------------------------------------

// Behind a ReLU half of a gradient is 0, and adding 0 times a number changes no sum: what is 0 for all rows of a tile is left out.

/// to[i][c] (+)= sum over the j listed of factor[i * factor_row + j * factor_term] from[j][c].
struct Sums {
    float* to[rows];
    const float *from, *factor;
    uint64_t from_row, factor_row, factor_term;
    const uint16_t* list;
    uint32_t terms;
    bool add;
};

/// Some columns: whole vectors of them, or where there are fewer one vector with some lanes.
template <uint32_t height, uint32_t vectors, bool whole = true>
inline __attribute__((always_inline)) void sums(const Sums& t, uint64_t c, Some some = {}) {
    static_assert(whole || vectors == 1);
    auto get = [some](const float* from) { return whole ? load(from) : some.load(from); };
    auto put = [some](float* at, const V& v) { whole ? store(at, v) : some.store(at, v); };
    const uint64_t from_row = t.from_row, factor_row = t.factor_row, factor_term = t.factor_term;
    V sum[height][vectors] = {};
    if (t.add) {
        GC_UNROLL for (uint32_t i = 0; i < height; ++i) {
            GC_UNROLL for (uint32_t v = 0; v < vectors; ++v) sum[i][v] = get(t.to[i] + c + v * width);
        }
    }
    const float* const first = t.from + c;
    for (const uint16_t *j = t.list, *const end = j + t.terms; j < end; ++j) {
        const float *from = first + *j * from_row, *factor = t.factor + *j * factor_term;
        V value[vectors];
        GC_UNROLL for (uint32_t v = 0; v < vectors; ++v) value[v] = get(from + v * width);
        GC_UNROLL for (uint32_t i = 0; i < height; ++i) {
            const V times = all(factor[i * factor_row]);
            GC_UNROLL for (uint32_t v = 0; v < vectors; ++v) multiply_add(sum[i][v], times, value[v]);
        }
    }
    GC_UNROLL for (uint32_t i = 0; i < height; ++i) {
        GC_UNROLL for (uint32_t v = 0; v < vectors; ++v) put(t.to[i] + c + v * width, sum[i][v]);
    }
}

template <uint32_t height>
void sums_of_rows(const Sums& t, uint64_t C) {
    uint64_t c = 0;
    for (; c + columns * width <= C; c += columns * width) sums<height, columns>(t, c);
    for (; c + width <= C; c += width) sums<height, 1>(t, c);
    if (c < C) sums<height, 1, false>(t, c, {static_cast<uint32_t>(C - c)});
}

uint32_t without_sign(float value) { return __builtin_bit_cast(uint32_t, value) << 1; }

/// Lists those of `count` columns that are not 0 in all of some rows.
uint32_t not_zero(uint16_t* list, const float* from, uint64_t row, uint32_t height, uint32_t count) {
    constexpr uint32_t together = 64;
    uint32_t terms = 0;
    for (uint32_t j = 0; j < count; j += together) {
        const uint32_t some = least(together, count - j);
        uint32_t any[together] = {};
        for (uint32_t i = 0; i < height; ++i)
            for (uint32_t k = 0; k < some; ++k) any[k] |= without_sign(from[i * row + j + k]);
        for (uint32_t k = 0; k < some; ++k) list[terms] = static_cast<uint16_t>(j + k), terms += any[k] != 0;
    }
    return terms;
}

template <size_t... i>
constexpr auto rows_of(std::index_sequence<i...>) {
    return std::array{sums_of_rows<i + 1>...};
}

void backward_data(float* dx, const float* dy, const float* w, const InnerShape& s) {
    constexpr auto each = rows_of(std::make_index_sequence<rows>());
    constexpr uint32_t strip = columns * width;   // of weights, whose rows
    constexpr uint32_t together = 512;            // stay in the second-level cache while all samples use them
    constexpr uint32_t most = 256;                // as many as there are lists for
    struct {
        uint32_t n, height, terms;
        uint16_t list[together];
    } tiles[most / rows + 2];
    for (uint32_t first = 0; first < s.N; first += most)
        for (uint32_t k = 0; k < s.K; k += together) {
            uint32_t count = 0;
            for (uint32_t n = first, end = least(first + most, s.N); n < end; n += tiles[count++].height) {
                auto& tile = tiles[count];
                tile.n = n, tile.height = part(end - n, rows);
                tile.terms = not_zero(tile.list, dy + uint64_t{n} * s.K + k, s.K, tile.height, least(together, s.K - k));
            }
            for (uint32_t c = 0; c < s.C; c += strip)
                for (uint32_t i = 0; i < count; ++i) {
                    const auto& [n, height, terms, list] = tiles[i];
                    Sums t{.to = {},
                           .from = w + uint64_t{k} * s.C + c,
                           .factor = dy + uint64_t{n} * s.K + k,
                           .from_row = s.C,
                           .factor_row = s.K,
                           .factor_term = 1,
                           .list = list,
                           .terms = terms,
                           .add = k > 0};
                    for (uint32_t row = 0; row < height; ++row) t.to[row] = dx + uint64_t{n + row} * s.C + c;
                    each[height - 1](t, least(strip, s.C - c));
                }
        }
}

constexpr uint32_t sorted_most = 64;   // outputs

/// Outputs 0 .. count - 1 such that those with 0 for about as many samples are beside one another.
void sort_outputs(uint8_t* order, const float* dy, const InnerShape& s, uint32_t count) {
    constexpr uint32_t classes = 32;
    uint32_t active[sorted_most] = {}, begin[classes + 1] = {};
    for (uint32_t n = 0; n < s.N; ++n)
        for (uint32_t i = 0; i < count; ++i) active[i] += without_sign(dy[uint64_t{n} * s.K + i]) != 0;
    for (uint32_t i = 0; i < count; ++i) ++begin[(active[i] = active[i] * uint64_t{classes} / (uint64_t{s.N} + 1)) + 1];
    for (uint32_t i = 0; i < classes; ++i) begin[i + 1] += begin[i];
    for (uint32_t i = 0; i < count; ++i) order[begin[active[i]]++] = static_cast<uint8_t>(i);
}

template <uint32_t height>
void weights_of(float* dw, const float* dy, const float* x, const InnerShape& s, const uint8_t* order) {
    constexpr uint32_t most = 128;   // samples
    for (uint32_t first = 0; first < s.N; first += most) {
        float factor[most * height];   // one sample behind the other: in dy they are often 4096 bytes apart
        uint16_t list[most];
        Sums t{.to = {},
               .from = x + uint64_t{first} * s.C,
               .factor = factor,
               .from_row = s.C,
               .factor_row = 1,
               .factor_term = height,
               .list = list,
               .terms = 0,
               .add = first > 0};
        GC_UNROLL for (uint32_t i = 0; i < height; ++i) t.to[i] = dw + uint64_t{order[i]} * s.C;
        for (uint32_t n = 0, count = least(most, s.N - first); n < count; ++n) {
            const float* from = dy + uint64_t{first + n} * s.K;
            uint32_t any = 0;
            GC_UNROLL for (uint32_t i = 0; i < height; ++i) {
                const float value = from[order[i]];
                factor[n * height + i] = value, any |= without_sign(value);
            }
            list[t.terms] = static_cast<uint16_t>(n), t.terms += any != 0;
        }
        sums_of_rows<height>(t, s.C);
    }
}

template <size_t... i>
constexpr auto weights_all(std::index_sequence<i...>) {
    return std::array{weights_of<i + 1>...};
}

void backward_weights(float* dw, const float* dy, const float* x, const InnerShape& s, uint32_t first, uint32_t end) {
    constexpr auto each = weights_all(std::make_index_sequence<rows>());
    for (uint32_t k = first; k < end; k += sorted_most, dw += uint64_t{sorted_most} * s.C) {
        const uint32_t count = least(sorted_most, end - k);
        uint8_t order[sorted_most];
        sort_outputs(order, dy + k, s, count);
        for (uint32_t i = 0, height = 0; i < count; i += height) {
            height = part(count - i, rows);
            each[height - 1](dw, dy + k, x, s, order + i);
        }
    }
}

void backward_bias(float* db, const float* dy, const InnerShape& s) {
    for (uint32_t n = 0; n < s.N; ++n)
        for (uint32_t k = 0; k < s.K; ++k) db[k] = (n ? db[k] : 0.0f) + dy[uint64_t{n} * s.K + k];
}

}   // namespace

extern const InnerKernels inner_kernels;
const InnerKernels inner_kernels = {forward, backward_data, backward_weights, backward_bias};

}   // namespace GC_ISA
}   // namespace gradcast
