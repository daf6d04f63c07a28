// Arithmetic on words where the gradient is: the kernels of transport/code/kernels.h for a GPU, with the same bits.  Each call puts work
// into a stream and returns; none allocates or waits, so all may be captured.  Pointers are of that GPU.
#pragma once
#include "runtime/core/cuda.h"
#include "transport/code/kernels.h"

namespace gradcast::cuda {

/// What quantising finds out about a group, over all blocks since it was zero.
struct Found {
    uint32_t maximum;    // bits of the largest |x|; of NaN and Inf, too
    uint32_t diverged;   // UINT32_MAX - the first block that holds NaN or Inf; 0: none does
    unsigned long long clipped;
};

/// A group of a bucket, and what one word of it is.
struct QuantiseGroup {
    uint64_t from, to, count;   // floats from the bucket's first; words from its first word; elements
    uint64_t element;           // canonical index of the first
    double divisor, factor;     // as in Scale
    int32_t limit;
    uint32_t begin;   // the first of its thread blocks; set by quantise()
};
constexpr uint32_t quantise_groups_max = 48;   // of one launch: kernels take at most 4 KiB of arguments
struct QuantiseTask {
    const float* gradient;
    void* words;
    Found* found;   // [groups]
    uint64_t seed;
    uint32_t step, block;
    int32_t radix;   // of the digits that statistics have in auto16; 0: everything is one word
    uint32_t accumulate, groups;
    QuantiseGroup group[quantise_groups_max];
};
/// words = q(gradient), or words += q(gradient); *found is added to.  Word::i16 rounds at random, but for digits.
Status quantise(Word word, QuantiseTask& task, cudaStream_t stream);

constexpr uint32_t sources_max = 64;
struct SumTask {
    void* to;
    const void* from[sources_max];   // one of them may be `to`
    uint32_t sources;
    uint64_t count;
    uint64_t first;               // index of to[0] in the digest
    unsigned long long* digest;   // added to; null: not wanted
};
/// to = the sum of all sources, wrapping; none: 0.
Status sum(Word word, const SumTask& task, cudaStream_t stream);

struct CombineTask {
    void* out;                      // residues
    const void* in[sources_max];    // signed words
    uint32_t weight[sources_max];   // residues
    uint32_t sources, accumulate;   // out +=
    uint64_t count;
};
/// out = sum of weight[i] in[i] modulo prime_32 (int32 to uint32) or prime_16 (int16 to uint16).
Status combine(uint32_t prime, const CombineTask& task, cudaStream_t stream);

}   // namespace gradcast::cuda
