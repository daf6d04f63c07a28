// Blocks and evaluations: a frame walks the lists of a program.
#include "nn/cpu/net.h"

#include <omp.h>

#include <algorithm>
#include <cstring>

#include "nn/evaluation.h"

namespace gradcast::cpu {
namespace {

constexpr Status step_cancelled = {Code::cancelled, 0, "the step was cancelled"};

Samples samples_part(const Samples& all, uint32_t first, uint32_t count, const NetSpec& spec) {
    Samples part = all;
    part.count = count;
    if (all.images) part.images += first * spec.sample_bytes();
    if (all.labels) part.labels += first;
    if (all.targets) part.targets += first * spec.targets_bytes();
    if (all.places) part.places += first;
    return part;
}

}   // namespace

OneThread::OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
OneThread::~OneThread() { omp_set_num_threads(before_); }

Status CpuNet::run(const std::vector<Operation>& list, Frame& frame, size_t layer, Pass pass) {
    const bool traced = trace_ && frame.training && !list.empty();
    const uint64_t begin_ns = traced ? trace_->now_ns() : 0;
    for (const Operation& operation : list) GC_TRY(operation(frame));
    if (traced) trace_->pass(frame.lane, layers_[layer], pass, begin_ns, trace_->now_ns());
    return {};
}

Status CpuNet::layers_forward(Frame& frame, StepId step) {
    computed_[frame.lane] = ~0u;
    GC_TRY(run(frame.program->input, frame, 0, Pass::input));
    frame.loss.fill(0);
    frame.loss[0] = frame.loss_before;
    frame.valid.fill(0);
    frame.right = 0;
    for (uint32_t i = 0, first = 0; i < frame.blocks.size(); first += frame.blocks[i++].samples.count) frame.begins[i] = first;
    for (size_t i = stage_.first; i < stage_.end; ++i) {
        if (cancelled(step)) return step_cancelled;
        GC_TRY(run(frame.program->layers[i].forward, frame, i, Pass::forward));
    }
    computed_[frame.lane] = frame.number;
    return {};
}

Status CpuNet::computed_again(Frame& frame, StepId step) {
    kept_links_[frame.number].again(true);
    const Status status = layers_forward(frame, step);
    kept_links_[frame.number].again(false);
    return status;
}

Buffer CpuNet::gradient_of(const Frame& frame, uint32_t bucket, uint32_t block) const {
    return memory_[frame.lane][static_cast<size_t>(Place::gradient)].part(block * apart_[bucket] * sizeof(float),
                                                                          layout_.buckets[bucket].count * sizeof(float));
}

void CpuNet::turn_to(Frame& frame, uint32_t block, size_t layer, uint32_t place) const {
    frame.block = block;
    frame.first = frame.begins[block];
    frame.count = frame.blocks[block].samples.count;
    if (in_bucket_[layer] != ~0u) frame.base[static_cast<size_t>(Place::gradient)] = gradient_of(frame, in_bucket_[layer], place).host;
}

Status CpuNet::in_pieces(const Operations& operations, size_t layer, Frame& frame, GradientSink& sink, bool* taken) {
    const uint32_t bucket = bucket_of_layer_[layer];
    if (!operations.pieces || operations.weights.size() != 1 || trace_ || bucket == ~0u) return {};
    struct Pieces {
        const CpuNet& net;
        const Operations& operations;
        const size_t layer;
        const uint32_t bucket;
        Frame& frame;
        GradientPart operator()(uint32_t block, uint64_t first) const {
            if (first < own_parameters(net.layers_[layer], net.stage_).count) {
                net.turn_to(frame, block, layer, 0);
                return operations.pieces(frame, first);
            }
            const Buffer all = net.gradient_of(frame, bucket, block);   // the layer is the bucket's first; the others are complete
            return {all.as<float>() + first, all.bytes / sizeof(float) - first};
        }
    } const pieces{*this, operations, layer, bucket, frame};
    auto piece = [&pieces](uint32_t block, uint64_t first) {   // one pointer: a std::function of it allocates nothing
        return pieces(block, first);
    };
    Status status;
    *taken = sink.pieces(frame.lane, frame.blocks, bucket, piece, &status);
    return status;
}

Status CpuNet::weights(Frame& frame, size_t layer, GradientSink& sink) {
    const Operations& operations = frame.program->layers[layer];
    bool taken = false;
    GC_TRY(in_pieces(operations, layer, frame, sink, &taken));
    for (uint32_t i = 0; !taken && i < frame.blocks.size(); ++i) {
        turn_to(frame, i, layer, i);
        GC_TRY(run(operations.weights, frame, layer, Pass::backward_weights));
        if (operations.row_bound && sink.row_bounds()) {
            const auto [first, count] = own_parameters(layers_[layer], stage_);
            sink.row_bound(first, count, operations.row_bound(frame));
        }
        if (const uint32_t bucket = bucket_of_layer_[layer]; bucket != ~0u)
            GC_TRY(sink.bucket(frame.lane, frame.blocks[i].id, bucket, gradient_of(frame, bucket, i)));
    }
    return {};
}

Status CpuNet::check(const Samples& samples) const {
    if (reads_images()) GC_TRY(images_check(spec_, samples));
    return has_loss() ? labels_check(spec_, samples) : Status{};
}

/// By block: mean, std, images (stages that read them), labels or targets (those with the loss), each of whole floats.
uint64_t CpuNet::blocks_bytes(const Program& program, uint32_t blocks) const {
    const uint64_t sample = spec_.sample_bytes(), count = program.samples;
    uint64_t bytes = 0;
    if (reads_images()) bytes += blocks * (2 * spec_.C + 1) * sizeof(float) + count * sample;
    if (has_loss()) bytes += blocks * sizeof(float) + count * std::max<uint64_t>(sizeof(int32_t), spec_.targets_bytes());
    return (bytes + 3) / 4 * 4;
}

void CpuNet::keep_blocks(Frame& frame) const {
    auto* to = reinterpret_cast<std::byte*>(frame.at(frame.program->blocks));
    const auto keep = [&to]<typename T>(const T*& from, uint64_t count) {
        std::memcpy(to, from, count * sizeof(T));
        from = reinterpret_cast<const T*>(to);
        to += (count * sizeof(T) + 3) / 4 * 4;
    };
    for (Block& block : std::span(frame.own).first(frame.blocks.size())) {
        Samples& samples = block.samples;
        if (reads_images()) {
            keep(samples.mean, spec_.C);
            keep(samples.std, spec_.C);
            keep(samples.images, samples.count * spec_.sample_bytes());
        }
        if (!has_loss()) continue;
        if (samples.targets) keep(samples.targets, samples.count * spec_.targets_bytes());
        else keep(samples.labels, samples.count);
    }
}

Status CpuNet::forward(uint32_t lane, uint32_t slot, std::span<const Block> all, GradientSink& sink) {
    OneThread one;
    GC_ASSERT(lane < memory_.size() && slot < config_.slots && all.size() >= 1 && all.size() <= together_);
    Frame& frame = frame_of(lane, slot);
    std::ranges::copy(all, frame.own.begin());
    frame.blocks = std::span(frame.own).first(all.size());
    frame.predicted = nullptr;
    frame.outputs = nullptr;
    frame.training = true;
    frame.loss_before = 0;
    frame.samples = 0;
    frame.program = &all_;
    const StepId step = all[0].id.step;
    for (const auto& [id, samples] : all) {
        GC_ASSERT(id.step == step);
        GC_TRY(check(samples));
        Program* own = nullptr;
        GC_TRY(program_find(programs_, samples.count, true, &own));
        if (together_ == 1) frame.program = own;
        frame.samples += samples.count;
    }
    if (config_.recompute) keep_blocks(frame);
    GC_TRY(layers_forward(frame, step));
    for (const EdgeTensors& each : frame.program->edges)
        if (frame.at(each.sent) != frame.at(each.value))
            std::memcpy(frame.at(each.sent), frame.at(each.value), frame.program->bytes(each.value, frame.samples));
    for (size_t i = 0; i < all.size() && has_loss(); ++i) {
        sink.loss(lane, all[i].id, frame.loss[i]);
        if (counts_valid_) sink.valid(lane, all[i].id, frame.valid[i]);
    }
    if (statistics_) GC_TRY(sink.bucket(lane, all[0].id, 0, gradient_of(frame, 0, 0)));   // the forward pass has made them
    return {};
}

Status CpuNet::backward(uint32_t lane, uint32_t slot, Backward passes, GradientSink& sink) {
    OneThread one;
    GC_ASSERT(lane < memory_.size() && slot < config_.slots && (passes == Backward::both || config_.passes_apart));
    Frame& frame = frame_of(lane, slot);
    const StepId step = frame.blocks[0].id.step;
    // Losses and statistics, which the slot's forward pass has handed in, are not handed in again.
    if (config_.recompute && goes_back_ && computed_[lane] != frame.number) GC_TRY(computed_again(frame, step));
    for (size_t layer = stage_.end; layer-- > stage_.first;) {
        if (cancelled(step)) return step_cancelled;
        const Operations& operations = frame.program->layers[layer];
        const Pass first = operations.weights.empty() ? Pass::backward_data : Pass::backward_weights;
        if (passes != Backward::weights) GC_TRY(run(operations.gradient, frame, layer, first));
        if (passes != Backward::data) GC_TRY(weights(frame, layer, sink));
        if (passes != Backward::weights) GC_TRY(run(operations.data, frame, layer, Pass::backward_data));
    }
    return {};
}

Program& CpuNet::program_of(uint32_t samples) {
    Program* program = &all_;
    if (together_ == 1) GC_ASSERT(program_find(programs_, samples, true, &program).ok());
    return *program;
}

uint64_t CpuNet::edge_bytes(size_t edge, bool gradient, uint32_t samples) {
    const Program& program = program_of(samples);
    const EdgeTensors& tensors = program.edges[edge];
    return program.bytes(gradient ? tensors.gradient : tensors.sent, samples);
}

Buffer CpuNet::edge(uint32_t lane, uint32_t slot, size_t edge, bool gradient, uint32_t samples) {
    const EdgeTensors& tensors = program_of(samples).edges[edge];
    return {reinterpret_cast<std::byte*>(frame_of(lane, slot).at(gradient ? tensors.gradient : tensors.sent)), nullptr,
            edge_bytes(edge, gradient, samples)};
}

Buffer CpuNet::evaluation_edge(uint32_t lane, size_t edge, uint32_t samples) {
    Program* program = nullptr;
    GC_ASSERT(program_find(programs_, samples, false, &program).ok());
    const Tensor& value = program->edges[edge].value;
    return {reinterpret_cast<std::byte*>(frame_of(lane, 0).at(value)), nullptr, value.bytes()};
}

void CpuNet::slice_link(SliceLink* link) {
    for (Frame& frame : frames_) {
        frame.link = link;
        if (!config_.recompute) continue;
        frame.link = &kept_links_[frame.number];
        kept_links_[frame.number].open(link, slice_points_, stage_.slice_group, frame);
    }
}

uint64_t CpuNet::slice_bytes(size_t point, uint32_t group, uint32_t samples, bool training) {
    Program* program = nullptr;
    if (training) program = &program_of(samples);
    else GC_ASSERT(program_find(programs_, samples, false, &program).ok());
    if (point >= program->slices.size() || !program->slices[point]) return 0;
    return program->slices[point](group, training ? samples : program->samples);
}

uint64_t CpuNet::slice_bytes_most(size_t point, uint32_t group) const {
    uint64_t most = 0;
    const auto count = [&](const Program& program) {
        if (point < program.slices.size() && program.slices[point]) most = std::max(most, program.slices[point](group, program.samples));
    };
    for (const Program& program : programs_) count(program);
    count(all_);
    return most;
}

Status CpuNet::evaluate_piece(Frame& frame, const Program& program, const Samples& samples) {
    frame.own[0] = {{}, samples};
    frame.blocks = std::span(frame.own).first(1);
    frame.program = &program;
    frame.samples = program.samples;
    return layers_forward(frame, no_step - 1);   // a step that is never cancelled
}

Status CpuNet::evaluate(uint32_t lane, const Samples& samples, uint32_t program_samples, double loss_before, uint32_t* right, double* loss,
                        int32_t* predicted, float* outputs) {
    OneThread one;
    GC_ASSERT(lane < memory_.size());
    GC_TRY(check(samples));
    Frame& frame = frame_of(lane, 0);
    frame.training = false;
    frame.loss_before = loss_before;
    uint32_t all_right = 0;
    // What crosses cuts, or goes to other slice groups, is that of one piece: others see to it that there is one.
    const bool alone = edges_.empty() && stage_.slice_groups == 1;
    const uint32_t most = alone ? config_.samples_max : samples.count;
    Program* program = nullptr;
    GC_TRY(program_find(programs_, alone ? std::min(program_samples, most) : program_samples, false, &program));
    const uint64_t predictions = spec_.positions(), values = predictions * layers_.back().in.C;
    for (uint32_t first = 0; first < samples.count; first += most) {
        frame.predicted = predicted ? predicted + first * predictions : nullptr;
        frame.outputs = outputs ? outputs + first * values : nullptr;
        GC_TRY(evaluate_piece(frame, *program, samples_part(samples, first, std::min(most, samples.count - first), spec_)));
        frame.loss_before = frame.loss[0];
        all_right += frame.right;
    }
    *right = all_right;
    *loss = frame.loss_before;
    return {};
}

}   // namespace gradcast::cpu

namespace gradcast {

Status net_cpu_evaluate_further(Net& net, uint32_t lane, const Samples& samples, uint32_t* right, double* loss, int32_t* predicted) {
    return static_cast<cpu::CpuNet&>(net).evaluate_further(lane, samples, right, loss, predicted);
}

}   // namespace gradcast
