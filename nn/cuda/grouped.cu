// Convolutions in groups:  y[n,p,q,k] = sum over r,s,j of w[k,j,r,s] x[n, p stride + r dilation - pad, q stride + s dilation - pad, c],
// c = the group of k times (C / groups) + j.  Weights come as [C / groups, R, S, K].
//
// Each thread computes one sum, so no two threads add to one element.  A gradient of the weights is cut into chunks of output pixels, whose
// sums a second kernel adds in order.  Bias and a following ReLU are one pass over y; a following max pooling adds the bias to the maxima
// instead.  cuDNN has few deterministic kernels for groups.
#include <algorithm>

#include "nn/cuda/build.h"
#include "nn/cuda/element.h"

namespace gradcast::cuda {
namespace {

constexpr uint32_t blocks_wanted = 1056, chunks_most = 128, chunk_least = 32;

/// Shapes of a group.
struct Groups {
    uint32_t inputs, outputs, taps;   // of a group; places of a window
    __device__ Groups(const WindowShape& s, uint32_t K, uint32_t groups)
        : inputs(s.C / groups), outputs(K / groups), taps(s.kernel * s.kernel) {}
};

template <typename T>
__global__ void grouped_kernel(T* y, const T* x, const T* w, WindowShape s, uint32_t samples, uint32_t K, uint32_t groups) {
    uint32_t rest = piece_thread();
    const Groups of(s, K, groups);
    const uint32_t k = rest % K, first = k / of.outputs * of.inputs;
    rest /= K;
    const uint32_t q = rest % s.Q;
    rest /= s.Q;
    const uint32_t p = rest % s.P, n = rest / s.P;
    if (n >= samples) return;
    float sum = 0;
    for (uint32_t tap = 0; tap < of.taps; ++tap) {
        // They wrap below 0 and are then >= H, W.
        const uint32_t h = p * s.stride + tap / s.kernel * s.dilation - s.pad, l = q * s.stride + tap % s.kernel * s.dilation - s.pad;
        if (h >= s.H || l >= s.W) continue;
        const T* const from = x + ((uint64_t{n} * s.H + h) * s.W + l) * s.C + first;
        for (uint32_t j = 0; j < of.inputs; ++j) sum = fmaf(load(w[uint64_t{j * of.taps + tap} * K + k]), load(from[j]), sum);
    }
    store(y + piece_thread(), sum);
}

/// The output row or column that reads input `at` by place `tap` of its window.  False: there is none.
__device__ __forceinline__ bool reader_of(uint32_t at, uint32_t tap, uint32_t count, const WindowShape& s, uint32_t* reader) {
    const uint32_t from = at + s.pad - tap * s.dilation;   // wraps below 0 and is then too large
    *reader = from / s.stride;
    return *reader < count && *reader * s.stride == from;
}

template <typename T>
__global__ void grouped_data_kernel(T* dx, const T* dy, const T* w, WindowShape s, uint32_t samples, uint32_t K, uint32_t groups) {
    uint32_t rest = piece_thread();
    const Groups of(s, K, groups);
    const uint32_t c = rest % s.C, j = c % of.inputs, first = c / of.inputs * of.outputs;
    rest /= s.C;
    const uint32_t l = rest % s.W;
    rest /= s.W;
    const uint32_t h = rest % s.H, n = rest / s.H;
    if (n >= samples) return;
    float sum = 0;
    for (uint32_t tap = 0; tap < of.taps; ++tap) {
        uint32_t p, q;
        if (!reader_of(h, tap / s.kernel, s.P, s, &p) || !reader_of(l, tap % s.kernel, s.Q, s, &q)) continue;
        const T *const from = dy + ((uint64_t{n} * s.P + p) * s.Q + q) * K + first, *const by = w + uint64_t{j * of.taps + tap} * K + first;
        for (uint32_t k = 0; k < of.outputs; ++k) sum = fmaf(load(by[k]), load(from[k]), sum);
    }
    store(dx + piece_thread(), sum);
}

/// How the output pixels are cut.
struct Chunks {
    uint32_t count, rows;
};
Chunks chunks_of(const WindowShape& s, uint32_t weights) {
    const uint32_t pixels = s.N * s.P * s.Q;
    const uint32_t most = std::clamp<uint32_t>(blocks_wanted / blocks_of(weights, threads), 1, chunks_most);
    const uint32_t rows = std::max(blocks_of(pixels, most), chunk_least);
    return {blocks_of(pixels, rows), rows};
}

/// Grid: weights in the order [C / groups, R, S, K], chunks.  parts: [chunks, weights]
template <typename T>
__global__ void grouped_weights_kernel(double* parts, const T* dy, const T* x, WindowShape s, uint32_t K, uint32_t groups, uint32_t weights,
                                       uint32_t chunk_rows) {
    const uint32_t i = blockIdx.x * threads + threadIdx.x;
    if (i >= weights) return;
    const Groups of(s, K, groups);
    const uint32_t k = i % K, tap = i / K % of.taps, c = k / of.outputs * of.inputs + i / K / of.taps;
    const uint32_t pixels = s.N * s.P * s.Q, begin = blockIdx.y * chunk_rows,
                   end = begin + chunk_rows < pixels ? begin + chunk_rows : pixels;
    double sum = 0;
    for (uint32_t row = begin; row < end; ++row) {
        const uint32_t q = row % s.Q, p = row / s.Q % s.P, n = row / s.Q / s.P;
        const uint32_t h = p * s.stride + tap / s.kernel * s.dilation - s.pad, l = q * s.stride + tap % s.kernel * s.dilation - s.pad;
        if (h >= s.H || l >= s.W) continue;
        sum += static_cast<double>(load(dy[uint64_t{row} * K + k]) * load(x[((uint64_t{n} * s.H + h) * s.W + l) * s.C + c]));
    }
    parts[uint64_t{blockIdx.y} * weights + i] = sum;
}

/// dw [K, C / groups, R, S] = the sums of the chunks.
__global__ void grouped_total_kernel(float* dw, const double* parts, uint32_t weights, uint32_t K, uint32_t chunks) {
    const uint32_t i = blockIdx.x * threads + threadIdx.x;
    if (i >= weights) return;
    double sum = 0;
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) sum += parts[uint64_t{chunk} * weights + i];
    dw[i % K * (weights / K) + i / K] = static_cast<float>(sum);
}

/// Elements of a sample.
uint64_t inputs_of(const WindowShape& s) { return uint64_t{s.H} * s.W * s.C; }
uint64_t outputs_of(const WindowShape& s, uint32_t K) { return uint64_t{s.P} * s.Q * K; }

/// A thread for each of the `to_size` elements of a sample; from_size: of what the kernel grouped_conv(T{}) reads.
template <typename Kernel>
Status each_sum(cudaStream_t stream, Values to, Values from, Values w, const WindowShape& s, uint32_t K, uint32_t groups, uint64_t to_size,
                uint64_t from_size, Kernel grouped_kernels) {
    return typed(to.bf16, [&](auto type) {
        using T = decltype(type);
        return pieces(s.N, to_size, [&](uint64_t first, uint32_t samples) {
            return GC_LAUNCH(grouped_kernels(type), blocks_of(samples * to_size, threads), threads, stream, as<T>(to) + first * to_size,
                             as<T>(from) + first * from_size, as<T>(w), s, samples, K, groups);
        });
    });
}

}   // namespace

Status grouped_conv(cudaStream_t stream, Values y, Values x, Values w, const WindowShape& s, uint32_t K, uint32_t groups) {
    const auto kernel = [](auto type) { return grouped_kernel<decltype(type)>; };
    return each_sum(stream, y, x, w, s, K, groups, outputs_of(s, K), inputs_of(s), kernel);
}

Status grouped_conv_data(cudaStream_t stream, Values dx, Values dy, Values w, const WindowShape& s, uint32_t K, uint32_t groups) {
    const auto kernel = [](auto type) { return grouped_data_kernel<decltype(type)>; };
    return each_sum(stream, dx, dy, w, s, K, groups, inputs_of(s), outputs_of(s, K), kernel);
}

uint64_t grouped_conv_scratch(const WindowShape& s, uint32_t weights) { return uint64_t{chunks_of(s, weights).count} * weights; }

Status grouped_conv_weights(cudaStream_t stream, float* dw, Values dy, Values x, double* scratch, const WindowShape& s, uint32_t K,
                            uint32_t groups) {
    const uint32_t weights = K * (s.C / groups) * s.kernel * s.kernel;
    const Chunks chunks = chunks_of(s, weights);
    GC_TRY(typed(dy.bf16, [&](auto type) {
        using T = decltype(type);
        return GC_LAUNCH(grouped_weights_kernel<T>, dim3(blocks_of(weights, threads), chunks.count, 1), threads, stream, scratch, as<T>(dy),
                         as<T>(x), s, K, groups, weights, chunks.rows);
    }));
    return GC_LAUNCH(grouped_total_kernel, blocks_of(weights, threads), threads, stream, dw, scratch, weights, K, chunks.count);
}

Status grouped(Build& b) {
    const Layer& l = *b.layer;
    const Activation x = b.activation;
    Operations& list = *b.operations;
    const WindowShape shape = b.window();
    const uint32_t K = l.out.C, groups = l.groups, each = static_cast<uint32_t>(l.weights / K);
    const uint64_t rows = b.rows(l.out);
    GC_TRY(b.rows_fit(rows));
    if (l.weights > INT32_MAX)
        return fail(Code::unsupported, "layer {}: its {} weights in groups are more than the {} that GPUs take: take device cpu",
                    l.spec.name, l.weights, INT32_MAX);
    const bool rectify = b.before(relu_kind), pooled = b.before(max_pool_kind), biased = l.biases > 0 && !pooled;
    const Tensor bias = b.bias(Place::parameters), w = b.copy(l.weights * b.value_bytes(), {{b.weight(Place::parameters), 0, 1, K, each}});
    Activation y = b.flows(true);
    y.rectified = rectify;
    if (pooled && l.biases) y.unbiased = &l;
    list.forward.emplace_back([=](const Frame& f) {
        GC_TRY(grouped_conv(f.stream, f.values(y.value), f.values(x.value), f.values(w), shape, K, groups));
        return bias_relu(f.stream, f.values(y.value), biased ? f.at(bias) : nullptr, rows, K, rectify);
    });
    b.activation = y;
    if (!b.training) return {};
    if (!pooled) b.bias_backward(y, &l, list.before);
    const Tensor dw = b.weight(Place::gradient);
    const Tensor space = b.beside(grouped_conv_scratch(shape, static_cast<uint32_t>(l.weights)) * sizeof(double));
    list.weights.emplace_back([=](const Frame& f) {
        return grouped_conv_weights(f.stream, f.at(dw), f.values(y.gradient), f.values(x.value), f.at<double>(space), shape, K, groups);
    });
    if (x.learns)
        list.data.emplace_back([=](const Frame& f) {
            return grouped_conv_data(f.stream, f.values(x.gradient), f.values(y.gradient), f.values(w), shape, K, groups);
        });
    return {};
}

}   // namespace gradcast::cuda
