// Sums by channel: a bias's gradient, and batch norm (Ioffe, Szegedy 2015) with the statistics of the block:
//     y = weight (x - mean) / sqrt(variance + 1e-5) + bias,   mean and variance over samples and pixels of the block.
//
// Rows are cut into chunks: a thread block sums one chunk of 32 channels in double, then a second kernel sums the chunks.  Few rows are one
// chunk and one kernel.
#include <algorithm>

#include "nn/cuda/element.h"

namespace gradcast::cuda {
namespace {

constexpr uint32_t wide = 32, high = 8;   // threads of a block: channels, rows
constexpr uint32_t chunks_max = 256, chunk_rows_min = 64;

uint64_t chunk_rows(uint64_t rows) { return std::max<uint64_t>(chunk_rows_min, (rows + chunks_max - 1) / chunks_max); }
uint32_t chunks(uint64_t rows) { return static_cast<uint32_t>((rows + chunk_rows(rows) - 1) / chunk_rows(rows)); }

/// partial [sums, chunks, C]: f(element, channel, sums) adds one element to F::sums sums.  Grid: channels / 32, chunks.
template <typename F>
__global__ void columns_kernel(F f, double* partial, uint64_t rows, uint32_t C, uint64_t rows_of_chunk) {
    __shared__ double part[F::sums][high][wide];
    const uint32_t c = blockIdx.x * wide + threadIdx.x;
    const uint64_t begin = blockIdx.y * rows_of_chunk;
    const uint64_t end = begin + rows_of_chunk < rows ? begin + rows_of_chunk : rows;
    double sums[F::sums] = {};
    if (c < C)
        for (uint64_t row = begin + threadIdx.y; row < end; row += high) f(row * C + c, c, sums);
    for (int s = 0; s < F::sums; ++s) part[s][threadIdx.y][threadIdx.x] = sums[s];
    __syncthreads();
    if (threadIdx.y >= F::sums || c >= C) return;
    double total = 0;
    for (uint32_t j = 0; j < high; ++j) total += part[threadIdx.y][j][threadIdx.x];
    partial[(uint64_t{threadIdx.y} * gridDim.y + blockIdx.y) * C + c] = total;
}

/// Calls f(channel, sums) with the sums over all chunks.  Grid: channels / 32.
template <typename F>
__global__ void totals_kernel(F f, const double* partial, uint32_t count, uint32_t C) {
    __shared__ double part[F::sums][high][wide];
    const uint32_t c = blockIdx.x * wide + threadIdx.x;
    for (int s = 0; s < F::sums; ++s) {
        double sum = 0;
        for (uint32_t chunk = threadIdx.y; chunk < count && c < C; chunk += high)
            sum += partial[(uint64_t{static_cast<uint32_t>(s)} * count + chunk) * C + c];
        part[s][threadIdx.y][threadIdx.x] = sum;
    }
    __syncthreads();
    if (threadIdx.y > 0 || c >= C) return;
    double totals[F::sums] = {};
    for (int s = 0; s < F::sums; ++s)
        for (uint32_t j = 0; j < high; ++j) totals[s] += part[s][j][threadIdx.x];
    f(c, totals);
}

/// The two kernels in one, for few rows.  Grid: channels / 32.
constexpr uint32_t once_high = 32, once_rows_max = 1024;
template <typename Element, typename Total>
__global__ void __launch_bounds__(wide* once_high) once_kernel(Element element, Total total, uint32_t rows, uint32_t C) {
    __shared__ double part[Element::sums][once_high][wide];
    const uint32_t c = blockIdx.x * wide + threadIdx.x;
    double sums[Element::sums] = {};
    if (c < C)
        for (uint32_t row = threadIdx.y; row < rows; row += once_high) element(uint64_t{row} * C + c, c, sums);
    for (int s = 0; s < Element::sums; ++s) part[s][threadIdx.y][threadIdx.x] = sums[s];
    __syncthreads();
    if (threadIdx.y > 0 || c >= C) return;
    double totals[Element::sums] = {};
    for (int s = 0; s < Element::sums; ++s)
        for (uint32_t j = 0; j < once_high; ++j) totals[s] += part[s][j][threadIdx.x];
    total(c, totals);
}

template <typename Element, typename Total>
Status sum(cudaStream_t stream, const Element& element, const Total& total, double* scratch, uint64_t rows, uint32_t C) {
    static_assert(Element::sums == Total::sums);
    if (rows <= once_rows_max)
        return GC_LAUNCH((once_kernel<Element, Total>), blocks_of(C, wide), dim3(wide, once_high, 1), stream, element, total,
                         static_cast<uint32_t>(rows), C);
    const dim3 block(wide, high, 1);
    GC_TRY(GC_LAUNCH(columns_kernel<Element>, dim3(blocks_of(C, wide), chunks(rows), 1), block, stream, element, scratch, rows, C,
                     chunk_rows(rows)));
    return GC_LAUNCH(totals_kernel<Total>, blocks_of(C, wide), block, stream, total, scratch, chunks(rows), C);
}

template <typename T>
struct BiasElement {
    static constexpr int sums = 1;
    T* dy;
    const T* y;
    bool in_place;
    __device__ void operator()(uint64_t at, uint32_t, double* s) const {
        float value = load(dy[at]);
        if (y && !(load(y[at]) > 0)) {
            value = 0;
            if (in_place) store(dy + at, value);
        }
        s[0] += static_cast<double>(value);
    }
};
struct BiasTotal {
    static constexpr int sums = 1;
    float* dbias;
    __device__ void operator()(uint32_t c, const double* s) const { dbias[c] = static_cast<float>(s[0]); }
};

__device__ __forceinline__ float inverse_of(double variance) { return static_cast<float>(1 / sqrt(variance + 1e-5)); }

/// In double: a variance far below the squared mean stays accurate in one pass.
template <typename T>
struct MomentElement {
    static constexpr int sums = 2;
    const T* x;
    __device__ void operator()(uint64_t at, uint32_t, double* s) const {
        const auto value = static_cast<double>(load(x[at]));
        s[0] += value;
        s[1] += value * value;
    }
};
struct MomentTotal {
    static constexpr int sums = 2;
    NormValues values;
    float* found;
    double count, samples;
    uint32_t C;
    __device__ void operator()(uint32_t c, const double* s) const {
        const double mean = s[0] / count, moment = s[1] / count, variance = moment - mean * mean;
        values.mean[c] = static_cast<float>(mean);
        values.inverse[c] = inverse_of(variance < 0 ? 0 : variance);
        found[c] = static_cast<float>(samples * mean);
        found[C + c] = static_cast<float>(samples * moment);
    }
};

__global__ void norm_running_kernel(const float* running, NormValues values, uint32_t C) {
    const uint64_t c = thread_number();
    if (c >= C) return;
    const double mean = running[c], variance = running[C + c] - mean * mean;
    values.mean[c] = running[c];
    values.inverse[c] = inverse_of(variance < 0 ? 0 : variance);
}

template <typename T, int width>
__global__ void norm_forward_kernel(T* y, const T* x, NormValues values, const float* weight, const float* bias, uint64_t packs, uint32_t C,
                                    bool rectify) {
    const uint64_t i = thread_number();
    if (i >= packs) return;
    const Pack<T, width> in = as_packs<width>(x)[i];
    Pack<T, width> out;
    const auto c0 = static_cast<uint32_t>(i * width % C);
    for (int j = 0; j < width; ++j) {
        const uint32_t c = c0 + j;
        const float value = (load(in.v[j]) - values.mean[c]) * (weight[c] * values.inverse[c]) + bias[c];
        store(&out.v[j], rectify ? rectified(value) : value);
    }
    as_packs<width>(y)[i] = out;
}

template <typename T>
struct NormElement {
    static constexpr int sums = 2;
    const T *dy, *x, *y;
    const float* mean;
    __device__ void operator()(uint64_t at, uint32_t c, double* s) const {
        if (y && !(load(y[at]) > 0)) return;
        const float gradient = load(dy[at]);
        s[0] += static_cast<double>(gradient);
        s[1] += static_cast<double>(gradient * (load(x[at]) - mean[c]));
    }
};
struct NormTotal {
    static constexpr int sums = 2;
    NormValues values;
    const float* weight;
    float *dweight, *dbias;
    double count;
    __device__ void operator()(uint32_t c, const double* s) const {
        const double inverse = values.inverse[c], scale = weight[c] * values.inverse[c];
        dbias[c] = static_cast<float>(s[0]);
        dweight[c] = static_cast<float>(s[1] * inverse);
        values.of_gradient[c] = static_cast<float>(scale);
        values.of_value[c] = static_cast<float>(-scale * inverse * inverse * s[1] / count);
        values.constant[c] = static_cast<float>(-scale * s[0] / count);
    }
};

template <typename T, int width>
__global__ void norm_backward_kernel(T* dx, const T* dy, const T* x, const T* y, NormValues values, uint64_t packs, uint32_t C) {
    const uint64_t i = thread_number();
    if (i >= packs) return;
    const Pack<T, width> gradients = as_packs<width>(dy)[i], in = as_packs<width>(x)[i];
    Pack<T, width> outputs = {}, result;
    if (y) outputs = as_packs<width>(y)[i];
    const auto c0 = static_cast<uint32_t>(i * width % C);
    for (int j = 0; j < width; ++j) {
        const uint32_t c = c0 + j;
        const float gradient = !y || load(outputs.v[j]) > 0 ? load(gradients.v[j]) : 0.0f;
        store(&result.v[j],
              gradient * values.of_gradient[c] + ((load(in.v[j]) - values.mean[c]) * values.of_value[c] + values.constant[c]));
    }
    as_packs<width>(dx)[i] = result;
}

}   // namespace

uint64_t sums_scratch(uint64_t rows, uint32_t C, uint32_t sums) { return uint64_t{sums} * chunks(rows) * C; }

Status bias_backward(cudaStream_t stream, Values dy, Values y, float* dbias, double* scratch, uint64_t rows, uint32_t C, bool in_place) {
    return typed(dy.bf16, [&](auto type) {
        using T = decltype(type);
        return sum(stream, BiasElement<T>{as<T>(dy), as<T>(y), in_place}, BiasTotal{dbias}, scratch, rows, C);
    });
}

Status norm_statistics(cudaStream_t stream, Values x, const NormValues& values, float* found, double* scratch, const NormShape& s) {
    const MomentTotal total{values, found, static_cast<double>(s.rows), static_cast<double>(s.samples), s.C};
    return typed(x.bf16, [&](auto type) {
        using T = decltype(type);
        return sum(stream, MomentElement<T>{as<T>(x)}, total, scratch, s.rows, s.C);
    });
}

Status norm_running(cudaStream_t stream, const float* running, const NormValues& values, uint32_t C) {
    return GC_LAUNCH(norm_running_kernel, blocks_of(C, threads), threads, stream, running, values, C);
}

Status norm_forward(cudaStream_t stream, Values y, Values x, const NormValues& values, const float* weight, const float* bias,
                    const NormShape& s, bool rectify) {
    return typed(x.bf16, s.C, [&](auto type, auto width) {
        using T = decltype(type);
        constexpr int w = decltype(width)::value;
        const uint64_t packs = s.rows * s.C / w;
        return GC_LAUNCH((norm_forward_kernel<T, w>), blocks_of(packs, threads), threads, stream, as<T>(y), as<T>(x), values, weight, bias,
                         packs, s.C, rectify);
    });
}

Status norm_sums(cudaStream_t stream, Values dy, Values x, Values y, const NormValues& values, const float* weight, float* dweight,
                 float* dbias, double* scratch, const NormShape& s) {
    const NormTotal total{values, weight, dweight, dbias, static_cast<double>(s.rows)};
    return typed(x.bf16, [&](auto type) {
        using T = decltype(type);
        return sum(stream, NormElement<T>{as<T>(dy), as<T>(x), as<T>(y), values.mean}, total, scratch, s.rows, s.C);
    });
}

Status norm_backward(cudaStream_t stream, Values dx, Values dy, Values x, Values y, const NormValues& values, const NormShape& s) {
    return typed(x.bf16, s.C, [&](auto type, auto width) {
        using T = decltype(type);
        constexpr int w = decltype(width)::value;
        const uint64_t packs = s.rows * s.C / w;
        return GC_LAUNCH((norm_backward_kernel<T, w>), blocks_of(packs, threads), threads, stream, as<T>(dx), as<T>(dy), as<T>(x), as<T>(y),
                         values, packs, s.C);
    });
}

}   // namespace gradcast::cuda
