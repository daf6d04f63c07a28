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
/// What changes from block to block.
struct QuantiseNow {
    void* words = nullptr;    // null: nothing is to be done
    Found* found = nullptr;   // [groups of the bucket]
    uint32_t step = 0, block = 0;
    Word word{};   // i16 rounds at random, but for digits
    bool accumulate = false;
};
constexpr uint32_t quantise_groups_max = 48;   // of one launch: kernels take at most 4 KiB of arguments
struct QuantiseTask {
    const float* gradient;
    QuantiseNow now;
    // Not null, in graphs: on the device, in place of `now` and of the groups' factors; but `now` says there, too, whether words are i16.
    const QuantiseNow* now_at;
    const double* factors;   // [groups of the bucket]
    uint64_t seed;
    int32_t radix;            // of the digits that statistics have in auto16; 0: everything is one word
    uint32_t first, groups;   // of the bucket's
    QuantiseGroup group[quantise_groups_max];
};
/// words = q(gradient), or words += q(gradient); found is added to.
Status quantise(QuantiseTask& task, cudaStream_t stream);

constexpr uint32_t sources_max = 64;
/// Lies on the device, and behind it Found [groups].
struct SumTask {
    void* to;
    const void* from[sources_max];
    Found* found[sources_max];   // [groups]: what those found, which is 0 afterwards; null: of sums
    uint32_t sources;
    Word word;
    bool audit;                  // add to the digest
    unsigned long long digest;   // 0 at first
};
/// to [count] = the sum of all sources, wrapping; none: 0.  `first` is the index of to[0] in the digest.
Status sum(SumTask* task, uint64_t count, uint64_t first, cudaStream_t stream);
/// The groups behind it = what all of them found.
Status gather(SumTask* task, uint32_t groups, cudaStream_t stream);

/// Lies on the device.
struct CombineTask {
    void* out;                      // residues
    const void* in[sources_max];    // signed words
    uint32_t weight[sources_max];   // residues
    uint32_t sources;
    uint32_t prime;    // prime_32 (int32 to uint32) or prime_16 (int16 to uint16)
    bool accumulate;   // out +=
    uint64_t count;
};
/// out = sum of weight[i] in[i] modulo the prime; count is at most `most`.
Status combine(const CombineTask* task, uint64_t most, cudaStream_t stream);

}   // namespace gradcast::cuda
