// Shared by kernel files: reads and writes of float and bf16, several at a time.  In .cu files only.
#pragma once
#include <algorithm>
#include <cstdint>

#include "nn/cuda/kernels.h"
#include "runtime/core/cuda/pack.h"

namespace gradcast::cuda {

struct Bf16 {
    uint16_t bits;
};
__device__ __forceinline__ float load(float x) { return x; }
__device__ __forceinline__ float load(Bf16 x) { return __uint_as_float(uint32_t{x.bits} << 16); }
__device__ __forceinline__ void store(float* to, float x) { *to = x; }
/// Rounds to nearest, ties to even; NaN stays NaN.
__device__ __forceinline__ void store(Bf16* to, float x) {
    const uint32_t bits = __float_as_uint(x);
    to->bits = static_cast<uint16_t>(x != x ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/// `width` floats of parameters, which are aligned to a pack or to a float alone.
template <int width>
__device__ __forceinline__ Pack<float, width> floats(const float* at) {
    if (packs_fit<width>(at)) return *as_packs<width>(at);
    Pack<float, width> all;
    for (int j = 0; j < width; ++j) all.v[j] = at[j];
    return all;
}

__device__ __forceinline__ float rectified(float x) { return x < 0 ? 0.0f : x; }
__device__ __forceinline__ uint64_t thread_number() { return uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
/// The same in launches of pieces().
__device__ __forceinline__ uint32_t piece_thread() { return blockIdx.x * blockDim.x + threadIdx.x; }

constexpr uint32_t threads = 256;   // of a block, by default

constexpr uint32_t tile = 32, tile_rows = 8;
/// By a block of (tile, tile_rows) threads: writes to[c, b] = from[b, c] of the tile that begins at b0, c0, of B x C values.  It goes
/// through a shared tile, so reads and writes are along rows.
template <typename To, typename From>
__device__ __forceinline__ void transpose_tile(To* to, const From* from, uint32_t B, uint32_t C, uint32_t b0, uint32_t c0) {
    __shared__ float values[tile][tile + 1];
    const uint32_t b = b0 + threadIdx.x, c = c0 + threadIdx.x;
    for (uint32_t j = threadIdx.y; j < tile; j += tile_rows)
        if (c < C && b0 + j < B) values[j][threadIdx.x] = load(from[uint64_t{b0 + j} * C + c]);
    __syncthreads();
    for (uint32_t j = threadIdx.y; j < tile; j += tile_rows)
        if (b < B && c0 + j < C) store(to + uint64_t{c0 + j} * B + b, values[threadIdx.x][j]);
}

/// Calls launch(first, rows) for pieces of `rows` rows of `each` threads.  A piece has less than 2^32 threads: kernels that divide their
/// number do so with 32 bits, several times as fast as with 64.
#ifdef GC_CUDA_HOST
#define GC_PIECE_MAX cuda_host_piece_max   // so that tests meet several pieces
#else
#define GC_PIECE_MAX (uint64_t{1} << 31)
#endif
template <typename Launch>
Status pieces(uint64_t rows, uint64_t each, Launch launch) {
    const uint64_t most = std::max<uint64_t>(GC_PIECE_MAX / each, 1);
    for (uint64_t first = 0; first < rows; first += most) GC_TRY(launch(first, static_cast<uint32_t>(std::min(most, rows - first))));
    return {};
}

template <typename T>
T* as(const Values& values) {
    return static_cast<T*>(values.at);
}
/// Calls launch(T{}), T float or Bf16.
template <typename Launch>
Status typed(bool bf16, Launch launch) {
    return bf16 ? launch(Bf16{}) : launch(float{});
}
/// Calls launch(T{}, Width<w>{}): rows of C elements are packs of w, of 16 bytes where C allows it.
template <int width>
struct Width {
    static constexpr int value = width;
};
template <typename T, int width, typename Launch>
Status widest(uint64_t C, Launch launch) {
    if constexpr (width > 1)
        if (C % width) return widest<T, width / 2>(C, launch);
    return launch(T{}, Width<width>{});
}
template <typename Launch>
Status typed(bool bf16, uint64_t C, Launch launch) {
    return bf16 ? widest<Bf16, 8>(C, launch) : widest<float, 4>(C, launch);
}

}   // namespace gradcast::cuda
