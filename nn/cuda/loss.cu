// Losses, one thread a sample, and their sum (not average).
#include <type_traits>

#include "nn/cuda/loss_total.h"

namespace gradcast::cuda {
namespace {

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

/// The same with the targets of a sample, [samples, classes].  Nothing is predicted.
struct SquaresOfTargets {
    const float* targets;
    template <typename T>
    __device__ double operator()(const T* row, T* drow, uint64_t first, uint32_t classes) const {
        double total = 0;
        for (uint32_t k = 0; k < classes; ++k) {
            const float off = load(row[k]) - targets[first + k];
            total += static_cast<double>(off) * static_cast<double>(off);
            if (drow) store(drow + k, 2 * off);
        }
        return total;
    }
};

template <typename F, typename T>
__global__ void __launch_bounds__(row_threads) loss_kernel(F f, const T* x, T* dx, const LossTask task) {
    const uint32_t classes = task.classes;
    __shared__ double totals[row_threads];
    const uint32_t n = blockIdx.x * row_threads + threadIdx.x, count = task.header->count;
    const T* row = x + uint64_t{n} * classes;
    T* drow = dx ? dx + uint64_t{n} * classes : nullptr;
    double loss = 0, right = 0;
    if (n < count) {
        if constexpr (std::is_same_v<F, SquaresOfTargets>) {
            task.best[n] = 0;
            loss = f(row, drow, uint64_t{n} * classes, classes);
        } else {
            const auto label = static_cast<uint32_t>(task.labels[n]);
            const uint32_t predicted = best_of(row, classes);
            task.best[n] = static_cast<int32_t>(predicted);
            loss = f(row, drow, label, predicted, classes);
            right = classes > 1 && predicted == label;   // one output is a regression: never right
        }
        if (*task.spoiled) {
            loss = NAN;
            for (uint32_t k = 0; drow && k < classes; ++k) store(drow + k, NAN);
        }
    } else if (n < task.samples) {
        for (uint32_t k = 0; drow && k < classes; ++k) store(drow + k, 0.0f);
    }
    loss_total(loss, right, task, totals);
}

template <typename F>
Status loss(cudaStream_t stream, F f, Values x, Values dx, const LossTask& task) {
    return typed(x.bf16, [&](auto type) {
        using T = decltype(type);
        return GC_LAUNCH((loss_kernel<F, T>), blocks_of(task.samples, row_threads), row_threads, stream, f, as<T>(x), as<T>(dx), task);
    });
}

}   // namespace

SumSize loss_size(uint32_t samples) { return {uint64_t{2} * blocks_of(samples, row_threads), 1}; }

Status softmax_cross_entropy(cudaStream_t stream, Values x, Values dx, const LossTask& task) {
    return loss(stream, Softmax{}, x, dx, task);
}

Status squared_loss(cudaStream_t stream, Values x, Values dx, const LossTask& task, const float* targets) {
    return loss(stream, SquaresOfTargets{targets}, x, dx, task);
}

Status squared_loss(cudaStream_t stream, Values x, Values dx, const LossTask& task, float scale, float zero) {
    return loss(stream, Squares{scale, zero}, x, dx, task);
}

}   // namespace gradcast::cuda
