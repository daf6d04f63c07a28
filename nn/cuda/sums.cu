// Sums by channel: a bias's gradient, and batch norm (Ioffe, Szegedy 2015) with the statistics of the block:
//     y = weight (x - mean) / sqrt(variance + 1e-5) + bias,   mean and variance over samples and pixels of the block.
//
// An array [rows, C] is cut into tiles of columns and chunks of rows; a thread block sums a chunk of a tile in double.  The last block of a
// tile to end adds the chunks' sums, so a sum is one kernel.  Which block that is does not matter: the order is by chunk.
#include <algorithm>
#include <numeric>

#include "nn/cuda/element.h"

namespace gradcast::cuda {
namespace {

constexpr uint32_t tile_bytes = 128;   // of a row: whole cache lines
constexpr uint32_t unrolled = 4;       // packs of a thread that are in flight at once
// Two blocks a multiprocessor on an H100; more chunks take longer to add.
constexpr uint32_t blocks_max = 264, chunks_max = 128, chunks_min = 4;

/// How [rows, C] is cut, for elements of `bytes` bytes.
struct Cut {
    uint32_t packs;           // of a row
    uint32_t wide, high;      // packs of a tile; rows that a block reads at once
    uint32_t tiles, chunks;   // the grid
    uint64_t rows, chunk;     // in all, of a chunk
};
Cut cut_of(uint64_t rows, uint32_t C, uint32_t bytes) {
    const uint32_t width = std::gcd(C, 16 / bytes), packs = C / width;
    const uint32_t tiles = blocks_of(packs, tile_bytes / (bytes * width)), wide = blocks_of(packs, tiles), high = threads / wide;
    const uint64_t rounds = (rows + high - 1) / high, most = std::clamp(blocks_max / tiles, chunks_min, chunks_max);
    const uint64_t chunk = std::max<uint64_t>(unrolled, (rounds + most - 1) / most);
    return {packs, wide, high, tiles, static_cast<uint32_t>((rounds + chunk - 1) / chunk), rows, chunk * high};
}

/// part [count, size]: row 0 = sum of all rows, by halves.
__device__ __forceinline__ void fold(double* part, uint32_t count, uint32_t size) {
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
__global__ void __launch_bounds__(threads) columns_kernel(Element element, Total total, SumMemory memory, Cut cut) {
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
        for (uint64_t row = begin + y; row < end; row += unrolled * cut.high) {
            uint64_t at[unrolled];
            for (uint32_t u = 0; u < unrolled; ++u) {   // past the end, the last row once more: a load is then no branch
                const uint64_t each = row + u * cut.high;
                at[u] = (each < end ? each : end - 1) * cut.packs + pack;
            }
            element.load(&read, at);
            for (uint32_t u = 0; u < unrolled; ++u)
                if (row + u * cut.high < end) element.add(read, u, at[u], own);
        }
    }
    if (y < cut.high)
        for (int s = 0; s < sums; ++s)
            for (int j = 0; j < width; ++j) part[(y * sums + s) * channels + x * width + j] = own[s * width + j];
    fold(part, cut.high, size);
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
            for (uint32_t chunk = threadIdx.x / size; chunk < cut.chunks; chunk += unrolled * at_once) {
                double got[unrolled];
                for (uint32_t u = 0; u < unrolled; ++u) {
                    const uint32_t each = chunk + u * at_once;
                    got[u] = each < cut.chunks ? __ldcg(partial + uint64_t{each} * size + threadIdx.x % size) : 0;
                }
                for (uint32_t u = 0; u < unrolled; ++u) sum += got[u];
            }
            part[threadIdx.x] = sum;
        }
        fold(part, at_once, size);
    }
    const uint32_t c = blockIdx.x * channels + threadIdx.x;
    if (threadIdx.x >= channels || c >= cut.packs * width) return;
    double totals[sums];
    for (int s = 0; s < sums; ++s) totals[s] = part[s * channels + threadIdx.x];
    total(c, totals);
}

template <typename Element, typename Total>
Status sum(cudaStream_t stream, const Element& element, const Total& total, const SumMemory& memory, uint64_t rows, uint32_t C) {
    static_assert(Element::sums == Total::sums && Element::sums * tile_bytes / sizeof(uint16_t) <= threads);
    const Cut cut = cut_of(rows, C, sizeof(typename Element::Type));
    return GC_LAUNCH((columns_kernel<Element, Total>), dim3(cut.tiles, cut.chunks, 1), threads, stream, element, total, memory, cut);
}

template <typename T, int packed>
struct BiasElement {
    using Type = T;
    static constexpr int sums = 1, width = packed;
    T* dy;
    const T* y;
    bool in_place;
    struct Read {
        Pack<T, width> dy[unrolled], y[unrolled];
    };
    __device__ void begin(Read*, uint32_t) const {}
    __device__ void load(Read* to, const uint64_t (&at)[unrolled]) const {
        for (uint32_t u = 0; u < unrolled; ++u) to->dy[u] = as_packs<width>(dy)[at[u]];
        if (y)
            for (uint32_t u = 0; u < unrolled; ++u) to->y[u] = as_packs<width>(y)[at[u]];
    }
    __device__ void add(const Read& from, uint32_t u, uint64_t at, double* s) const {
        Pack<T, width> values = from.dy[u];
        if (y)
            for (int j = 0; j < width; ++j)
                if (!(cuda::load(from.y[u].v[j]) > 0)) store(&values.v[j], 0.0f);
        if (y && in_place) as_packs<width>(dy)[at] = values;
        for (int j = 0; j < width; ++j) s[j] += static_cast<double>(cuda::load(values.v[j]));
    }
};
struct BiasTotal {
    static constexpr int sums = 1;
    float* dbias;
    __device__ void operator()(uint32_t c, const double* s) const { dbias[c] = static_cast<float>(s[0]); }
};

__device__ __forceinline__ float inverse_of(double variance) { return static_cast<float>(1 / sqrt(variance + 1e-5)); }

/// In double: a variance far below the squared mean stays accurate in one pass.
template <typename T, int packed>
struct MomentElement {
    using Type = T;
    static constexpr int sums = 2, width = packed;
    const T* x;
    struct Read {
        Pack<T, width> x[unrolled];
    };
    __device__ void begin(Read*, uint32_t) const {}
    __device__ void load(Read* to, const uint64_t (&at)[unrolled]) const {
        for (uint32_t u = 0; u < unrolled; ++u) to->x[u] = as_packs<width>(x)[at[u]];
    }
    __device__ void add(const Read& from, uint32_t u, uint64_t, double* s) const {
        for (int j = 0; j < width; ++j) {
            const auto value = static_cast<double>(cuda::load(from.x[u].v[j]));
            s[j] += value;
            s[width + j] += value * value;
        }
    }
};
struct MomentTotal {
    static constexpr int sums = 2;
    NormValues values;
    const float* weight;
    float* found;
    double count, samples;
    uint32_t C;
    __device__ void operator()(uint32_t c, const double* s) const {
        const double mean = s[0] / count, moment = s[1] / count, variance = moment - mean * mean;
        values.mean[c] = static_cast<float>(mean);
        values.inverse[c] = inverse_of(variance < 0 ? 0 : variance);
        values.scale[c] = weight[c] * values.inverse[c];
        found[c] = static_cast<float>(samples * mean);
        found[C + c] = static_cast<float>(samples * moment);
    }
};

__global__ void norm_running_kernel(const float* running, const float* weight, NormValues values, uint32_t C) {
    const uint64_t c = thread_number();
    if (c >= C) return;
    const double mean = running[c], variance = running[C + c] - mean * mean;
    values.mean[c] = running[c];
    values.scale[c] = weight[c] * inverse_of(variance < 0 ? 0 : variance);
}

template <typename T, int width>
__global__ void norm_forward_kernel(T* y, const T* x, NormValues values, const float* bias, uint32_t rows, uint32_t packs, bool rectify) {
    const uint32_t i = piece_thread(), pack = i % packs;
    if (i >= rows * packs) return;
    const Pack<T, width> in = as_packs<width>(x)[i];
    const Pack<float, width> mean = as_packs<width>(values.mean)[pack], scale = as_packs<width>(values.scale)[pack],
                             add = floats<width>(bias + pack * width);
    Pack<T, width> out;
    for (int j = 0; j < width; ++j) {
        const float value = (load(in.v[j]) - mean.v[j]) * scale.v[j] + add.v[j];
        store(&out.v[j], rectify ? rectified(value) : value);
    }
    as_packs<width>(y)[i] = out;
}

template <typename T, int packed>
struct NormElement {
    using Type = T;
    static constexpr int sums = 2, width = packed;
    const T *dy, *x, *y;
    const float* mean;
    struct Read {
        Pack<T, width> dy[unrolled], x[unrolled], y[unrolled];
        Pack<float, width> mean;
    };
    __device__ void begin(Read* to, uint32_t pack) const { to->mean = as_packs<width>(mean)[pack]; }
    __device__ void load(Read* to, const uint64_t (&at)[unrolled]) const {
        for (uint32_t u = 0; u < unrolled; ++u) to->dy[u] = as_packs<width>(dy)[at[u]];
        for (uint32_t u = 0; u < unrolled; ++u) to->x[u] = as_packs<width>(x)[at[u]];
        if (y)
            for (uint32_t u = 0; u < unrolled; ++u) to->y[u] = as_packs<width>(y)[at[u]];
    }
    __device__ void add(const Read& from, uint32_t u, uint64_t, double* s) const {
        for (int j = 0; j < width; ++j) {
            if (y && !(cuda::load(from.y[u].v[j]) > 0)) continue;
            const float gradient = cuda::load(from.dy[u].v[j]);
            s[j] += static_cast<double>(gradient);
            s[width + j] += static_cast<double>(gradient * (cuda::load(from.x[u].v[j]) - from.mean.v[j]));
        }
    }
};
struct NormTotal {
    static constexpr int sums = 2;
    NormValues values;
    float *dweight, *dbias;
    double count;
    __device__ void operator()(uint32_t c, const double* s) const {
        const double inverse = values.inverse[c], scale = values.scale[c];
        dbias[c] = static_cast<float>(s[0]);
        dweight[c] = static_cast<float>(s[1] * inverse);
        values.of_value[c] = static_cast<float>(-scale * inverse * inverse * s[1] / count);
        values.constant[c] = static_cast<float>(-scale * s[0] / count);
    }
};

template <typename T, int width>
__global__ void norm_backward_kernel(T* dx, const T* dy, const T* x, const T* y, NormValues values, uint32_t rows, uint32_t packs) {
    const uint32_t i = piece_thread(), pack = i % packs;
    if (i >= rows * packs) return;
    const Pack<T, width> gradients = as_packs<width>(dy)[i], in = as_packs<width>(x)[i];
    Pack<T, width> outputs = {}, result;
    if (y) outputs = as_packs<width>(y)[i];
    const Pack<float, width> mean = as_packs<width>(values.mean)[pack], scale = as_packs<width>(values.scale)[pack],
                             of_value = as_packs<width>(values.of_value)[pack], constant = as_packs<width>(values.constant)[pack];
    for (int j = 0; j < width; ++j) {
        const float gradient = !y || load(outputs.v[j]) > 0 ? load(gradients.v[j]) : 0.0f;
        store(&result.v[j], gradient * scale.v[j] + ((load(in.v[j]) - mean.v[j]) * of_value.v[j] + constant.v[j]));
    }
    as_packs<width>(dx)[i] = result;
}

}   // namespace

SumSize columns_size(uint64_t rows, uint32_t C, uint32_t sums, bool bf16) {
    const Cut cut = cut_of(rows, C, bf16 ? 2 : 4);
    return {cut.chunks > 1 ? uint64_t{cut.tiles} * cut.chunks * sums * cut.wide * (C / cut.packs) : 0, cut.tiles};
}

Status bias_backward(cudaStream_t stream, Values dy, Values y, float* dbias, const SumMemory& memory, uint64_t rows, uint32_t C,
                     bool in_place) {
    return typed(dy.bf16, C, [&](auto type, auto width) {
        using T = decltype(type);
        return sum(stream, BiasElement<T, decltype(width)::value>{as<T>(dy), as<T>(y), in_place}, BiasTotal{dbias}, memory, rows, C);
    });
}

Status norm_statistics(cudaStream_t stream, Values x, const NormValues& values, const float* weight, float* found, const SumMemory& memory,
                       const NormShape& s) {
    const MomentTotal total{values, weight, found, static_cast<double>(s.rows), static_cast<double>(s.samples), s.C};
    return typed(x.bf16, s.C, [&](auto type, auto width) {
        using T = decltype(type);
        return sum(stream, MomentElement<T, decltype(width)::value>{as<T>(x)}, total, memory, s.rows, s.C);
    });
}

Status norm_running(cudaStream_t stream, const float* running, const NormValues& values, const float* weight, uint32_t C) {
    return GC_LAUNCH(norm_running_kernel, blocks_of(C, threads), threads, stream, running, weight, values, C);
}

Status norm_forward(cudaStream_t stream, Values y, Values x, const NormValues& values, const float* bias, const NormShape& s,
                    bool rectify) {
    return typed(x.bf16, s.C, [&](auto type, auto width) {
        using T = decltype(type);
        constexpr int w = decltype(width)::value;
        return pieces(s.rows, s.C / w, [&](uint64_t first, uint32_t rows) {
            return GC_LAUNCH((norm_forward_kernel<T, w>), blocks_of(uint64_t{rows} * (s.C / w), threads), threads, stream,
                             as<T>(y) + first * s.C, as<T>(x) + first * s.C, values, bias, rows, s.C / w, rectify);
        });
    });
}

Status norm_sums(cudaStream_t stream, Values dy, Values x, Values y, const NormValues& values, float* dweight, float* dbias,
                 const SumMemory& memory, const NormShape& s) {
    const NormTotal total{values, dweight, dbias, static_cast<double>(s.rows)};
    return typed(x.bf16, s.C, [&](auto type, auto width) {
        using T = decltype(type);
        return sum(stream, NormElement<T, decltype(width)::value>{as<T>(dy), as<T>(x), as<T>(y), values.mean}, total, memory, s.rows, s.C);
    });
}

Status norm_backward(cudaStream_t stream, Values dx, Values dy, Values x, Values y, const NormValues& values, const NormShape& s) {
    return typed(x.bf16, s.C, [&](auto type, auto width) {
        using T = decltype(type);
        constexpr int w = decltype(width)::value;
        return pieces(s.rows, s.C / w, [&](uint64_t first, uint32_t rows) {
            const uint64_t at = first * s.C;
            return GC_LAUNCH((norm_backward_kernel<T, w>), blocks_of(uint64_t{rows} * (s.C / w), threads), threads, stream, as<T>(dx) + at,
                             as<T>(dy) + at, as<T>(x) + at, y.at ? as<T>(y) + at : nullptr, values, rows, s.C / w);
        });
    });
}

}   // namespace gradcast::cuda
