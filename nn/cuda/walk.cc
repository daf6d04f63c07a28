// The operations of a block in the order of a lane's stream: as a graph's capture or a pass enqueues them.
#include <utility>

#include "nn/cuda/net.h"

namespace gradcast::cuda {

CudaNet::Walk::Walk(CudaNet& of, const Enqueue& what)
    : net(of),
      run(what),
      lane(of.lanes_[what.lane]),
      slot(lane.slots[what.slot]),
      f(slot.frame),
      stream(f.stream),
      codec(of.device_.lanes()[what.lane].codec.get()),
      follower(what.work == Work::quantised ? of.device_.follower : nullptr) {
    f.training = slot.beside.training = run.work != Work::evaluation;
    f.result = reinterpret_cast<LossResult*>(run.results);
    f.best = reinterpret_cast<int32_t*>(f.result + 1);
}

template <typename Enqueued>
Status CudaNet::Walk::traced(size_t layer, Pass pass, Enqueued enqueued) {
    if (!run.trace) return enqueued();
    GC_CUDA(cudaStreamSynchronize(stream));
    const uint64_t begin_ns = run.trace->now_ns();
    GC_TRY(enqueued());
    GC_CUDA(cudaStreamSynchronize(stream));
    run.trace->pass(run.lane, net.layers_[layer], pass, begin_ns, run.trace->now_ns());
    return {};
}

Status CudaNet::Walk::join() {
    if (!std::exchange(forked, false)) return {};
    return check(cudaStreamWaitEvent(stream, lane.joined.get(), 0), "cudaStreamWaitEvent");
}

Status CudaNet::Walk::walk_on(const std::vector<Operation>& list, size_t layer, Pass pass) {
    if (list.empty()) return {};
    return traced(layer, pass, [&]() -> Status {
        for (const Operation& operation : list) GC_TRY(operation(f));
        return {};
    });
}

Status CudaNet::Walk::walk(const std::vector<Operation>& list, size_t layer, Pass pass) {
    if (!list.empty()) GC_TRY(join());
    return walk_on(list, layer, pass);
}

CudaNet::BucketGradient CudaNet::gradient_of(size_t layer) const {
    const Bucket& bucket = layout_.buckets[bucket_of_layer_[layer]];
    BucketGradient gradient{bucket.offset, bucket.count, false, true};
    for (const FurtherGradient& each : further_) {
        if (each.layer == layer) gradient = {each.at, each.count, false, false};
        else if (each.layer > layer && bucket_of_layer_[each.layer] == bucket_of_layer_[layer]) gradient.again = true;
    }
    return gradient;
}

Status CudaNet::Walk::complete(size_t layer, cudaStream_t in) {
    const uint32_t bucket = net.bucket_of_layer_[layer];
    return bucket == ~0u ? Status{} : complete(bucket, net.gradient_of(layer), in);
}

Status CudaNet::Walk::complete_statistics() {
    return complete(0, {net.layout_.buckets[0].offset, net.layout_.buckets[0].count, false, true}, stream);
}

Status CudaNet::Walk::complete(uint32_t bucket, const BucketGradient& gradient, cudaStream_t in) {
    if (run.work == Work::whole) return {};
    if (!follower) return gradient.last ? record(lane.buckets[bucket], in) : Status{};
    GC_CUDA(cudaEventRecord(lane.complete.get(), in));
    GC_CUDA(cudaStreamWaitEvent(codec, lane.complete.get(), 0));
    const auto* all = static_cast<const std::byte*>(lane.memory[static_cast<size_t>(Place::gradient)].device);
    return follower->follow(run.lane, bucket, all + gradient.at * sizeof(float), gradient.again, gradient.last, codec);
}

Status CudaNet::Walk::fork(const std::vector<Operation>& list, size_t layer) {
    const cudaStream_t side = slot.beside.stream;
    GC_TRY(join());
    GC_CUDA(cudaEventRecord(lane.forked.get(), stream));
    GC_CUDA(cudaStreamWaitEvent(side, lane.forked.get(), 0));
    for (const Operation& operation : list) GC_TRY(operation(slot.beside));
    GC_TRY(complete(layer, side));
    GC_CUDA(cudaEventRecord(lane.joined.get(), side));
    forked = true;
    return {};
}

Status CudaNet::Walk::forward() {
    const Program& program = run.program;
    if (net.stage_.has(0))
        GC_TRY(traced(0, Pass::input, [&] {
            const BlockInput in = net.input_of(run.lane, slot, run.staged);
            const ImageShape shape = net.image_shape(program);
            return net.spec_.vocabulary > 0 ? input_tokens(stream, f.at<uint32_t>(program.input), in, shape)
                                            : input(stream, f.values(program.input), in, shape);
        }));
    for (size_t i = net.stage_.first; i < net.stage_.end; ++i) GC_TRY(walk(program.layers[i].forward, i, Pass::forward));
    return {};
}

Status CudaNet::Walk::backward(Backward passes) {
    const bool data = passes != Backward::weights, weights = passes != Backward::data;
    for (size_t i = net.stage_.end; i-- > net.stage_.first;) {
        const Operations& layer = run.program.layers[i];
        GC_TRY(walk(layer.before, i, Pass::backward_weights));
        if (data && weights && !layer.weights.empty() && !run.trace) {
            GC_TRY(fork(layer.weights, i));
            GC_TRY(walk_on(layer.data, i, Pass::backward_data));
            continue;
        }
        if (weights) {
            GC_TRY(walk(layer.weights, i, Pass::backward_weights));
            GC_TRY(complete(i, stream));
        }
        if (data) GC_TRY(walk(layer.data, i, Pass::backward_data));
    }
    return join();
}

Status CudaNet::enqueue(const Enqueue& run) {
    Walk walk(*this, run);
    Lane& lane = walk.lane;
    if (walk.follower) {   // the copy of the codec's parameters runs beside the forward pass
        GC_CUDA(cudaEventRecord(lane.complete.get(), walk.stream));
        GC_CUDA(cudaStreamWaitEvent(walk.codec, lane.complete.get(), 0));
        GC_TRY(walk.follower->start(run.lane, walk.codec));
    }
    GC_TRY(walk.forward());
    if (run.work != Work::whole) GC_TRY(record(lane.lost, walk.stream));
    if (!walk.f.training) return {};
    if (statistics_) GC_TRY(walk.complete_statistics());   // running statistics come from the forward pass
    GC_TRY(walk.backward(Backward::both));
    if (!walk.follower) return {};
    GC_CUDA(cudaEventRecord(lane.followed.get(), walk.codec));
    return check(cudaStreamWaitEvent(walk.stream, lane.followed.get(), 0), "cudaStreamWaitEvent");
}

}   // namespace gradcast::cuda
