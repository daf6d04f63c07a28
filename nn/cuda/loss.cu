// Losses, one thread a sample.  A second kernel sums (not averages) the samples' losses in a fixed order.
#include "nn/cuda/element.h"

namespace gradcast::cuda {
namespace {

constexpr uint32_t reducers = 256;

/// Index of the largest, the first of equals.
template <typename T>
__device__ uint32_t best_of(const T* row, uint32_t classes) {
    uint32_t best = 0;
    for (uint32_t k = 1; k < classes; ++k)
        if (load(row[k]) > load(row[best])) best = k;
    return best;
}

/// -log(softmax(x)[label]);  dx[k] = softmax(x)[k] - (k == label).
struct Softmax {
    template <typename T>
    __device__ double operator()(const T* row, T* drow, uint32_t label, uint32_t best, uint32_t classes) const {
        const float top = load(row[best]);
        float sum = 0;
        for (uint32_t k = 0; k < classes; ++k) sum += expf(load(row[k]) - top);
        for (uint32_t k = 0; drow && k < classes; ++k) store(drow + k, expf(load(row[k]) - top) / sum - (k == label ? 1.0f : 0.0f));
        return log(static_cast<double>(sum)) + static_cast<double>(top) - static_cast<double>(load(row[label]));
    }
};

/// Sum of (x[k] - t[k])^2, t = 1 at the label and 0 elsewhere, or a regression's target;  dx = 2 (x - t).
struct Squares {
    float scale, zero;
    template <typename T>
    __device__ double operator()(const T* row, T* drow, uint32_t label, uint32_t, uint32_t classes) const {
        double total = 0;
        for (uint32_t k = 0; k < classes; ++k) {
            const float target = scale > 0 ? (static_cast<float>(label) - zero) * scale : k == label ? 1.0f : 0.0f;
            const float off = load(row[k]) - target;
            total += static_cast<double>(off) * static_cast<double>(off);
            if (drow) store(drow + k, 2 * off);
        }
        return total;
    }
};

template <typename F, typename T>
__global__ void loss_kernel(F f, const T* x, T* dx, const int32_t* labels, const BlockHeader* header, uint32_t classes, uint32_t samples,
                            double* losses, int32_t* best) {
    const uint64_t n = thread_number();
    if (n >= samples) return;
    T* drow = dx ? dx + n * classes : nullptr;
    if (n >= header->count) {
        for (uint32_t k = 0; drow && k < classes; ++k) store(drow + k, 0.0f);
        return;
    }
    const T* row = x + n * classes;
    const uint32_t predicted = best_of(row, classes);
    best[n] = static_cast<int32_t>(predicted);
    losses[n] = f(row, drow, static_cast<uint32_t>(labels[n]), predicted, classes);
}

__global__ void loss_sum_kernel(LossResult* result, const double* losses, const int32_t* best, const int32_t* labels,
                                const BlockHeader* header, uint32_t classes) {
    __shared__ double sums[reducers];
    __shared__ uint32_t rights[reducers];
    double sum = 0;
    uint32_t right = 0;
    for (uint32_t n = threadIdx.x; n < header->count; n += reducers) {
        sum += losses[n];
        right += classes > 1 && best[n] == labels[n] ? 1 : 0;   // one output is a regression: never right
    }
    sums[threadIdx.x] = sum;
    rights[threadIdx.x] = right;
    for (uint32_t half = reducers / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            sums[threadIdx.x] += sums[threadIdx.x + half];
            rights[threadIdx.x] += rights[threadIdx.x + half];
        }
    }
    if (threadIdx.x == 0) {
        result->loss = sums[0];
        result->right = rights[0];
    }
}

template <typename F>
Status loss(cudaStream_t stream, F f, Values x, Values dx, const int32_t* labels, const BlockHeader* header, uint32_t classes,
            uint32_t samples, double* losses, int32_t* best, LossResult* result) {
    GC_TRY(typed(x.bf16, [&](auto type) {
        using T = decltype(type);
        return GC_LAUNCH((loss_kernel<F, T>), blocks_of(samples, threads), threads, stream, f, as<T>(x), as<T>(dx), labels, header, classes,
                         samples, losses, best);
    }));
    return GC_LAUNCH(loss_sum_kernel, 1, reducers, stream, result, losses, best, labels, header, classes);
}

}   // namespace

Status softmax_cross_entropy(cudaStream_t stream, Values x, Values dx, const int32_t* labels, const BlockHeader* header, uint32_t classes,
                             uint32_t samples, double* losses, int32_t* best, LossResult* result) {
    return loss(stream, Softmax{}, x, dx, labels, header, classes, samples, losses, best, result);
}

Status squared_loss(cudaStream_t stream, Values x, Values dx, const int32_t* labels, const BlockHeader* header, uint32_t classes,
                    uint32_t samples, float scale, float zero, double* losses, int32_t* best, LossResult* result) {
    return loss(stream, Squares{scale, zero}, x, dx, labels, header, classes, samples, losses, best, result);
}

}   // namespace gradcast::cuda
