// The update of running statistics, and digests of state.
#include <algorithm>

#include "nn/cuda/apply.h"

namespace gradcast::cuda {
namespace {

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

Status apply_statistics(cudaStream_t stream, float* w, const Words& words, uint64_t count, float share) {
    return apply(stream, StatisticsUpdate{w, share}, words, count);
}

Status digest(cudaStream_t stream, DigestNow* now, const void* words, uint64_t count) {
    constexpr uint32_t most = 1024;
    const uint32_t grid = std::min(most, blocks_of(count, threads));
    return GC_LAUNCH(digest_kernel, grid, threads, stream, now, static_cast<const uint32_t*>(words), count);
}

}   // namespace gradcast::cuda
