// The update of running statistics, the thread blocks of an update, and digests of state.
#include <algorithm>

#include "nn/cuda/apply.h"

namespace gradcast::cuda {
namespace {

// Integer sums: the order of threads does not matter.
__global__ void digest_kernel(DigestNow* now, const uint32_t* words, uint64_t count) {
    static_assert(threads == digest_row);   // so all words of a thread have the same place in their rows
    const uint64_t small = digest_small((now->first + thread_number()) % digest_row);
    uint64_t sum = 0;
    for (uint64_t i = thread_number(); i < count; i += uint64_t{gridDim.x} * blockDim.x)
        sum += small * words[i] * digest_large((now->first + i) / digest_row);
    const unsigned long long all = block_sum(sum);
    if (threadIdx.x == 0) atomicAdd(&now->sum, all);
}

}   // namespace

Status apply_statistics(cudaStream_t stream, float* w, const Words& words, uint64_t count, float share) {
    return apply(stream, StatisticsUpdate{{w, nullptr, nullptr, nullptr}, share}, words, count);
}

void update_split(const UpdateGroup& group, std::vector<UpdateBlock>* blocks) {
    const uint64_t lead = group.element % 4, end = lead + group.count;
    for (uint64_t at = 0; at < end; at += update_per_block) {
        UpdateBlock& block = blocks->emplace_back();
        block.group = group;
        block.group.element += at - lead;
        block.group.words += at - lead;
        block.begin = at == 0 ? static_cast<uint32_t>(lead) : 0;
        block.end = static_cast<uint32_t>(std::min<uint64_t>(end - at, update_per_block));
    }
}

Status digest(cudaStream_t stream, DigestNow* now, const void* words, uint64_t count) {
    constexpr uint32_t most = 1024;
    const uint32_t grid = std::min(most, blocks_of(count, threads));
    return GC_LAUNCH(digest_kernel, grid, threads, stream, now, static_cast<const uint32_t*>(words), count);
}

}   // namespace gradcast::cuda
