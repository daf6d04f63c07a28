// Sums by channel of an array [rows, C], for kernels.  In .cu files only.
//
// The array is cut into tiles of columns and chunks of rows; a thread block sums a chunk of a tile in double.  The last block of a tile to
// end adds the chunks' sums, so a sum is one kernel.  Which block that is does not matter: the order is by chunk.
#pragma once
#include <algorithm>
#include <numeric>

#include "nn/cuda/element.h"

namespace gradcast::cuda {

constexpr uint32_t columns_tile_bytes = 128;   // of a row: whole cache lines
constexpr uint32_t columns_unrolled = 4;       // packs of a thread that are in flight at once
// Two blocks a multiprocessor on an H100; more chunks take longer to add.
constexpr uint32_t columns_blocks_max = 264, columns_chunks_max = 128, columns_chunks_min = 4;

/// How [rows, C] is cut, for elements of `bytes` bytes.
struct ColumnsCut {
    uint32_t packs;           // of a row
    uint32_t wide, high;      // packs of a tile; rows that a block reads at once
    uint32_t tiles, chunks;   // the grid
    uint64_t rows, chunk;     // in all, of a chunk
};
inline ColumnsCut columns_cut(uint64_t rows, uint32_t C, uint32_t bytes) {
    const uint32_t width = std::gcd(C, 16 / bytes), packs = C / width;
    const uint32_t tiles = blocks_of(packs, columns_tile_bytes / (bytes * width)), wide = blocks_of(packs, tiles), high = threads / wide;
    const uint64_t rounds = (rows + high - 1) / high, most = std::clamp(columns_blocks_max / tiles, columns_chunks_min, columns_chunks_max);
    const uint64_t chunk = std::max<uint64_t>(columns_unrolled, (rounds + most - 1) / most);
    return {packs, wide, high, tiles, static_cast<uint32_t>((rounds + chunk - 1) / chunk), rows, chunk * high};
}

/// part [count, size]: row 0 = sum of all rows, by halves.
__device__ __forceinline__ void columns_fold(double* part, uint32_t count, uint32_t size) {
    while (count > 1) {
        const uint32_t half = (count + 1) / 2;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < (count - half) * size; i += threads) part[i] += part[half * size + i];
        count = half;
    }
    __syncthreads();
}

/// Element::load() reads the packs `at`, Element::add() adds one of them to sums [Element::sums, width]; total(channel, sums) gets the sums
/// over all rows.  Scratch: [tiles, chunks, sums, channels of a tile].
template <typename Element, typename Total>
__global__ void __launch_bounds__(threads) columns_kernel(Element element, Total total, SumMemory memory, ColumnsCut cut) {
    constexpr int width = Element::width, sums = Element::sums;
    __shared__ double part[threads * sums * width];
    __shared__ bool last;
    const uint32_t channels = cut.wide * width, size = sums * channels;
    const uint32_t x = threadIdx.x % cut.wide, y = threadIdx.x / cut.wide, pack = blockIdx.x * cut.wide + x;
    double own[sums * width] = {};
    if (y < cut.high && pack < cut.packs) {
        const uint64_t begin = blockIdx.y * cut.chunk, end = begin + cut.chunk < cut.rows ? begin + cut.chunk : cut.rows;
        typename Element::Read read;
        element.begin(&read, pack);
        for (uint64_t row = begin + y; row < end; row += columns_unrolled * cut.high) {
            uint64_t at[columns_unrolled];
            for (uint32_t u = 0; u < columns_unrolled; ++u) {   // past the end, the last row once more: a load is then no branch
                const uint64_t each = row + u * cut.high;
                at[u] = (each < end ? each : end - 1) * cut.packs + pack;
            }
            element.load(&read, at);
            for (uint32_t u = 0; u < columns_unrolled; ++u)
                if (row + u * cut.high < end) element.add(read, u, at[u], own);
        }
    }
    if (y < cut.high)
        for (int s = 0; s < sums; ++s)
            for (int j = 0; j < width; ++j) part[(y * sums + s) * channels + x * width + j] = own[s * width + j];
    columns_fold(part, cut.high, size);
    if (cut.chunks > 1) {
        double* partial = memory.scratch + uint64_t{blockIdx.x} * cut.chunks * size;
        for (uint32_t i = threadIdx.x; i < size; i += threads) partial[uint64_t{blockIdx.y} * size + i] = part[i];
        __threadfence();   // before the ticket: the last block sees what the others wrote
        __syncthreads();
        if (threadIdx.x == 0) {
            last = atomicAdd(memory.tickets + blockIdx.x, 1u) == cut.chunks - 1;
            __threadfence();
        }
        __syncthreads();
        if (!last) return;
        if (threadIdx.x == 0) memory.tickets[blockIdx.x] = 0;
        const uint32_t at_once = threads / size < cut.chunks ? threads / size : cut.chunks;
        if (threadIdx.x < at_once * size) {
            double sum = 0;
            for (uint32_t chunk = threadIdx.x / size; chunk < cut.chunks; chunk += columns_unrolled * at_once) {
                double got[columns_unrolled];
                for (uint32_t u = 0; u < columns_unrolled; ++u) {
                    const uint32_t each = chunk + u * at_once;
                    got[u] = each < cut.chunks ? __ldcg(partial + uint64_t{each} * size + threadIdx.x % size) : 0;
                }
                for (uint32_t u = 0; u < columns_unrolled; ++u) sum += got[u];
            }
            part[threadIdx.x] = sum;
        }
        columns_fold(part, at_once, size);
    }
    const uint32_t c = blockIdx.x * channels + threadIdx.x;
    if (threadIdx.x >= channels || c >= cut.packs * width) return;
    double totals[sums];
    for (int s = 0; s < sums; ++s) totals[s] = part[s * channels + threadIdx.x];
    total(c, totals);
}

template <typename Element, typename Total>
Status columns_sum(cudaStream_t stream, const Element& element, const Total& total, const SumMemory& memory, uint64_t rows, uint32_t C) {
    static_assert(Element::sums == Total::sums && Element::sums * columns_tile_bytes / sizeof(uint16_t) <= threads);
    const ColumnsCut cut = columns_cut(rows, C, sizeof(typename Element::Type));
    return GC_LAUNCH((columns_kernel<Element, Total>), dim3(cut.tiles, cut.chunks, 1), threads, stream, element, total, memory, cut);
}

}   // namespace gradcast::cuda
