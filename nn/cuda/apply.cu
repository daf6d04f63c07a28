// The update of the parameters: sums to float, optimisers, digests.  Same bits as nn/kernels.isa.cc and runtime/core/digest.cc (nvcc
// -fmad=false).
#include <algorithm>

#include "nn/cuda/element.h"
#include "runtime/core/cuda/digest.h"

namespace gradcast::cuda {
namespace {

struct SgdUpdate {
    float *w, *v;
    float momentum, weight_decay;
    bool nesterov;
    __device__ void operator()(uint64_t i, float g, const ApplyNow& now) const {
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
    __device__ void operator()(uint64_t i, float g, const ApplyNow& now) const {
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
    __device__ void operator()(uint64_t i, float g, const ApplyNow&) const { w[i] += share * (g - w[i]); }
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
    update(i, static_cast<float>(word * *words.unit), now);
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

Status digest(cudaStream_t stream, DigestNow* now, const void* words, uint64_t count) {
    constexpr uint32_t most = 1024;
    const uint32_t grid = std::min(most, blocks_of(count, threads));
    return GC_LAUNCH(digest_kernel, grid, threads, stream, now, static_cast<const uint32_t*>(words), count);
}

}   // namespace gradcast::cuda
