// Sums by channel: a bias's gradient, and batch norm (Ioffe, Szegedy 2015) with the statistics of the block:
//     y = weight (x - mean) / sqrt(variance + 1e-5) + bias,   mean and variance over samples and pixels of the block.
#include "nn/cuda/columns.h"

namespace gradcast::cuda {
namespace {

template <typename T, int packed>
struct BiasElement {
    using Type = T;
    static constexpr int sums = 1, width = packed;
    T* dy;
    const T* y;
    bool in_place;
    struct Read {
        Pack<T, width> dy[columns_unrolled], y[columns_unrolled];
    };
    __device__ void begin(Read*, uint32_t) const {}
    __device__ void load(Read* to, const uint64_t (&at)[columns_unrolled]) const {
        for (uint32_t u = 0; u < columns_unrolled; ++u) to->dy[u] = as_packs<width>(dy)[at[u]];
        if (y)
            for (uint32_t u = 0; u < columns_unrolled; ++u) to->y[u] = as_packs<width>(y)[at[u]];
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
        Pack<T, width> x[columns_unrolled];
    };
    __device__ void begin(Read*, uint32_t) const {}
    __device__ void load(Read* to, const uint64_t (&at)[columns_unrolled]) const {
        for (uint32_t u = 0; u < columns_unrolled; ++u) to->x[u] = as_packs<width>(x)[at[u]];
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
        Pack<T, width> dy[columns_unrolled], x[columns_unrolled], y[columns_unrolled];
        Pack<float, width> mean;
    };
    __device__ void begin(Read* to, uint32_t pack) const { to->mean = as_packs<width>(mean)[pack]; }
    __device__ void load(Read* to, const uint64_t (&at)[columns_unrolled]) const {
        for (uint32_t u = 0; u < columns_unrolled; ++u) to->dy[u] = as_packs<width>(dy)[at[u]];
        for (uint32_t u = 0; u < columns_unrolled; ++u) to->x[u] = as_packs<width>(x)[at[u]];
        if (y)
            for (uint32_t u = 0; u < columns_unrolled; ++u) to->y[u] = as_packs<width>(y)[at[u]];
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
    const ColumnsCut cut = columns_cut(rows, C, bf16 ? 2 : 4);
    return {cut.chunks > 1 ? uint64_t{cut.tiles} * cut.chunks * sums * cut.wide * (C / cut.packs) : 0, cut.tiles};
}

Status bias_backward(cudaStream_t stream, Values dy, Values y, float* dbias, const SumMemory& memory, uint64_t rows, uint32_t C,
                     bool in_place) {
    return typed(dy.bf16, C, [&](auto type, auto width) {
        using T = decltype(type);
        return columns_sum(stream, BiasElement<T, decltype(width)::value>{as<T>(dy), as<T>(y), in_place}, BiasTotal{dbias}, memory, rows,
                           C);
    });
}

Status norm_statistics(cudaStream_t stream, Values x, const NormValues& values, const float* weight, float* found, const SumMemory& memory,
                       const NormShape& s) {
    const MomentTotal total{values, weight, found, static_cast<double>(s.rows), static_cast<double>(s.samples), s.C};
    return typed(x.bf16, s.C, [&](auto type, auto width) {
        using T = decltype(type);
        return columns_sum(stream, MomentElement<T, decltype(width)::value>{as<T>(x)}, total, memory, s.rows, s.C);
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
        return columns_sum(stream, NormElement<T, decltype(width)::value>{as<T>(dy), as<T>(x), as<T>(y), values.mean}, total, memory,
                           s.rows, s.C);
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
