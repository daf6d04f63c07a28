// Blocks: their input, their graphs, and their gradients' way out.
#include <cstring>
#include <utility>

#include "nn/cuda/net.h"

namespace gradcast::cuda {
namespace {

constexpr Status step_cancelled = {Code::cancelled, 0, "the step was cancelled"};

}   // namespace

// Writes a block's input to page-locked memory, which its graph reads.
void CudaNet::write_input(std::byte* to, const Samples& samples, BlockId id, uint32_t size) {
    BlockHeader header{
        .count = samples.count, .block = id.block, .step = static_cast<uint32_t>(id.step), .resident = samples.resident != nullptr};
    if (optimiser_) optimiser_->rates(&header.rates);
    *reinterpret_cast<BlockHeader*>(to) = header;
    for (uint32_t c = 0; c < spec_.C; ++c) {
        reinterpret_cast<float*>(to + input_.scale)[c] = 1 / (255 * samples.std[c]);
        reinterpret_cast<float*>(to + input_.shift)[c] = -samples.mean[c] / samples.std[c];
    }
    for (size_t i = 0; i < dropout_seeds_.size(); ++i)
        reinterpret_cast<uint64_t*>(to + input_.seeds)[i] = dropout_mixed(dropout_seeds_[i], id.step);
    std::memcpy(to + input_.labels, samples.labels, samples.count * sizeof(int32_t));
    std::memset(to + input_.labels + samples.count * sizeof(int32_t), 0, (size - samples.count) * sizeof(int32_t));
    if (samples.resident) std::copy_n(samples.places, samples.count, reinterpret_cast<SamplePlace*>(to + input_.images));
    else std::memcpy(to + input_.images, samples.images, samples.count * input_.image_bytes);
}

// Images that are on the host are copied outside of the block's graph.
Status CudaNet::stage(uint32_t number, const Samples& samples, BlockId id, const Program& program) {
    Lane& lane = lanes_[number];
    write_input(lane.staged.host, samples, id, program.samples);
    if (samples.resident) return {};
    return check(cudaMemcpyAsync(static_cast<std::byte*>(lane.input.device) + input_.images, lane.staged.host + input_.images,
                                 samples.count * input_.image_bytes, cudaMemcpyHostToDevice, lane.frame.stream),
                 "cudaMemcpyAsync");
}

Status CudaNet::enqueue(const Enqueue& run) {
    const Program& program = run.program;
    const uint32_t number = run.lane;
    Lane& lane = lanes_[number];
    Frame& f = lane.frame;
    f.training = lane.beside.training = run.work != Work::evaluation;
    f.result = reinterpret_cast<LossResult*>(run.results);
    f.best = reinterpret_cast<int32_t*>(f.result + 1);
    const cudaStream_t stream = f.stream, codec = device_.lanes()[number].codec.get();
    CudaDevice::Follower* follower = run.work == Work::quantised ? device_.follower : nullptr;
    NetTrace* trace = run.trace;
    auto traced = [&](const Layer& layer, Pass pass, auto operations) -> Status {
        if (!trace) return operations();
        GC_CUDA(cudaStreamSynchronize(stream));
        const uint64_t begin_ns = trace->now_ns();
        GC_TRY(operations());
        GC_CUDA(cudaStreamSynchronize(stream));
        trace->pass(number, layer, pass, begin_ns, trace->now_ns());
        return {};
    };
    // Gradients of weights run in another stream, beside the gradient of the layer's input; their input must not change before join().
    bool forked = false;
    auto join = [&]() -> Status {
        if (!std::exchange(forked, false)) return {};
        return check(cudaStreamWaitEvent(stream, lane.joined.get(), 0), "cudaStreamWaitEvent");
    };
    auto walk_on = [&](const std::vector<Operation>& list, size_t layer, Pass pass) -> Status {
        if (list.empty()) return {};
        return traced(layers_[layer], pass, [&]() -> Status {
            for (const Operation& operation : list) GC_TRY(operation(f));
            return {};
        });
    };
    auto walk = [&](const std::vector<Operation>& list, size_t layer, Pass pass) -> Status {
        if (!list.empty()) GC_TRY(join());
        return walk_on(list, layer, pass);
    };
    const auto* gradient = static_cast<const std::byte*>(lane.memory[static_cast<size_t>(Place::gradient)].device);
    auto complete = [&](uint32_t bucket, cudaStream_t in) -> Status {
        if (bucket == ~0u || run.work == Work::whole) return {};
        if (!follower) return record(lane.buckets[bucket], in);
        GC_CUDA(cudaEventRecord(lane.complete.get(), in));
        GC_CUDA(cudaStreamWaitEvent(codec, lane.complete.get(), 0));
        return follower->follow(number, bucket, gradient + layout_.buckets[bucket].offset * sizeof(float), codec);
    };
    auto fork = [&](const std::vector<Operation>& list, size_t layer) -> Status {
        const cudaStream_t side = lane.beside.stream;
        GC_TRY(join());
        GC_CUDA(cudaEventRecord(lane.forked.get(), stream));
        GC_CUDA(cudaStreamWaitEvent(side, lane.forked.get(), 0));
        for (const Operation& operation : list) GC_TRY(operation(lane.beside));
        GC_TRY(complete(bucket_of_layer_[layer], side));
        GC_CUDA(cudaEventRecord(lane.joined.get(), side));
        forked = true;
        return {};
    };
    if (follower) {   // the copy of the codec's parameters runs beside the forward pass
        GC_CUDA(cudaEventRecord(lane.complete.get(), stream));
        GC_CUDA(cudaStreamWaitEvent(codec, lane.complete.get(), 0));
        GC_TRY(follower->start(number, codec));
    }
    GC_TRY(traced(layers_[0], Pass::input,
                  [&] { return input(stream, f.values(program.input), input_of(number, run.staged), image_shape(program)); }));
    for (size_t i = 0; i < layers_.size(); ++i) GC_TRY(walk(program.layers[i].forward, i, Pass::forward));
    if (run.work != Work::whole) GC_TRY(record(lane.lost, stream));
    if (!f.training) return {};
    if (statistics_) GC_TRY(complete(0, stream));   // running statistics come from the forward pass
    for (size_t i = layers_.size(); i-- > 0;) {
        const Operations& layer = program.layers[i];
        GC_TRY(walk(layer.before, i, Pass::backward_weights));
        if (layer.weights.empty() || trace) {
            GC_TRY(walk(layer.weights, i, Pass::backward_weights));
            GC_TRY(complete(bucket_of_layer_[i], stream));
            GC_TRY(walk(layer.data, i, Pass::backward_data));
        } else {
            GC_TRY(fork(layer.weights, i));
            GC_TRY(walk_on(layer.data, i, Pass::backward_data));
        }
    }
    GC_TRY(join());
    if (!follower) return {};
    GC_CUDA(cudaEventRecord(lane.followed.get(), codec));
    return check(cudaStreamWaitEvent(stream, lane.followed.get(), 0), "cudaStreamWaitEvent");
}

BlockInput CudaNet::input_of(uint32_t number, const std::byte* staged) const {
    BlockInput in{};
    in.staged = staged;
    in.head = static_cast<std::byte*>(lanes_[number].input.device);
    in.scale = static_cast<uint32_t>(input_.scale);
    in.shift = static_cast<uint32_t>(input_.shift);
    in.places = static_cast<uint32_t>(input_.images);
    in.copied = lanes_[number].frame.images;
    if (device_.resident) in.images = device_.resident->images(device_.lanes()[number].gpu);
    return in;
}

Status CudaNet::start(Program& program, uint32_t number, const Samples& samples, BlockId id, Work work) {
    Lane& lane = lanes_[number];
    const cudaStream_t stream = lane.frame.stream;
    GC_TRY(stage(number, samples, id, program));   // safe: the last block's loss was waited for, so its samples have been read
    blocks_since_.store(true, std::memory_order_relaxed);
    GC_CUDA(cudaStreamWaitEvent(stream, device_.gpu_of(number).changed.get(), 0));
    if (trace_ && work != Work::evaluation) GC_TRY(enqueue({program, number, work, lane.staged.host, lane.results.host, trace_}));
    else GC_CUDA(cudaGraphLaunch(program.graphs[number][static_cast<size_t>(work)].get(), stream));
    GC_CUDA(cudaEventRecord(lane.done.get(), stream));
    const cudaStream_t codec = device_.lanes()[number].codec.get();
    GC_CUDA(cudaStreamWaitEvent(codec, lane.lost.get(), 0));
    GC_CUDA(cudaEventRecord(lane.heard.get(), codec));
    return wait(lane.heard);
}

Status CudaNet::block(uint32_t number, BlockId id, const Samples& samples, GradientSink& sink) {
    GC_ASSERT(number < lanes_.size());
    GC_TRY(samples_check(spec_, samples));
    Program* program = nullptr;
    GC_TRY(program_find(programs_, samples.count, true, &program));
    GC_ASSERT(program);
    if (cancelled(id.step)) return step_cancelled;
    Lane& lane = lanes_[number];
    GC_TRY(device_.use(device_.gpu_of(number)));
    if (std::exchange(lane.used, false)) GC_CUDA(cudaStreamWaitEvent(lane.frame.stream, lane.taken.get(), 0));
    Status begun;
    const bool quantised = program->graphs[number][static_cast<size_t>(Work::quantised)] && sink.on_device() &&
                           samples.resident == device_.resident && sink.begin(number, id, &begun);
    GC_TRY(begun);
    const Work work = quantised ? Work::quantised : Work::block;
    GC_TRY(start(*program, number, samples, id, work));
    sink.loss(number, id, lane.results.as<LossResult>()->loss);
    const Status status = deliver(number, id, sink, work);
    if (quantised) return status;
    GC_CUDA(cudaEventRecord(lane.taken.get(), device_.lanes()[number].codec.get()));
    lane.used = true;
    return status;
}

Status CudaNet::deliver(uint32_t number, BlockId id, GradientSink& sink, Work work) {
    Lane& lane = lanes_[number];
    const cudaStream_t codec = device_.lanes()[number].codec.get();
    const bool device = sink.on_device();
    const Buffer gradient = lane.memory[static_cast<size_t>(Place::gradient)];
    auto part = [&](const Buffer& of, uint32_t bucket) {
        return of.part(layout_.buckets[bucket].offset * sizeof(float), layout_.buckets[bucket].count * sizeof(float));
    };
    const auto buckets = static_cast<uint32_t>(layout_.buckets.size());
    for (uint32_t b = 0; b < buckets && !device; ++b) {
        GC_CUDA(cudaStreamWaitEvent(codec, lane.buckets[b].get(), 0));
        const Buffer to = part(lane.gradient, b);
        GC_CUDA(cudaMemcpyAsync(to.host, part(gradient, b).device, to.bytes, cudaMemcpyDeviceToHost, codec));
        GC_CUDA(cudaEventRecord(lane.copied[b].get(), codec));
    }
    for (uint32_t b = 0; b < buckets; ++b) {
        if (cancelled(id.step)) return step_cancelled;
        if (device && work == Work::block) GC_CUDA(cudaStreamWaitEvent(codec, lane.buckets[b].get(), 0));
        if (!device) GC_TRY(wait(lane.copied[b]));
        GC_TRY(sink.bucket(number, id, b, part(device ? gradient : lane.gradient, b)));
    }
    return {};
}

}   // namespace gradcast::cuda
