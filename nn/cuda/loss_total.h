// The sum of a loss over all thread blocks.  In .cu files only.
#pragma once
#include "nn/cuda/rows.h"

namespace gradcast::cuda {

/// Writes *task.result from the losses and right answers of all threads; a loss is divided by the positions.  Each thread block adds those
/// of its threads by halves.  The block that ends last adds the sums of all blocks: thread t adds blocks t, t + row_threads, … in order,
/// then the threads' sums are added by halves.  All threads of the block call it, row_threads of them.  scratch: [row_threads] in shared
/// memory; memory of the task: scratch [blocks, 2], one ticket.
__device__ __forceinline__ void loss_total(double loss, double right, const LossTask& task, double* scratch) {
    __shared__ bool last;
    const SumMemory& memory = task.memory;
    loss = row_sum(loss, row_threads, scratch);
    right = row_sum(right, row_threads, scratch);
    if (gridDim.x > 1) {
        if (threadIdx.x == 0) {
            memory.scratch[uint64_t{blockIdx.x} * 2] = loss;
            memory.scratch[uint64_t{blockIdx.x} * 2 + 1] = right;
            __threadfence();   // before the ticket: the last block sees what the others wrote
            last = atomicAdd(memory.tickets, 1u) == gridDim.x - 1;
            __threadfence();
        }
        __syncthreads();
        if (!last) return;
        if (threadIdx.x == 0) *memory.tickets = 0;
        loss = right = 0;
        for (uint32_t block = threadIdx.x; block < gridDim.x; block += row_threads) {
            loss += __ldcg(memory.scratch + uint64_t{block} * 2);
            right += __ldcg(memory.scratch + uint64_t{block} * 2 + 1);
        }
        loss = row_sum(loss, row_threads, scratch);
        right = row_sum(right, row_threads, scratch);
    }
    if (threadIdx.x == 0) *task.result = {loss / task.positions, static_cast<uint64_t>(right)};
}

}   // namespace gradcast::cuda
