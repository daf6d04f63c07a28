// The kernels of one instruction set.  The Makefile compiles this file once per set, with GC_ISA set to its name.  All builds give the same
// bits: integer arithmetic, and doubles of which each operation rounds alone.  Functions from headers may be called only if they are always
// inlined: otherwise the linker keeps one copy for all builds, perhaps with instructions that this CPU lacks.
#include "transport/code/kernels.h"

#include "runtime/core/digest.h"

#if defined(__AVX2__)
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"   // g++ 12 warns of its own _mm512_undefined_epi32
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#endif

#define GC_NAME_(isa) kernels_##isa
#define GC_NAME(isa) GC_NAME_(isa)

namespace gradcast {
namespace {

#if defined(__AVX512BW__)
using Vector = __m512i;
#define GC_V(name) _mm512_##name
#define GC_LOAD(from) _mm512_loadu_si512(from)
#define GC_STORE(to, value) _mm512_storeu_si512(to, value)
#define GC_STREAM(to, value) _mm512_stream_si512(reinterpret_cast<__m512i*>(to), value)
#define GC_SET64(value) _mm512_set1_epi64(value)
#define GC_BITS(floats) _mm512_castps_si512(floats)
#elif defined(__AVX2__)
using Vector = __m256i;
#define GC_V(name) _mm256_##name
#define GC_LOAD(from) _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))
#define GC_STORE(to, value) _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value)
#define GC_STREAM(to, value) _mm256_stream_si256(reinterpret_cast<__m256i*>(to), value)
#define GC_SET64(value) _mm256_set1_epi64x(value)
#define GC_BITS(floats) _mm256_castps_si256(floats)
#endif

void add_i16(int16_t* __restrict dst, const int16_t* __restrict src, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) dst[i] = static_cast<int16_t>(dst[i] + src[i]);
}

void add_i32(int32_t* __restrict dst, const int32_t* __restrict src, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) dst[i] = static_cast<int32_t>(static_cast<uint32_t>(dst[i]) + static_cast<uint32_t>(src[i]));
}

void add_i64(int64_t* __restrict dst, const int64_t* __restrict src, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) dst[i] = static_cast<int64_t>(static_cast<uint64_t>(dst[i]) + static_cast<uint64_t>(src[i]));
}

void add_i32_to_i64(int64_t* __restrict dst, const int32_t* __restrict src, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i)
        dst[i] = static_cast<int64_t>(static_cast<uint64_t>(dst[i]) + static_cast<uint64_t>(int64_t{src[i]}));
}

template <typename Signed, typename Unsigned>
void sub(Signed* __restrict dst, const Signed* __restrict src, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) dst[i] = static_cast<Signed>(static_cast<Unsigned>(dst[i]) - static_cast<Unsigned>(src[i]));
}

// Elements are taken in runs that fit the first-level cache.  The maximum is a pass of its own over 32-bit lanes, where |x| compares as an
// integer and NaN is above Inf.  The loop over doubles stays in 64-bit lanes.
constexpr uint64_t run_max = 1024;

template <typename Signed, typename Unsigned, bool accumulate, bool divide>
QuantiseResult quantise(Signed* __restrict dst, const float* __restrict x, uint64_t count, const Scale& scale) {
    const double divisor = scale.divisor, factor = scale.factor, limit = scale.limit;
    // rint(v) exceeds the limit from limit + 1/2 on, or from the next double on if the tie goes to an even limit.
    const uint64_t tie_bits = __builtin_bit_cast(uint64_t, limit + 0.5);
    const double beyond = __builtin_bit_cast(double, tie_bits + (scale.limit % 2 == 0 ? 1 : 0));
    // Adding 3 * 2^51 to a |v| below 2^51 leaves rint(v), ties to even, in the low bits of the double.
    constexpr double magic = 0x1.8p52;
    constexpr uint64_t magic_bits = 0x4338000000000000;
    uint32_t maximum = 0;
    uint64_t clipped = 0;
    for (uint64_t start = 0; start < count; start += run_max) {
        const uint64_t run = count - start < run_max ? count - start : run_max;
        const float* __restrict from = x + start;
        Signed* __restrict to = dst + start;
        for (uint64_t i = 0; i < run; ++i) {
            const uint32_t magnitude = __builtin_bit_cast(uint32_t, from[i]) & 0x7FFFFFFF;
            maximum = magnitude > maximum ? magnitude : maximum;
        }
        for (uint64_t i = 0; i < run; ++i) {
            double v = from[i];
            if constexpr (divide) v /= divisor;
            v *= factor;
            const double size = __builtin_fabs(v);
            clipped += size < beyond ? 0 : 1;
            v = v < limit ? v : limit;   // NaN becomes the limit
            v = v > -limit ? v : -limit;
            const Unsigned q = static_cast<Unsigned>(__builtin_bit_cast(uint64_t, v + magic) - magic_bits);
            to[i] = static_cast<Signed>(accumulate ? static_cast<Unsigned>(to[i]) + q : q);
        }
    }
    return {__builtin_bit_cast(float, maximum), clipped};
}

template <typename Signed, typename Unsigned>
QuantiseResult quantise_any(Signed* dst, const float* x, uint64_t count, const Scale& scale, bool accumulate) {
    if (scale.divisor == 1.0)
        return accumulate ? quantise<Signed, Unsigned, true, false>(dst, x, count, scale)
                          : quantise<Signed, Unsigned, false, false>(dst, x, count, scale);
    return accumulate ? quantise<Signed, Unsigned, true, true>(dst, x, count, scale)
                      : quantise<Signed, Unsigned, false, true>(dst, x, count, scale);
}

#if defined(GC_V)
// If the factor is a power of two and the limit is below 2^30, floats give the same words: the product is exact (or underflows to 0, or
// exceeds the limit), and so is +-2^30, the clamp before the conversion.  A run without elements beyond the limit skips the limits.
// `past`: the stores bypass the caches, into whole lines that begin at dst.
template <bool accumulate, bool past>
struct QuantiseFloat {
    static constexpr uint64_t lanes = sizeof(Vector) / sizeof(float), ahead = 1024;
    const float factor;
    const int32_t limit;
    uint64_t clipped = 0;

    /// The largest |x| that is not clipped, as bits.
    uint32_t most() const {
        const float word = static_cast<float>(limit), within = static_cast<double>(word) > limit ? __builtin_nextafterf(word, 0) : word;
        const float x = within / factor;
        return x < __FLT_MIN__ ? 0 : __builtin_bit_cast(uint32_t, x < __FLT_MAX__ ? x : __FLT_MAX__);
    }

    template <bool limited>
    void run(int32_t* dst, const float* x, uint64_t count) {
        const Vector greatest = GC_V(set1_epi32)(limit), least = GC_V(set1_epi32)(-limit);
        const auto scale = GC_V(set1_ps)(factor), top = GC_V(set1_ps)(0x1p30f), bottom = GC_V(set1_ps)(-0x1p30f);
#pragma GCC unroll 4
        for (uint64_t i = 0; i < count; i += lanes) {
            if (!past) __builtin_prefetch(dst + i + ahead, 1);
            auto value = GC_V(mul_ps)(GC_V(loadu_ps)(x + i), scale);
            if (limited) value = GC_V(max_ps)(GC_V(min_ps)(value, top), bottom);   // NaN becomes 2^30
            Vector q = GC_V(cvtps_epi32)(value);
            if (limited) {
                const Vector word = q;
                q = GC_V(max_epi32)(GC_V(min_epi32)(word, greatest), least);
#if defined(__AVX512BW__)
                clipped += static_cast<uint64_t>(__builtin_popcount(_mm512_cmpneq_epi32_mask(word, q)));
#else
                clipped += static_cast<uint64_t>(
                    8 - __builtin_popcount(static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(word, q))))));
#endif
            }
            if (past) GC_STREAM(dst + i, q);
            else GC_STORE(dst + i, accumulate ? GC_V(add_epi32)(GC_LOAD(dst + i), q) : q);
        }
    }

    static uint32_t greatest_of(Vector v) {
        uint32_t all[lanes], greatest = 0;
        GC_STORE(all, v);
        for (uint32_t each : all) greatest = each > greatest ? each : greatest;
        return greatest;
    }

    QuantiseResult operator()(int32_t* dst, const float* x, uint64_t count) {
        const Vector magnitude = GC_V(set1_epi32)(0x7FFFFFFF);
        const uint32_t within = most();
        uint32_t all = 0;
        for (uint64_t start = 0; start < count; start += run_max) {
            const uint64_t some = count - start < run_max ? count - start : run_max;
            Vector maxima{};
#pragma GCC unroll 4
            for (uint64_t i = start; i < start + some; i += lanes) {
                __builtin_prefetch(x + i + ahead);
                maxima = GC_V(max_epu32)(maxima, GC_LOAD(x + i) & magnitude);
            }
            const uint32_t greatest = greatest_of(maxima);
            all = greatest > all ? greatest : all;
            greatest <= within ? run<false>(dst + start, x + start, some) : run<true>(dst + start, x + start, some);
        }
        if (past) _mm_sfence();   // orders these stores before those that publish the words
        return {__builtin_bit_cast(float, all), clipped};
    }
};
#endif

QuantiseResult quantise_i32(int32_t* dst, const float* x, uint64_t count, const Scale& scale, bool accumulate) {
#if defined(GC_V)
    const auto factor = static_cast<float>(scale.factor);
    const uint32_t bits = __builtin_bit_cast(uint32_t, factor), exponent = bits >> 23;
    const bool power = factor == scale.factor && (bits & 0x7FFFFF) == 0 && exponent > 0 && exponent < 255;
    if (power && scale.divisor == 1.0 && scale.limit < 1 << 30) {
        constexpr uint64_t line = 64 / sizeof(int32_t), much = 16 * 1024;   // smaller targets are read while they are in a cache
        const bool past = scale.past_caches && !accumulate && count >= much;
        const uint64_t front = past ? (line - reinterpret_cast<uintptr_t>(dst) / sizeof(int32_t) % line) % line : 0;
        const uint64_t end = front + (count - front) / line * line;
        auto quantise = [&](int32_t* to, const float* from, uint64_t some) {
            if (accumulate) return QuantiseFloat<true, false>{factor, scale.limit}(to, from, some);
            return past ? QuantiseFloat<false, true>{factor, scale.limit}(to, from, some)
                        : QuantiseFloat<false, false>{factor, scale.limit}(to, from, some);
        };
        const QuantiseResult parts[] = {quantise_any<int32_t, uint32_t>(dst, x, front, scale, accumulate),
                                        quantise(dst + front, x + front, end - front),
                                        quantise_any<int32_t, uint32_t>(dst + end, x + end, count - end, scale, accumulate)};
        QuantiseResult all{};
        for (const QuantiseResult& part : parts) {
            if (__builtin_bit_cast(uint32_t, part.maximum) > __builtin_bit_cast(uint32_t, all.maximum)) all.maximum = part.maximum;
            all.clipped += part.clipped;
        }
        return all;
    }
#endif
    return quantise_any<int32_t, uint32_t>(dst, x, count, scale, accumulate);
}

// Elements 64 g .. 64 g + 63 draw from the 16 counters 16 g .. 16 g + 15: 16 consecutive elements take the same word of each counter, so
// the generator's vectors are stored without shuffling.
constexpr uint64_t draw = 64;

// Equals random4(Purpose::rounding, …) of runtime/core/rng.h: Philox, whose multiplications take 32 bits to 64.
void draw_bits(uint64_t* bits, const Rounding& rounding, uint64_t group) {
    constexpr uint32_t purpose = 3, multiplier0 = 0xD2511F53, multiplier1 = 0xCD9E8D57, weyl0 = 0x9E3779B9, weyl1 = 0xBB67AE85;
    const auto seed0 = static_cast<uint32_t>(rounding.seed), seed1 = static_cast<uint32_t>(rounding.seed >> 32);
    const auto first = static_cast<uint32_t>(group * 16);
#if defined(GC_V)
    // Lanes of 64 bits; the upper halves are ignored until the end.
    static constexpr uint64_t numbers[] = {0, 1, 2, 3, 4, 5, 6, 7};
    constexpr uint32_t lanes = sizeof(Vector) / 8;
    for (uint32_t i = 0; i < 16; i += lanes) {
        Vector c0 = GC_SET64(rounding.step), c1 = GC_SET64(rounding.block), c3 = GC_SET64(purpose);
        Vector c2 = GC_V(add_epi64)(GC_SET64(first + i), GC_LOAD(numbers));
        uint32_t key0 = seed0, key1 = seed1;
#pragma GCC unroll 10
        for (int round = 0; round < 10; ++round) {
            const Vector a = GC_V(mul_epu32)(GC_SET64(multiplier0), c0), b = GC_V(mul_epu32)(GC_SET64(multiplier1), c2);
            c0 = GC_V(srli_epi64)(b, 32) ^ c1 ^ GC_SET64(key0);
            c1 = b;
            c2 = GC_V(srli_epi64)(a, 32) ^ c3 ^ GC_SET64(key1);
            c3 = a;
            key0 += weyl0;
            key1 += weyl1;
        }
        const Vector lower = GC_SET64(0xFFFFFFFF);
        GC_STORE(bits + i, c0 & lower);
        GC_STORE(bits + 16 + i, c1 & lower);
        GC_STORE(bits + 32 + i, c2 & lower);
        GC_STORE(bits + 48 + i, c3 & lower);
    }
#else
    for (uint32_t i = 0; i < 16; ++i) {
        uint32_t c0 = rounding.step, c1 = rounding.block, c2 = first + i, c3 = purpose, key0 = seed0, key1 = seed1;
        for (int round = 0; round < 10; ++round) {
            const uint64_t a = uint64_t{multiplier0} * c0, b = uint64_t{multiplier1} * c2;
            c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ key0;
            c1 = static_cast<uint32_t>(b);
            c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ key1;
            c3 = static_cast<uint32_t>(a);
            key0 += weyl0;
            key1 += weyl1;
        }
        bits[i] = c0;
        bits[16 + i] = c1;
        bits[32 + i] = c2;
        bits[48 + i] = c3;
    }
#endif
}

template <bool accumulate>
QuantiseResult quantise_stochastic(int16_t* __restrict dst, const float* __restrict x, uint64_t count, const Scale& scale,
                                   const Rounding& rounding) {
    const double factor = scale.factor * 0x1p32, limit = scale.limit * 0x1p32;
    constexpr double magic = 0x1.8p52;   // as above: v in units of 2^-32 in the low 48 bits
    uint32_t maximum = 0;
    uint64_t clipped = 0;
    alignas(64) uint64_t bits[run_max];
    for (uint64_t start = 0; start < count;) {
        const uint64_t skip = (rounding.first + start) % draw;
        const uint64_t run = count - start < run_max - skip ? count - start : run_max - skip;
        for (uint64_t i = 0; i < skip + run; i += draw) draw_bits(bits + i, rounding, (rounding.first + start + i) / draw);
        const float* __restrict from = x + start;
        const uint64_t* __restrict random = bits + skip;
        int16_t* __restrict to = dst + start;
        for (uint64_t i = 0; i < run; ++i) {
            const uint32_t magnitude = __builtin_bit_cast(uint32_t, from[i]) & 0x7FFFFFFF;
            maximum = magnitude > maximum ? magnitude : maximum;
        }
        for (uint64_t i = 0; i < run; ++i) {
            double v = from[i] * factor;
            const double size = __builtin_fabs(v);
            clipped += size <= limit ? 0 : 1;
            v = v < limit ? v : limit;   // NaN becomes the limit
            v = v > -limit ? v : -limit;
            const uint64_t sum = __builtin_bit_cast(uint64_t, v + magic) + random[i];
            const auto q = static_cast<uint16_t>(sum >> 32);
            to[i] = static_cast<int16_t>(accumulate ? static_cast<uint16_t>(to[i] + q) : q);
        }
        start += run;
    }
    return {__builtin_bit_cast(float, maximum), clipped};
}

QuantiseResult quantise_i16(int16_t* dst, const float* x, uint64_t count, const Scale& scale, const Rounding& rounding, bool accumulate) {
    return accumulate ? quantise_stochastic<true>(dst, x, count, scale, rounding)
                      : quantise_stochastic<false>(dst, x, count, scale, rounding);
}

template <typename Signed>
uint64_t digest(const Signed* __restrict words, uint64_t count, uint64_t first) {
    return digest_sum(words, count, first);
}

// ---- combinations in a prime field ----------------------------------------------------------------------------------------------
//
// Inputs are combined in chunks that fit one accumulator without reduction; the next chunk starts from the residue in the output.  Weights
// lie in -h .. h, h = (p - 1) / 2.  Residues are shifted by `bias` to be centred at zero; `start` compensates for bias times the sum of the
// weights.

constexpr uint32_t chunk_max = 64;
template <uint32_t p>
struct Field;
template <>
struct Field<2147483647> {
    using Word = uint32_t;
    using Signed = int32_t;
    static constexpr uint32_t chunk = 8;   // products are below 2^60: eight of them and 2^63 - 2^32 stay within 0 .. 2^64
    static constexpr int64_t bias = 1 << 30;
};
template <>
struct Field<65521> {
    using Word = uint16_t;
    using Signed = int16_t;
    static constexpr uint32_t chunk = chunk_max;
    static constexpr int64_t bias = 1 << 15;
};

struct Chunk {
    uint32_t ins;
    const std::byte* in[chunk_max];
    int32_t weights[chunk_max];
    std::byte* out;
    uint32_t start;        // below p
    bool fresh;            // the output holds nothing yet
    bool leaves_residue;   // else the output holds signed words
};

// Words [from, to) of a chunk.
template <uint32_t p, bool in_signed>
void combine_plain(const Chunk& chunk, uint64_t from, uint64_t to) {
    using Word = typename Field<p>::Word;
    using Signed = typename Field<p>::Signed;
    Word* __restrict out = reinterpret_cast<Word*>(chunk.out);
    for (uint64_t x = from; x < to; ++x) {
        uint64_t sum = (uint64_t{p} << 32) + chunk.start + (chunk.fresh ? 0 : out[x]);   // the multiple of p keeps the sum above zero
        for (uint32_t i = 0; i < chunk.ins; ++i) {
            const int64_t word = in_signed ? int64_t{reinterpret_cast<const Signed*>(chunk.in[i])[x]}
                                           : int64_t{reinterpret_cast<const Word*>(chunk.in[i])[x]} - Field<p>::bias;
            sum += static_cast<uint64_t>(chunk.weights[i] * word);
        }
        const auto residue = static_cast<uint32_t>(sum % p);
        out[x] = static_cast<Word>(chunk.leaves_residue || residue <= p / 2 ? residue : residue - p);
    }
}

#if defined(GC_V)

// Lanes of 32 bits: residues above (p - 1) / 2 become r - p.
template <uint32_t p>
Vector centre(Vector residue) {
    const Vector half = GC_V(set1_epi32)(p / 2);
    const Vector high = GC_V(sub_epi32)(residue, GC_V(set1_epi32)(p / 2 + 1));   // wraps where r <= h
    return GC_V(sub_epi32)(GC_V(min_epu32)(high, GC_V(add_epi32)(residue, half)), half);
}

// Returns the number of words done.
template <uint32_t p, bool in_signed>
requires(p == 2147483647) uint64_t combine_vectors(const Chunk& chunk, uint64_t count) {
    constexpr uint64_t lanes = sizeof(Vector) / 4;
    const Vector prime = GC_SET64(p), begin = GC_SET64(static_cast<int64_t>((uint64_t{p} << 32) + chunk.start));
    const Vector prime32 = GC_V(set1_epi32)(p), bias = GC_V(set1_epi32)(Field<p>::bias);
    uint64_t x = 0;
    for (; x + lanes <= count; x += lanes) {
        Vector even = begin, odd = begin;
        if (!chunk.fresh) {
            const Vector before = GC_LOAD(chunk.out + 4 * x);
            even = GC_V(add_epi64)(even, before & prime);
            odd = GC_V(add_epi64)(odd, GC_V(srli_epi64)(before, 32));
        }
        for (uint32_t i = 0; i < chunk.ins; ++i) {
            Vector word = GC_LOAD(chunk.in[i] + 4 * x);
            if (!in_signed) word = GC_V(sub_epi32)(word, bias);
            const Vector weight = GC_V(set1_epi32)(chunk.weights[i]);
            even = GC_V(add_epi64)(even, GC_V(mul_epi32)(word, weight));
            odd = GC_V(add_epi64)(odd, GC_V(mul_epi32)(GC_V(srli_epi64)(word, 32), weight));
        }
        // 2^31 is 1 modulo p: bits 31 and up are added to the lower bits, twice; the result is below 2^31 + 8.
        even = GC_V(add_epi64)(even & prime, GC_V(srli_epi64)(even, 31));
        odd = GC_V(add_epi64)(odd & prime, GC_V(srli_epi64)(odd, 31));
        even = GC_V(add_epi64)(even & prime, GC_V(srli_epi64)(even, 31));
        odd = GC_V(add_epi64)(odd & prime, GC_V(srli_epi64)(odd, 31));
        const Vector both = even | GC_V(slli_epi64)(odd, 32);
        const Vector residue = GC_V(min_epu32)(both, GC_V(sub_epi32)(both, prime32));   // the smaller one has not wrapped
        GC_STORE(chunk.out + 4 * x, chunk.leaves_residue ? residue : centre<p>(residue));
    }
    return x;
}

// Weights are split in two bytes, w = 256 high + low, so 64 products with each half fit into 32 bits.  Two inputs share one multiplication
// that adds pairs.
template <uint32_t p, bool in_signed>
requires(p == 65521) uint64_t combine_vectors(const Chunk& chunk, uint64_t count) {
    constexpr uint64_t lanes = sizeof(Vector) / 2;
    const uint32_t pairs = (chunk.ins + 1) / 2;
    int32_t low[chunk_max / 2], high[chunk_max / 2];
    const std::byte* second[chunk_max / 2];
    for (uint32_t i = 0; i < pairs; ++i) {
        const bool alone = 2 * i + 1 == chunk.ins;   // paired with itself at weight 0
        const int32_t a = chunk.weights[2 * i], b = alone ? 0 : chunk.weights[2 * i + 1];
        const int32_t a_high = (a + 128) >> 8, b_high = (b + 128) >> 8;
        low[i] = static_cast<int32_t>(((a - 256 * a_high) & 0xFFFF) | static_cast<uint32_t>(b - 256 * b_high) << 16);
        high[i] = static_cast<int32_t>((a_high & 0xFFFF) | static_cast<uint32_t>(b_high) << 16);
        second[i] = chunk.in[alone ? 2 * i : 2 * i + 1];
    }
    const Vector bias16 = GC_V(set1_epi16)(INT16_MIN), half = GC_V(set1_epi32)(0x8000), fold = GC_V(set1_epi32)(15 << 16 | 1);
    const Vector begin = GC_V(set1_epi32)(static_cast<int32_t>(chunk.start)), zero = GC_V(set1_epi32)(0), prime = GC_V(set1_epi32)(p);
    // 2^16 is 15 modulo p: v = 2^16 a + b with |b| <= 2^15 becomes b + 15 a.
    auto folded = [&](Vector v) __attribute__((always_inline)) { return GC_V(madd_epi16)(GC_V(add_epi32)(v, half) ^ half, fold); };
    auto reduced = [&](Vector by_low, Vector by_high) __attribute__((always_inline)) {
        const Vector small = folded(folded(GC_V(add_epi32)(by_low, GC_V(slli_epi32)(folded(by_high), 8))));   // |small| <= 2^15 + 45
        return GC_V(min_epu32)(small, GC_V(add_epi32)(small, prime));
    };
    uint64_t x = 0;
    for (; x + lanes <= count; x += lanes) {
        Vector low_a = begin, low_b = begin, high_a = zero, high_b = zero;   // a, b: the halves that unpacking makes and packing joins
        if (!chunk.fresh) {
            const Vector before = GC_LOAD(chunk.out + 2 * x);
            low_a = GC_V(add_epi32)(low_a, GC_V(unpacklo_epi16)(before, zero));
            low_b = GC_V(add_epi32)(low_b, GC_V(unpackhi_epi16)(before, zero));
        }
        for (uint32_t i = 0; i < pairs; ++i) {
            Vector one = GC_LOAD(chunk.in[2 * i] + 2 * x), two = GC_LOAD(second[i] + 2 * x);
            if (!in_signed) {
                one = one ^ bias16;
                two = two ^ bias16;
            }
            const Vector a = GC_V(unpacklo_epi16)(one, two), b = GC_V(unpackhi_epi16)(one, two);
            const Vector by_low = GC_V(set1_epi32)(low[i]), by_high = GC_V(set1_epi32)(high[i]);
            low_a = GC_V(add_epi32)(low_a, GC_V(madd_epi16)(a, by_low));
            low_b = GC_V(add_epi32)(low_b, GC_V(madd_epi16)(b, by_low));
            high_a = GC_V(add_epi32)(high_a, GC_V(madd_epi16)(a, by_high));
            high_b = GC_V(add_epi32)(high_b, GC_V(madd_epi16)(b, by_high));
        }
        const Vector a = reduced(low_a, high_a), b = reduced(low_b, high_b);
        GC_STORE(chunk.out + 2 * x, chunk.leaves_residue ? GC_V(packus_epi32)(a, b) : GC_V(packs_epi32)(centre<p>(a), centre<p>(b)));
    }
    return x;
}

#else

template <uint32_t p, bool in_signed>
uint64_t combine_vectors(const Chunk&, uint64_t) {
    return 0;
}

#endif

template <uint32_t p, bool in_signed>
uint32_t combine_in(const Combine& combine, uint64_t count) {
    using Word = typename Field<p>::Word;
    constexpr uint64_t tile = 4096 / sizeof(Word);   // words of each input that stay cached while all outputs use them
    for (uint64_t x = 0; x < count; x += tile) {
        const uint64_t words = count - x < tile ? count - x : tile;
        if (!in_signed)
            for (uint32_t i = 0; i < combine.ins; ++i) {
                const Word* in = reinterpret_cast<const Word*>(combine.in[i].host) + x;
                Word maximum = 0;
                for (uint64_t k = 0; k < words; ++k) maximum = in[k] > maximum ? in[k] : maximum;
                if (maximum >= p) return i;
            }
        for (uint32_t o = 0; o < combine.outs; ++o)
            for (uint32_t i = 0; i < combine.ins; i += Field<p>::chunk) {
                const uint32_t remaining = combine.ins - i;
                Chunk chunk;
                chunk.ins = remaining < Field<p>::chunk ? remaining : Field<p>::chunk;
                chunk.out = combine.out[o].host + x * sizeof(Word);
                chunk.fresh = i == 0;
                chunk.leaves_residue = chunk.ins < remaining || !combine.out_signed;
                uint64_t start = 0;
                for (uint32_t k = 0; k < chunk.ins; ++k) {
                    const uint32_t weight = combine.weights[uint64_t{o} * combine.ins + i + k];
                    chunk.in[k] = combine.in[i + k].host + x * sizeof(Word);
                    chunk.weights[k] = static_cast<int32_t>(weight <= p / 2 ? weight : weight - p);
                    if (!in_signed) start += Field<p>::bias * weight;   // the total stays below 2^64
                }
                chunk.start = static_cast<uint32_t>(start % p);
                const uint64_t done = combine_vectors<p, in_signed>(chunk, words);
                combine_plain<p, in_signed>(chunk, done, words);
            }
    }
    return combine.ins;
}

uint32_t combine_any(const Combine& combine, uint64_t count) {
    if (combine.prime == 65521)
        return combine.in_signed ? combine_in<65521, true>(combine, count) : combine_in<65521, false>(combine, count);
    return combine.in_signed ? combine_in<2147483647, true>(combine, count) : combine_in<2147483647, false>(combine, count);
}

}   // namespace

extern const WordKernels GC_NAME(GC_ISA);
const WordKernels GC_NAME(GC_ISA) = {add_i16,
                                     add_i32,
                                     add_i64,
                                     add_i32_to_i64,
                                     sub<int16_t, uint16_t>,
                                     sub<int32_t, uint32_t>,
                                     sub<int64_t, uint64_t>,
                                     quantise_i32,
                                     quantise_any<int64_t, uint64_t>,
                                     quantise_i16,
                                     combine_any,
                                     digest<int16_t>,
                                     digest<int32_t>,
                                     digest<int64_t>};

}   // namespace gradcast
