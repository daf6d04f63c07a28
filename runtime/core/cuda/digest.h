// digest_factor() of runtime/core/digest.h for kernels: the same numbers.  In .cu files only.
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
__device__ inline uint64_t digest_factor(uint64_t i) { return (splitmix64(~(i % 256)) >> 33 | 1) * (splitmix64(i / 256) | 1); }

}   // namespace gradcast::cuda
