// Losses, one thread a sample, and their sum (not average).  Each thread block sums its samples; the last block to end adds the sums of all
// blocks, in their order.
#include <type_traits>

#include "nn/cuda/element.h"

namespace gradcast::cuda {
namespace {

constexpr uint32_t block_samples = 128, unrolled = 8;

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

/// memory: scratch [blocks, 2] for losses and right answers, one ticket.
template <typename F, typename T>
__global__ void __launch_bounds__(block_samples) loss_kernel(F f, const T* x, T* dx, const LossTask task) {
    const uint32_t classes = task.classes;
    const SumMemory& memory = task.memory;
    __shared__ double losses[block_samples];
    __shared__ uint32_t rights[block_samples];
    const uint32_t n = blockIdx.x * block_samples + threadIdx.x, count = task.header->count;
    const T* row = x + uint64_t{n} * classes;
    T* drow = dx ? dx + uint64_t{n} * classes : nullptr;
    double loss = 0;
    uint32_t right = 0;
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
    losses[threadIdx.x] = loss;
    rights[threadIdx.x] = right;
    for (uint32_t half = block_samples / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            losses[threadIdx.x] += losses[threadIdx.x + half];
            rights[threadIdx.x] += rights[threadIdx.x + half];
        }
    }
    if (threadIdx.x > 0) return;
    double sums[2] = {losses[0], static_cast<double>(rights[0])};
    if (gridDim.x > 1) {
        for (int s = 0; s < 2; ++s) memory.scratch[uint64_t{blockIdx.x} * 2 + s] = sums[s];
        __threadfence();   // before the ticket: the last block sees what the others wrote
        if (atomicAdd(memory.tickets, 1u) < gridDim.x - 1) return;
        __threadfence();
        *memory.tickets = 0;
        sums[0] = sums[1] = 0;
        for (uint32_t block = 0; block < gridDim.x; block += unrolled) {
            double got[unrolled][2];
            for (uint32_t u = 0; u < unrolled; ++u)
                for (int s = 0; s < 2; ++s) got[u][s] = block + u < gridDim.x ? __ldcg(memory.scratch + uint64_t{block + u} * 2 + s) : 0;
            for (uint32_t u = 0; u < unrolled; ++u)
                for (int s = 0; s < 2; ++s) sums[s] += got[u][s];
        }
    }
    *task.result = {sums[0], static_cast<uint64_t>(sums[1])};
}

template <typename F>
Status loss(cudaStream_t stream, F f, Values x, Values dx, const LossTask& task) {
    return typed(x.bf16, [&](auto type) {
        using T = decltype(type);
        return GC_LAUNCH((loss_kernel<F, T>), blocks_of(task.samples, block_samples), block_samples, stream, f, as<T>(x), as<T>(dx), task);
    });
}

}   // namespace

SumSize loss_size(uint32_t samples) { return {uint64_t{2} * blocks_of(samples, block_samples), 1}; }

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
