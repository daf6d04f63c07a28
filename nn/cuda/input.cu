// A block's input: pixels from the images that the host has copied, or gathered from the GPU's copy of the data set, and normalised.
//
// What the host says of the block lies in page-locked memory, which the kernel reads: a copy would be a node of the graph by itself.  The
// thread blocks together write its copy on the device for the layers that read it later.
#include <type_traits>

#include "nn/cuda/element.h"
#include "runtime/core/cuda/gather.h"

namespace gradcast::cuda {
namespace {

constexpr uint32_t per_thread = 4, channels_near = 16;

/// By the thread blocks of the first part of each sample, together.
__device__ __forceinline__ void copy_head(const BlockInput& in) {
    if (blockIdx.y > 0) return;
    for (uint32_t i = blockIdx.x * threads + threadIdx.x; i < in.places / 4; i += gridDim.x * threads)
        reinterpret_cast<uint32_t*>(in.head)[i] = reinterpret_cast<const uint32_t*>(in.staged)[i];
}

/// Grid: samples, parts of one.  From: the type of a sample's elements.
template <typename T, typename From>
__global__ void input_kernel(T* y, BlockInput in, ImageShape s) {
    constexpr bool bytes = std::is_same_v<From, uint8_t>;
    __shared__ BlockHeader header;
    __shared__ SamplePlace place;
    __shared__ float scale[channels_near], shift[channels_near];
    const uint32_t n = blockIdx.x;
    const float* scales = reinterpret_cast<const float*>(in.staged + in.scale);
    const float* shifts = reinterpret_cast<const float*>(in.staged + in.shift);
    // Each read of page-locked memory takes microseconds, so each thread makes one, at the same time as the others.
    constexpr uint32_t words_of_header = sizeof(BlockHeader) / 4, words_of_place = sizeof(SamplePlace) / 4;
    static_assert(words_of_header <= 32 && words_of_place <= 32 && channels_near <= 32 && threads >= 128);
    const auto word = [&](auto* to, const void* from, uint32_t i) {
        reinterpret_cast<uint32_t*>(to)[i] = static_cast<const uint32_t*>(from)[i];
    };
    const uint32_t role = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (role == 0 && lane < words_of_header) word(&header, in.staged, lane);
    if (role == 1 && lane < words_of_place) word(&place, in.staged + in.places + n * sizeof(SamplePlace), lane);
    if (role == 2 && lane < s.C && lane < channels_near) word(scale, scales, lane);
    if (role == 3 && lane < s.C && lane < channels_near) word(shift, shifts, lane);
    copy_head(in);
    __syncthreads();
    const uint32_t count = header.count, resident = header.resident;
    const uint32_t H = s.H + 2 * s.pad, W = s.W + 2 * s.pad, size = H * W * s.C;
    const bool given = n < count;
    Taken from;
    if (given && resident) from = taken(in.images, place);
    const From* image = reinterpret_cast<const From*>(in.copied) + uint64_t{n} * s.C * s.H * s.W;
    for (uint32_t j = 0; j < per_thread; ++j) {
        const uint32_t i = (blockIdx.y * per_thread + j) * threads + threadIdx.x;
        if (i >= size) return;
        const uint32_t c = i % s.C, w = i / s.C % W - s.pad, h = i / s.C / W - s.pad;   // wrap below 0 and are then >= W, H
        float value = 0;
        if (given && h < s.H && w < s.W) {
            const float by = c < channels_near ? scale[c] : scales[c], off = c < channels_near ? shift[c] : shifts[c];
            if constexpr (bytes) {
                const uint8_t x = resident ? pixel(in.images, from, c, h, w) : image[(c * s.H + h) * s.W + w];
                value = static_cast<float>(x) * by + off;
            } else value = (static_cast<float>(image[(c * s.H + h) * s.W + w]) - off) / by;
        }
        store(y + uint64_t{n} * size + i, value);
    }
}

/// A thread writes a token.  Grid: samples, parts of one.
template <typename From>
__global__ void tokens_kernel(uint32_t* tokens, BlockInput in, uint32_t W) {
    __shared__ uint32_t count;
    if (threadIdx.x == 0) count = reinterpret_cast<const BlockHeader*>(in.staged)->count;
    copy_head(in);
    __syncthreads();
    const uint32_t n = blockIdx.x, at = blockIdx.y * threads + threadIdx.x;
    if (at + 1 < W)
        tokens[uint64_t{n} * (W - 1) + at] =
            n < count ? static_cast<uint32_t>(reinterpret_cast<const From*>(in.copied)[uint64_t{n} * W + at]) : 0;
}

/// Calls launch(From{}) of the type of a sample's elements.
template <typename Launch>
Status of_element(Element element, Launch launch) {
    switch (element) {
        case Element::u8: return launch(uint8_t{});
        case Element::u16: return launch(uint16_t{});
        case Element::u32: return launch(uint32_t{});
        case Element::f32: return launch(float{});
    }
    return {};
}

}   // namespace

Status input(cudaStream_t stream, Values y, const BlockInput& in, const ImageShape& s) {
    const uint64_t size = uint64_t{s.H + 2 * s.pad} * (s.W + 2 * s.pad) * s.C;
    constexpr uint32_t most = 65535;   // blocks of a grid in y
    GC_ASSERT(size <= uint64_t{most} * per_thread * threads);
    return typed(y.bf16, [&](auto type) {
        return of_element(s.element, [&](auto element) {
            return GC_LAUNCH((input_kernel<decltype(type), decltype(element)>), dim3(s.N, blocks_of(size, per_thread * threads), 1),
                             threads, stream, as<decltype(type)>(y), in, s);
        });
    });
}

Status input_tokens(cudaStream_t stream, uint32_t* tokens, const BlockInput& in, const ImageShape& s) {
    return of_element(s.element, [&](auto element) {
        return GC_LAUNCH(tokens_kernel<decltype(element)>, dim3(s.N, blocks_of(s.W, threads), 1), threads, stream, tokens, in, s.W);
    });
}

}   // namespace gradcast::cuda
