// Reads and writes of several adjacent elements at a time.  In .cu files only.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "runtime/core/status.h"

namespace gradcast::cuda {

/// Adjacent elements that one access reads or writes, or two if they are more than 16 bytes.
template <typename T, int width>
struct alignas(sizeof(T) * width < 16 ? sizeof(T) * width : 16) Pack {
    T v[width];
};
/// Returns whether `at` is aligned to a pack.
template <int width, typename T>
__device__ __forceinline__ bool packs_fit(const T* at) {
    return reinterpret_cast<uintptr_t>(at) % alignof(Pack<T, width>) == 0;
}
/// `at` must be aligned to a pack: activations are, parameters and their gradients need not be.
template <int width, typename T>
__device__ __forceinline__ Pack<T, width>* as_packs(T* at) {
#ifdef GC_CUDA_HOST
    GC_ASSERT(packs_fit<width>(at));   // a fault on a GPU
#endif
    return reinterpret_cast<Pack<T, width>*>(at);
}
template <int width, typename T>
__device__ __forceinline__ const Pack<T, width>* as_packs(const T* at) {
    return as_packs<width>(const_cast<T*>(at));
}

/// The elements begin .. end of a pack of four: all of them, except in the first and the last pack of a range.
struct Part {
    uint32_t begin, end;
    /// The part of the pack at element `at` that lies in the range begin .. end.
    __device__ static Part of(uint32_t at, uint32_t begin, uint32_t end) {
        return {begin < at ? 0 : begin - at, end < at ? 0 : end - at < 4 ? end - at : 4};
    }
    __device__ bool has(uint32_t i) const { return i >= begin && i < end; }
    __device__ bool whole() const { return begin == 0 && end == 4; }
};
/// The part's elements, 0 for the others, which are not read.  One access where the part is whole and `at` is aligned to a pack.
template <typename T>
__device__ __forceinline__ Pack<T, 4> read(const T* at, const Part& part) {
    if (part.whole() && packs_fit<4>(at)) return *as_packs<4>(at);
    Pack<T, 4> all{};
    for (uint32_t i = 0; i < 4; ++i)
        if (part.has(i)) all.v[i] = at[i];
    return all;
}
/// Writes the part's elements.
template <typename T>
__device__ __forceinline__ void write(T* at, const Part& part, const Pack<T, 4>& all) {
    if (part.whole() && packs_fit<4>(at)) {
        *as_packs<4>(at) = all;
        return;
    }
    for (uint32_t i = 0; i < 4; ++i)
        if (part.has(i)) at[i] = all.v[i];
}

}   // namespace gradcast::cuda
