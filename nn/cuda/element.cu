// Kernels without sums: each thread computes one element, or four adjacent ones.
#include <algorithm>
#include <type_traits>

#include "nn/cuda/element.h"
#include "runtime/core/cuda/philox.h"

namespace gradcast::cuda {
namespace {

template <typename T, int width>
__global__ void bias_relu_kernel(T* y, const float* bias, uint64_t packs, uint32_t C, bool rectify) {
    const uint64_t i = thread_number();
    if (i >= packs) return;
    auto* at = as_packs<width>(y) + i;
    Pack<T, width> values = *at;
    const auto c = static_cast<uint32_t>(i * width % C);
    for (int j = 0; j < width; ++j) {
        float value = load(values.v[j]);
        if (bias) value += bias[c + j];
        store(&values.v[j], rectify ? rectified(value) : value);
    }
    *at = values;
}

/// y = f(a, b); a and b may be y.
struct Rectify {
    __device__ float operator()(float a, float) const { return rectified(a); }
};
struct Mask {
    __device__ float operator()(float a, float b) const { return b > 0 ? a : 0.0f; }
};
struct Plus {
    __device__ float operator()(float a, float b) const { return a + b; }
};
struct First {
    __device__ float operator()(float a, float) const { return a; }
};
template <typename F, typename Y, typename A, int width>
__global__ void each_kernel(F f, Y* y, const A* a, const A* b, uint64_t packs) {
    const uint64_t i = thread_number();
    if (i >= packs) return;
    const Pack<A, width> left = as_packs<width>(a)[i], right = as_packs<width>(b)[i];
    Pack<Y, width> result;
    for (int j = 0; j < width; ++j) store(&result.v[j], f(load(left.v[j]), load(right.v[j])));
    as_packs<width>(y)[i] = result;
}

template <typename F>
Status each(cudaStream_t stream, F f, Values y, Values a, Values b, uint64_t count) {
    // Parameters are not aligned to a pack.
    const uintptr_t places = reinterpret_cast<uintptr_t>(y.at) | reinterpret_cast<uintptr_t>(a.at) | reinterpret_cast<uintptr_t>(b.at);
    return typed(a.bf16, places % 16 ? 1 : count, [&](auto type, auto width) {
        using A = decltype(type);
        constexpr int w = decltype(width)::value;
        const uint32_t grid = blocks_of(count / w, threads);
        if constexpr (std::is_same_v<F, First>)
            if (y.bf16 != a.bf16) {
                using Y = std::conditional_t<std::is_same_v<A, Bf16>, float, Bf16>;
                return GC_LAUNCH((each_kernel<F, Y, A, w>), grid, threads, stream, f, as<Y>(y), as<A>(a), as<A>(b), count / w);
            }
        return GC_LAUNCH((each_kernel<F, A, A, w>), grid, threads, stream, f, as<A>(y), as<A>(a), as<A>(b), count / w);
    });
}

constexpr uint32_t tile = 32, tile_rows = 8;

/// Transposes through a shared tile: reads and writes are along rows.  Block (32, 8); grid: tiles of C, tiles of B, A.
template <typename To, typename From>
__global__ void transpose_kernel(To* to, const From* from, uint32_t B, uint32_t C) {
    __shared__ float values[tile][tile + 1];
    const uint64_t base = uint64_t{blockIdx.z} * B * C;
    const uint32_t c = blockIdx.x * tile + threadIdx.x, b0 = blockIdx.y * tile;
    for (uint32_t j = threadIdx.y; j < tile; j += tile_rows)
        if (c < C && b0 + j < B) values[j][threadIdx.x] = load(from[base + uint64_t{b0 + j} * C + c]);
    __syncthreads();
    const uint32_t b = b0 + threadIdx.x, c0 = blockIdx.x * tile;
    for (uint32_t j = threadIdx.y; j < tile; j += tile_rows)
        if (b < B && c0 + j < C) store(to + base + uint64_t{c0 + j} * B + b, values[threadIdx.x][j]);
}

// A thread computes 8 channels of a pixel: one Philox draw.
template <typename T>
__global__ void dropout_kernel(T* y, const T* x, const uint64_t* seed, const BlockHeader* header, uint32_t samples, uint32_t pixels,
                               uint32_t C, uint32_t drop, float scale) {
    const uint64_t i = thread_number();
    const uint32_t eights = (C + 7) / 8;
    if (i >= uint64_t{samples} * pixels * eights) return;
    const auto eight = static_cast<uint32_t>(i % eights);
    const uint64_t pixel_of_all = i / eights;
    const auto pixel = static_cast<uint32_t>(pixel_of_all % pixels), n = static_cast<uint32_t>(pixel_of_all / pixels);
    // The draw's number in the CPU's layout, 16 channels of a pixel together (nn/cpu/dropout.cc).
    const uint32_t number = (eight / 2 * pixels + pixel) * 2 + eight % 2;
    const Draw draw = draw4(Purpose::dropout, *seed, uint64_t{header->block} << 32 | n, number);
    for (uint32_t j = 0; j < 8; ++j) {
        const uint32_t c = eight * 8 + j;
        if (c >= C) return;
        const uint64_t at = pixel_of_all * C + c;
        store(y + at, (draw.word[j / 2] >> (j % 2 * 16) & 0xffff) >= drop ? load(x[at]) * scale : 0.0f);
    }
}

}   // namespace

Status bias_relu(cudaStream_t stream, Values y, const float* bias, uint64_t rows, uint32_t C, bool rectify) {
    if (!bias && !rectify) return {};
    return typed(y.bf16, C, [&](auto type, auto width) {
        using T = decltype(type);
        constexpr int w = decltype(width)::value;
        const uint64_t packs = rows * C / w;
        return GC_LAUNCH((bias_relu_kernel<T, w>), blocks_of(packs, threads), threads, stream, as<T>(y), bias, packs, C, rectify);
    });
}

Status relu(cudaStream_t stream, Values y, Values x, uint64_t count) { return each(stream, Rectify{}, y, x, x, count); }
Status relu_backward(cudaStream_t stream, Values dx, Values dy, Values y, uint64_t count) { return each(stream, Mask{}, dx, dy, y, count); }
Status add(cudaStream_t stream, Values y, Values a, Values b, uint64_t count) { return each(stream, Plus{}, y, a, b, count); }
Status copy(cudaStream_t stream, Values y, Values x, uint64_t count) { return each(stream, First{}, y, x, x, count); }

Status transpose(cudaStream_t stream, Values to, Values from, uint32_t A, uint32_t B, uint32_t C) {
    // A grid has at most 65535 blocks in y and z.
    constexpr uint32_t most = 65535;
    for (uint32_t a = 0; a < A; a += most) {
        const dim3 grid(blocks_of(C, tile), blocks_of(B, tile), std::min(most, A - a)), block(tile, tile_rows, 1);
        const uint64_t offset = uint64_t{a} * B * C;
        GC_TRY(typed(to.bf16, [&](auto to_type) {
            using To = decltype(to_type);
            if (from.bf16)
                return GC_LAUNCH((transpose_kernel<To, Bf16>), grid, block, stream, as<To>(to) + offset, as<Bf16>(from) + offset, B, C);
            return GC_LAUNCH((transpose_kernel<To, float>), grid, block, stream, as<To>(to) + offset, as<float>(from) + offset, B, C);
        }));
    }
    return {};
}

Status dropout(cudaStream_t stream, Values y, Values x, const uint64_t* seed, const BlockHeader* header, uint32_t samples, uint32_t pixels,
               uint32_t C, uint32_t drop) {
    const uint64_t count = uint64_t{samples} * pixels * ((C + 7) / 8);
    const auto scale = static_cast<float>(65536.0 / (65536.0 - drop));
    return typed(y.bf16, [&](auto type) {
        using T = decltype(type);
        return GC_LAUNCH(dropout_kernel<T>, blocks_of(count, threads), threads, stream, as<T>(y), as<T>(x), seed, header, samples, pixels,
                         C, drop, scale);
    });
}

}   // namespace gradcast::cuda
