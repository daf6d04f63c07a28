// Whole steps on one GPU: all blocks, the sum of their words, the update and the digest are one graph, and one launch.
//
// The lanes compute their blocks beside each other; then the codec closes the step, one kernel updates all groups and digests them, and the
// copies of weights are made anew.  Results go to page-locked memory, so the graph copies nothing.
#include <algorithm>
#include <cstring>

#include "nn/cuda/net.h"

namespace gradcast::cuda {

void CudaNet::plan_whole() {
    const auto blocks = static_cast<uint32_t>(config_.step_blocks.size());
    GC_ASSERT(blocks <= step_blocks_max);
    whole_.on = blocks > 0 && gpus_.size() == 1;
    if (!whole_.on) return;
    whole_.lanes = std::min({blocks, static_cast<uint32_t>(lanes_.size()), CudaDevice::StepWords::lanes_max});
    whole_.losses.resize(blocks);
    const uint32_t most = *std::ranges::max_element(config_.step_blocks);
    auto up = [](uint64_t bytes) { return (bytes + 255) / 256 * 256; };
    whole_.staged_bytes = up(input_.images + most * std::max<uint64_t>(input_.image_bytes, sizeof(SamplePlace)));
    whole_.result_bytes = up(sizeof(LossResult) + most * sizeof(int32_t));
    DeviceArena& arena = device_.gpus()[0]->arena;
    for (uint32_t parity = 0; parity < 2; ++parity) {
        arena.plan_pinned("samples", blocks * whole_.staged_bytes, &whole_.staged[parity]);
        arena.plan_pinned("samples", sizeof(uint64_t) + (blocks + 1) * whole_.result_bytes, &whole_.results[parity]);
    }
    for (const Group& group : layout_.groups) whole_.thread_blocks += blocks_of(group.count, update_per_block);
    arena.plan("sums", layout_.groups.size() * sizeof(UpdateGroup), &whole_.groups);
    arena.plan("sums", whole_.thread_blocks * sizeof(uint32_t), &whole_.group_of_block);
    arena.plan("sums", 2 * sizeof(UpdateTask), &whole_.task);
}

Status CudaNet::ready_whole() {
    CudaDevice::Follower* const follower = device_.follower;
    whole_.on = whole_.on && optimiser_ && follower && follower->whole_steps();
    if (!whole_.on) return {};
    GC_TRY(device_.use(*device_.gpus()[0]));
    std::vector<UpdateGroup> groups;
    std::vector<uint32_t> group_of_block;
    for (uint32_t g = 0; g < layout_.groups.size(); ++g) {
        const Group& group = layout_.groups[g];
        const CudaDevice::StepGroup words = follower->step_group(g);
        UpdateGroup& made = groups.emplace_back();
        made = {.w = static_cast<float*>(gpus_[0].parameters.device) + group.offset,
                .first = nullptr,
                .second = nullptr,
                .count = group.count,
                .element = group.offset,
                .words = words.first,
                .radix = words.radix,
                .begin = static_cast<uint32_t>(group_of_block.size()),
                .statistics = group.statistics};
        optimiser_->group(&made, group.offset);
        group_of_block.insert(group_of_block.end(), blocks_of(group.count, update_per_block), g);
    }
    GC_ASSERT(group_of_block.size() == whole_.thread_blocks);
    std::array<UpdateTask, 2> tasks{};
    for (uint32_t parity = 0; parity < 2; ++parity) {
        UpdateTask& task = tasks[parity];
        task.words = follower->step_words(whole_.lanes);
        task.rates = &lanes_[0].frame.header->rates;
        task.groups = static_cast<const UpdateGroup*>(whole_.groups.device);
        task.group_of_block = static_cast<const uint32_t*>(whole_.group_of_block.device);
        task.digest = whole_.results[parity].as<uint64_t>();
        task.spoiled = spoiled(gpus_[0]);
        task.share = statistics_share;
        task.elements = layout_.elements;
    }
    GC_CUDA(cudaMemcpy(whole_.groups.device, groups.data(), groups.size() * sizeof(UpdateGroup), cudaMemcpyHostToDevice));
    GC_CUDA(
        cudaMemcpy(whole_.group_of_block.device, group_of_block.data(), group_of_block.size() * sizeof(uint32_t), cudaMemcpyHostToDevice));
    GC_CUDA(cudaMemcpy(whole_.task.device, tasks.data(), sizeof tasks, cudaMemcpyHostToDevice));
    GC_CUDA(cudaDeviceSynchronize());   // other streams are not ordered after these copies
    // Once before the capture, as all that is captured; the state that this leaves is overwritten.
    std::memset(whole_.staged[0].host, 0, whole_.staged[0].bytes);
    GC_TRY(enqueue_whole(0));
    GC_CUDA(cudaStreamSynchronize(gpus_[0].stream));
    for (uint32_t parity = 0; parity < 2; ++parity) {
        GC_TRY(cuda::make(&whole_.done[parity], true));
        GC_TRY(capture(
            gpus_[0].stream, [&] { return enqueue_whole(parity); }, &whole_.graphs[parity]));
    }
    return {};
}

Status CudaNet::enqueue_whole(uint32_t parity, NetTrace* trace) {
    CudaDevice::Follower& follower = *device_.follower;
    const cudaStream_t stream = gpus_[0].stream;
    GC_CUDA(cudaEventRecord(lanes_[0].forked.get(), stream));
    for (uint32_t lane = 0; lane < whole_.lanes; ++lane) GC_CUDA(cudaStreamWaitEvent(lanes_[lane].frame.stream, lanes_[0].forked.get(), 0));
    for (uint32_t block = 0; block < config_.step_blocks.size(); ++block) {
        const uint32_t number = block % whole_.lanes;
        Lane& lane = lanes_[number];
        Program* program = nullptr;
        GC_TRY(program_find(programs_, config_.step_blocks[block], true, &program));
        const std::byte* staged = whole_.staged[parity].host + block * whole_.staged_bytes;
        if (!device_.resident)
            GC_CUDA(cudaMemcpyAsync(static_cast<std::byte*>(lane.input.device) + input_.images, staged + input_.images,
                                    program->samples * input_.image_bytes, cudaMemcpyHostToDevice, lane.frame.stream));
        GC_TRY(enqueue({*program, number, Work::whole, staged, whole_.results[parity].host + (block + 1) * whole_.result_bytes, trace}));
        GC_TRY(follower.quantise(number, block, block < whole_.lanes, lane.memory[static_cast<size_t>(Place::gradient)].device,
                                 &lane.frame.header->step, lane.frame.stream));
    }
    for (uint32_t lane = 0; lane < whole_.lanes; ++lane) {
        GC_CUDA(cudaEventRecord(lanes_[lane].stepped.get(), lanes_[lane].frame.stream));
        GC_CUDA(cudaStreamWaitEvent(stream, lanes_[lane].stepped.get(), 0));
    }
    GC_TRY(follower.close(whole_.lanes, parity, stream));
    GC_TRY(optimiser_->update_all(static_cast<UpdateTask*>(whole_.task.device) + parity, whole_.thread_blocks, stream));
    return refresh(gpus_[0], 0, layout_.elements);
}

Status CudaNet::step_begin(StepId step, std::span<const Samples> blocks) {
    GC_ASSERT(whole_.on && blocks.size() == config_.step_blocks.size() && whole_.begun < whole_.ended + 2);
    GC_TRY(device_.use(*device_.gpus()[0]));
    GC_TRY(settle());
    const cudaStream_t stream = gpus_[0].stream;
    const auto parity = static_cast<uint32_t>(whole_.begun % 2);
    if (whole_.begun == whole_.ended) GC_TRY(device_.follower->scales(stream));
    for (uint32_t block = 0; block < blocks.size(); ++block) {
        const Samples& samples = blocks[block];
        GC_TRY(samples_check(spec_, samples));
        GC_ASSERT(samples.count == config_.step_blocks[block] && samples.resident == device_.resident);
        std::byte* to = whole_.staged[parity].host + block * whole_.staged_bytes;
        write_input(to, samples, {step, block}, samples.count);
    }
    if (trace_) GC_TRY(enqueue_whole(parity, trace_));
    else GC_CUDA(cudaGraphLaunch(whole_.graphs[parity].get(), stream));
    GC_CUDA(cudaEventRecord(whole_.done[parity].get(), stream));
    GC_CUDA(cudaEventRecord(device_.gpus()[0]->changed.get(), stream));
    whole_.step[parity] = step;
    ++whole_.begun;
    stale_ = true;
    return {};
}

Status CudaNet::step_end(WholeStep* done) {
    GC_ASSERT(whole_.ended < whole_.begun);
    const auto parity = static_cast<uint32_t>(whole_.ended % 2);
    GC_TRY(wait(whole_.done[parity]));
    ++whole_.ended;
    CudaDevice::StepFound found;
    if (const Status status = device_.follower->found(whole_.step[parity], parity, &found); !status.ok()) {
        GC_CUDA(cudaStreamSynchronize(gpus_[0].stream));   // the later step, which has changed nothing
        whole_.ended = whole_.begun;
        return status;
    }
    for (size_t block = 0; block < whole_.losses.size(); ++block)
        whole_.losses[block] = reinterpret_cast<const LossResult*>(whole_.results[parity].host + (block + 1) * whole_.result_bytes)->loss;
    *done = {whole_.losses, found.maxima, found.clipped, *whole_.results[parity].as<uint64_t>()};
    return {};
}

}   // namespace gradcast::cuda
