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
    whole_.on = blocks > 0 && gpus_.size() == 1 && graphs_;
    if (!whole_.on) return;
    whole_.lanes = std::min({blocks, static_cast<uint32_t>(lanes_.size()), CudaDevice::StepWords::lanes_max});
    whole_.losses.resize(blocks);
    const uint32_t most = *std::ranges::max_element(config_.step_blocks);
    whole_.staged_bytes = aligned(input_.images + most * std::max<uint64_t>(input_.image_bytes, sizeof(SamplePlace)));
    whole_.result_bytes = aligned(result_bytes(most));
    DeviceArena& arena = device_.gpus()[0]->arena;
    for (uint32_t parity = 0; parity < 2; ++parity) {
        arena.plan_pinned("samples", blocks * whole_.staged_bytes, &whole_.staged[parity]);
        arena.plan_pinned("samples", sizeof(uint64_t) + (blocks + 1) * whole_.result_bytes, &whole_.results[parity]);
    }
    arena.plan("sums", sizeof(UpdateTotal), &whole_.total);
}

void CudaNet::plan_whole_update() {
    whole_.on = whole_.on && optimiser_->whole_steps();
    if (!whole_.on) return;
    for (const Group& group : layout_.groups) {
        if (group.statistics) whole_.thread_blocks += update_blocks(group.offset, group.count);
        else
            for (const OptimiserPart& part : optimiser_->parts(group)) whole_.thread_blocks += update_blocks(part.offset, part.count);
    }
    device_.gpus()[0]->arena.plan("sums", whole_.thread_blocks * sizeof(UpdateBlock), &whole_.blocks);
}

Status CudaNet::ready_whole() {
    CudaDevice::Follower* const follower = device_.follower;
    whole_.on = whole_.on && optimiser_ && follower && follower->whole_steps();
    if (!whole_.on) return {};
    GC_TRY(device_.use(*device_.gpus()[0]));
    std::vector<UpdateBlock> blocks;
    for (uint32_t g = 0; g < layout_.groups.size(); ++g) {
        const Group& group = layout_.groups[g];
        const CudaDevice::StepGroup words = follower->step_group(g);
        const auto split = [&](uint64_t offset, uint64_t count, UpdateRule rule) {
            update_split({.element = offset,
                          .count = count,
                          .words = words.first + (offset - group.offset),
                          .digit = group.count,
                          .number = g,
                          .radix = words.radix,
                          .rule = rule},
                         &blocks);
        };
        if (group.statistics) split(group.offset, group.count, UpdateRule::statistics);
        else
            for (const OptimiserPart& part : optimiser_->parts(group)) split(part.offset, part.count, update_rule(part.how));
    }
    GC_ASSERT(blocks.size() == whole_.thread_blocks);
    for (uint32_t parity = 0; parity < 2; ++parity) {
        UpdateTask& task = whole_.task[parity];
        optimiser_->task(static_cast<float*>(gpus_[0].parameters.device), &task);
        task.words = follower->step_words(whole_.lanes);
        task.rates = &lanes_[0].slots[0].frame.header->rates;
        task.blocks = static_cast<const UpdateBlock*>(whole_.blocks.device);
        task.total = static_cast<UpdateTotal*>(whole_.total.device);
        task.digest = whole_.results[parity].as<uint64_t>();
        task.spoiled = spoiled(gpus_[0]);
        task.share = statistics_share;
        task.elements = layout_.elements;
    }
    GC_CUDA(cudaMemcpy(whole_.blocks.device, blocks.data(), blocks.size() * sizeof(UpdateBlock), cudaMemcpyHostToDevice));
    GC_CUDA(cudaMemset(whole_.total.device, 0, sizeof(UpdateTotal)));
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
    for (uint32_t lane = 0; lane < whole_.lanes; ++lane) GC_CUDA(cudaStreamWaitEvent(lanes_[lane].stream, lanes_[0].forked.get(), 0));
    for (uint32_t block = 0; block < config_.step_blocks.size(); ++block) {
        const uint32_t number = block % whole_.lanes;
        Lane& lane = lanes_[number];
        Program* program = nullptr;
        GC_TRY(program_find(programs_, config_.step_blocks[block], true, &program));
        const std::byte* staged = whole_.staged[parity].host + block * whole_.staged_bytes;
        if (!device_.resident)
            GC_CUDA(cudaMemcpyAsync(static_cast<std::byte*>(lane.input.device) + input_.images, staged + input_.images,
                                    program->samples * input_.image_bytes, cudaMemcpyHostToDevice, lane.stream));
        GC_TRY(enqueue({*program, number, Work::whole, staged, whole_.results[parity].host + (block + 1) * whole_.result_bytes, trace}));
        const Buffer& gradient = lane.memory[static_cast<size_t>(Place::gradient)];
        const uint32_t* const step = &lane.slots[0].frame.header->step;
        GC_TRY(follower.quantise(number, block, block < whole_.lanes, gradient.device, step, lane.stream));
        for (const FurtherGradient& each : further_)
            GC_TRY(follower.quantise_further(number, block, bucket_of_layer_[each.layer],
                                             static_cast<const float*>(gradient.device) + each.at, step, lane.stream));
    }
    for (uint32_t lane = 0; lane < whole_.lanes; ++lane) {
        GC_CUDA(cudaEventRecord(lanes_[lane].stepped.get(), lanes_[lane].stream));
        GC_CUDA(cudaStreamWaitEvent(stream, lanes_[lane].stepped.get(), 0));
    }
    GC_TRY(follower.close(whole_.lanes, parity, stream));
    GC_TRY(optimiser_->update_all(whole_.task[parity], whole_.thread_blocks, stream));
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
    optimiser_->changed();
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
