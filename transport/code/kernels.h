// The integer arithmetic of exchanges and codecs, in three builds of one file (portable, AVX2, AVX-512) with equal results.  IFMA is not
// used: it adds 52 bits of a product, and products of 32-bit residues have 64.
#pragma once
#include <cstdint>

#include "runtime/core/isa.h"
#include "runtime/core/protocol.h"

namespace gradcast {

/// q(x) = clamp(rint((double)x / divisor * factor), -limit, limit), ties to even; NaN gives limit (and shows in the maximum).
struct Scale {
    double divisor, factor;     // divisor 1: no division
    int32_t limit;              // >= 1
    bool past_caches = false;   // store past the caches
};
struct QuantiseResult {
    float maximum;      // max |x| before clipping; NaN or Inf when the input holds one
    uint64_t clipped;   // elements outside the limits
};
/// The random numbers with which quantise_i16 rounds: element i draws from (seed, step, block, first + i).
struct Rounding {
    uint64_t seed;
    uint32_t step, block;
    uint64_t first;   // canonical index of x[0]; all below 2^34
};
struct WordKernels {
    void (*add_i16)(int16_t* dst, const int16_t* src, uint64_t count);   // wrapping
    void (*add_i32)(int32_t* dst, const int32_t* src, uint64_t count);   // wrapping
    void (*add_i64)(int64_t* dst, const int64_t* src, uint64_t count);   // wrapping
    void (*add_i32_to_i64)(int64_t* dst, const int32_t* src, uint64_t count);
    void (*sub_i16)(int16_t* dst, const int16_t* src, uint64_t count);   // wrapping
    void (*sub_i32)(int32_t* dst, const int32_t* src, uint64_t count);   // wrapping
    void (*sub_i64)(int64_t* dst, const int64_t* src, uint64_t count);   // wrapping
    /// dst = q(x), or dst += q(x) (wrapping) where `accumulate`.
    QuantiseResult (*quantise_i32)(int32_t* dst, const float* x, uint64_t count, const Scale& scale, bool accumulate);
    QuantiseResult (*quantise_i64)(int64_t* dst, const float* x, uint64_t count, const Scale& scale, bool accumulate);
    /// Stochastic: q(x) = floor(v + u), v = x * factor clamped to +-limit and rounded to 2^-32, u uniform in [0, 1): the 32 bits in units
    /// of 2^-32 of random4(Purpose::rounding, seed, step | block << 32, e / 64 * 16 + e % 16)[e % 64 / 16], e the element's canonical
    /// index. factor is a power of two; limit at most 32760.
    QuantiseResult (*quantise_i16)(int16_t* dst, const float* x, uint64_t count, const Scale& scale, const Rounding& rounding,
                                   bool accumulate);
    /// Modulo prime_32 or prime_16 (transport/code/field.h).  Returns ins; if inputs are residues and a word is not below the prime, the
    /// index of the first such input.
    uint32_t (*combine)(const Combine& combine, uint64_t count);
    /// sum over i of digest_factor(first + i) * words[i] (runtime/core/digest.h), modulo 2^64, words sign-extended: the digest of a sum of
    /// vectors is the sum of their digests, as long as no word has wrapped.
    uint64_t (*digest_i16)(const int16_t* words, uint64_t count, uint64_t first);
    uint64_t (*digest_i32)(const int32_t* words, uint64_t count, uint64_t first);
    uint64_t (*digest_i64)(const int64_t* words, uint64_t count, uint64_t first);
};
const WordKernels& word_kernels(Isa isa);

/// The memory that a Compute reads and writes, part by part, cut to its count.  Asserts that the buffers are large enough.
uint32_t compute_reads(const Compute& compute);
Buffer compute_read(const Compute& compute, uint32_t part);
uint32_t compute_writes(const Compute& compute);
Buffer compute_written(const Compute& compute, uint32_t part);

/// Runs one Compute action on the calling thread.
void compute_now(const Compute& compute);

}   // namespace gradcast
