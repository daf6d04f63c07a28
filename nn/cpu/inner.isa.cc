// All three passes are one: rows of a matrix, each times a number, are added up in tiles that the registers hold.  A strip of the matrix
// is packed into the first-level cache, where all tiles use it.  forward() is for few samples or outputs and packs nothing.  Loops over
// sums are unrolled, or GCC keeps the sums in memory.
#include "nn/cpu/inner.h"

#include <array>
#include <utility>

#include "nn/cpu/transpose.h"

namespace gradcast {
namespace GC_ISA {
namespace {

// A tile: rows by vectors, and in forward() samples by outputs.
#if defined(__AVX512F__)
constexpr uint32_t rows = 6, columns = 4, samples = 6, outputs = 4;
#elif defined(__AVX2__)
constexpr uint32_t rows = 6, columns = 2, samples = 2, outputs = 3;
#else
constexpr uint32_t rows = 4, columns = 2, samples = 1, outputs = 2;
#endif
constexpr uint32_t strip = columns * width, together = 128;   // a strip: [together][strip]

constexpr uint32_t cached = 128 * 1024;   // weights that fit the second-level cache

/// How many of `left` come next, so that none is left alone.
uint32_t part(uint32_t left, uint32_t most = rows) { return left <= most ? left : left < 2 * most ? (left + 1) / 2 : most; }

/// The first lanes of a register, at the end of a row.
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

// ---- forward, without packing ---------------------------------------------------------------------------------------------------------

constexpr uint32_t lanes = 16, parts = lanes / width;   // of a dot product: every build adds in the order of 16 lanes

/// The sums of lanes that are `width` or more apart, as lane_sums() adds those that are less.
template <uint32_t half = parts / 2>
V parts_sum(V (&v)[parts]) {
    GC_UNROLL for (uint32_t i = 0; i < half; ++i) v[i] += v[i + half];
    if constexpr (half > 1) return parts_sum<half / 2>(v);
    else return v[0];
}

/// y of `height` samples and `count` outputs, at most `outputs` of them.
template <uint32_t height, bool fetch>
void dots(float* y, const float* x, const float* w, const float* bias, uint32_t count, const InnerShape& s) {
    constexpr uint32_t sums = (height * outputs + width - 1) / width * width;
    const uint64_t C = s.C, whole = C / lanes * lanes;
    const float* row[outputs];   // at the edge some twice, which are not stored
    for (uint32_t i = 0; i < outputs; ++i) row[i] = w + least(i, count - 1) * C;
    V sum[height * outputs][parts] = {};
    auto add = [&](uint32_t part, auto get) {
        V weight[outputs];
        GC_UNROLL for (uint32_t i = 0; i < outputs; ++i) weight[i] = get(row[i]);
        GC_UNROLL for (uint32_t j = 0; j < height; ++j) {
            const V value = get(x + j * C);
            GC_UNROLL for (uint32_t i = 0; i < outputs; ++i) multiply_add(sum[j * outputs + i][part], weight[i], value);
        }
    };
    for (uint64_t c = 0; c < whole; c += lanes) {
        if (fetch) GC_UNROLL for (uint32_t i = 0; i < outputs; ++i) __builtin_prefetch(row[i] + outputs * C + c);
        GC_UNROLL for (uint32_t part = 0; part < parts; ++part)
            add(part, [at = c + part * width](const float* from) { return load(from + at); });
    }
    if (const auto left = static_cast<uint32_t>(C - whole)) {
        GC_UNROLL for (uint32_t part = 0; part < parts; ++part) {
            const uint32_t first = part * width;
            add(part, [at = whole + first, some = Some{left > first ? least(left - first, width) : 0}](const float* from) {
                return some.load(from + at);
            });
        }
    }
    V whole_sum[sums] = {};
    GC_UNROLL for (uint32_t i = 0; i < height * outputs; ++i) whole_sum[i] = parts_sum(sum[i]);
    float results[sums];
    GC_UNROLL for (uint32_t i = 0; i < sums; i += width) store(results + i, lane_sums(whole_sum + i));
    for (uint32_t j = 0; j < height; ++j)
        for (uint32_t i = 0; i < count; ++i) y[uint64_t{j} * s.K + i] = results[j * outputs + i] + (bias ? bias[i] : 0.0f);
}

template <size_t... i>
constexpr auto dots_of(std::index_sequence<i...>) {
    return std::array{dots<i / 2 + 1, i % 2 != 0>...};
}

void forward(float* y, const float* x, const float* w, const float* bias, const InnerShape& s) {
    constexpr auto each = dots_of(std::make_index_sequence<2 * samples>());
    const uint32_t fit = cached / s.C / outputs * outputs, step = fit ? fit : outputs;
    for (uint32_t first = 0; first < s.K; first += step)
        for (uint32_t n = 0, height = 0; n < s.N; n += height) {
            height = part(s.N - n, samples);
            for (uint32_t k = first, end = least(first + step, s.K); k < end; k += outputs)
                each[2 * (height - 1) + (n == 0)](y + uint64_t{n} * s.K + k, x + uint64_t{n} * s.C, w + uint64_t{k} * s.C,
                                                  bias ? bias + k : nullptr, least(outputs, end - k), s);
        }
}

// ---- tiles ----------------------------------------------------------------------------------------------------------------------------

// Terms that are 0 in all rows of a tile are left out.

/// to[i][c] (+)= sum over the j listed of factor[i * factor_row + j * factor_term] from[j * from_row + c].
struct Sums {
    float* to[rows];
    const float *from, *factor;
    uint64_t from_row, factor_row, factor_term;
    const uint16_t* list;
    uint32_t terms;
    bool add;
};

/// Of `vectors` registers of columns; whole: else the last one has `last` lanes.
template <uint32_t height, uint32_t vectors, bool whole>
void sums(const Sums& t, Some last) {
    auto get = [last](const float* from, uint32_t v) { return whole || v + 1 < vectors ? load(from) : last.load(from); };
    auto put = [last](float* to, const V& value, uint32_t v) { whole || v + 1 < vectors ? store(to, value) : last.store(to, value); };
    const uint64_t factor_row = t.factor_row, factor_term = t.factor_term;
    V sum[height][vectors] = {};   // starting at `to` would round more
    for (const uint16_t *j = t.list, *const end = j + t.terms; j < end; ++j) {
        const float *from = t.from + *j * t.from_row, *factor = t.factor + *j * factor_term;
        V value[vectors];
        GC_UNROLL for (uint32_t v = 0; v < vectors; ++v) value[v] = get(from + v * width, v);
        GC_UNROLL for (uint32_t i = 0; i < height; ++i) {
            const V times = all(factor[i * factor_row]);
            GC_UNROLL for (uint32_t v = 0; v < vectors; ++v) multiply_add(sum[i][v], times, value[v]);
        }
    }
    if (t.add) {
        GC_UNROLL for (uint32_t i = 0; i < height; ++i) {
            GC_UNROLL for (uint32_t v = 0; v < vectors; ++v) sum[i][v] += get(t.to[i] + v * width, v);
        }
    }
    GC_UNROLL for (uint32_t i = 0; i < height; ++i) {
        GC_UNROLL for (uint32_t v = 0; v < vectors; ++v) put(t.to[i] + v * width, sum[i][v], v);
    }
}

template <size_t... i>
constexpr auto sums_of(std::index_sequence<i...>) {
    return std::array{sums<i / columns + 1, i % columns + 1, false>...};
}
template <size_t... i>
constexpr auto sums_whole(std::index_sequence<i...>) {
    return std::array{sums<i + 1, columns, true>...};
}

void run(const Sums& t, uint32_t height, uint32_t count) {
    static constexpr auto some = sums_of(std::make_index_sequence<rows * columns>());
    static constexpr auto whole = sums_whole(std::make_index_sequence<rows>());
    if (count == strip) return whole[height - 1](t, {});
    const uint32_t before = (count - 1) / width;
    some[(height - 1) * columns + before](t, {count - before * width});
}

uint32_t without_sign(float value) { return __builtin_bit_cast(uint32_t, value) << 1; }

/// Lists those of `count` columns that are not 0 in all `height` rows.
uint32_t not_zero(uint16_t* list, const float* from, uint64_t row, uint32_t height, uint32_t count) {
    constexpr uint32_t some_most = 64;
    uint32_t terms = 0;
    for (uint32_t j = 0; j < count; j += some_most) {
        const uint32_t some = least(some_most, count - j);
        uint32_t any[some_most] = {};
        for (uint32_t i = 0; i < height; ++i)
            for (uint32_t k = 0; k < some; ++k) any[k] |= without_sign(from[i * row + j + k]);
        for (uint32_t k = 0; k < some; ++k) {
            list[terms] = static_cast<uint16_t>(j + k);
            terms += any[k] != 0;
        }
    }
    return terms;
}

/// Columns of a strip.
void copy(float* to, const float* from, uint32_t count) {
    if (count == strip) __builtin_memcpy(to, from, strip * sizeof(float));   // a constant size needs no call
    else __builtin_memcpy(to, from, count * sizeof(float));
}

// ---- samples times weights: forward and gradients of samples ---------------------------------------------------------------------------

/// to [N, wide] (+)= factor [N, deep] m.  pack(j, terms, c, columns) writes part of m from row j and column c on to strip_memory, in rows
/// of `strip` floats.
template <typename Pack>
void product(float* to, const float* factor, uint32_t N, uint32_t deep, uint32_t wide, bool add, const float* strip_memory, Pack pack) {
    constexpr uint32_t most = 256;   // samples at a time
    struct {
        uint32_t n, height, terms;
        uint16_t list[together];
    } tiles[most / rows + 2];
    const uint32_t runs = (deep + together - 1) / together, step = ((deep + runs - 1) / runs + 15) / 16 * 16;
    for (uint32_t first = 0; first < N; first += most)
        for (uint32_t j = 0; j < deep; j += step) {
            uint32_t count = 0;
            const uint32_t some = least(step, deep - j);
            for (uint32_t n = first, end = least(first + most, N); n < end; n += tiles[count++].height) {
                auto& tile = tiles[count];
                tile.n = n;
                tile.height = part(end - n);
                tile.terms = not_zero(tile.list, factor + uint64_t{n} * deep + j, deep, tile.height, some);
            }
            for (uint32_t c = 0; c < wide; c += strip) {
                const uint32_t across = least(strip, wide - c);
                pack(j, some, c, across);
                Sums t{.to = {},
                       .from = strip_memory,
                       .factor = nullptr,
                       .from_row = strip,
                       .factor_row = deep,
                       .factor_term = 1,
                       .list = nullptr,
                       .terms = 0,
                       .add = add || j > 0};
                for (uint32_t i = 0; i < count; ++i) {
                    const auto& tile = tiles[i];
                    for (uint32_t row = 0; row < tile.height; ++row) t.to[row] = to + uint64_t{tile.n + row} * wide + c;
                    t.factor = factor + uint64_t{tile.n} * deep + j;
                    t.list = tile.list;
                    t.terms = tile.terms;
                    run(t, tile.height, across);
                }
            }
        }
}

/// to [inputs][strip] from `down_all` rows of w [K, C].
void turn_strip(float* to, const float* w, uint64_t C, uint32_t down_all, uint32_t inputs) {
    for (uint32_t i = 0; i < down_all; i += width)
        for (uint32_t c = 0; c < inputs; c += width) {
            const uint32_t down = least(width, down_all - i), across = least(width, inputs - c);
            const float* from = w + i * C + c;
            if (down == width && across == width) {
                transpose(to + uint64_t{c} * strip + i, strip, from, C);
                continue;
            }
            float block[width][width], turned[width][width];
            for (uint32_t row = 0; row < width; ++row, from += C) store(block[row], row < down ? Some{across}.load(from) : V{});
            transpose(turned[0], width, block[0], width);
            for (uint32_t row = 0; row < across; ++row) store(to + uint64_t{c + row} * strip + i, load(turned[row]));
        }
}

void forward_packed(float* y, const float* x, const float* w, const float* bias, float* memory, const InnerShape& s) {
    if (bias)
        for (uint32_t n = 0; n < s.N; ++n) __builtin_memcpy(y + uint64_t{n} * s.K, bias, s.K * sizeof(float));
    product(y, x, s.N, s.C, s.K, bias, memory, [=, C = s.C](uint32_t c, uint32_t inputs, uint32_t k, uint32_t some) {
        turn_strip(memory, w + uint64_t{k} * C + c, C, some, inputs);
    });
}

void backward_data(float* dx, const float* dy, const float* w, float* memory, const InnerShape& s) {
    product(dx, dy, s.N, s.K, s.C, false, memory, [=, C = s.C](uint32_t first, uint32_t count, uint32_t c, uint32_t inputs) {
        for (uint32_t k = 0; k < count; ++k) copy(memory + uint64_t{k} * strip, w + uint64_t{first + k} * C + c, inputs);
    });
}

// ---- gradients of weights --------------------------------------------------------------------------------------------------------------

uint64_t packed(const InnerShape& s) { return uint64_t{s.N} * ((s.C + strip - 1) / strip * strip); }

void pack(float* to, const float* x, const InnerShape& s) {
    for (uint32_t c = 0; c < s.C; c += strip)
        for (uint32_t n = 0; n < s.N; ++n, to += strip) copy(to, x + uint64_t{n} * s.C + c, least(strip, s.C - c));
}

constexpr uint32_t outputs_most = 64;   // at a time

/// Packs a tile's factors by sample, because in dy they are often 4096 bytes apart.
template <uint32_t height>
uint32_t outputs_of(float* factor, uint16_t* list, const float* dy, uint64_t K, uint32_t count) {
    uint32_t terms = 0;
    for (uint32_t n = 0; n < count; ++n, dy += K) {
        uint32_t any = 0;
        GC_UNROLL for (uint32_t i = 0; i < height; ++i) any |= without_sign(factor[n * height + i] = dy[i]);
        list[terms] = static_cast<uint16_t>(n);
        terms += any != 0;
    }
    return terms;
}

template <size_t... i>
constexpr auto outputs_all(std::index_sequence<i...>) {
    return std::array{outputs_of<i + 1>...};
}

void backward_weights(float* dw, uint64_t apart, const float* dy, const float* in_strips, const InnerShape& s, uint32_t first,
                      uint32_t end) {
    constexpr auto numbers = outputs_all(std::make_index_sequence<rows>());
    struct {
        uint32_t i, height, terms;
        uint16_t list[together];
        float factor[together * rows];
    } tiles[outputs_most / rows + 2];
    for (uint32_t k = first; k < end; k += outputs_most, dw += outputs_most * apart) {
        const uint32_t some = least(outputs_most, end - k);
        for (uint32_t n = 0; n < s.N; n += together) {
            uint32_t count = 0;
            for (uint32_t i = 0; i < some; i += tiles[count++].height) {
                auto& tile = tiles[count];
                tile.i = i;
                tile.height = part(some - i);
                tile.terms =
                    numbers[tile.height - 1](tile.factor, tile.list, dy + uint64_t{n} * s.K + k + i, s.K, least(together, s.N - n));
            }
            for (uint32_t c = 0; c < s.C; c += strip)
                for (uint32_t i = 0; i < count; ++i) {
                    const auto& tile = tiles[i];
                    Sums t{.to = {},
                           .from = in_strips + uint64_t{c} * s.N + uint64_t{n} * strip,
                           .factor = tile.factor,
                           .from_row = strip,
                           .factor_row = 1,
                           .factor_term = tile.height,
                           .list = tile.list,
                           .terms = tile.terms,
                           .add = n > 0};
                    for (uint32_t row = 0; row < tile.height; ++row) t.to[row] = dw + (tile.i + row) * apart + c;
                    run(t, tile.height, least(strip, s.C - c));
                }
        }
    }
}

void backward_bias(float* db, const float* dy, const InnerShape& s) {
    for (uint32_t n = 0; n < s.N; ++n)
        for (uint32_t k = 0; k < s.K; ++k) db[k] = (n ? db[k] : 0.0f) + dy[uint64_t{n} * s.K + k];
}

}   // namespace

extern const InnerKernels inner_kernels;
const InnerKernels inner_kernels = {together * strip, forward, forward_packed,   backward_data,
                                    packed,           pack,    backward_weights, backward_bias};

}   // namespace GC_ISA
}   // namespace gradcast
