// Blocks: their input, their graphs, and their gradients' way out.
#include <cstring>
#include <utility>

#include "nn/cuda/net.h"

namespace gradcast::cuda {

void CudaNet::write_labels(std::byte* to, const Samples& samples, uint32_t size) const {
    const uint64_t bytes = uint64_t{sample_labels()} * sizeof(int32_t);
    std::memset(to + samples.count * bytes, 0, (size - samples.count) * bytes);
    if (!spec_.by_position()) {
        const void* const from = spec_.targets > 0 ? static_cast<const void*>(samples.targets) : samples.labels;
        std::memcpy(to, from, samples.count * bytes);
        return;
    }
    const PositionLabels labels(spec_);
    auto* each = reinterpret_cast<int32_t*>(to);
    for (uint32_t n = 0; n < samples.count; ++n)
        for (uint32_t at = 0; at < labels.positions(); ++at) {
            const uint32_t label = labels.of(samples, n, at);
            *each++ = labels.counts(label) ? static_cast<int32_t>(label) : loss_ignored;
        }
}

void CudaNet::tell_loss(uint32_t number, BlockId id, const Samples& samples, GradientSink& sink) const {
    sink.loss(number, id, lanes_[number].results.as<LossResult>()->loss);
    if (!counts_valid_) return;
    const PositionLabels labels(spec_);
    uint64_t valid = 0;
    for (uint32_t n = 0; n < samples.count; ++n)
        for (uint32_t at = 0; at < labels.positions(); ++at) valid += labels.counts(labels.of(samples, n, at));
    sink.valid(number, id, valid);
}

// Writes a block's input to page-locked memory, which its graph reads.
void CudaNet::write_input(std::byte* to, const Samples& samples, BlockId id, uint32_t size) {
    BlockHeader header{
        .count = samples.count, .block = id.block, .step = static_cast<uint32_t>(id.step), .resident = samples.resident != nullptr};
    if (optimiser_) optimiser_->rates(&header.rates);
    *reinterpret_cast<BlockHeader*>(to) = header;
    for (uint32_t c = 0; c < spec_.C && stage_.has(0); ++c) {
        const bool bytes = spec_.element == Element::u8;
        reinterpret_cast<float*>(to + input_.scale)[c] = bytes ? 1 / (255 * samples.std[c]) : samples.std[c];
        reinterpret_cast<float*>(to + input_.shift)[c] = bytes ? -samples.mean[c] / samples.std[c] : samples.mean[c];
    }
    for (size_t i = 0; i < dropout_seeds_.size(); ++i)
        reinterpret_cast<uint64_t*>(to + input_.seeds)[i] = dropout_mixed(dropout_seeds_[i], id.step);
    if (has_loss()) write_labels(to + input_.labels, samples, size);
    if (!stage_.has(0)) return;
    if (samples.resident) std::copy_n(samples.places, samples.count, reinterpret_cast<SamplePlace*>(to + input_.images));
    else std::memcpy(to + input_.images, samples.images, samples.count * input_.image_bytes);
}

// Images that are on the host are copied outside of the block's graph.  Without images the rest is copied too, which else the first kernel
// does.
Status CudaNet::put(uint32_t number, const Slot& slot, const Samples& samples, BlockId id, const Program& program) {
    Lane& lane = lanes_[number];
    write_input(lane.staged.host, samples, id, program.samples);
    if (!stage_.has(0))
        return check(cudaMemcpyAsync(slot.head, lane.staged.host, input_.images, cudaMemcpyHostToDevice, lane.stream), "cudaMemcpyAsync");
    if (samples.resident) return {};
    return check(cudaMemcpyAsync(static_cast<std::byte*>(lane.input.device) + config_.slots * input_.images,
                                 lane.staged.host + input_.images, samples.count * input_.image_bytes, cudaMemcpyHostToDevice, lane.stream),
                 "cudaMemcpyAsync");
}

Status CudaNet::check_samples(const Samples& samples) const {
    if (stage_.has(0) || (has_loss() && spec_.vocabulary > 0)) GC_TRY(images_check(spec_, samples));   // a text has its labels in itself
    return has_loss() ? labels_check(spec_, samples) : Status{};
}

BlockInput CudaNet::input_of(uint32_t number, const Slot& slot, const std::byte* staged) const {
    BlockInput in{};
    in.staged = staged;
    in.head = slot.head;
    in.scale = static_cast<uint32_t>(input_.scale);
    in.shift = static_cast<uint32_t>(input_.shift);
    in.places = static_cast<uint32_t>(input_.images);
    in.copied = slot.frame.images;
    if (device_.resident) in.images = device_.resident->images(device_.lanes()[number].gpu);
    return in;
}

Status CudaNet::start(Program& program, uint32_t number, const Samples& samples, BlockId id, Work work) {
    Lane& lane = lanes_[number];
    const cudaStream_t stream = lane.stream;
    GC_TRY(put(number, lane.slots[0], samples, id, program));   // safe: the last block's loss was waited for, so its samples have been read
    blocks_since_.store(true, std::memory_order_relaxed);
    GC_CUDA(cudaStreamWaitEvent(stream, device_.gpu_of(number).changed.get(), 0));
    if (trace_ && work != Work::evaluation) GC_TRY(enqueue({program, number, work, lane.staged.host, lane.results.host, trace_}));
    else GC_CUDA(cudaGraphLaunch(program.graphs[number][static_cast<size_t>(work)].get(), stream));
    GC_CUDA(cudaEventRecord(lane.done.get(), stream));
    const cudaStream_t codec = device_.lanes()[number].codec.get();
    GC_CUDA(cudaStreamWaitEvent(codec, lane.lost.get(), 0));
    GC_CUDA(cudaEventRecord(lane.loss_read.get(), codec));
    return wait(lane.loss_read);
}

Status CudaNet::block(uint32_t number, BlockId id, const Samples& samples, GradientSink& sink) {
    GC_ASSERT(number < lanes_.size());
    if (!graphs_) {
        const Block one{id, samples};
        GC_TRY(forward(number, 0, {&one, 1}, sink));
        return backward(number, 0, Backward::both, sink);
    }
    GC_TRY(samples_check(spec_, samples));
    Program* program = nullptr;
    GC_TRY(program_find(programs_, samples.count, true, &program));
    GC_ASSERT(program);
    if (cancelled(id.step)) return step_cancelled;
    Lane& lane = lanes_[number];
    GC_TRY(device_.use(device_.gpu_of(number)));
    if (std::exchange(lane.used, false)) GC_CUDA(cudaStreamWaitEvent(lane.stream, lane.taken.get(), 0));
    Status begun;
    const bool quantised = program->graphs[number][static_cast<size_t>(Work::quantised)] && sink.on_device() &&
                           samples.resident == device_.resident && sink.begin(number, id, &begun);
    GC_TRY(begun);
    const Work work = quantised ? Work::quantised : Work::block;
    GC_TRY(start(*program, number, samples, id, work));
    tell_loss(number, id, samples, sink);
    const auto buckets = static_cast<uint32_t>(layout_.buckets.size());
    return quantised ? deliver(number, id, sink, work, 0, buckets) : hand_in(number, id, sink, 0, buckets);
}

Status CudaNet::deliver(uint32_t number, BlockId id, GradientSink& sink, Work work, uint32_t first, uint32_t end) {
    Lane& lane = lanes_[number];
    const cudaStream_t codec = device_.lanes()[number].codec.get();
    const bool device = sink.on_device();
    const Buffer gradient = lane.memory[static_cast<size_t>(Place::gradient)];
    auto part = [](const Buffer& of, uint64_t at, uint64_t count) { return of.part(at * sizeof(float), count * sizeof(float)); };
    auto complete = [&](uint32_t bucket) -> Status {   // in the codec's stream
        GC_CUDA(cudaStreamWaitEvent(codec, lane.buckets[bucket].get(), 0));
        if (graphs_ || !spoiled_) return {};
        // The loss may be another stage's, which does not know of parameters here that are not finite.
        GC_TRY(device_.use(device_.gpu_of(number)));   // a codec's last step may have left another
        return each_gradient(bucket, [&](uint64_t at, uint64_t count) {
            const Buffer all = part(gradient, at, count);
            return check(cudaMemsetAsync(all.device, 0xFF, all.bytes, codec), "cudaMemsetAsync");   // NaN
        });
    };
    for (uint32_t b = first; b < end && !device; ++b) {
        GC_TRY(complete(b));
        GC_TRY(each_gradient(b, [&](uint64_t at, uint64_t count) {
            const Buffer to = part(lane.gradient, at, count);
            return check(cudaMemcpyAsync(to.host, part(gradient, at, count).device, to.bytes, cudaMemcpyDeviceToHost, codec),
                         "cudaMemcpyAsync");
        }));
        GC_CUDA(cudaEventRecord(lane.copied[b].get(), codec));
    }
    for (uint32_t b = first; b < end; ++b) {
        if (cancelled(id.step)) return step_cancelled;
        if (device && work == Work::block) GC_TRY(complete(b));
        if (!device) GC_TRY(wait(lane.copied[b]));
        GC_TRY(each_gradient(b, [&](uint64_t at, uint64_t count) {
            return sink.bucket(number, id, b, part(device ? gradient : lane.gradient, at, count));
        }));
    }
    return {};
}

}   // namespace gradcast::cuda
