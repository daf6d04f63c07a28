// The update of the parameters: sums to float, optimisers, digests.  Same bits as nn/kernels.isa.cc and runtime/core/digest.cc (nvcc
// -fmad=false).
#include <algorithm>

#include "nn/cuda/element.h"
#include "runtime/core/cuda/digest.h"

namespace gradcast::cuda {
namespace {

__device__ bool finite(float x) { return (__float_as_uint(x) & 0x7f800000) != 0x7f800000; }

struct SgdUpdate {
    float *w, *v;
    float momentum, weight_decay;
    bool nesterov;
    __device__ void operator()(uint64_t i, float g, const StepRates& now) const {
        const float d = g + weight_decay * w[i];
        if (!v) {
            w[i] -= now.lr * d;
            return;
        }
        v[i] = momentum * v[i] + d;
        w[i] -= now.lr * (nesterov ? d + momentum * v[i] : v[i]);
    }
};
struct AdamUpdate {
    float *w, *m, *v;
    __device__ void operator()(uint64_t i, float g, const StepRates& now) const {
        const AdamStep& s = now.adam;
        const float d = g + s.weight_decay * w[i];
        m[i] = s.beta1 * m[i] + s.rest1 * d;
        v[i] = s.beta2 * v[i] + s.rest2 * (d * d);
        w[i] -= s.rate * m[i] / (sqrtf(v[i]) * s.root + s.epsilon);
    }
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

// Integer sums: the order of threads does not matter.
__global__ void digest_kernel(DigestNow* now, const uint32_t* words, uint64_t count) {
    __shared__ uint64_t sums[threads];
    uint64_t sum = 0;
    for (uint64_t i = thread_number(); i < count; i += uint64_t{gridDim.x} * blockDim.x) {
        sum += digest_factor(now->first + i) * words[i];
    }
    sums[threadIdx.x] = sum;
    for (uint32_t half = threads / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0) atomicAdd(&now->sum, static_cast<unsigned long long>(sums[0]));
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

struct SgdRule {
    static __device__ SgdUpdate of(const UpdateGroup& group, const UpdateTask& task) {
        return {group.w, group.first, task.momentum, task.weight_decay, task.nesterov};
    }
};
struct AdamRule {
    static __device__ AdamUpdate of(const UpdateGroup& group, const UpdateTask&) { return {group.w, group.first, group.second}; }
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
        else Rule::of(group, task)(i, gradient, rates);
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

}   // namespace

Status apply_sgd(cudaStream_t stream, float* w, float* v, const Words& words, uint64_t count, float momentum, float weight_decay,
                 bool nesterov) {
    return apply(stream, SgdUpdate{w, v, momentum, weight_decay, nesterov}, words, count);
}
Status apply_adam(cudaStream_t stream, float* w, float* m, float* v, const Words& words, uint64_t count) {
    return apply(stream, AdamUpdate{w, m, v}, words, count);
}
Status apply_statistics(cudaStream_t stream, float* w, const Words& words, uint64_t count, float share) {
    return apply(stream, StatisticsUpdate{w, share}, words, count);
}

Status update_sgd(cudaStream_t stream, UpdateTask* task, uint32_t blocks) {
    return GC_LAUNCH(update_kernel<SgdRule>, blocks, threads, stream, task);
}
Status update_adam(cudaStream_t stream, UpdateTask* task, uint32_t blocks) {
    return GC_LAUNCH(update_kernel<AdamRule>, blocks, threads, stream, task);
}

Status digest(cudaStream_t stream, DigestNow* now, const void* words, uint64_t count) {
    constexpr uint32_t most = 1024;
    const uint32_t grid = std::min(most, blocks_of(count, threads));
    return GC_LAUNCH(digest_kernel, grid, threads, stream, now, static_cast<const uint32_t*>(words), count);
}

}   // namespace gradcast::cuda
