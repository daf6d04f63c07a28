// How the net is put together before the first step: its programs, which blocks are computed together, and its memory.
#include <algorithm>
#include <atomic>

#include "nn/cpu/net.h"
#include "nn/frozen.h"
#include "nn/graph/fusions.h"
#include "nn/graph/slices.h"

namespace gradcast {
namespace cpu {
namespace {

Status kernels_name(Precision precision, const char** name) {
    const Isa isa = nn_isa();
    if (precision == Precision::tf32) return fail(Code::unsupported, "precision tf32 is for GPUs: take f32 or bf16, or device cuda");
    if (precision == Precision::f32) *name = isa_name(std::min(isa, Isa::avx512));
    else if (isa == Isa::amx) *name = "bf16-amx";
    else if (isa == Isa::avx512_bf16) *name = "bf16-avx512";
    else if (isa_best() >= Isa::avx512_bf16)
        return fail(Code::unsupported,
                    "precision bf16 needs AVX512-BF16 or AMX, which this CPU has and isa {} leaves out: take isa {}, or f32", isa_name(isa),
                    isa_name(isa_best()));
    else
        return fail(Code::unsupported,
                    "precision bf16 needs AVX512-BF16 or AMX, and this CPU has neither: take f32, or nodes that have it");
    return {};
}

/// A convolution of few channels takes what follows it into its tiles.
std::vector<Fusion> fusions() {
    return {{{&conv_kind, &max_pool_kind, &relu_kind}, [](std::span<const Layer> run) { return conv_few_pools(run[0], run[1]); }}};
}

constexpr uint32_t together_samples = 128;              // of blocks computed together
constexpr uint64_t together_floats = 4 * 1024 * 1024;   // of a lane's activations, the most

}   // namespace

Status CpuNet::make(Build& build, Program& program) {
    build.begin(program.samples, program.training, &program.layers, &program.edges, &program.slices);
    const Activation input = pixels(build, program.input);
    if (!stage_.has(0)) program.input.clear();
    GC_TRY(layers_build(build, layers_, input));
    if (!config_.recompute || !program.training) return {};
    const uint64_t bytes = blocks_bytes(program, build.together);
    program.blocks = {Build::plain({bytes / sizeof(float)}), Place::slot, build.memory.append(Place::slot, bytes)};
    keep_received(build, program);
    return {};
}

void CpuNet::keep_received(Build& build, Program& program) {
    program.received.resize(program.slices.size());
    for (size_t point = 0; point < program.slices.size(); ++point) {
        if (!program.slices[point] || build.slice_points[point].backward()) continue;
        for (uint32_t group = 0; group < stage_.slice_groups; ++group)
            program.received[point].push_back(
                group == stage_.slice_group ? 0 : build.memory.append(Place::slot, program.slices[point](group, program.samples)));
    }
}

/// Blocks can be computed together: all layers can, and the activations of so many samples are few.
bool CpuNet::sample_by_sample() const {
    uint64_t floats = layers_[0].in.elements();   // of a sample's activations
    for (uint32_t i = 0; i < layers_.size(); ++i) {
        floats += layers_[i].out.elements();
        if (layers_[i].takers > 1 || layers_[i].tied != Layer::none) return false;
        for (const Program& program : programs_) {
            const uint32_t unit = program.layers[i].unit;
            if (!merged_[i] && (unit == 0 || (program.training && program.samples % unit != 0))) return false;
        }
    }
    return config_.precision == Precision::f32 && floats * together_samples <= together_floats;
}

// A lane's gradient memory holds one bucket, because a sink has taken a bucket when the next one begins.
void CpuNet::plan_gradients(Build& build) {
    for (const Bucket& bucket : layout_.buckets) {
        // A gradient that is offered in pieces exists as a whole for one block at a time, so blocks share its place.
        uint64_t behind = together_ > 1 ? bucket.count : 0;
        for (uint32_t i = 0; i < all_.layers.size(); ++i)
            if (bucket_of_layer_[i] == apart_.size() && all_.layers[i].pieces) behind -= own_parameters(layers_[i], stage_).count;
        apart_.push_back(behind);
        build.memory.reserve(Place::gradient, (bucket.count + (together_ - 1) * behind) * sizeof(float));
    }
    for (const Layer& layer : layers_)
        in_bucket_.push_back(layer.learns() ? layout_.bucket_of(layout_.offset_of(own_parameters(layer, stage_).first)) : ~0u);
}

/// Layers of other stages were built for the choice of kernels and orders alone.
void CpuNet::drop_other_stages(Build& build) {
    auto drop = [this](Program& program) {
        for (uint32_t i = 0; i < program.layers.size(); ++i)
            if (!stage_.has(i)) program.layers[i] = {};
    };
    for (Program& program : programs_) drop(program);
    drop(all_);
    for (uint32_t i = 0; i < layers_.size(); ++i)
        if (!stage_.has(i)) build.weight_copies[i] = {};
    for (const Program& program : programs_) {
        if (!program.training) continue;
        edges_.clear();
        for (const EdgeTensors& each : program.edges) edges_.push_back(each.edge);
    }
}

// Frozen layers are built as if they learnt, so that all kernels, orders and bits are those of a net without them.
void CpuNet::freeze(uint32_t layers) {
    if (layers == 0) return;
    const bool ends = stage_.slice_groups == 1;   // slice groups meet in the passes of all layers
    static constexpr uint64_t zeros_most = 4096;
    static constexpr float zeros[zeros_most] = {};
    const auto frozen = [layers](uint32_t layer) { return layer == Layer::none || layer < layers; };
    const auto of_program = [&](Program& program) {
        for (uint32_t i = 0; i < program.layers.size() && program.training; ++i) {
            Operations& list = program.layers[i];
            const Layer& layer = layers_[i];
            if (ends && frozen(layer.input) && frozen(layer.other)) list.data.clear();
            if (!frozen(i)) continue;
            if (ends) list.gradient.clear();
            list.row_bound = nullptr;
            if (list.weights.empty()) continue;
            const auto [first, elements] = own_parameters(layer, stage_);
            // The gradient's place is that of its bucket (turn_to()).
            const uint64_t begin = layout_.offset_of(first) - layout_.buckets[in_bucket_[i]].offset;
            list.weights = {[begin, count = elements](Frame& frame) {
                std::fill_n(reinterpret_cast<float*>(frame.base[static_cast<size_t>(Place::gradient)]) + begin, count, 0.0f);
                return Status{};
            }};
            if (list.pieces)
                list.pieces = [count = elements](Frame&, uint64_t at) { return GradientPart{zeros, std::min(zeros_most, count - at)}; };
        }
    };
    for (Program& program : programs_) of_program(program);
    of_program(all_);
    for (Edge& edge : edges_)
        if (ends && frozen(edge.from)) edge.learns = false;
    goes_back_ = !ends || stage_.end > layers;
}

Status CpuNet::plan(const NetSpec& spec, const NetConfig& config, Arena& arena) {
    OneThread one;
    GC_ASSERT(config.lanes >= 1 && config.slots >= 1 && config.samples_max >= 1);
    GC_ASSERT(!(config.recompute && config.passes_apart));
    spec_ = spec;
    config_ = config;
    config_.recompute = config.recompute && config.slots > 1;
    GC_TRY(layers_check(spec_, &layers_));
    GC_TRY(computed_check(layers_));
    counts_valid_ = mean_over_valid(spec_);
    layers_pool_first(layers_);
    merged_ = layers_fused(layers_, fusions());
    stage_begins_ = gradcast::stage_begins(layers_, merged_);
    GC_TRY(stage_check(layers_, stage_begins_, config.stage, &stage_));
    layout_ = layers_layout(layers_, config.bucket_bytes, stage_);
    runs_ = layout_.runs(false);
    for (const Group& group : layout_.groups) statistics_ = statistics_ || group.statistics;
    bucket_of_layer_ = buckets_of_layers(layers_, layout_, stage_);
    pieces_ = sum_pieces(layout_);

    dnnl_engine_t engine = nullptr;
    if (dnnl_engine_create(&engine, dnnl_cpu, 0) != dnnl_success) return fail(Code::unsupported, "oneDNN finds no CPU engine");
    engine_.reset(engine);
    GC_TRY(kernels_name(config.precision, &kernels_name_));
    Build build(engine, spec_, config_, layers_, layout_, merged_);
    build.least = ~0u;
    const std::vector<ProgramSize> sizes = program_sizes(config);
    for (const ProgramSize& size : sizes)
        if (size.training) {
            build.least = std::min(build.least, size.samples);
            build.most = size.samples;
        }
    for (const ProgramSize& size : sizes) {
        programs_.push_back({size, {}, {}, {}, {}, {}, {}});
        GC_TRY(make(build, programs_.back()));
    }
    if (sample_by_sample()) together_ = std::clamp(together_samples / build.most, 1u, together_most);
    if (together_ > 1) {
        build.together = together_;
        all_.samples = together_ * build.most;
        all_.training = true;
        GC_TRY(make(build, all_));
    }
    if (build.tiled && config.precision == Precision::f32) kernels_name_ = isa_name(Isa::amx);
    plan_gradients(build);
    drop_other_stages(build);
    slice_points_ = std::move(build.slice_points);
    calls_ = std::move(build.calls);
    copies_ = std::move(build.weight_copies);
    for (size_t i = 0; i < copies_.size(); ++i)
        if (!copies_[i].refresh.empty()) copied_.push_back(i);

    const Place of_slots = config_.recompute ? Place::slot : Place::kept;
    memory_.resize(config.lanes);
    for (auto& lane : memory_)
        for (uint8_t place = 0; place < place_count; ++place)
            if (place_purposes[place])
                arena.plan(place_purposes[place], build.memory.bytes(Place{place}) * (Place{place} == of_slots ? config.slots : 1),
                           &lane[place]);
    arena.plan("parameters", layout_.elements * sizeof(float), &parameters_);
    arena.plan("copies of weights", build.memory.bytes(Place::copies), &copies_memory_);
    return {};
}

Status CpuNet::ready(bool initial) {
    frames_.resize(memory_.size() * config_.slots);
    kept_links_.resize(config_.recompute ? frames_.size() : 0);
    computed_.assign(memory_.size(), ~0u);
    const auto of_slots = static_cast<size_t>(config_.recompute ? Place::slot : Place::kept);
    for (uint32_t lane = 0; lane < config_.lanes; ++lane) {
        dnnl_stream_t stream = nullptr;
        if (dnnl_stream_create(&stream, engine_.get(), dnnl_stream_default_flags) != dnnl_success)
            return fail(Code::node_memory, "oneDNN cannot make a stream");
        streams_.emplace_back(stream);
        for (uint32_t slot = 0; slot < config_.slots; ++slot) {
            Frame& frame = frame_of(lane, slot);
            frame.lane = lane;
            frame.number = lane * config_.slots + slot;
            frame.stream = stream;
            for (size_t place = 0; place < place_count; ++place) frame.base[place] = memory_[lane][place].host;
            frame.base[of_slots] += slot * (memory_[lane][of_slots].bytes / config_.slots);
            frame.base[static_cast<size_t>(Place::parameters)] = parameters_.host;
            frame.base[static_cast<size_t>(Place::copies)] = copies_memory_.host;
        }
    }
    for (auto& call : calls_) GC_TRY(call->bind(frames_, engine_.get()));
    if (!initial) return {};
    weights_initial(spec_, layout_, config_.seed, parameters());
    refresh();
    return {};
}

}   // namespace cpu

Status net_cpu_plan(const NetSpec& spec, const NetConfig& config, Arena& arena, std::unique_ptr<Net>* net) {
    auto made = std::make_unique<cpu::CpuNet>();
    GC_TRY(made->plan(spec, config, arena));
    *net = std::move(made);
    return {};
}

Status net_cpu_order(const NetSpec& spec, NetOrder* order) {
    std::vector<Layer> layers;
    GC_TRY(layers_check(spec, &layers));
    layers_pool_first(layers);
    *order = net_order(layers, layers_fused(layers, cpu::fusions()));
    return {};
}

void net_cpu_freeze(Net& net, uint32_t layers) { static_cast<cpu::CpuNet&>(net).freeze(layers); }

Status net_cpu_ready(Net& net, bool initial) { return static_cast<cpu::CpuNet&>(net).ready(initial); }

namespace {
std::atomic<bool> common_chosen;   // oneDNN has no such level
}

Isa nn_isa() {
    if (common_chosen) return Isa::common;
    const dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
    return std::min(isa_best(), isa >= dnnl_cpu_isa_avx512_core_amx    ? Isa::amx
                                : isa >= dnnl_cpu_isa_avx512_core_bf16 ? Isa::avx512_bf16
                                : isa >= dnnl_cpu_isa_avx512_core      ? Isa::avx512
                                : isa >= dnnl_cpu_isa_avx2             ? Isa::avx2
                                                                       : Isa::portable);
}

Status nn_isa(Isa isa) {
    if (isa > isa_best()) return fail(Code::unsupported, "isa {}: this CPU has {} at most", isa_name(isa), isa_name(isa_best()));
    // Levels are named, so that machines agree.
    dnnl_cpu_isa_t wanted = dnnl_cpu_isa_sse41;
    switch (isa) {
        case Isa::portable: break;
        case Isa::common:
        case Isa::avx2: wanted = dnnl_cpu_isa_avx2; break;
        case Isa::avx512: wanted = dnnl_cpu_isa_avx512_core; break;
        case Isa::avx512_bf16: wanted = dnnl_cpu_isa_avx512_core_bf16; break;
        case Isa::amx: wanted = dnnl_cpu_isa_avx512_core_amx; break;
    }
    const bool common = isa == Isa::common;
    if (dnnl_set_max_cpu_isa(wanted) == dnnl_success) common_chosen = common;
    else if (dnnl_get_effective_cpu_isa() != wanted || common != common_chosen)
        return fail(Code::unsupported, "isa {} comes too late: this process already computes with {}", isa_name(isa), isa_name(nn_isa()));
    return {};
}

}   // namespace gradcast
