// The net on oneDNN: one list of operations for each size, shared by all lanes; memory by lane.
#include <dnnl_debug.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "nn/cpu/build.h"
#include "nn/kernels.h"
#include "nn/optimiser.h"

namespace gradcast {
namespace cpu {
namespace {

// A block is computed by one thread, because weight gradients differ between thread counts.  oneDNN reads this thread's OpenMP setting when
// it makes a kernel and when it runs it.
class OneThread {
public:
    OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
    OneThread(const OneThread&) = delete;
    OneThread& operator=(const OneThread&) = delete;
    ~OneThread() { omp_set_num_threads(before_); }

private:
    int before_;
};

/// The net for blocks of one size.
struct Program : ProgramSize {
    Tensor input;
    std::vector<Operations> layers;   // one each, those with weights at their own place
};

class CpuNet final : public Net {
public:
    Status plan(const NetSpec& spec, const NetConfig& config, Arena& arena);
    Status ready();

    const Layout& layout() const override { return layout_; }
    const NetSpec& spec() const override { return spec_; }
    const char* kernels() const override { return kernels_name_; }
    std::span<float> parameters() override { return {parameters_.as<float>(), layout_.elements}; }
    void refresh() override;
    Status block(uint32_t lane, BlockId id, const Samples& samples, GradientSink& sink) override {
        const Block one{id, samples};
        return blocks(lane, {&one, 1}, sink);
    }
    uint32_t together() const override { return together_; }
    Status blocks(uint32_t lane, std::span<const Block> all, GradientSink& sink) override;
    void cancel(StepId step) override { cancelled_.store(step, std::memory_order_relaxed); }   // a flag: it orders nothing
    void trace(NetTrace* trace) override { trace_ = trace; }
    Status evaluate(uint32_t lane, const Samples& samples, uint32_t* right, double* loss, int32_t* predicted, float* outputs) override;
    Status apply(Lanes& lanes, Optimiser& optimiser, std::span<const BucketSum> sums, uint64_t* digest) override;

private:
    Status make(Build& build, Program& program);
    /// Fills the input and runs all layers forward.
    Status forward(const Program& program, Frame& frame, StepId step);
    void input(const Program& program, Frame& frame);
    Status run(const std::vector<Operation>& list, Frame& frame, size_t layer, Pass pass);
    /// Gradients of weights are those of that block from now on; the layer's are written at the place of block `place`.
    void turn_to(Frame& frame, uint32_t block, size_t layer, uint32_t place) const;
    Buffer gradient_of(const Frame& frame, uint32_t bucket, uint32_t block) const;
    bool sample_by_sample() const;
    void plan_gradients(Build& build);
    /// Offers the layer's gradients in pieces.
    Status in_pieces(const Operations& operations, size_t layer, Frame& frame, GradientSink& sink, bool* taken);
    bool cancelled(StepId step) const { return cancelled_.load(std::memory_order_relaxed) == step; }
    void refresh_layer(uint32_t lane, size_t layer);
    /// A part of one group, which a lane applies at a time.
    struct Piece {
        uint32_t bucket, group;
        uint64_t offset, count;
        uint64_t digest;   // of the new values
    };
    void apply_piece(Piece& piece, Optimiser& optimiser, const BucketSum& from);

    NetSpec spec_;
    NetConfig config_;
    Layout layout_;
    std::vector<Layer> layers_;
    std::vector<bool> merged_;                // by layer: computed with the one before it
    bool input_beside_ = false;               // the first layer reads 16 samples side by side
    std::vector<uint32_t> bucket_of_layer_;   // the bucket that is complete once this layer's gradient is; none: ~0
    struct Gradients {                        // of one bucket, in a lane's memory
        uint64_t first = 0, apart = 0;        // floats: offset for the first block, and from one block to the next
    };
    std::vector<Gradients> gradients_;   // by bucket
    std::vector<uint32_t> in_bucket_;    // by layer: the bucket of its gradient; none: ~0
    bool statistics_ = false;            // bucket 0 is not learnt but holds running statistics
    std::vector<WeightCopies> copies_;   // by layer
    std::vector<size_t> copied_;         // layers with copies
    std::vector<Piece> pieces_;
    std::vector<Program> programs_;   // ascending sizes
    uint32_t together_ = 1;           // blocks computed at a time; above 1:
    Program all_;                     // for that many of the largest size
    std::vector<std::unique_ptr<Call>> calls_;
    std::vector<std::array<Buffer, place_count>> memory_;   // by lane; those of all lanes stay empty
    std::vector<Stream> streams_;
    std::vector<Frame> frames_;
    Buffer parameters_, copies_memory_;
    Engine engine_;
    std::atomic<StepId> cancelled_{no_step};
    NetTrace* trace_ = nullptr;
    const char* kernels_name_ = nullptr;
    const FloatKernels& kernels_ = float_kernels(isa_best());
};

Status kernels_name(Precision precision, const char** name) {
    const Isa isa = Build::isa();
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

constexpr uint32_t together_samples = 128;              // of blocks computed together
constexpr uint64_t together_floats = 4 * 1024 * 1024;   // of a lane's activations, the most
constexpr uint64_t apply_piece_most = 64 * 1024;        // elements
constexpr uint64_t apply_chunk = 512;                   // elements that become float at a time, in the first-level cache
constexpr uint64_t apply_alone = 128 * 1024;            // elements of a net that one thread updates
constexpr Status step_cancelled = {Code::cancelled, 0, "the step was cancelled"};

Status CpuNet::make(Build& build, Program& program) {
    build.begin(program.samples, program.training, &program.layers);
    program.input = build.kept(input_beside_ ? Build::side_by_side(program.samples, layers_[0].in)
                                             : Build::plain({program.samples, layers_[0].in.C, layers_[0].in.H, layers_[0].in.W}));
    return layers_build(build, layers_, Activation{.value = program.input, .gradient = {}});
}

/// Blocks can be computed together: all layers can, and the activations of so many samples are few.
bool CpuNet::sample_by_sample() const {
    uint64_t floats = layers_[0].in.elements();   // of a sample's activations
    for (uint32_t i = 0; i < layers_.size(); ++i) {
        floats += layers_[i].out.elements();
        if (layers_[i].takers > 1) return false;
        for (const Program& program : programs_) {
            const uint32_t unit = program.layers[i].unit;
            if (!merged_[i] && (unit == 0 || (program.training && program.samples % unit != 0))) return false;
        }
    }
    return config_.precision == Precision::f32 && floats * together_samples <= together_floats;
}

void CpuNet::plan_gradients(Build& build) {
    uint64_t floats = 0;
    for (const Bucket& bucket : layout_.buckets) {
        // A gradient that is offered in pieces exists as a whole for one block at a time, so blocks share its place.
        uint64_t behind = together_ > 1 ? bucket.count : 0;
        for (uint32_t i = 0; i < all_.layers.size(); ++i)
            if (bucket_of_layer_[i] == gradients_.size() && all_.layers[i].pieces) behind -= layers_[i].parameters();
        gradients_.push_back({together_ > 1 ? floats : bucket.offset, behind});
        floats += bucket.count + (together_ - 1) * behind;
    }
    build.memory.reserve(Place::gradient, floats * sizeof(float));
    for (const Layer& layer : layers_) {
        const auto at = std::find_if(layout_.buckets.begin(), layout_.buckets.end(), [&layer](const Bucket& bucket) {
            return layer.parameters() && layer.offset >= bucket.offset && layer.offset < bucket.offset + bucket.count;
        });
        in_bucket_.push_back(at == layout_.buckets.end() ? ~0u : static_cast<uint32_t>(at - layout_.buckets.begin()));
    }
}

Status CpuNet::plan(const NetSpec& spec, const NetConfig& config, Arena& arena) {
    OneThread one;
    GC_ASSERT(config.lanes >= 1 && config.samples_max >= 1);
    spec_ = spec;
    config_ = config;
    GC_TRY(layers_check(spec_, &layers_));
    layout_ = layers_layout(layers_, config.bucket_bytes);
    layers_pool_first(layers_);
    merged_.assign(layers_.size(), false);
    for (uint32_t i = 0; i + 2 < layers_.size(); ++i) {
        const Layer &first = layers_[i], &pool = layers_[i + 1], &relu = layers_[i + 2];
        if (!first.is(conv_kind) || !conv_few_pools(first, pool) || !relu.is(relu_kind)) continue;
        merged_[i + 1] = merged_[i + 2] = pool.input == i && pool.takers == 1 && relu.input == i + 1;
    }
    const auto takers = std::count_if(layers_.begin(), layers_.end(), [](const Layer& layer) { return layer.input == Layer::none; });
    input_beside_ = layers_[0].is(conv_kind) && conv_few_fits(layers_[0]) && takers == 1;
    for (const Layer& layer : layers_) statistics_ = statistics_ || layer.statistics;
    bucket_of_layer_ = buckets_of_layers(layers_, layout_);
    for (uint32_t b = 0; b < layout_.buckets.size(); ++b)
        for (uint32_t g = layout_.buckets[b].group, end = g + layout_.buckets[b].group_count; g < end; ++g)
            for (uint64_t i = 0; i < layout_.groups[g].count; i += apply_piece_most)
                pieces_.push_back({b, g, layout_.groups[g].offset + i, std::min(apply_piece_most, layout_.groups[g].count - i), 0});

    dnnl_engine_t engine = nullptr;
    if (dnnl_engine_create(&engine, dnnl_cpu, 0) != dnnl_success) return fail(Code::unsupported, "oneDNN finds no CPU engine");
    engine_.reset(engine);
    GC_TRY(kernels_name(config.precision, &kernels_name_));
    Build build(engine, config, layers_, merged_);
    build.least = ~0u;
    const std::vector<ProgramSize> sizes = program_sizes(config);
    for (const ProgramSize& size : sizes)
        if (size.training) {
            build.least = std::min(build.least, size.samples);
            build.most = size.samples;
        }
    for (const ProgramSize& size : sizes) {
        programs_.push_back({size, {}, {}});
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
    calls_ = std::move(build.calls);
    copies_ = std::move(build.weight_copies);
    for (size_t i = 0; i < copies_.size(); ++i)
        if (!copies_[i].refresh.empty()) copied_.push_back(i);

    plan_gradients(build);
    memory_.resize(config.lanes);
    for (auto& lane : memory_)
        for (uint8_t place = 0; place < place_count; ++place)
            if (place_purposes[place]) arena.plan(place_purposes[place], build.memory.bytes(Place{place}), &lane[place]);
    arena.plan("parameters", layout_.elements * sizeof(float), &parameters_);
    arena.plan("copies of weights", build.memory.bytes(Place::copies), &copies_memory_);
    return {};
}

Status CpuNet::ready() {
    for (uint32_t lane = 0; lane < config_.lanes; ++lane) {
        dnnl_stream_t stream = nullptr;
        if (dnnl_stream_create(&stream, engine_.get(), dnnl_stream_default_flags) != dnnl_success)
            return fail(Code::node_memory, "oneDNN cannot make a stream");
        streams_.emplace_back(stream);
        Frame& frame = frames_.emplace_back();
        frame.lane = lane;
        frame.stream = stream;
        for (size_t place = 0; place < place_count; ++place) frame.base[place] = memory_[lane][place].host;
        frame.base[static_cast<size_t>(Place::parameters)] = parameters_.host;
        frame.base[static_cast<size_t>(Place::copies)] = copies_memory_.host;
    }
    for (auto& call : calls_) GC_TRY(call->bind(frames_, engine_.get()));
    weights_initial(spec_, layout_, config_.seed, parameters());
    refresh();
    return {};
}

void CpuNet::refresh_layer(uint32_t lane, size_t layer) {
    OneThread one;
    for (const Operation& operation : copies_[layer].refresh)
        GC_ASSERT(operation(frames_[lane]).ok());   // no block is running: the lane's scratch is free
}

void CpuNet::refresh() {
    for (size_t layer : copied_) refresh_layer(0, layer);
}

void CpuNet::input(const Program& program, Frame& frame) {
    Shape padded = layers_[0].in;
    float* image = frame.at(program.input);
    const uint64_t plane = uint64_t{padded.H} * padded.W, lines = spec_.pad ? spec_.H : 1, row = uint64_t{spec_.H} * spec_.W / lines;
    // Padding is written for each block, as lanes' memory has other uses in between.
    if (spec_.pad && !input_beside_) std::fill_n(image, padded.elements() * frame.samples, 0.0f);
    uint32_t filled = 0;
    for (const Block& block : frame.blocks) {
        const Samples& samples = block.samples;
        const uint8_t* pixels = samples.images;
        auto scale = [&](uint32_t c) { return 1 / (255 * samples.std[c]); };
        auto shift = [&](uint32_t c) { return -samples.mean[c] / samples.std[c]; };
        if (input_beside_) {
            const uint64_t stride = uint64_t{spec_.C} * spec_.H * spec_.W, edge = (spec_.pad * padded.W + spec_.pad) * 16;
            auto pad = [&image](uint64_t floats) { image = std::fill_n(image, floats, 0.0f); };
            for (uint32_t first = 0; first < samples.count; first += 16, filled += 16)
                for (uint32_t c = 0; c < spec_.C; ++c) {
                    pad(edge);
                    for (uint64_t h = 0; h < lines; ++h, image += row * 16) {
                        if (h) pad(spec_.pad * 32);
                        kernels_.normalise16(image, pixels + first * stride + (uint64_t{c} * lines + h) * row, stride,
                                             std::min(16u, samples.count - first), row, scale(c), shift(c));
                    }
                    pad(edge);
                }
            continue;
        }
        filled += samples.count;
        for (uint32_t n = 0; n < samples.count; ++n)
            for (uint32_t c = 0; c < spec_.C; ++c, image += plane)
                for (uint64_t h = 0; h < lines; ++h, pixels += row)
                    kernels_.normalise(image + (h + spec_.pad) * padded.W + spec_.pad, pixels, row, scale(c), shift(c));
    }
    const uint32_t all = input_beside_ ? (frame.samples + 15) / 16 * 16 : frame.samples;
    if (filled < all) std::fill_n(image, padded.elements() * (all - filled), 0.0f);   // of an evaluation
}

Status CpuNet::run(const std::vector<Operation>& list, Frame& frame, size_t layer, Pass pass) {
    const bool traced = trace_ && frame.training && !list.empty();
    const uint64_t begin_ns = traced ? trace_->now_ns() : 0;
    for (const Operation& operation : list) GC_TRY(operation(frame));
    if (traced) trace_->pass(frame.lane, layers_[layer], pass, begin_ns, trace_->now_ns());
    return {};
}

Status CpuNet::forward(const Program& program, Frame& frame, StepId step) {
    const bool traced = trace_ && frame.training;
    const uint64_t begin_ns = traced ? trace_->now_ns() : 0;
    input(program, frame);
    if (traced) trace_->pass(frame.lane, layers_[0], Pass::input, begin_ns, trace_->now_ns());
    frame.loss.fill(0);
    frame.right = 0;
    for (uint32_t i = 0, first = 0; i < frame.blocks.size(); first += frame.blocks[i++].samples.count) frame.begins[i] = first;
    for (size_t i = 0; i < layers_.size(); ++i) {
        if (cancelled(step)) return step_cancelled;
        GC_TRY(run(program.layers[i].forward, frame, i, Pass::forward));
    }
    return {};
}

Buffer CpuNet::gradient_of(const Frame& frame, uint32_t bucket, uint32_t block) const {
    const auto [first, apart] = gradients_[bucket];
    return memory_[frame.lane][static_cast<size_t>(Place::gradient)].part((first + block * apart) * sizeof(float),
                                                                          layout_.buckets[bucket].count * sizeof(float));
}

void CpuNet::turn_to(Frame& frame, uint32_t block, size_t layer, uint32_t place) const {
    frame.block = block;
    frame.first = frame.begins[block];
    frame.count = frame.blocks[block].samples.count;
    if (const uint32_t bucket = in_bucket_[layer]; bucket != ~0u)
        frame.base[static_cast<size_t>(Place::gradient)] =
            gradient_of(frame, bucket, place).host - layout_.buckets[bucket].offset * sizeof(float);
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
            if (first < net.layers_[layer].parameters()) {
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

Status CpuNet::blocks(uint32_t lane, std::span<const Block> all, GradientSink& sink) {
    OneThread one;
    GC_ASSERT(lane < frames_.size() && all.size() >= 1 && all.size() <= together_);
    Frame& frame = frames_[lane];
    frame.blocks = all;
    frame.predicted = nullptr;
    frame.outputs = nullptr;
    frame.training = true;
    frame.samples = 0;
    Program* program = &all_;
    const StepId step = all[0].id.step;
    for (const auto& [id, samples] : all) {
        GC_ASSERT(id.step == step);
        GC_TRY(samples_check(spec_, samples));
        Program* own = nullptr;
        GC_TRY(program_find(programs_, samples.count, true, &own));
        if (together_ == 1) program = own;
        frame.samples += samples.count;
    }
    GC_TRY(forward(*program, frame, step));
    for (size_t i = 0; i < all.size(); ++i) sink.loss(lane, all[i].id, frame.loss[i]);
    if (statistics_) GC_TRY(sink.bucket(lane, all[0].id, 0, gradient_of(frame, 0, 0)));   // the forward pass has made them
    for (size_t layer = layers_.size(); layer-- > 0;) {
        if (cancelled(step)) return step_cancelled;
        const Operations& operations = program->layers[layer];
        bool taken = false;
        GC_TRY(in_pieces(operations, layer, frame, sink, &taken));
        for (uint32_t i = 0; !taken && i < all.size(); ++i) {
            turn_to(frame, i, layer, i);
            GC_TRY(run(operations.weights, frame, layer, Pass::backward_weights));
            if (const uint32_t bucket = bucket_of_layer_[layer]; bucket != ~0u)
                GC_TRY(sink.bucket(lane, all[i].id, bucket, gradient_of(frame, bucket, i)));
        }
        GC_TRY(run(operations.data, frame, layer, Pass::backward_data));
    }
    return {};
}

Status CpuNet::evaluate(uint32_t lane, const Samples& samples, uint32_t* right, double* loss, int32_t* predicted, float* outputs) {
    OneThread one;
    GC_ASSERT(lane < frames_.size());
    GC_TRY(samples_check(spec_, samples));
    Program* program = nullptr;
    GC_TRY(program_find(programs_, samples.count, false, &program));
    Frame& frame = frames_[lane];
    const Block only{{}, samples};
    frame.blocks = {&only, 1};
    frame.samples = program->samples;
    frame.predicted = predicted;
    frame.outputs = outputs;
    frame.training = false;
    GC_TRY(forward(*program, frame, no_step - 1));   // a step that is never cancelled
    *right = frame.right;
    *loss = frame.loss[0];
    return {};
}

void CpuNet::apply_piece(Piece& piece, Optimiser& optimiser, const BucketSum& from) {
    const Bucket& bucket = layout_.buckets[piece.bucket];
    const Sum& sum = from.sum;
    GC_ASSERT(sum.bucket == piece.bucket && from.units.size() == bucket.group_count);
    GC_ASSERT(sum.words.bytes >= bucket.count * word_bytes(sum.word));
    const double unit = from.units[piece.group - bucket.group];
    float gradient[apply_chunk];
    piece.digest = 0;
    for (uint64_t i = 0, count = 0; i < piece.count; i += count) {
        const uint64_t offset = piece.offset + i, word = offset - bucket.offset;
        count = std::min(apply_chunk - offset % digest_row, piece.count - i);   // whole rows of the digest
        switch (sum.word) {
            case Word::i16: kernels_.dequantise_i16(gradient, sum.words.as<int16_t>() + word, count, unit); break;
            case Word::i32: kernels_.dequantise_i32(gradient, sum.words.as<int32_t>() + word, count, unit); break;
            case Word::i64: kernels_.dequantise_i64(gradient, sum.words.as<int64_t>() + word, count, unit); break;
        }
        const std::span<float> values = parameters().subspan(offset, count);
        if (statistics_ && piece.bucket == 0) {
            for (uint64_t j = 0; j < count; ++j) values[j] += statistics_share * (gradient[j] - values[j]);
            piece.digest += digest64(values, offset);   // their optimiser state stays 0
        } else {
            piece.digest += optimiser.update(offset, values, {gradient, count});
        }
    }
}

Status CpuNet::apply(Lanes& lanes, Optimiser& optimiser, std::span<const BucketSum> sums, uint64_t* digest) {
    GC_ASSERT(sums.size() == layout_.buckets.size() && lanes.count() <= frames_.size());
    const bool alone = lanes.count() == 1 || layout_.elements < apply_alone;
    auto run = [&lanes, alone](size_t items, const std::function<void(uint32_t, uint32_t)>& task) {
        if (!alone) return lanes.run(static_cast<uint32_t>(items), task);
        for (uint32_t i = 0; i < items; ++i) task(0, i);
    };
    struct Step {   // behind one pointer: a std::function of it allocates nothing
        CpuNet& net;
        Optimiser& optimiser;
        const std::span<const BucketSum> sums;
    } const step{*this, optimiser, sums};
    run(pieces_.size(), [&step](uint32_t, uint32_t i) {
        Piece& piece = step.net.pieces_[i];
        step.net.apply_piece(piece, step.optimiser, step.sums[piece.bucket]);
    });
    run(copied_.size(), [this](uint32_t lane, uint32_t i) { refresh_layer(lane, copied_[i]); });
    *digest = 0;
    for (const Piece& piece : pieces_) *digest += piece.digest;
    return {};
}

}   // namespace
}   // namespace cpu

Status net_cpu_plan(const NetSpec& spec, const NetConfig& config, Arena& arena, std::unique_ptr<Net>* net) {
    auto made = std::make_unique<cpu::CpuNet>();
    GC_TRY(made->plan(spec, config, arena));
    *net = std::move(made);
    return {};
}

Status net_cpu_ready(Net& net) { return static_cast<cpu::CpuNet&>(net).ready(); }

Status nn_isa(Isa isa) {
    if (isa > isa_best()) return fail(Code::unsupported, "isa {}: this CPU has {} at most", isa_name(isa), isa_name(isa_best()));
    // Levels are named, so that machines agree.
    dnnl_cpu_isa_t wanted = dnnl_cpu_isa_sse41;
    switch (isa) {
        case Isa::portable: break;
        case Isa::avx2: wanted = dnnl_cpu_isa_avx2; break;
        case Isa::avx512: wanted = dnnl_cpu_isa_avx512_core; break;
        case Isa::avx512_bf16: wanted = dnnl_cpu_isa_avx512_core_bf16; break;
        case Isa::amx: wanted = dnnl_cpu_isa_avx512_core_amx; break;
    }
    if (dnnl_set_max_cpu_isa(wanted) == dnnl_success || dnnl_get_effective_cpu_isa() == wanted) return {};
    return fail(Code::unsupported, "isa {} comes too late: this process already computes with {}", isa_name(isa),
                dnnl_cpu_isa2str(dnnl_get_effective_cpu_isa()));
}

}   // namespace gradcast
