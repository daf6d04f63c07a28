// The update of the parameters by an optimiser, for its .cu file alone: sums to float, the rule, digests.  Same bits as nn/kernels.isa.cc
// and runtime/core/digest.cc (nvcc -fmad=false).
//
// A Rule has
//     static __device__ void element(float* w, float* first, float* second, uint64_t i, float g, const StepRates& now);
// which updates element i of w and of its vectors of state; these are null where there are no more.
#pragma once
#include "nn/cuda/element.h"
#include "runtime/core/cuda/digest.h"

namespace gradcast::cuda {
namespace {

__device__ bool finite(float x) { return (__float_as_uint(x) & 0x7f800000) != 0x7f800000; }

template <typename Rule>
struct Update {
    float *w, *first, *second;
    __device__ void operator()(uint64_t i, float g, const StepRates& now) const { Rule::element(w, first, second, i, g, now); }
};
struct StatisticsUpdate {
    float* w;
    float share;
    __device__ void operator()(uint64_t i, float g, const StepRates&) const { w[i] += share * (g - w[i]); }
};

template <typename Update>
__global__ void apply_kernel(Update update, Words words, uint64_t count) {
    const uint64_t i = thread_number();
    if (i >= count) return;
    const ApplyNow& now = *words.now;
    const uint64_t at = words.first + i;
    const double word = now.word == Word::i16   ? static_cast<double>(static_cast<const int16_t*>(now.words)[at])
                        : now.word == Word::i32 ? static_cast<double>(static_cast<const int32_t*>(now.words)[at])
                                                : static_cast<double>(static_cast<const int64_t*>(now.words)[at]);
    update(i, static_cast<float>(word * *words.unit), now.rates);
    if (!finite(update.w[i])) *now.spoiled = 1;
}

template <typename Update>
Status apply(cudaStream_t stream, const Update& update, const Words& words, uint64_t count) {
    return GC_LAUNCH(apply_kernel<Update>, blocks_of(count, threads), threads, stream, update, words, count);
}

// ---- whole steps: every group in one kernel, which also digests what it has written ------------------------------------------------

/// The words of a step: those of each lane, in shared memory.
struct LaneWords {
    const void* const* from;
    uint32_t lanes;
    Word word;
    template <typename Signed, typename Unsigned>
    __device__ int64_t sum(uint64_t at) const {
        Unsigned all = 0;
        for (uint32_t lane = 0; lane < lanes; ++lane) all = static_cast<Unsigned>(all + static_cast<const Unsigned*>(from[lane])[at]);
        return static_cast<Signed>(all);
    }
    __device__ int64_t at(uint64_t i) const { return word == Word::i16 ? sum<int16_t, uint16_t>(i) : sum<int32_t, uint32_t>(i); }
    /// Element i of a group; digits as Codec::whole() reads them.
    __device__ int64_t of(const UpdateGroup& group, uint64_t i) const {
        if (group.radix == 0) return at(group.words + i);
        int64_t value = 0;
        for (uint64_t digit = 3; digit-- > 0;) value = value * group.radix + at(group.words + digit * group.count + i);
        return value;
    }
};

__device__ uint64_t digest_of(const float* values, uint64_t i, uint64_t at) {
    return values ? digest_factor(at) * __float_as_uint(values[i]) : 0;
}

template <typename Rule>
__global__ void update_kernel(UpdateTask* at) {
    const UpdateTask& task = *at;
    const uint32_t g = task.group_of_block[blockIdx.x];
    const UpdateGroup group = task.groups[g];
    const StepRates rates = *task.rates;
    const double unit = task.words.units[g];
    const bool halted = *task.words.halted != 0;
    __shared__ const void* from[CudaDevice::StepWords::lanes_max];
    const LaneWords words{from, task.words.lanes, task.words.word};
    if (threadIdx.x < words.lanes) from[threadIdx.x] = task.words.from[threadIdx.x];
    __syncthreads();
    const uint64_t begin = uint64_t{blockIdx.x - group.begin} * update_per_block;
    const uint64_t end = group.count - begin < update_per_block ? group.count : begin + update_per_block;
    uint64_t sum = 0;
    for (uint64_t i = begin + threadIdx.x; i < end; i += threads) {
        const auto gradient = static_cast<float>(static_cast<double>(words.of(group, i)) * unit);
        if (halted) {
        } else if (group.statistics) StatisticsUpdate{group.w, task.share}(i, gradient, rates);
        else Rule::element(group.w, group.first, group.second, i, gradient, rates);
        if (!finite(group.w[i])) *task.spoiled = 1;
        const uint64_t element = group.element + i;
        sum += digest_of(group.w, i, element) + digest_of(group.first, i, task.elements + element) +
               digest_of(group.second, i, 2 * task.elements + element);
    }
    __shared__ uint64_t sums[threads];
    sums[threadIdx.x] = sum;
    for (uint32_t half = threads / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x > 0) return;
    atomicAdd(&at->sum, static_cast<unsigned long long>(sums[0]));
    __threadfence();   // the thread block that takes the last ticket sees the sums of all
    if (atomicAdd(&at->ticket, 1u) + 1 < gridDim.x) return;
    *task.digest = atomicAdd(&at->sum, 0ull);
    at->sum = 0;
    at->ticket = 0;
}

template <typename Rule>
UpdateKernels update_kernels() {
    return {.apply =
                [](cudaStream_t stream, float* w, float* first, float* second, const Words& words, uint64_t count) {
                    return apply(stream, Update<Rule>{w, first, second}, words, count);
                },
            .all = [](cudaStream_t stream, UpdateTask* task,
                      uint32_t blocks) { return GC_LAUNCH(update_kernel<Rule>, blocks, threads, stream, task); }};
}

}   // namespace
}   // namespace gradcast::cuda
