// A block's input: pixels from the images that the host has copied, or gathered from the GPU's copy of the data set, and normalised.
//
// What the host says of the block lies in page-locked memory, which the kernel reads: a copy would be a node of the graph by itself.  The
// thread blocks together write its copy on the device for the layers that read it later.
#include "nn/cuda/element.h"
#include "runtime/core/cuda/gather.h"

namespace gradcast::cuda {
namespace {

constexpr uint32_t per_thread = 4, channels_near = 16;

/// Grid: samples, parts of one.
template <typename T>
__global__ void input_kernel(T* y, BlockInput in, ImageShape s) {
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
    if (blockIdx.y == 0)
        for (uint32_t i = n * threads + threadIdx.x; i < in.places / 4; i += gridDim.x * threads) word(in.head, in.staged, i);
    __syncthreads();
    const uint32_t count = header.count, resident = header.resident;
    const uint32_t H = s.H + 2 * s.pad, W = s.W + 2 * s.pad, size = H * W * s.C;
    const bool given = n < count;
    Taken from;
    if (given && resident) from = taken(in.images, place);
    const uint8_t* image = in.copied + uint64_t{n} * s.C * s.H * s.W;
    for (uint32_t j = 0; j < per_thread; ++j) {
        const uint32_t i = (blockIdx.y * per_thread + j) * threads + threadIdx.x;
        if (i >= size) return;
        const uint32_t c = i % s.C, w = i / s.C % W - s.pad, h = i / s.C / W - s.pad;   // wrap below 0 and are then >= W, H
        float value = 0;
        if (given && h < s.H && w < s.W) {
            const uint8_t x = resident ? pixel(in.images, from, c, h, w) : image[(c * s.H + h) * s.W + w];
            value = static_cast<float>(x) * (c < channels_near ? scale[c] : scales[c]) + (c < channels_near ? shift[c] : shifts[c]);
        }
        store(y + uint64_t{n} * size + i, value);
    }
}

}   // namespace

Status input(cudaStream_t stream, Values y, const BlockInput& in, const ImageShape& s) {
    const uint64_t size = uint64_t{s.H + 2 * s.pad} * (s.W + 2 * s.pad) * s.C;
    constexpr uint32_t most = 65535;   // blocks of a grid in y
    GC_ASSERT(size <= uint64_t{most} * per_thread * threads);
    return typed(y.bf16, [&](auto type) {
        using T = decltype(type);
        return GC_LAUNCH(input_kernel<T>, dim3(s.N, blocks_of(size, per_thread * threads), 1), threads, stream, as<T>(y), in, s);
    });
}

}   // namespace gradcast::cuda
