// Sums over rows: some threads of a thread block share a row.  In .cu files only.
#pragma once
#include "nn/cuda/element.h"

namespace gradcast::cuda {

constexpr uint32_t row_threads = 128;   // of a thread block

/// How many threads share a row of `count` elements: a power of two, so that each has about four elements.
inline uint32_t row_lanes(uint64_t count) {
    uint32_t lanes = 1;
    while (lanes < row_threads && uint64_t{lanes} * 4 < count) lanes *= 2;
    return lanes;
}

/// Combines the values of the threads that share a row, by halves, and returns the result to all of them.  All threads of the block call
/// it.  scratch: [row_threads] in shared memory.
template <typename T, typename Combine>
__device__ __forceinline__ T row_combine(T value, uint32_t lanes, T* scratch, Combine combine) {
    const uint32_t lane = threadIdx.x % lanes;
    __syncthreads();   // the result of the call before may still be read
    scratch[threadIdx.x] = value;
    for (uint32_t half = lanes / 2; half > 0; half /= 2) {
        __syncthreads();
        if (lane < half) scratch[threadIdx.x] = combine(scratch[threadIdx.x], scratch[threadIdx.x + half]);
    }
    __syncthreads();
    return scratch[threadIdx.x - lane];
}
template <typename T>
__device__ __forceinline__ T row_sum(T value, uint32_t lanes, T* scratch) {
    return row_combine(value, lanes, scratch, [](T a, T b) { return a + b; });
}

}   // namespace gradcast::cuda
