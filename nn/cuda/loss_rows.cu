// softmax_cross_entropy of many rows, or with label smoothing: some threads share a row of outputs.
//
//     loss = log(sum of exp x) - sum of t x,   dx = softmax(x) - t,   t = (1 - s) [k = label] + s / classes,   both divided by the
//     positions
#include "nn/cuda/loss_total.h"

namespace gradcast::cuda {
namespace {

/// The largest output, the first of equals.
struct Best {
    float value;
    uint32_t at;
};
struct Better {
    __device__ Best operator()(Best a, Best b) const { return b.value > a.value || (b.value == a.value && b.at < a.at) ? b : a; }
};

template <typename T>
__global__ void __launch_bounds__(row_threads) loss_rows_kernel(const T* x, T* dx, const LossTask task, uint32_t lanes) {
    __shared__ Best bests[row_threads];
    __shared__ float sums[row_threads];
    __shared__ double totals[row_threads];
    const uint32_t classes = task.classes, lane = threadIdx.x % lanes, row = blockIdx.x * (row_threads / lanes) + threadIdx.x / lanes;
    const bool exists = row < task.samples * task.positions, here = row < task.header->count * task.positions;
    const int32_t label = here ? task.labels[row] : loss_ignored;
    const bool counts = label != loss_ignored;
    const T* const from = x + uint64_t{here ? row : 0} * classes;

    Best best{load(from[lane]), lane};
    for (uint32_t k = lane + lanes; k < classes; k += lanes)
        if (const float value = load(from[k]); value > best.value) best = {value, k};
    best = row_combine(best, lanes, bests, Better{});
    float sum = 0;
    double all = 0;
    for (uint32_t k = lane; k < classes; k += lanes) {
        const float value = load(from[k]);
        sum += expf(value - best.value);
        all += static_cast<double>(value);
    }
    sum = row_sum(sum, lanes, sums);
    if (task.smoothing > 0) all = row_sum(all, lanes, totals);

    const bool spoiled = *task.spoiled != 0;
    const double hit = 1 - task.smoothing;
    if (dx && exists) {
        T* const to = dx + uint64_t{row} * classes;
        const auto share = static_cast<float>(task.smoothing / classes), of_label = static_cast<float>(hit);
        const float scale = 1 / static_cast<float>(task.positions);
        for (uint32_t k = lane; k < classes; k += lanes) {
            float value = 0;
            if (counts)
                value = (expf(load(from[k]) - best.value) / sum - (k == static_cast<uint32_t>(label) ? of_label : 0.0f) - share) * scale;
            if (here && spoiled) value = NAN;
            store(to + k, value);
        }
    }
    double loss = 0, right = 0;
    if (lane == 0 && here) {
        task.best[row] = static_cast<int32_t>(best.at);
        if (counts) {
            const double wanted = hit * static_cast<double>(load(from[label])) + task.smoothing * all / classes;
            loss = log(static_cast<double>(sum)) + static_cast<double>(best.value) - wanted;
            right = best.at == static_cast<uint32_t>(label);
        }
        if (spoiled) loss = NAN;
    }
    loss_total(loss, right, task, totals);
}

uint32_t blocks_for(uint64_t rows, uint32_t classes) { return blocks_of(rows, row_threads / row_lanes(classes)); }

}   // namespace

SumSize loss_rows_size(uint64_t rows, uint32_t classes) { return {uint64_t{2} * blocks_for(rows, classes), 1}; }

Status softmax_cross_entropy_rows(cudaStream_t stream, Values x, Values dx, const LossTask& task) {
    return typed(x.bf16, [&](auto type) {
        using T = decltype(type);
        return GC_LAUNCH(loss_rows_kernel<T>, blocks_for(uint64_t{task.samples} * task.positions, task.classes), row_threads, stream,
                         as<T>(x), as<T>(dx), task, row_lanes(task.classes));
    });
}

}   // namespace gradcast::cuda
