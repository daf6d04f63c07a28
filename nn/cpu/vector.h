// One register of floats, for *.isa.cc and *.amx.cc alone: each build has its own width.
#pragma once
#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace gradcast {
namespace GC_ISA {

#if defined(__AVX512F__)
constexpr uint32_t width = 16;
#elif defined(__AVX2__)
constexpr uint32_t width = 8;
#else
constexpr uint32_t width = 4;
#endif
typedef float V __attribute__((vector_size(width * sizeof(float))));
typedef int32_t I __attribute__((vector_size(width * sizeof(int32_t))));

inline __attribute__((always_inline)) I load(const int32_t* from) {
    I v;
    __builtin_memcpy(&v, from, sizeof v);
    return v;
}
inline __attribute__((always_inline)) void store(int32_t* to, const I& v) { __builtin_memcpy(to, &v, sizeof v); }
inline __attribute__((always_inline)) V load(const float* from) {
    V v;
    __builtin_memcpy(&v, from, sizeof v);
    return v;
}
inline __attribute__((always_inline)) void store(float* to, const V& v) { __builtin_memcpy(to, &v, sizeof v); }
inline __attribute__((always_inline)) V all(float value) { return value - V{}; }
inline __attribute__((always_inline)) void multiply_add(V& sum, const V& a, const V& b) {
#if defined(__AVX512F__)
    sum = static_cast<V>(_mm512_fmadd_ps(static_cast<__m512>(a), static_cast<__m512>(b), static_cast<__m512>(sum)));
#elif defined(__AVX2__)
    sum = static_cast<V>(_mm256_fmadd_ps(static_cast<__m256>(a), static_cast<__m256>(b), static_cast<__m256>(sum)));
#else
    sum += a * b;
#endif
}
/// A window's ReLU and maximum, and its place of four: the first of equals, NaN before all.
inline __attribute__((always_inline)) void pool(float* y, int32_t* winners, const V (&value)[4]) {
    V best = value[0];
    I winner{};
    for (int32_t place = 1; place < 4; ++place) {
        const I takes = (value[place] > best) | (value[place] != value[place]);   // NOLINT(misc-redundant-expression)
        best = takes ? value[place] : best;
        winner = takes ? I{} + place : winner;
    }
    store(y, best < 0 ? V{} : best);
    store(winners, winner);
}
constexpr uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

}   // namespace GC_ISA
}   // namespace gradcast
