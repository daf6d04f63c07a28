#include "nn/cpu/inner.h"

#include <utility>

#include "nn/cpu/vector.h"

namespace gradcast {
namespace GC_ISA {
namespace {

constexpr uint32_t columns = width == 16 ? 4 : 2;
constexpr uint32_t rows = width == 16 ? 6 : 4;   // rows * columns sums at a time: what the registers hold

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

// ---- forward -----------------------------------------------------------------------------------------------------------------------

constexpr uint32_t outputs = 4, samples = width / outputs;   // of a tile: one register of results

/// Of the lanes of a and b, in order, the first or the second halves of all runs of `run`.
template <uint32_t run, bool second, int... lane>
inline __attribute__((always_inline)) V halves(const V& a, const V& b, std::integer_sequence<int, lane...>) {
    constexpr int half = run / 2;
    return __builtin_shufflevector(a, b, (lane / half * 2 * half + lane % half + (second ? half : 0))...);
}
using Places = std::make_integer_sequence<int, width>;

/// result[i] = the sum over the lanes of v[i].
template <uint32_t run = width>
inline __attribute__((always_inline)) V lane_sums(const V* v) {
    if constexpr (run == 1) {
        return v[0];
    } else {
        V next[run / 2];
        for (uint32_t i = 0; i < run / 2; ++i)
            next[i] = halves<run, false>(v[2 * i], v[2 * i + 1], Places()) + halves<run, true>(v[2 * i], v[2 * i + 1], Places());
        return lane_sums<run / 2>(next);
    }
}

void forward(float* y, const float* x, const float* w, const float* bias, const InnerShape& s) {
    const uint32_t whole = s.C / width * width, rest = s.C - whole;
    const Some some{rest};
    for (uint32_t k = 0; k < s.K; k += outputs)
        for (uint32_t n = 0; n < s.N; n += samples) {
            const float *from_w[outputs], *from_x[samples];   // at the edges some twice, to be thrown away
            for (uint32_t i = 0; i < outputs; ++i) from_w[i] = w + uint64_t{least(k + i, s.K - 1)} * s.C;
            for (uint32_t j = 0; j < samples; ++j) from_x[j] = x + uint64_t{least(n + j, s.N - 1)} * s.C;
            V sum[width] = {};
            for (uint32_t c = 0; c < whole; c += width) {
                V weight[outputs];
                for (uint32_t i = 0; i < outputs; ++i) {
                    weight[i] = load(from_w[i] + c);
                    if (n == 0) __builtin_prefetch(from_w[i] + uint64_t{outputs} * s.C + c);   // the next ones: each row is a page
                }
                for (uint32_t j = 0; j < samples; ++j) {
                    const V value = load(from_x[j] + c);
                    for (uint32_t i = 0; i < outputs; ++i) multiply_add(sum[j * outputs + i], weight[i], value);
                }
            }
            if (rest) {
                V weight[outputs];
                for (uint32_t i = 0; i < outputs; ++i) weight[i] = some.load(from_w[i] + whole);
                for (uint32_t j = 0; j < samples; ++j) {
                    const V value = some.load(from_x[j] + whole);
                    for (uint32_t i = 0; i < outputs; ++i) multiply_add(sum[j * outputs + i], weight[i], value);
                }
            }
            float results[width];
            store(results, lane_sums(sum));
            for (uint32_t j = 0; j < least(samples, s.N - n); ++j)
                for (uint32_t i = 0; i < least(outputs, s.K - k); ++i)
                    y[uint64_t{n + j} * s.K + k + i] = results[j * outputs + i] + (bias ? bias[k + i] : 0.0f);
        }
}

// ---- backward: sums over the rows of a matrix, each times a number ----------------------------------------------------------------------

/// to[i][c] (+)= sum over j < terms of factor[i * factor_row + j * factor_term] from[j][c].
struct Sums {
    float* to;
    const float *from, *factor;
    uint64_t to_row, from_row, factor_row, factor_term;
    uint32_t terms;
    bool add;
    bool fetch;   // the rows of `from` behind these, ahead of the next call
};

template <uint32_t height, uint32_t vectors>
inline __attribute__((always_inline)) void sums(const Sums& t, uint64_t c) {
    V sum[height][vectors];
    for (uint32_t i = 0; i < height; ++i)
        for (uint32_t v = 0; v < vectors; ++v) sum[i][v] = t.add ? load(t.to + i * t.to_row + c + v * width) : V{};
    const float *from = t.from + c, *factor = t.factor;
    for (uint32_t j = 0; j < t.terms; ++j, from += t.from_row, factor += t.factor_term) {
        V value[vectors];
        for (uint32_t v = 0; v < vectors; ++v) {
            value[v] = load(from + v * width);
            if (t.fetch) __builtin_prefetch(from + t.terms * t.from_row + v * width);
        }
        for (uint32_t i = 0; i < height; ++i) {
            const V times = all(factor[i * t.factor_row]);
            for (uint32_t v = 0; v < vectors; ++v) multiply_add(sum[i][v], times, value[v]);
        }
    }
    for (uint32_t i = 0; i < height; ++i)
        for (uint32_t v = 0; v < vectors; ++v) store(t.to + i * t.to_row + c + v * width, sum[i][v]);
}

template <uint32_t height>
void sums_of_rows(const Sums& t, uint64_t C) {
    uint64_t c = 0;
    for (; c + columns * width <= C; c += columns * width) sums<height, columns>(t, c);
    for (; c + width <= C; c += width) sums<height, 1>(t, c);
    if (c == C) return;
    const Some some{static_cast<uint32_t>(C - c)};   // what is left of a row, the same way
    V sum[height];
    for (uint32_t i = 0; i < height; ++i) sum[i] = t.add ? some.load(t.to + i * t.to_row + c) : V{};
    for (uint32_t j = 0; j < t.terms; ++j) {
        const V value = some.load(t.from + j * t.from_row + c);
        for (uint32_t i = 0; i < height; ++i) multiply_add(sum[i], all(t.factor[i * t.factor_row + j * t.factor_term]), value);
    }
    for (uint32_t i = 0; i < height; ++i) some.store(t.to + i * t.to_row + c, sum[i]);
}

void sums_of(uint32_t height, const Sums& t, uint64_t C) {
    if (height == rows) sums_of_rows<rows>(t, C);
    else if (height == 4) sums_of_rows<4>(t, C);
    else if (height == 3) sums_of_rows<3>(t, C);
    else if (height == 2) sums_of_rows<2>(t, C);
    else sums_of_rows<1>(t, C);
}

/// How many of `left` rows come next, such that none is left to be computed alone.
uint32_t height_of(uint32_t left) {
    if (left >= rows + 3 || left == rows) return rows;
    return left <= 4 ? left : left == 5 ? 3 : 4;
}

void backward_data(float* dx, const float* dy, const float* w, const InnerShape& s) {
    constexpr uint32_t together = 16;   // rows of weights that stay in the cache while all samples use them
    for (uint32_t k = 0; k < s.K; k += together)
        for (uint32_t n = 0, height = 0; n < s.N; n += height) {
            height = height_of(s.N - n);
            sums_of(height,
                    {.to = dx + uint64_t{n} * s.C,
                     .from = w + uint64_t{k} * s.C,
                     .factor = dy + uint64_t{n} * s.K + k,
                     .to_row = s.C,
                     .from_row = s.C,
                     .factor_row = s.K,
                     .factor_term = 1,
                     .terms = least(together, s.K - k),
                     .add = k > 0,
                     .fetch = n == 0},
                    s.C);
        }
}

void backward_weights(float* dw, float* db, const float* dy, const float* x, const InnerShape& s) {
    for (uint32_t k = 0, height = 0; k < s.K; k += height) {
        height = height_of(s.K - k);
        sums_of(height,
                {.to = dw + uint64_t{k} * s.C,
                 .from = x,
                 .factor = dy + k,
                 .to_row = s.C,
                 .from_row = s.C,
                 .factor_row = 1,
                 .factor_term = s.K,
                 .terms = s.N,
                 .add = false,
                 .fetch = false},
                s.C);
    }
    for (uint32_t n = 0; n < s.N && db; ++n)
        for (uint32_t k = 0; k < s.K; ++k) db[k] = (n ? db[k] : 0.0f) + dy[uint64_t{n} * s.K + k];
}

}   // namespace

extern const InnerKernels inner_kernels;
const InnerKernels inner_kernels = {forward, backward_data, backward_weights};

}   // namespace GC_ISA
}   // namespace gradcast
