// The factors of runtime/core/digest.h for kernels: the same numbers.  In .cu files only.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace gradcast::cuda {

__device__ inline uint64_t splitmix64(uint64_t x) {
    x += 0x9E3779B97F4A7C15;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
}
constexpr uint32_t digest_row = 256;
__device__ inline uint32_t digest_small(uint64_t place) { return static_cast<uint32_t>(splitmix64(~place) >> 33) | 1; }
__device__ inline uint64_t digest_large(uint64_t row) { return splitmix64(row) | 1; }
__device__ inline uint64_t digest_factor(uint64_t i) { return digest_small(i % digest_row) * digest_large(i / digest_row); }

/// Returns to thread 0 the sum over the thread block, modulo 2^64.  All threads call it, once in a kernel; they are whole warps.
__device__ inline unsigned long long block_sum(unsigned long long value) {
    __shared__ unsigned long long sums[32];
    for (uint32_t half = 16; half > 0; half /= 2) value += __shfl_down_sync(~0u, value, half);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
    __syncthreads();
    if (threadIdx.x == 0)
        for (uint32_t warp = 1; warp < blockDim.x / 32; ++warp) value += sums[warp];
    return value;
}

}   // namespace gradcast::cuda
