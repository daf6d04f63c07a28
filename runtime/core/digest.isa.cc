#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"   // g++ 12 warns about its own _mm512_undefined_epi32
#endif
#include <immintrin.h>

#include "runtime/core/digest.h"

namespace gradcast {
namespace GC_ISA {
namespace {

#if defined(__AVX512F__)
using V = __m512i;
V load(const uint32_t* from) { return _mm512_loadu_si512(from); }
V multiply(V a, V b) { return _mm512_mul_epu32(a, b); }           // of the lower halves of 64 bits
V upper(V v) { return _mm512_shuffle_epi32(v, _MM_PERM_DDBB); }   // on another execution port than the products
#elif defined(__AVX2__)
using V = __m256i;
V load(const uint32_t* from) { return _mm256_loadu_si256(reinterpret_cast<const V*>(from)); }
V multiply(V a, V b) { return _mm256_mul_epu32(a, b); }
V upper(V v) { return _mm256_srli_epi64(v, 32); }
#else
using V = __m128i;
V load(const uint32_t* from) { return _mm_loadu_si128(reinterpret_cast<const V*>(from)); }
V multiply(V a, V b) { return _mm_mul_epu32(a, b); }
V upper(V v) { return _mm_srli_epi64(v, 32); }
#endif

/// Sum of words times digest_smalls over a whole row, by intrinsics: shorter than the compiler's code.
uint64_t row_sum(const uint32_t* words) {
    typedef unsigned long long Lanes __attribute__((vector_size(sizeof(V))));
    Lanes sums[4] = {};
    for (uint64_t i = 0; i < digest_row; i += 4 * sizeof(V) / sizeof(uint32_t)) {
#pragma GCC unroll 4
        for (uint64_t part = 0; part < 4; ++part) {
            const uint64_t at = i + part * sizeof(V) / sizeof(uint32_t);
            const V word = load(words + at), small = load(digest_smalls.data() + at);
            sums[part] += reinterpret_cast<Lanes>(multiply(word, small)) + reinterpret_cast<Lanes>(multiply(upper(word), upper(small)));
        }
    }
    sums[0] += sums[1] + sums[2] + sums[3];
    uint64_t sum = 0;
    for (uint64_t lane = 0; lane < sizeof(V) / sizeof(uint64_t); ++lane) sum += sums[0][lane];
    return sum;
}

}   // namespace

extern const Digest64 digest64;
const Digest64 digest64 = [](const uint32_t* words, uint64_t count, uint64_t first) {
    const uint64_t place = first % digest_row;
    const uint64_t front = place ? (digest_row - place < count ? digest_row - place : count) : 0;
    uint64_t sum = digest_sum(words, front, first), i = front;
    for (; i + digest_row <= count; i += digest_row) sum += row_sum(words + i) * digest_large((first + i) / digest_row);
    return sum + digest_sum(words + i, count - i, first + i);
};

}   // namespace GC_ISA
}   // namespace gradcast
