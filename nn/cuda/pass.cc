// Passes of micro-batches in flight, and what crosses the cuts of a stage.
//
// A pass is launched operation by operation: copies from the host of what comes in, the layers, copies to the host of what goes out.  The
// call returns when the last copy has ended.  A weights pass makes the inputs of its gradients again (Operations::before), from memory of
// the slot that a data pass only reads.
#include "nn/cuda/net.h"

namespace gradcast::cuda {

void CudaNet::plan_edges() {
    for (const Program& program : programs_) {
        if (!program.training) continue;
        edges_.clear();
        for (const EdgeTensors& each : program.edges) edges_.push_back(each.edge);
    }
    uint64_t evaluated = 0;
    const auto most = [this](size_t edge, bool training) {
        uint64_t bytes = 0;
        for (const Program& program : programs_)
            if (!training || program.training) bytes = std::max(bytes, program.edges[edge].bytes);
        return aligned(bytes);
    };
    const std::vector<EdgeTensors>& all = programs_.back().edges;
    for (size_t i = 0; i < edges_.size(); ++i) {
        EdgePlace& place = edge_places_.emplace_back();
        if (all[i].first < i) {
            place = edge_places_[all[i].first];
        } else {
            place.value = slot_edges_;
            slot_edges_ += most(i, true);
            place.evaluated = evaluated;
            evaluated += most(i, false);
        }
        if (!edges_[i].learns) continue;
        place.gradient = slot_edges_;
        slot_edges_ += most(i, true);
    }
    for (EdgePlace& place : edge_places_) place.evaluated += config_.slots * slot_edges_;
    if (edges_.empty()) return;
    for (uint32_t number = 0; number < lanes_.size(); ++number)
        device_.gpu_of(number).arena.plan_pinned("edges", config_.slots * slot_edges_ + evaluated, &lanes_[number].edges);
}

uint64_t CudaNet::edge_bytes(size_t edge, bool, uint32_t samples) {
    Program* program = nullptr;
    GC_ASSERT(program_find(programs_, samples, true, &program).ok());
    return program->edges[edge].bytes;
}

Buffer CudaNet::edge(uint32_t lane, uint32_t slot, size_t edge, bool gradient, uint32_t samples) {
    const EdgePlace& place = edge_places_[edge];
    return lanes_[lane].edges.part(slot * slot_edges_ + (gradient ? place.gradient : place.value), edge_bytes(edge, gradient, samples));
}

Buffer CudaNet::evaluation_edge(uint32_t lane, size_t edge, uint32_t samples) {
    Program* program = nullptr;
    GC_ASSERT(program_find(programs_, samples, false, &program).ok());
    return lanes_[lane].edges.part(edge_places_[edge].evaluated, program->edges[edge].bytes);
}

Status CudaNet::cross(const Enqueue& run, bool gradients, bool comes) {
    const Lane& lane = lanes_[run.lane];
    const Frame& f = lane.slots[run.slot].frame;
    for (size_t i = 0; i < edges_.size(); ++i) {
        const EdgeTensors& each = run.program.edges[i];
        if ((each.edge.incoming != gradients) != comes || (gradients ? !each.edge.learns : each.first != i)) continue;
        const EdgePlace& place = edge_places_[i];
        std::byte* const host = lane.edges.host + (run.work == Work::evaluation ? place.evaluated
                                                   : gradients                  ? run.slot * slot_edges_ + place.gradient
                                                                                : run.slot * slot_edges_ + place.value);
        void* const tensor = f.at<void>(gradients ? each.gradient : each.value);
        // Other stages do not know of parameters here that are not finite.
        if (!comes && spoiled_) GC_CUDA(cudaMemsetAsync(tensor, 0xFF, each.bytes, f.stream));   // NaN
        if (comes) GC_CUDA(cudaMemcpyAsync(tensor, host, each.bytes, cudaMemcpyHostToDevice, f.stream));
        else GC_CUDA(cudaMemcpyAsync(host, tensor, each.bytes, cudaMemcpyDeviceToHost, f.stream));
    }
    return {};
}

Status CudaNet::pass_begin(uint32_t number) {
    Lane& lane = lanes_[number];
    GC_TRY(device_.use(device_.gpu_of(number)));
    blocks_since_.store(true, std::memory_order_relaxed);
    if (std::exchange(lane.used, false)) GC_CUDA(cudaStreamWaitEvent(lane.stream, lane.taken.get(), 0));
    return check(cudaStreamWaitEvent(lane.stream, device_.gpu_of(number).changed.get(), 0), "cudaStreamWaitEvent");
}

Status CudaNet::pass_end(uint32_t number) {
    Lane& lane = lanes_[number];
    GC_CUDA(cudaEventRecord(lane.done.get(), lane.stream));
    GC_CUDA(cudaEventRecord(lane.passed.get(), lane.stream));
    return {};
}

Status CudaNet::hand_in(uint32_t number, BlockId id, GradientSink& sink, uint32_t first, uint32_t end) {
    Lane& lane = lanes_[number];
    const Status status = deliver(number, id, sink, Work::block, first, end);
    GC_CUDA(cudaEventRecord(lane.taken.get(), device_.lanes()[number].codec.get()));
    lane.used = true;
    return status;
}

Status CudaNet::forward(uint32_t number, uint32_t slot_number, std::span<const Block> all, GradientSink& sink) {
    GC_ASSERT(number < lanes_.size() && slot_number < config_.slots && all.size() == 1);
    const auto& [id, samples] = all[0];
    GC_TRY(check_samples(samples));
    Program* program = nullptr;
    GC_TRY(program_find(programs_, samples.count, true, &program));
    if (cancelled(id.step)) return step_cancelled;
    Lane& lane = lanes_[number];
    Slot& slot = lane.slots[slot_number];
    slot.program = program;
    slot.id = id;
    const Enqueue run{*program, number, Work::block, lane.staged.host, lane.results.host, trace_, slot_number};
    GC_TRY(pass_begin(number));
    GC_TRY(put(number, slot, samples, id, *program));
    GC_TRY(cross(run, false, true));
    Walk walk(*this, run);
    GC_TRY(walk.forward());
    if (statistics_) GC_TRY(walk.complete_statistics());
    GC_TRY(cross(run, false, false));
    GC_TRY(pass_end(number));
    GC_TRY(wait(lane.passed));
    if (has_loss()) tell_loss(number, id, samples, sink);
    return statistics_ ? hand_in(number, id, sink, 0, 1) : Status{};
}

Status CudaNet::backward(uint32_t number, uint32_t slot_number, Backward passes, GradientSink& sink) {
    GC_ASSERT(number < lanes_.size() && slot_number < config_.slots && (passes == Backward::both || config_.passes_apart));
    Lane& lane = lanes_[number];
    const Slot& slot = lane.slots[slot_number];
    if (cancelled(slot.id.step)) return step_cancelled;
    const Enqueue run{*slot.program, number, Work::block, lane.staged.host, lane.results.host, trace_, slot_number};
    GC_TRY(pass_begin(number));
    if (passes != Backward::weights) GC_TRY(cross(run, true, true));
    GC_TRY(Walk(*this, run).backward(passes));
    if (passes != Backward::weights) GC_TRY(cross(run, true, false));
    GC_TRY(pass_end(number));
    const auto buckets = static_cast<uint32_t>(layout_.buckets.size());
    const Status status = passes == Backward::data ? Status{} : hand_in(number, slot.id, sink, statistics_ ? 1 : 0, buckets);
    const Status ended = wait(lane.passed);   // also where the sink has failed: memory of the host is free again then
    return status.ok() ? ended : status;
}

Status CudaNet::evaluate_stage(uint32_t number, const Samples& samples, const Program& program) {
    Lane& lane = lanes_[number];
    const Enqueue run{program, number, Work::evaluation, lane.staged.host, lane.results.host};
    GC_TRY(pass_begin(number));
    GC_TRY(put(number, lane.slots[0], samples, {0, 0}, program));
    GC_TRY(cross(run, false, true));
    GC_TRY(Walk(*this, run).forward());
    GC_TRY(cross(run, false, false));
    GC_TRY(pass_end(number));
    return wait(lane.passed);
}

}   // namespace gradcast::cuda
