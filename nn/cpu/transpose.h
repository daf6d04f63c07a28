// Transposes of squares of floats, and sums over lanes, for *.isa.cc and *.amx.cc alone.
#pragma once
#include <utility>

#include "nn/cpu/vector.h"

#define GC_UNROLL _Pragma("GCC unroll 16")

namespace gradcast {
namespace GC_ISA {

typedef float Four __attribute__((vector_size(16)));

/// Loads groups of four floats into one vector.  A group begins `apart` floats after the one before.
inline __attribute__((always_inline)) V fours(const float* from, uint64_t apart) {
    auto four = [=](uint32_t i) {
        Four v;
        __builtin_memcpy(&v, from + i * apart, sizeof v);
        return v;
    };
#if defined(__AVX512F__)
    __m512 v = _mm512_castps128_ps512(four(0));
    v = _mm512_insertf32x4(v, four(1), 1);
    v = _mm512_insertf32x4(v, four(2), 2);
    return static_cast<V>(_mm512_insertf32x4(v, four(3), 3));
#elif defined(__AVX2__)
    return static_cast<V>(_mm256_insertf128_ps(_mm256_castps128_ps256(four(0)), four(1), 1));
#else
    return four(0);
#endif
}

/// Interleaves two lanes of each four of a with those of b, one by one or as pairs.  place 0: the first two lanes, 1: the last two.
template <int place, bool pairs, int... lane>
inline __attribute__((always_inline)) V woven(const V& a, const V& b, std::integer_sequence<int, lane...>) {
    return __builtin_shufflevector(
        a, b, (lane / 4 * 4 + 2 * place + (pairs ? lane % 2 : lane % 4 / 2) + ((pairs ? lane % 4 / 2 : lane % 2) ? int{width} : 0))...);
}
template <int place, bool pairs>
inline __attribute__((always_inline)) V woven(const V& a, const V& b) {
    return woven<place, pairs>(a, b, std::make_integer_sequence<int, width>());
}

/// to[j][i] = from[i][j], j < 4, i < width.
inline __attribute__((always_inline)) void transpose_four(float* to, uint64_t to_row, const float* from, uint64_t from_row) {
    V v[4];   // v[i]: rows i, i + 4, ... of the square, four lanes each
    GC_UNROLL for (uint32_t i = 0; i < 4; ++i) v[i] = fours(from + i * from_row, 4 * from_row);
    const V a = woven<0, false>(v[0], v[1]), b = woven<1, false>(v[0], v[1]), c = woven<0, false>(v[2], v[3]),
            d = woven<1, false>(v[2], v[3]);
    store(to, woven<0, true>(a, c)), store(to + to_row, woven<1, true>(a, c));
    store(to + 2 * to_row, woven<0, true>(b, d)), store(to + 3 * to_row, woven<1, true>(b, d));
}
/// to[j][i] = from[i][j], both below width.
inline void transpose(float* to, uint64_t to_row, const float* from, uint64_t from_row) {
    GC_UNROLL for (uint32_t j = 0; j < width; j += 4) transpose_four(to + j * to_row, to_row, from + j, from_row);
}

/// Adds the two runs of `half` lanes in each pair of runs: the sums of a's pairs are the first run of each pair of the result, those of
/// b's pairs the second.
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

}   // namespace GC_ISA
}   // namespace gradcast
