// Kernels without sums: each thread computes a pack of elements.
#include <algorithm>
#include <type_traits>

#include "nn/cuda/element.h"
#include "runtime/core/cuda/philox.h"

namespace gradcast::cuda {
namespace {

/// Rows of `packs` packs.
template <typename T, int width>
__global__ void bias_relu_kernel(T* y, const T* x, const float* bias, uint32_t rows, uint32_t packs, bool rectify) {
    const uint32_t i = piece_thread();
    if (i >= rows * packs) return;
    Pack<T, width> values = as_packs<width>(x)[i];
    Pack<float, width> add = {};
    if (bias) add = floats<width>(bias + i % packs * width);
    for (int j = 0; j < width; ++j) {
        const float value = bias ? load(values.v[j]) + add.v[j] : load(values.v[j]);
        store(&values.v[j], rectify ? rectified(value) : value);
    }
    as_packs<width>(y)[i] = values;
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
struct Times {
    __device__ float operator()(float a, float b) const { return a * b; }
};
struct First {
    __device__ float operator()(float a, float) const { return a; }
};
struct CudaFunctions {
    static __device__ float exp(float x) { return expf(x); }
    static __device__ float tanh(float x) { return tanhf(x); }
    static __device__ curves::Normal normal(float x) {
        constexpr float root_half = 0x1.6a09e6p-1f;
        return {0.5f * erfcf(-root_half * x), curves::density_at_0 * expf(-0.5f * (x * x))};
    }
};
template <Curve which>
struct Value {
    __device__ float operator()(float a, float) const { return gradcast::curve<which, CudaFunctions>(a).value; }
};
template <Curve which>
struct Slope {
    __device__ float operator()(float a, float b) const { return a * gradcast::curve<which, CudaFunctions>(b).slope; }
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

/// Block (tile, tile_rows); grid: tiles of C, tiles of B, A.
template <typename To, typename From>
__global__ void transpose_kernel(To* to, const From* from, uint32_t B, uint32_t C) {
    const uint64_t base = uint64_t{blockIdx.z} * B * C;
    transpose_tile(to + base, from + base, B, C, blockIdx.y * tile, blockIdx.x * tile);
}

// A thread computes 8 channels of a pixel, in packs of `width`: one Philox draw.  y, x: samples from `first` on.
template <typename T, int width>
__global__ void dropout_kernel(T* y, const T* x, const uint64_t* seed, const BlockHeader* header, uint32_t first, uint32_t samples,
                               uint32_t pixels, uint32_t C, uint32_t drop, float scale) {
    const uint32_t i = piece_thread(), eights = (C + 7) / 8;
    const uint32_t eight = i % eights, pixel_of_all = i / eights, pixel = pixel_of_all % pixels, n = pixel_of_all / pixels;
    if (n >= samples) return;
    // The draw's number in the CPU's layout, 16 channels of a pixel together (nn/cpu/dropout.cc).
    const uint32_t number = (eight / 2 * pixels + pixel) * 2 + eight % 2;
    const Draw draw = draw4(Purpose::dropout, *seed, uint64_t{header->block} << 32 | (first + n), number);
    for (uint32_t c = 0; c < 8; c += width) {
        if (eight * 8 + c >= C) return;
        const uint64_t at = uint64_t{pixel_of_all} * C + eight * 8 + c;
        Pack<T, width> values = *as_packs<width>(x + at);
        for (uint32_t j = 0; j < width; ++j) {
            const uint32_t bits = draw.word[(c + j) / 2] >> ((c + j) % 2 * 16) & 0xffff;
            store(&values.v[j], bits >= drop ? load(values.v[j]) * scale : 0.0f);
        }
        *as_packs<width>(y + at) = values;
    }
}

}   // namespace

namespace {
/// y = relu(x + bias); y may be x.
Status bias_relu(cudaStream_t stream, Values y, Values x, const float* bias, uint64_t rows, uint32_t C, bool rectify) {
    return typed(y.bf16, C, [&](auto type, auto width) {
        using T = decltype(type);
        constexpr int w = decltype(width)::value;
        return pieces(rows, C / w, [&](uint64_t first, uint32_t count) {
            return GC_LAUNCH((bias_relu_kernel<T, w>), blocks_of(uint64_t{count} * (C / w), threads), threads, stream, as<T>(y) + first * C,
                             as<T>(x) + first * C, bias, count, C / w, rectify);
        });
    });
}
}   // namespace
Status bias_relu(cudaStream_t stream, Values y, const float* bias, uint64_t rows, uint32_t C, bool rectify) {
    return bias || rectify ? bias_relu(stream, y, y, bias, rows, C, rectify) : Status{};
}
Status add_rows(cudaStream_t stream, Values y, Values x, const float* w, uint64_t rows, uint32_t C) {
    return bias_relu(stream, y, x, w, rows, C, false);
}

Status relu(cudaStream_t stream, Values y, Values x, uint64_t count) { return each(stream, Rectify{}, y, x, x, count); }
Status relu_backward(cudaStream_t stream, Values dx, Values dy, Values y, uint64_t count) { return each(stream, Mask{}, dx, dy, y, count); }

namespace {
template <template <Curve> typename Of>
Status each_curve(cudaStream_t stream, Curve which, Values y, Values a, Values b, uint64_t count) {
    switch (which) {
        case Curve::gelu: return each(stream, Of<Curve::gelu>{}, y, a, b, count);
        case Curve::gelu_tanh: return each(stream, Of<Curve::gelu_tanh>{}, y, a, b, count);
        case Curve::silu: return each(stream, Of<Curve::silu>{}, y, a, b, count);
        case Curve::sigmoid: return each(stream, Of<Curve::sigmoid>{}, y, a, b, count);
        case Curve::tanh: return each(stream, Of<Curve::tanh>{}, y, a, b, count);
    }
    return {};
}
}   // namespace
Status curve(cudaStream_t stream, Curve which, Values y, Values x, uint64_t count) {
    return each_curve<Value>(stream, which, y, x, x, count);
}
Status curve_backward(cudaStream_t stream, Curve which, Values dx, Values dy, Values x, uint64_t count) {
    return each_curve<Slope>(stream, which, dx, dy, x, count);
}
Status add(cudaStream_t stream, Values y, Values a, Values b, uint64_t count) { return each(stream, Plus{}, y, a, b, count); }
Status multiply(cudaStream_t stream, Values y, Values a, Values b, uint64_t count) { return each(stream, Times{}, y, a, b, count); }
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
    const uint64_t each = uint64_t{pixels} * ((C + 7) / 8), elements = uint64_t{pixels} * C;
    const auto scale = static_cast<float>(65536.0 / (65536.0 - drop));
    return typed(y.bf16, C, [&](auto type, auto width) {
        using T = decltype(type);
        return pieces(samples, each, [&](uint64_t first, uint32_t count) {
            return GC_LAUNCH((dropout_kernel<T, decltype(width)::value>), blocks_of(count * each, threads), threads, stream,
                             as<T>(y) + first * elements, as<T>(x) + first * elements, seed, header, static_cast<uint32_t>(first), count,
                             pixels, C, drop, scale);
        });
    });
}

}   // namespace gradcast::cuda
