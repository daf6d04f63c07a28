// q(x) of transport/code/kernels.h in doubles of which each operation rounds alone (no fused multiply-add: nvcc -fmad=false), sums of
// integers, and combinations in a prime field.  A thread block works on one group, so its maximum takes one atomic operation.
#include <cstdint>

#include "runtime/core/cuda/digest.h"
#include "runtime/core/cuda/pack.h"
#include "runtime/core/cuda/philox.h"
#include "transport/code/cuda/words.h"
#include "transport/code/field.h"

namespace gradcast::cuda {
namespace {

constexpr uint32_t threads = 256, per_block = 8 * threads;   // elements
constexpr uint32_t draw = 64;                                // elements that share 16 counters: kernels.isa.cc

struct Share {
    uint32_t maximum, clipped;
};

// Merges the results of the whole thread block into *found.
__device__ void add_share(Found* found, const Share& share, uint32_t block) {
    constexpr uint32_t warps = threads / 32;
    __shared__ Share shares[warps];
    const Share warp{__reduce_max_sync(~0u, share.maximum), __reduce_add_sync(~0u, share.clipped)};
    if (threadIdx.x % 32 == 0) shares[threadIdx.x / 32] = warp;
    __syncthreads();
    if (threadIdx.x > 0) return;
    Share all = warp;
    for (uint32_t w = 1; w < warps; ++w) {
        if (shares[w].maximum > all.maximum) all.maximum = shares[w].maximum;
        all.clipped += shares[w].clipped;
    }
    if (all.maximum > 0) atomicMax(&found->maximum, all.maximum);
    if (all.maximum >= 0x7F800000) atomicMax(&found->diverged, UINT32_MAX - block);
    if (all.clipped > 0) atomicAdd(&found->clipped, static_cast<unsigned long long>(all.clipped));
}

__device__ uint32_t magnitude(float x) { return __float_as_uint(x) & 0x7FFFFFFF; }

// Adding 3 * 2^51 to a |v| below 2^51 leaves rint(v), ties to even, in the low bits of the double.
constexpr double magic = 0x1.8p52;

__device__ int64_t round_to_even(float x, const QuantiseGroup& group, double factor, Share* share) {
    if (magnitude(x) > share->maximum) share->maximum = magnitude(x);
    const double limit = group.limit;
    double v = x;
    if (group.divisor != 1) v /= group.divisor;
    v *= factor;
    v = v < limit + 1 ? v : limit + 1;   // NaN becomes limit + 1
    v = v > -limit - 1 ? v : -limit - 1;
    int64_t q = __double_as_longlong(v + magic) - __double_as_longlong(magic);
    if (q > group.limit) {
        q = group.limit;
        ++share->clipped;
    }
    if (q < -int64_t{group.limit}) {
        q = -int64_t{group.limit};
        ++share->clipped;
    }
    return q;
}

template <typename Signed, typename Unsigned>
__device__ void put(Signed* to, int64_t q, bool accumulate) {
    const Unsigned before = accumulate ? static_cast<Unsigned>(*to) : 0;
    *to = static_cast<Signed>(static_cast<Unsigned>(before + static_cast<Unsigned>(q)));
}

__device__ QuantiseNow now_of(const QuantiseTask& task) {
    QuantiseNow now = task.now_at ? *task.now_at : task.now;
    if (task.step_at) now.step = *task.step_at;
    if (task.again) now.accumulate = true;
    return now;
}
__device__ double factor_of(const QuantiseTask& task, uint32_t g) {
    return task.factors ? task.factors[task.first + g] : task.group[g].factor;
}

__device__ uint32_t group_of(const QuantiseTask& task) {
    uint32_t g = 0;
    while (g + 1 < task.groups && blockIdx.x >= task.group[g + 1].begin) ++g;
    return g;
}

/// The number of elements between the 16-byte boundary at which the group's first thread block begins and the group's first element.
__host__ __device__ uint32_t lead_of(const QuantiseTask& task, const QuantiseGroup& group) {
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(task.gradient + group.from) / sizeof(float) % 4);
}

// A thread rounds packs of four elements, which are 4 * threads apart; all its loads are under way before the first value is needed.
template <typename Unsigned>
__device__ Share round_part(const QuantiseTask& task, const QuantiseNow& now, const QuantiseGroup& group, double factor) {
    constexpr uint32_t packs = per_block / (4 * threads);
    const uint32_t lead = lead_of(task, group);
    // Elements are counted from that boundary on.
    const uint64_t first = uint64_t{blockIdx.x - group.begin} * per_block, end = lead + group.count - first;
    Pack<float, 4> x[packs];
    Pack<Unsigned, 4> words[packs];
    Part part[packs];
    const float* from = task.gradient + group.from + first - lead;
    Unsigned* to = static_cast<Unsigned*>(now.words) + group.to + first - lead;
    for (uint32_t k = 0; k < packs; ++k) {
        const uint32_t at = 4 * (threadIdx.x + k * threads);
        part[k] = Part::of(at, first == 0 ? lead : 0, end < per_block ? static_cast<uint32_t>(end) : per_block);
        x[k] = read(from + at, part[k]);
        words[k] = now.accumulate ? read(to + at, part[k]) : Pack<Unsigned, 4>{};
    }
    Share share{0, 0};
    for (uint32_t k = 0; k < packs; ++k) {
        for (uint32_t i = 0; i < 4; ++i)
            if (part[k].has(i))
                words[k].v[i] =
                    static_cast<Unsigned>(words[k].v[i] + static_cast<Unsigned>(round_to_even(x[k].v[i], group, factor, &share)));
        write(to + 4 * (threadIdx.x + k * threads), part[k], words[k]);
    }
    return share;
}

__global__ void quantise_nearest(const __grid_constant__ QuantiseTask task) {
    const QuantiseNow now = now_of(task);
    if (!now.words) return;
    const uint32_t g = group_of(task);
    const double factor = factor_of(task, g);
    const QuantiseGroup& group = task.group[g];
    const Share share =
        now.word == Word::i32 ? round_part<uint32_t>(task, now, group, factor) : round_part<uint64_t>(task, now, group, factor);
    add_share(now.found + task.first + g, share, now.block);
}

// Writes words of 32 bits as digits of 16, to[digit][element], lowest first, as CpuCodec::quantise_digits does.
__global__ void quantise_digits(const __grid_constant__ QuantiseTask task) {
    const QuantiseNow now = now_of(task);
    if (!now.words) return;
    const uint32_t g = group_of(task);
    const double factor = factor_of(task, g);
    const QuantiseGroup& group = task.group[g];
    const uint64_t begin = uint64_t{blockIdx.x - group.begin} * per_block;
    const uint64_t end = group.count - begin < per_block ? group.count : begin + per_block;
    const float* from = task.gradient + group.from;
    int16_t* to = static_cast<int16_t*>(now.words) + group.to;
    const int32_t limit = task.radix / 2;
    Share share{0, 0};
    for (uint64_t i = begin + threadIdx.x; i < end; i += threads) {
        auto rest = static_cast<int32_t>(round_to_even(from[i], group, factor, &share));
        for (uint32_t d = 0; d < 3; ++d) {
            int32_t digit = rest % task.radix;
            if (digit > limit) digit -= task.radix;
            if (digit < -limit) digit += task.radix;
            rest = (rest - digit) / task.radix;
            put<int16_t, uint16_t>(to + d * group.count + i, digit, now.accumulate);
        }
    }
    add_share(now.found + task.first + g, share, now.block);
}

// One draw of four words serves elements that are 16 apart.
__global__ void quantise_random(const __grid_constant__ QuantiseTask task) {
    const QuantiseNow now = now_of(task);
    if (!now.words) return;
    const uint32_t g = group_of(task);
    const QuantiseGroup& group = task.group[g];
    const uint64_t first = group.element / draw * draw + uint64_t{blockIdx.x - group.begin} * per_block;   // canonical
    const float* from = task.gradient + group.from;
    int16_t* to = static_cast<int16_t*>(now.words) + group.to;
    const double factor = factor_of(task, g) * 0x1p32, limit = group.limit * 0x1p32;   // v is in units of 2^-32, in the low 48 bits
    Share share{0, 0};
    for (uint32_t i = threadIdx.x; i < per_block / 4; i += threads) {
        const uint64_t counter = first / draw * 16 + i, lowest = first + i / 16 * draw + i % 16;
        if (lowest >= group.element + group.count) continue;
        const Draw random = draw4(Purpose::rounding, task.seed, now.step | uint64_t{now.block} << 32, static_cast<uint32_t>(counter));
        for (uint32_t w = 0; w < 4; ++w) {
            const uint64_t element = lowest + 16 * w;
            if (element < group.element || element >= group.element + group.count) continue;
            const float x = from[element - group.element];
            if (magnitude(x) > share.maximum) share.maximum = magnitude(x);
            double v = x * factor;
            if (!(v <= limit && v >= -limit)) ++share.clipped;
            v = v < limit ? v : limit;   // NaN becomes the limit
            v = v > -limit ? v : -limit;
            const uint64_t bits = static_cast<uint64_t>(__double_as_longlong(v + magic)) + random.word[w];
            put<int16_t, uint16_t>(to + (element - group.element), static_cast<int16_t>(bits >> 32), now.accumulate);
        }
    }
    add_share(now.found + task.first + g, share, now.block);
}

template <typename Signed, typename Unsigned>
__device__ int64_t sum_at(const SumTask& task, uint64_t i) {
    Unsigned sum = 0;
    for (uint32_t s = 0; s < task.sources; ++s) sum = static_cast<Unsigned>(sum + static_cast<const Unsigned*>(task.from[s])[i]);
    static_cast<Unsigned*>(task.to)[i] = sum;
    return static_cast<Signed>(sum);
}

__global__ void sum_words(SumTask* at, uint64_t count, uint64_t first) {
    const SumTask& task = *at;
    const uint64_t i = uint64_t{blockIdx.x} * threads + threadIdx.x;
    unsigned long long part = 0;
    if (i < count) {
        const int64_t sum = task.word == Word::i16   ? sum_at<int16_t, uint16_t>(task, i)
                            : task.word == Word::i32 ? sum_at<int32_t, uint32_t>(task, i)
                                                     : sum_at<int64_t, uint64_t>(task, i);
        part = digest_factor(first + i) * static_cast<uint64_t>(sum);
    }
    if (!task.audit) return;
    const unsigned long long all = block_sum(part);
    if (threadIdx.x == 0) atomicAdd(&at->digest, all);
}

/// Adds a lane's results.  If a block is not finite, the maximum is that of the lane with the first such block.
__device__ void merge(Found* all, const Found& one) {
    if (one.diverged > all->diverged || (one.diverged == all->diverged && one.maximum > all->maximum)) all->maximum = one.maximum;
    if (one.diverged > all->diverged) all->diverged = one.diverged;
    all->clipped += one.clipped;
}

__global__ void gather_found(SumTask* at, uint32_t groups) {
    const uint32_t g = blockIdx.x * threads + threadIdx.x;
    if (g >= groups) return;
    Found all{0, 0, 0};
    for (uint32_t s = 0; s < at->sources; ++s) {
        if (!at->found[s]) continue;
        merge(&all, at->found[s][g]);
        at->found[s][g] = {0, 0, 0};
    }
    reinterpret_cast<Found*>(at + 1)[g] = all;
}

__device__ int exponent_of(double x) { return static_cast<int>(__double_as_longlong(x) >> 52 & 0x7ff) - 1023; }   // of a normal number
__device__ double power_of_two(int e) { return __longlong_as_double(static_cast<long long>(e + 1023) << 52); }

// One thread block.
__global__ void close_step(const __grid_constant__ CloseTask task) {
    __shared__ uint32_t diverged[threads];
    diverged[threadIdx.x] = 0;
    for (uint32_t g = threadIdx.x; g < task.groups; g += threads) {
        Found all{0, 0, 0};
        for (uint32_t lane = 0; lane < task.lanes; ++lane) {
            merge(&all, task.found[lane][g]);
            task.found[lane][g] = {0, 0, 0};
        }
        task.to[g] = all;
        if (all.diverged > 0) diverged[threadIdx.x] = 1;
        const StepScales& scales = task.scales;
        scales.units[g] = scales.next[g];
        if (all.maximum == 0 || all.diverged > 0) continue;   // the scale stays
        const double twice = 2.0 * __uint_as_float(all.maximum), limit = scales.limits[g];
        int e = exponent_of(twice) - exponent_of(limit);
        if (limit * power_of_two(e) < twice) ++e;   // the product is exact
        scales.factors[g] = power_of_two(-e);
        scales.next[g] = power_of_two(e) / scales.batch;
    }
    for (uint32_t half = threads / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) diverged[threadIdx.x] |= diverged[threadIdx.x + half];
    }
    if (threadIdx.x == 0 && diverged[0]) *task.scales.halted = 1;
}

template <uint32_t p, typename Signed, typename Unsigned>
__device__ void combine_at(const CombineTask& task, uint64_t i) {
    Unsigned* out = static_cast<Unsigned*>(task.out) + i;
    uint64_t sum = task.accumulate ? *out : 0;
    for (uint32_t s = 0; s < task.sources; ++s) {
        const int64_t word = static_cast<const Signed*>(task.in[s])[i];
        sum = (sum + static_cast<uint64_t>(word < 0 ? word + 2 * int64_t{p} : word) * task.weight[s]) % p;   // the product is below 2^63
    }
    *out = static_cast<Unsigned>(sum);
}

__global__ void combine_words(const CombineTask* task) {
    const uint64_t i = uint64_t{blockIdx.x} * threads + threadIdx.x;
    if (i >= task->count) return;
    if (task->prime == prime_16) combine_at<prime_16, int16_t, uint16_t>(*task, i);
    else combine_at<prime_32, int32_t, uint32_t>(*task, i);
}

}   // namespace

Status quantise(QuantiseTask& task, cudaStream_t stream) {
    GC_ASSERT(task.groups > 0 && task.groups <= quantise_groups_max);
    const bool nearest = task.now.word != Word::i16, random = !nearest && task.radix == 0;
    uint64_t grid = 0;
    for (uint32_t g = 0; g < task.groups; ++g) {
        QuantiseGroup& group = task.group[g];
        group.begin = static_cast<uint32_t>(grid);
        const uint64_t lead = nearest ? lead_of(task, group) : random ? group.element % draw : 0;
        grid += (lead + group.count + per_block - 1) / per_block;
    }
    GC_ASSERT(grid > 0 && grid <= INT32_MAX);
    const auto blocks = static_cast<uint32_t>(grid);
    if (random) return GC_LAUNCH(quantise_random, blocks, threads, stream, task);
    if (!nearest) return GC_LAUNCH(quantise_digits, blocks, threads, stream, task);
    return GC_LAUNCH(quantise_nearest, blocks, threads, stream, task);
}

Status sum(SumTask* task, uint64_t count, uint64_t first, cudaStream_t stream) {
    return GC_LAUNCH(sum_words, blocks_of(count, threads), threads, stream, task, count, first);
}

Status gather(SumTask* task, uint32_t groups, cudaStream_t stream) {
    return GC_LAUNCH(gather_found, blocks_of(groups, threads), threads, stream, task, groups);
}

Status close(const CloseTask& task, cudaStream_t stream) { return GC_LAUNCH(close_step, 1, threads, stream, task); }

Status combine(const CombineTask* task, uint64_t most, cudaStream_t stream) {
    return GC_LAUNCH(combine_words, blocks_of(most, threads), threads, stream, task);
}

}   // namespace gradcast::cuda
