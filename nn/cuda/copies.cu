// Copies of parameters in the order and type that kernels of libraries want, all in one launch after an update.
#include "nn/cuda/element.h"

namespace gradcast::cuda {
namespace {

constexpr uint32_t plain_per_block = 1024;   // elements, where nothing is transposed

__device__ __host__ bool transposes(uint32_t B, uint32_t C) { return B > 1 && C > 1; }

__device__ __host__ uint64_t plain_size(const WeightCopy& copy) {
    return copy.width ? uint64_t{copy.A} * copy.width : uint64_t{copy.A} * copy.B * copy.C;
}

constexpr uint32_t copies_max = 96;   // of one launch: kernels take at most 4 KiB of arguments
struct CopyTask {
    uint32_t count;
    WeightCopy copy[copies_max];
};
static_assert(sizeof(CopyTask) <= 4096);

/// Block (tile, tile_rows).
template <typename To>
__global__ void weight_copies_kernel(To* all, const float* parameters, const __grid_constant__ CopyTask task) {
    uint32_t number = 0;
    while (number + 1 < task.count && blockIdx.x >= task.copy[number + 1].begin) ++number;
    const WeightCopy& copy = task.copy[number];
    const float* from = parameters + copy.from;
    To* to = all + copy.to;
    const uint32_t part = blockIdx.x - copy.begin;
    if (!transposes(copy.B, copy.C)) {
        const uint64_t size = plain_size(copy), begin = uint64_t{part} * plain_per_block;
        for (uint32_t i = threadIdx.y * tile + threadIdx.x; i < plain_per_block && begin + i < size; i += tile * tile_rows) {
            const auto at = static_cast<uint32_t>(begin) + i;   // where there is a width
            if (copy.width == 0) store(to + begin + i, from[begin + i]);
            else store(to + at, at % copy.width < copy.C ? from[at / copy.width * copy.C + at % copy.width] : 0.0f);
        }
        return;
    }
    const uint32_t across = (copy.C + tile - 1) / tile, down = (copy.B + tile - 1) / tile;
    const uint64_t base = uint64_t{part / across / down} * copy.B * copy.C;
    transpose_tile(to + base, from + base, copy.B, copy.C, part / across % down * tile, part % across * tile);
}

}   // namespace

Status weight_copies(cudaStream_t stream, Values to, const float* parameters, std::span<const WeightCopy> copies) {
    while (!copies.empty()) {
        CopyTask task{};
        uint32_t blocks = 0;
        for (; task.count < copies_max && task.count < copies.size(); ++task.count) {
            WeightCopy& copy = task.copy[task.count] = copies[task.count];
            copy.begin = blocks;
            blocks += transposes(copy.B, copy.C) ? copy.A * blocks_of(copy.B, tile) * blocks_of(copy.C, tile)
                                                 : blocks_of(plain_size(copy), plain_per_block);
        }
        copies = copies.subspan(task.count);
        GC_TRY(typed(to.bf16, [&](auto type) {
            using To = decltype(type);
            return GC_LAUNCH(weight_copies_kernel<To>, blocks, dim3(tile, tile_rows, 1), stream, as<To>(to), parameters, task);
        }));
    }
    return {};
}

}   // namespace gradcast::cuda
