// Changes of the parameters: updates by sums of gradients, and values written by the host.
#include <algorithm>
#include <cmath>
#include <utility>

#include "nn/cuda/net.h"

namespace gradcast::cuda {

Status CudaNet::settle() {
    if (!blocks_since_.exchange(false, std::memory_order_relaxed)) return {};
    updated_.assign(updated_.size(), false);   // blocks wait for updates, and the last block's loss was waited for
    for (size_t i = 0; i < lanes_.size(); ++i) {
        GC_CUDA(cudaStreamWaitEvent(device_.gpus()[0]->stream.get(), lanes_[i].done.get(), 0));
        if (lanes_[i].used) GC_CUDA(cudaStreamWaitEvent(device_.gpus()[0]->stream.get(), lanes_[i].taken.get(), 0));
    }
    return {};
}

Status CudaNet::update(uint32_t number) {
    const Bucket& bucket = layout_.buckets[number];
    auto* now = static_cast<std::byte*>(update_now_.device) + update_at_[number];
    const uint64_t bytes = sizeof(ApplyNow) + bucket.group_count * sizeof(double);
    const cudaStream_t stream = gpus_[0].stream;
    GC_CUDA(cudaMemcpyAsync(now, update_here_.host + update_at_[number], bytes, cudaMemcpyHostToDevice, stream));
    auto* w = static_cast<float*>(gpus_[0].parameters.device);
    for (uint32_t g = 0; g < bucket.group_count; ++g) {
        const Group& group = layout_.groups[bucket.group + g];
        const Words from{reinterpret_cast<const ApplyNow*>(now), group.offset - bucket.offset,
                         reinterpret_cast<const double*>(now + sizeof(ApplyNow)) + g};
        if (statistics_ && number == 0) GC_TRY(apply_statistics(stream, w + group.offset, from, group.count, statistics_share));
        else GC_TRY(optimiser_->apply(w, group, from));
    }
    return refresh(gpus_[0], bucket.offset, bucket.offset + bucket.count);
}

Status CudaNet::refresh(const Gpu& gpu, uint64_t offset, uint64_t end) {
    auto from = [this](uint64_t at) { return std::lower_bound(copy_offsets_.begin(), copy_offsets_.end(), at) - copy_offsets_.begin(); };
    const auto first = static_cast<size_t>(from(offset)), last = static_cast<size_t>(from(end));
    return weight_copies(gpu.stream, {gpu.copies.device, config_.precision == Precision::bf16},
                         static_cast<const float*>(gpu.parameters.device), std::span(copies_).subspan(first, last - first));
}

Status CudaNet::spread(uint32_t bucket) {
    auto& gpus = device_.gpus();
    const cudaStream_t first = gpus[0]->stream.get();
    const bool all = bucket == all_buckets;
    const uint64_t offset = all ? 0 : layout_.buckets[bucket].offset, count = all ? layout_.elements : layout_.buckets[bucket].count;
    for (size_t i = 1; i < gpus.size(); ++i) {
        auto at = [&](const Gpu& gpu) { return static_cast<float*>(gpu.parameters.device) + offset; };
        GC_CUDA(cudaMemcpyPeerAsync(at(gpus_[i]), gpus[i]->number, at(gpus_[0]), gpus[0]->number, count * sizeof(float), first));
        GC_CUDA(cudaMemcpyPeerAsync(spoiled(gpus_[i]), gpus[i]->number, spoiled(gpus_[0]), gpus[0]->number, sizeof(uint32_t), first));
    }
    if (gpus.size() > 1) GC_CUDA(cudaEventRecord(gpus[0]->changed.get(), first));
    for (size_t i = gpus.size(); i-- > 0;) {   // the first GPU last: its event is recorded anew
        GC_TRY(device_.use(*gpus[i]));
        const cudaStream_t stream = gpus[i]->stream.get();
        if (i > 0) GC_CUDA(cudaStreamWaitEvent(stream, gpus[0]->changed.get(), 0));
        for (size_t l = 0; all && l < lanes_.size(); ++l) {
            const Buffer& tickets = lanes_[l].memory[static_cast<size_t>(Place::tickets)];
            if (device_.lanes()[l].gpu == i && tickets.bytes > 0) GC_CUDA(cudaMemsetAsync(tickets.device, 0, tickets.bytes, stream));
        }
        if (all) GC_TRY(refresh(gpus_[i], offset, offset + count));
        else if (i > 0) GC_CUDA(cudaGraphLaunch(gpus_[i].refreshes[bucket].get(), stream));
        GC_CUDA(cudaEventRecord(gpus[i]->changed.get(), stream));
    }
    return {};
}

Status CudaNet::upload() {
    GC_TRY(device_.use(*device_.gpus()[0]));
    GC_TRY(settle());
    const cudaStream_t stream = device_.gpus()[0]->stream.get();
    const std::span<const float> values(mirror_.as<float>(), layout_.elements);
    spoiled_ = std::ranges::any_of(values, [](float x) { return !std::isfinite(x); });
    mirror_.as<uint32_t>()[layout_.elements] = spoiled_;
    GC_CUDA(cudaMemcpyAsync(gpus_[0].parameters.device, mirror_.host, mirror_.bytes, cudaMemcpyHostToDevice, stream));
    GC_TRY(spread(all_buckets));
    stale_ = false;
    GC_CUDA(cudaStreamSynchronize(stream));   // then the caller may write to the mirror
    return {};
}

Status CudaNet::apply(Lanes&, Optimiser& optimiser, std::span<const BucketSum> sums, uint64_t* digest) {
    GC_ASSERT(sums.size() == layout_.buckets.size() && &optimiser == optimiser_);
    for (const BucketSum& each : sums) GC_TRY(apply(each.sum, each.units));
    GC_TRY(digest_.start(0));
    GC_TRY(optimiser_->digest_start(layout_.whole()));
    const cudaStream_t stream = device_.gpus()[0]->stream.get();
    uint32_t* const flag = mirror_.as<uint32_t>() + layout_.elements;
    if (!graphs_) GC_CUDA(cudaMemcpyAsync(flag, spoiled(gpus_[0]), sizeof *flag, cudaMemcpyDeviceToHost, stream));
    GC_CUDA(cudaStreamSynchronize(stream));
    spoiled_ = !graphs_ && *flag != 0;
    *digest = digest_.sum() + optimiser_->digest_sum();
    return {};
}

Status CudaNet::apply(const Sum& sum, std::span<const double> units) {
    GC_ASSERT(sum.bucket < layout_.buckets.size());
    const Bucket& bucket = layout_.buckets[sum.bucket];
    const uint64_t bytes = bucket.count * word_bytes(sum.word);
    GC_ASSERT(units.size() == bucket.group_count && sum.words.bytes >= bytes);
    GC_TRY(device_.use(*device_.gpus()[0]));
    GC_TRY(settle());
    const cudaStream_t stream = device_.gpus()[0]->stream.get();
    if (updated_[sum.bucket]) {   // no block since: the last graph may not yet have read update_here_
        GC_CUDA(cudaStreamSynchronize(stream));
        updated_.assign(updated_.size(), false);
    }
    if (!sum.words.device) GC_TRY(device_.copy_in(words_.device, sum.words.host, bytes, stream));
    auto* now = reinterpret_cast<ApplyNow*>(update_here_.host + update_at_[sum.bucket]);
    now->words = sum.words.device ? sum.words.device : words_.device;
    now->word = sum.word;
    optimiser_->rates(&now->rates);
    std::copy(units.begin(), units.end(), reinterpret_cast<double*>(now + 1));
    GC_CUDA(cudaGraphLaunch(updates_[sum.bucket].get(), stream));
    stale_ = updated_[sum.bucket] = true;
    optimiser_->changed();
    return spread(sum.bucket);
}

}   // namespace gradcast::cuda
