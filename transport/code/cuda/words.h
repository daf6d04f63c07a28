// Arithmetic on words on the GPU: the kernels of transport/code/kernels.h, bit-identical.  Each call enqueues work on a stream and returns;
// none allocates or waits, so all can be captured.  Pointers are device pointers.
#pragma once
#include "runtime/core/cuda.h"
#include "transport/code/kernels.h"

namespace gradcast::cuda {

/// Results of quantising a group, over all blocks since it was zeroed.
struct Found {
    uint32_t maximum;    // bits of the largest |x|, NaN and Inf included
    uint32_t diverged;   // UINT32_MAX - the first block that holds NaN or Inf; 0: none does
    unsigned long long clipped;
};

/// A group of a bucket, and its scale.  `from` counts floats from the first one of the bucket, `to` counts words from its first word.
struct QuantiseGroup {
    uint64_t from, to, count;   // count: elements
    uint64_t element;           // canonical index of the first one
    double divisor, factor;     // as in Scale
    int32_t limit;
    uint32_t begin;   // number of its first thread block, set by quantise()
};
/// Arguments that change with each block.
struct QuantiseNow {
    void* words = nullptr;    // null: do nothing
    Found* found = nullptr;   // [groups of the bucket]
    uint32_t step = 0, block = 0;
    Word word{};   // i16: stochastic rounding, except for digits
    bool accumulate = false;
};
constexpr uint32_t quantise_groups_max = 48;   // of one launch: kernels take at most 4 KiB of arguments
struct QuantiseTask {
    const float* gradient;
    QuantiseNow now;
    // Device memory from which a captured graph takes values that change; null: the value is in the task.
    const QuantiseNow* now_at;   // replaces `now`; the kernel is still chosen by `now`, whose word must be i16 where that of *now_at is
    const uint32_t* step_at;     // replaces the step of `now` or *now_at
    const double* factors;       // replaces QuantiseGroup::factor
    uint64_t seed;
    int32_t radix;            // of the digits of statistics in auto16; 0: one word per element
    bool again;               // accumulates, whatever `now` says
    uint32_t first, groups;   // `group` has groups first .. first + groups - 1 of those in `found` and `factors`
    QuantiseGroup group[quantise_groups_max];
};
static_assert(sizeof(QuantiseTask) <= 4096);
/// words = q(gradient), or with now.accumulate words += q(gradient).  Merges the results into now.found.
Status quantise(QuantiseTask& task, cudaStream_t stream);

constexpr uint32_t sources_max = 64;
/// In device memory, followed by Found [groups].
struct SumTask {
    void* to;
    const void* from[sources_max];
    Found* found[sources_max];   // [groups]: results of each source, zeroed when gathered; null: the sources are sums
    uint32_t sources;
    Word word;
    bool audit;                  // add to the digest
    unsigned long long digest;   // initially 0
};
/// to [count] = the wrapping sum of all sources; 0 without sources.  `first`: the index of to[0] in the digest.
Status sum(SumTask* task, uint64_t count, uint64_t first, cudaStream_t stream);
/// Merges the sources' Found into the groups behind the task.
Status gather(SumTask* task, uint32_t groups, cudaStream_t stream);

/// The scales of a whole step's groups, in device memory.
struct StepScales {
    double* factors;         // [groups]: of the step that comes (Scale::factor)
    double* units;           // [groups]: of the step that has ended
    double* next;            // [groups]: units of the step that comes
    uint32_t* halted;        // 1: a gradient held NaN or Inf
    const int32_t* limits;   // [groups]: the largest |word| of a block
    double batch;
};
struct CloseTask {
    StepScales scales;
    Found* found[sources_max];   // [groups] of each lane; zeroed
    uint32_t lanes, groups;
    Found* to;   // [groups], page-locked
};
/// Ends a whole step: merges the lanes' Found into `to`, gives the update its units, and rescales as CpuCodec::rescale does.
Status close(const CloseTask& task, cudaStream_t stream);

/// In device memory.
struct CombineTask {
    void* out;                      // residues
    const void* in[sources_max];    // signed words
    uint32_t weight[sources_max];   // residues
    uint32_t sources;
    uint32_t prime;    // prime_32 (int32 to uint32) or prime_16 (int16 to uint16)
    bool accumulate;   // add to `out`
    uint64_t count;
};
/// out = sum of weight[i] in[i] modulo the prime; count is at most `most`.
Status combine(const CombineTask* task, uint64_t most, cudaStream_t stream);

}   // namespace gradcast::cuda
