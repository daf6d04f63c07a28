// Convolutions as products of matrices: the windows of the output pixels as rows.
#include "nn/cuda/element.h"

namespace gradcast::cuda {
namespace {

/// The first row and column of the image in the window of output pixel `pixel`; they wrap below 0 and are then >= H, W.
struct Corner {
    uint32_t h, w;
};
__device__ Corner corner_of(const WindowShape& s, uint32_t pixel) {
    return {pixel / s.Q * s.stride - s.pad, pixel % s.Q * s.stride - s.pad};
}

/// A thread writes a pack: `width` adjacent columns in the order [C, R, S].
template <typename T, int width>
__global__ void by_channel_kernel(T* y, const T* x, WindowShape s, uint32_t samples, uint32_t packs) {
    const uint32_t thread = piece_thread(), row = thread / packs, pixels = s.P * s.Q, taps = s.kernel * s.kernel;
    if (row >= samples * pixels) return;
    const Corner corner = corner_of(s, row % pixels);
    const T* image = x + uint64_t{row / pixels} * s.H * s.W * s.C;
    Pack<T, width> made;
    for (int j = 0; j < width; ++j) {
        const uint32_t column = thread % packs * width + static_cast<uint32_t>(j), c = column / taps, tap = column % taps;
        const uint32_t h = corner.h + tap / s.kernel * s.dilation, w = corner.w + tap % s.kernel * s.dilation;
        store(&made.v[j], c < s.C && h < s.H && w < s.W ? load(image[(h * s.W + w) * s.C + c]) : 0.0f);
    }
    as_packs<width>(y)[thread] = made;
}

/// The same in the order [R, S, C]: a pack lies within one pixel.
template <typename T, int width>
__global__ void by_pixel_kernel(T* y, const T* x, WindowShape s, uint32_t samples, uint32_t packs) {
    const uint32_t thread = piece_thread(), row = thread / packs, pixels = s.P * s.Q, channels = s.C / width;
    if (row >= samples * pixels) return;
    const Corner corner = corner_of(s, row % pixels);
    const uint32_t tap = thread % packs / channels, h = corner.h + tap / s.kernel * s.dilation, w = corner.w + tap % s.kernel * s.dilation;
    Pack<T, width> made{};
    if (h < s.H && w < s.W) made = as_packs<width>(x)[((uint64_t{row / pixels} * s.H + h) * s.W + w) * channels + thread % channels];
    as_packs<width>(y)[thread] = made;
}

__global__ void copy_rows_kernel(float* to, const float* from, uint32_t count, uint32_t C, uint32_t width) {
    const uint32_t i = piece_thread();
    if (i < count) to[i] = from[i / C * width + i % C];
}

}   // namespace

Status unfold(cudaStream_t stream, Values y, Values x, const WindowShape& s, uint32_t width, bool by_pixel) {
    return typed(y.bf16, [&](auto type) {
        using T = decltype(type);
        constexpr int pack = 16 / sizeof(T);
        GC_ASSERT(width % pack == 0 && (!by_pixel || (s.C % pack == 0 && width == s.kernel * s.kernel * s.C)));
        const uint32_t packs = width / pack;
        const uint64_t each = uint64_t{s.P} * s.Q * packs;
        return pieces(s.N, each, [&](uint64_t first, uint32_t samples) {
            T* const to = as<T>(y) + first * each * pack;
            const T* const from = as<T>(x) + first * s.H * s.W * s.C;
            const uint32_t blocks = blocks_of(samples * each, threads);
            return by_pixel ? GC_LAUNCH((by_pixel_kernel<T, pack>), blocks, threads, stream, to, from, s, samples, packs)
                            : GC_LAUNCH((by_channel_kernel<T, pack>), blocks, threads, stream, to, from, s, samples, packs);
        });
    });
}

Status copy_rows(cudaStream_t stream, float* to, const float* from, uint32_t rows, uint32_t C, uint32_t width) {
    return GC_LAUNCH(copy_rows_kernel, blocks_of(uint64_t{rows} * C, threads), threads, stream, to, from, rows * C, C, width);
}

}   // namespace gradcast::cuda
