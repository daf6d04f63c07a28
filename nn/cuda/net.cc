// The net on GPUs.  A block is one CUDA graph: copy of the samples, forward pass, backward pass.  When a bucket's gradient is complete, the
// codec quantises it in the same graph, or an event is recorded; both overlap with the rest of the backward pass.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "nn/cuda/build.h"
#include "nn/cuda/cuda.h"
#include "nn/cuda/optimiser.h"
#include "nn/programs.h"

namespace gradcast::cuda {
namespace {

constexpr Status step_cancelled = {Code::cancelled, 0, "the step was cancelled"};

/// quantised: a block whose gradient the device's codec quantises and whose images come from the device's data set, if there is one.
enum class Work : uint8_t { evaluation, block, quantised };
constexpr size_t work_count = 3;

/// The net's operations for one block size.
struct Program : ProgramSize {
    Tensor input;
    std::vector<Operations> layers;
    std::vector<std::array<GraphExec, work_count>> graphs;   // by lane
};

/// Offsets of the parts of a block's input; the same in page-locked memory and on the device.
struct InputLayout {
    uint64_t scale, shift, seeds, labels, images, image_bytes;
    uint64_t bytes(uint32_t samples) const { return images + samples * image_bytes; }
};

class CudaNet final : public Net {
public:
    explicit CudaNet(CudaDevice& device) : device_(device) {}
    ~CudaNet() override;
    CudaNet(const CudaNet&) = delete;
    Status plan(const NetSpec& spec, const NetConfig& config);
    Status ready();
    Status plan(const OptimiserConfig& config, std::unique_ptr<Optimiser>* optimiser);

    const Layout& layout() const override { return layout_; }
    const NetSpec& spec() const override { return spec_; }
    const char* kernels() const override { return kernels_name_.c_str(); }
    uint64_t engines() const override { return engines_; }
    std::span<float> parameters() override;
    uint64_t digest() override;
    void refresh() override { must(upload()); }
    Status block(uint32_t lane, BlockId id, const Samples& samples, GradientSink& sink) override;
    void cancel(StepId step) override { cancelled_.store(step, std::memory_order_relaxed); }   // relaxed: orders nothing
    void trace(NetTrace* trace) override { trace_ = trace; }
    Status evaluate(uint32_t lane, const Samples& samples, uint32_t* right, double* loss, int32_t* predicted, float* outputs) override;
    Status apply(Lanes& lanes, Optimiser& optimiser, std::span<const BucketSum> sums, uint64_t* digest) override;

private:
    /// A lane's memory and events; its streams and handles are in CudaDevice::Lane.
    struct Lane {
        Frame frame, beside;          // beside: for Operations::weights
        Buffer memory[place_count];   // empty for places that lanes share
        Buffer input, staged;         // the block's input: on the device, page-locked on the host
        Buffer result, results;       // LossResult and best classes: on the device, on the host
        Buffer losses;
        Buffer gradient;              // on the host, for sinks that read it there
        Event lost, done, taken;      // the loss is complete; the block is complete; its gradient has been read
        Event heard;                  // like `lost`, recorded outside of the graph: the host waits for it
        Event forked, joined;         // `beside` may begin; has ended
        Event complete, followed;     // a bucket's gradient; the codec's work on all buckets
        std::vector<Event> buckets;   // by bucket: its gradient is complete
        std::vector<Event> copied;    // by bucket: it has been copied to the host
        bool used = false;
    };
    struct Gpu {
        Buffer parameters, copies;
        Frame frame;                        // for refreshing copies
        std::vector<GraphExec> refreshes;   // by bucket; on the first GPU part of CudaNet::updates_
    };
    Status make(Build& build, Program& program);
    Status stage(uint32_t lane, const Samples& samples, BlockId id, const Program& program, Work work);
    /// Enqueues all device work of a block or an evaluation in the lane's stream.
    Status enqueue(const Program& program, uint32_t lane, Work work, NetTrace* trace = nullptr);
    /// Waits (in the stream) for updates, then stage() and the launch of the graph of enqueue().
    Status start(Program& program, uint32_t lane, const Samples& samples, BlockId id, Work work);
    Status deliver(uint32_t lane, BlockId id, GradientSink& sink, Work work);
    Status upload();
    static constexpr uint32_t all_buckets = ~0u;
    Status apply(const Sum& sum, std::span<const double> units);
    /// Enqueues the update of a bucket on the first GPU: the optimiser and copies of weights.
    Status update(uint32_t bucket);
    /// Enqueues rewriting the copies of weights in [offset, end) on a GPU.
    Status refresh(const Gpu& gpu, uint64_t offset, uint64_t end);
    /// Enqueues copying the first GPU's parameters to the others and rewriting the copies of weights there (all_buckets: on the first GPU,
    /// too).  Blocks wait for it on the device.
    Status spread(uint32_t bucket);
    /// Makes the first GPU's stream wait for all blocks.
    Status settle();
    bool cancelled(StepId step) const { return cancelled_.load(std::memory_order_relaxed) == step; }

    CudaDevice& device_;
    NetSpec spec_;
    NetConfig config_;
    Layout layout_;
    std::vector<Layer> layers_;
    std::vector<uint32_t> bucket_of_layer_;
    bool statistics_ = false;   // bucket 0 holds running statistics
    std::string kernels_name_;
    uint64_t engines_ = 0;
    std::vector<Program> programs_;   // by ascending block size
    std::vector<Build::Copy> copies_;
    std::vector<uint64_t> dropout_seeds_;   // by dropout layer
    InputLayout input_{};
    std::vector<Lane> lanes_;
    std::vector<Gpu> gpus_;
    Buffer mirror_, words_;             // the parameters on the host; a bucket's sum on the first GPU
    std::vector<uint64_t> update_at_;   // by bucket, offset in both of:
    Buffer update_now_, update_here_;   // ApplyNow, double unit [group]: on the first GPU, on the host
    std::vector<GraphExec> updates_;    // by bucket
    std::vector<bool> updated_;         // by bucket: launched since the last block
    DeviceDigest digest_;
    std::atomic<bool> blocks_since_{false};   // blocks were started after the last settle()
    bool stale_ = false;                      // mirror_ is older than the parameters
    CudaOptimiser* optimiser_ = nullptr;
    std::atomic<StepId> cancelled_{no_step};
    NetTrace* trace_ = nullptr;
};

CudaNet::~CudaNet() {
    // Members free memory afterwards: wait until no stream uses it.
    for (auto& gpu : device_.gpus())
        if (cudaSetDevice(gpu->number) == cudaSuccess) (void)cudaDeviceSynchronize();
}

Status CudaNet::make(Build& build, Program& program) {
    build.begin(program.samples, program.training);
    const Shape& in = layers_[0].in;
    program.input = build.kept(build.rows(in) * in.C * build.value_bytes());
    program.layers.resize(layers_.size());
    std::vector<Activation> outputs;
    std::vector<std::vector<Tensor>> parts(layers_.size());   // by layer: the gradients of an output with several readers
    auto take = [&](uint32_t from) {
        if (from == Layer::none) return Activation{.value = program.input, .gradient = {}};
        Activation given = outputs[from];
        if (layers_[from].takers > 1 && given.learns && program.training) {
            const Shape& shape = layers_[from].out;
            parts[from].push_back(given.gradient = build.kept(build.rows(shape) * shape.C * build.value_bytes()));
        }
        return given;
    };
    for (uint32_t i = 0; i < layers_.size(); ++i) {
        build.layer = &layers_[i];
        build.number = i;
        build.operations = &program.layers[i];
        build.activation = take(layers_[i].input);
        if (layers_[i].other != Layer::none) build.other = take(layers_[i].other);
        GC_TRY(layer_build(build));
        outputs.push_back(build.activation);
    }
    for (size_t i = 0; i < layers_.size(); ++i) {   // sum the parts before the output's layer
        if (parts[i].empty()) continue;
        const uint64_t count = build.rows(layers_[i].out) * layers_[i].out.C;
        auto sum = [to = outputs[i].gradient, from = parts[i], count](const Frame& f) {
            GC_TRY(cuda::add(f.stream, f.values(to), f.values(from[0]), f.values(from[1]), count));
            for (size_t part = 2; part < from.size(); ++part)
                GC_TRY(cuda::add(f.stream, f.values(to), f.values(to), f.values(from[part]), count));
            return Status{};
        };
        program.layers[i].before.insert(program.layers[i].before.begin(), sum);
    }
    return {};
}

Status CudaNet::plan(const NetSpec& spec, const NetConfig& config) {
    GC_ASSERT(config.lanes == device_.lanes().size() && config.samples_max >= 1);
    spec_ = spec;
    config_ = config;
    GC_TRY(layers_check(spec_, &layers_));
    layout_ = layers_layout(layers_, config.bucket_bytes);
    layers_pool_first(layers_);
    bucket_of_layer_ = buckets_of_layers(layers_, layout_);
    for (const Layer& layer : layers_) statistics_ = statistics_ || layer.statistics;
    for (uint32_t i = 0; i < layers_.size(); ++i)
        if (layers_[i].kind == Kind::dropout) dropout_seeds_.push_back(dropout_mixed(config.seed, i));
    kernels_name_ = fmt::format("cuda-{}{}, {}", precision_names()[static_cast<size_t>(config.precision)],
                                config.deterministic ? "" : "-any", device_.name());

    GC_TRY(device_.use(device_.gpu_of(0)));
    Build build(config_, layers_, device_);
    for (const ProgramSize& size : program_sizes(config)) {
        programs_.push_back({size, {}, {}, {}});
        GC_TRY(make(build, programs_.back()));
    }
    const uint32_t most = programs_.back().samples;
    copies_ = std::move(build.copies);
    engines_ = build.engines;

    auto up = [](uint64_t bytes) { return (bytes + 255) / 256 * 256; };
    const uint64_t channels = up(spec_.C * sizeof(float));
    input_.scale = 256;   // after BlockHeader
    input_.shift = input_.scale + channels;
    input_.seeds = input_.shift + channels;
    input_.labels = input_.seeds + up(dropout_seeds_.size() * sizeof(uint64_t));
    input_.images = input_.labels + up(most * sizeof(int32_t));
    input_.image_bytes = uint64_t{spec_.C} * spec_.H * spec_.W;

    build.bytes[static_cast<size_t>(Place::gradient)] = layout_.elements * sizeof(float);
    constexpr std::array<const char*, place_count> purposes = {
        "activations", "activation gradients", "activation gradients", "kernel scratch", "kernel scratch", "gradients", nullptr, nullptr};
    lanes_ = std::vector<Lane>(config.lanes);
    uint64_t growing = 0;
    for (uint32_t number = 0; number < config.lanes; ++number) {
        Lane& lane = lanes_[number];
        DeviceArena& arena = device_.gpu_of(number).arena;
        for (size_t place = 0; place < place_count; ++place) {
            if (!purposes[place]) continue;
            arena.plan(purposes[place], build.bytes[place], &lane.memory[place]);
            if (device_.lanes()[number].gpu == 0 && place < static_cast<size_t>(Place::scratch)) growing += build.bytes[place];
        }
        arena.plan("samples", input_.bytes(most), &lane.input);
        arena.plan_pinned("samples", input_.images + most * std::max<uint64_t>(input_.image_bytes, sizeof(SamplePlace)), &lane.staged);
        const uint64_t result = sizeof(LossResult) + most * sizeof(int32_t);
        arena.plan("samples", result, &lane.result);
        arena.plan_pinned("samples", result, &lane.results);
        arena.plan("samples", most * sizeof(double), &lane.losses);
        if (device_.lanes()[number].gpu == 0) growing += most * (input_.image_bytes + 2 * sizeof(int32_t) + sizeof(double));
        arena.plan_pinned("gradients", layout_.elements * sizeof(float), &lane.gradient);
    }
    device_.grows(growing, most);
    gpus_ = std::vector<Gpu>(device_.gpus().size());
    for (size_t i = 0; i < gpus_.size(); ++i) {
        DeviceArena& arena = device_.gpus()[i]->arena;
        arena.plan("parameters", layout_.elements * sizeof(float), &gpus_[i].parameters);
        arena.plan("copies of weights", build.bytes[static_cast<size_t>(Place::copies)], &gpus_[i].copies);
    }
    DeviceArena& first = device_.gpus()[0]->arena;
    uint64_t bucket_most = 0;
    for (const Bucket& bucket : layout_.buckets) bucket_most = std::max(bucket_most, bucket.count);
    first.plan("sums", bucket_most * sizeof(int64_t), &words_);
    uint64_t update = 0;
    for (const Bucket& bucket : layout_.buckets) {
        update_at_.push_back(update);
        update += sizeof(ApplyNow) + bucket.group_count * sizeof(double);
    }
    first.plan("sums", update, &update_now_);
    first.plan_pinned("sums", update, &update_here_);
    updated_.resize(layout_.buckets.size());
    digest_.plan(*device_.gpus()[0]);
    first.plan_pinned("parameters", layout_.elements * sizeof(float), &mirror_);
    return {};
}

Status CudaNet::plan(const OptimiserConfig& config, std::unique_ptr<Optimiser>* optimiser) {
    GC_TRY(optimiser_check(config));
    auto made = std::make_unique<CudaOptimiser>(config, layout_.elements, device_);
    optimiser_ = made.get();
    *optimiser = std::move(made);
    return {};
}

Status CudaNet::ready() {
    for (uint32_t number = 0; number < lanes_.size(); ++number) {
        Lane& lane = lanes_[number];
        const CudaDevice::Lane& with = device_.lanes()[number];
        GC_TRY(device_.use(device_.gpu_of(number)));
        Frame& f = lane.frame;
        f.lane = number;
        f.stream = with.stream.get();
        f.cudnn = with.cudnn.get();
        f.cublas = with.cublas.get();
        for (size_t place = 0; place < place_count; ++place) f.base[place] = static_cast<std::byte*>(lane.memory[place].device);
        f.base[static_cast<size_t>(Place::parameters)] = static_cast<std::byte*>(gpus_[with.gpu].parameters.device);
        f.base[static_cast<size_t>(Place::copies)] = static_cast<std::byte*>(gpus_[with.gpu].copies.device);
        f.bf16 = config_.precision == Precision::bf16;
        auto* input = static_cast<std::byte*>(lane.input.device);
        f.header = reinterpret_cast<BlockHeader*>(input);
        f.scale = reinterpret_cast<float*>(input + input_.scale);
        f.shift = reinterpret_cast<float*>(input + input_.shift);
        f.seeds = reinterpret_cast<uint64_t*>(input + input_.seeds);
        f.labels = reinterpret_cast<int32_t*>(input + input_.labels);
        f.images = reinterpret_cast<uint8_t*>(input + input_.images);
        f.result = static_cast<LossResult*>(lane.result.device);
        f.losses = static_cast<double*>(lane.losses.device);
        f.best = reinterpret_cast<int32_t*>(f.result + 1);
        GC_TRY(cuda::make(&lane.lost));
        GC_TRY(cuda::make(&lane.done));
        GC_TRY(cuda::make(&lane.taken));
        GC_TRY(cuda::make(&lane.heard, true));
        GC_TRY(cuda::make(&lane.forked));
        GC_TRY(cuda::make(&lane.joined));
        GC_TRY(cuda::make(&lane.complete));
        GC_TRY(cuda::make(&lane.followed));
        lane.beside = f;
        lane.beside.stream = with.beside.stream.get();
        lane.beside.cudnn = with.beside.cudnn.get();
        lane.beside.cublas = with.beside.cublas.get();
        for (const cublasHandle_t cublas : {f.cublas, lane.beside.cublas}) GC_CUDA(cublasSetMathMode(cublas, math_mode(config_.precision)));
        lane.buckets.resize(layout_.buckets.size());
        lane.copied.resize(layout_.buckets.size());
        for (Event& event : lane.buckets) GC_TRY(cuda::make(&event));
        for (Event& event : lane.copied) GC_TRY(cuda::make(&event, true));
    }
    for (size_t i = 0; i < gpus_.size(); ++i) {
        Frame& f = gpus_[i].frame;
        f.stream = device_.gpus()[i]->stream.get();
        f.bf16 = config_.precision == Precision::bf16;
        f.base[static_cast<size_t>(Place::parameters)] = static_cast<std::byte*>(gpus_[i].parameters.device);
        f.base[static_cast<size_t>(Place::copies)] = static_cast<std::byte*>(gpus_[i].copies.device);
    }
    // Run everything once before the capture: libraries load kernels on first use, which a capture forbids.
    std::memset(update_here_.host, 0, update_here_.bytes);
    for (size_t i = 0; i < gpus_.size(); ++i) {
        GC_TRY(device_.use(*device_.gpus()[i]));
        const cudaStream_t stream = gpus_[i].frame.stream;
        for (uint32_t b = 0; b < layout_.buckets.size(); ++b) {
            const Bucket& bucket = layout_.buckets[b];
            reinterpret_cast<ApplyNow*>(update_here_.host + update_at_[b])->words = words_.device;
            auto walk = [&] { return i > 0 ? refresh(gpus_[i], bucket.offset, bucket.offset + bucket.count) : update(b); };
            if (i == 0 && !optimiser_) break;
            GC_TRY(walk());
            GC_CUDA(cudaStreamSynchronize(stream));
            GC_TRY(capture(stream, walk, &(i > 0 ? gpus_[i].refreshes : updates_).emplace_back()));
        }
    }
    if (optimiser_) GC_TRY(optimiser_->ready());
    GC_TRY(digest_.ready(*device_.gpus()[0], gpus_[0].parameters));
    weights_initial(spec_, layout_, config_.seed, {mirror_.as<float>(), layout_.elements});
    GC_TRY(upload());

    const std::vector<uint8_t> images(programs_.back().samples * input_.image_bytes);
    const std::vector<int32_t> labels(programs_.back().samples);
    const std::vector<SamplePlace> places(programs_.back().samples);
    const std::vector<float> mean(spec_.C, 0.0f), std(spec_.C, 1.0f);
    for (uint32_t number = 0; number < lanes_.size(); ++number) {
        GC_TRY(device_.use(device_.gpu_of(number)));
        const cudaStream_t stream = device_.lanes()[number].stream.get();
        for (Program& program : programs_) {
            program.graphs.resize(lanes_.size());
            Samples samples{images.data(), labels.data(), program.samples, spec_.C, spec_.H, spec_.W, mean.data(), std.data()};
            for (const Work work : {Work::evaluation, Work::block, Work::quantised}) {
                if (work != Work::evaluation && !program.training) continue;
                if (work == Work::quantised && !device_.follower) continue;
                if (work == Work::quantised && device_.resident) {
                    samples.resident = device_.resident;
                    samples.places = places.data();
                }
                GC_TRY(stage(number, samples, {0, 0}, program, work));
                GC_CUDA(cudaStreamWaitEvent(stream, device_.gpu_of(number).changed.get(), 0));
                auto walk = [&] { return enqueue(program, number, work); };
                GC_TRY(walk());
                GC_CUDA(cudaStreamSynchronize(stream));
                GC_TRY(capture(stream, walk, &program.graphs[number][static_cast<size_t>(work)]));
            }
        }
    }
    return {};
}

// Writes a block's input to page-locked memory, which its graph reads; enqueues the copy of images that are on the host.
Status CudaNet::stage(uint32_t number, const Samples& samples, BlockId id, const Program& program, Work work) {
    Lane& lane = lanes_[number];
    std::byte* to = lane.staged.host;
    *reinterpret_cast<BlockHeader*>(to) = {samples.count, id.block};
    for (uint32_t c = 0; c < spec_.C; ++c) {
        reinterpret_cast<float*>(to + input_.scale)[c] = 1 / (255 * samples.std[c]);
        reinterpret_cast<float*>(to + input_.shift)[c] = -samples.mean[c] / samples.std[c];
    }
    for (size_t i = 0; i < dropout_seeds_.size(); ++i)
        reinterpret_cast<uint64_t*>(to + input_.seeds)[i] = dropout_mixed(dropout_seeds_[i], id.step);
    std::memcpy(to + input_.labels, samples.labels, samples.count * sizeof(int32_t));
    std::memset(to + input_.labels + samples.count * sizeof(int32_t), 0, (program.samples - samples.count) * sizeof(int32_t));
    auto* images = static_cast<uint8_t*>(lane.input.device) + input_.images;
    if (samples.resident) {
        auto* places = reinterpret_cast<SamplePlace*>(to + input_.images);
        std::copy_n(samples.places, samples.count, places);
        if (work == Work::quantised) return {};
        return samples.resident->take(number, lane.frame.stream, places, samples.count, images);
    }
    const uint64_t bytes = samples.count * input_.image_bytes;
    std::memcpy(to + input_.images, samples.images, bytes);
    return check(cudaMemcpyAsync(images, to + input_.images, bytes, cudaMemcpyHostToDevice, lane.frame.stream), "cudaMemcpyAsync");
}

Status CudaNet::enqueue(const Program& program, uint32_t number, Work work, NetTrace* trace) {
    Lane& lane = lanes_[number];
    Frame& f = lane.frame;
    f.training = lane.beside.training = work != Work::evaluation;
    const cudaStream_t stream = f.stream, codec = device_.lanes()[number].codec.get();
    CudaDevice::Follower* follower = work == Work::quantised ? device_.follower : nullptr;
    auto traced = [&](const Layer& layer, Pass pass, auto run) -> Status {
        if (!trace) return run();
        GC_CUDA(cudaStreamSynchronize(stream));
        const uint64_t begin_ns = trace->now_ns();
        GC_TRY(run());
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
        if (bucket == ~0u) return {};
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
    auto input = [&]() -> Status {
        GC_CUDA(cudaMemcpyAsync(lane.input.device, lane.staged.host, input_.images, cudaMemcpyHostToDevice, stream));
        if (follower) GC_TRY(follower->start(number, stream));
        if (follower && device_.resident) {
            const auto* places = reinterpret_cast<const SamplePlace*>(lane.staged.host + input_.images);
            GC_TRY(device_.resident->take(number, stream, places, program.samples, const_cast<uint8_t*>(f.images)));
        }
        return normalise(stream, f.values(program.input), f.images, f.scale, f.shift, f.header,
                         {program.samples, spec_.C, spec_.H, spec_.W, spec_.pad});
    };
    GC_TRY(traced(layers_[0], Pass::input, input));
    for (size_t i = 0; i < layers_.size(); ++i) GC_TRY(walk(program.layers[i].forward, i, Pass::forward));
    GC_CUDA(cudaMemcpyAsync(lane.results.host, lane.result.device, sizeof(LossResult) + program.samples * sizeof(int32_t),
                            cudaMemcpyDeviceToHost, stream));
    GC_TRY(record(lane.lost, stream));
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

Status CudaNet::start(Program& program, uint32_t number, const Samples& samples, BlockId id, Work work) {
    Lane& lane = lanes_[number];
    const cudaStream_t stream = lane.frame.stream;
    GC_TRY(stage(number, samples, id, program, work));   // safe: the last block's loss was waited for, so its samples have been read
    blocks_since_.store(true, std::memory_order_relaxed);
    GC_CUDA(cudaStreamWaitEvent(stream, device_.gpu_of(number).changed.get(), 0));
    if (trace_ && work != Work::evaluation) GC_TRY(enqueue(program, number, work, trace_));
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

Status CudaNet::evaluate(uint32_t number, const Samples& samples, uint32_t* right, double* loss, int32_t* predicted, float* outputs) {
    if (outputs) return fail(Code::unsupported, "nets on GPUs do not give their outputs: take device cpu");
    GC_ASSERT(number < lanes_.size());
    GC_TRY(samples_check(spec_, samples));
    Program* program = nullptr;
    GC_TRY(program_find(programs_, samples.count, false, &program));
    GC_TRY(device_.use(device_.gpu_of(number)));
    GC_TRY(start(*program, number, samples, {0, 0}, Work::evaluation));
    const auto* result = lanes_[number].results.as<LossResult>();
    *right = static_cast<uint32_t>(result->right);
    *loss = result->loss;
    if (predicted) std::copy_n(reinterpret_cast<const int32_t*>(result + 1), samples.count, predicted);
    return {};
}

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
    const cudaStream_t stream = gpus_[0].frame.stream;
    GC_CUDA(cudaMemcpyAsync(now, update_here_.host + update_at_[number], bytes, cudaMemcpyHostToDevice, stream));
    auto* w = static_cast<float*>(gpus_[0].parameters.device);
    for (uint32_t g = 0; g < bucket.group_count; ++g) {
        const Group& group = layout_.groups[bucket.group + g];
        const Words from{reinterpret_cast<const ApplyNow*>(now), group.offset - bucket.offset,
                         reinterpret_cast<const double*>(now + sizeof(ApplyNow)) + g};
        if (statistics_ && number == 0) GC_TRY(apply_statistics(stream, w + group.offset, from, group.count, statistics_share));
        else GC_TRY(optimiser_->apply(w, group.offset, from, group.count));
    }
    return refresh(gpus_[0], bucket.offset, bucket.offset + bucket.count);
}

Status CudaNet::refresh(const Gpu& gpu, uint64_t offset, uint64_t end) {
    for (size_t l = 0; l < layers_.size(); ++l)
        if (copies_[l].refresh && layers_[l].offset >= offset && layers_[l].offset < end) GC_TRY(copies_[l].refresh(gpu.frame));
    return {};
}

Status CudaNet::spread(uint32_t bucket) {
    auto& gpus = device_.gpus();
    const cudaStream_t first = gpus[0]->stream.get();
    const bool all = bucket == all_buckets;
    const uint64_t offset = all ? 0 : layout_.buckets[bucket].offset, count = all ? layout_.elements : layout_.buckets[bucket].count;
    for (size_t i = 1; i < gpus.size(); ++i) {
        auto at = [&](const Gpu& gpu) { return static_cast<float*>(gpu.parameters.device) + offset; };
        GC_CUDA(cudaMemcpyPeerAsync(at(gpus_[i]), gpus[i]->number, at(gpus_[0]), gpus[0]->number, count * sizeof(float), first));
    }
    if (gpus.size() > 1) GC_CUDA(cudaEventRecord(gpus[0]->changed.get(), first));
    for (size_t i = gpus.size(); i-- > 0;) {   // the first GPU last: its event is recorded anew
        GC_TRY(device_.use(*gpus[i]));
        const cudaStream_t stream = gpus[i]->stream.get();
        if (i > 0) GC_CUDA(cudaStreamWaitEvent(stream, gpus[0]->changed.get(), 0));
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
    GC_CUDA(cudaMemcpyAsync(gpus_[0].parameters.device, mirror_.host, mirror_.bytes, cudaMemcpyHostToDevice, stream));
    GC_TRY(spread(all_buckets));
    stale_ = false;
    GC_CUDA(cudaStreamSynchronize(stream));   // then the caller may write to the mirror
    return {};
}

std::span<float> CudaNet::parameters() {
    auto fetch = [this]() -> Status {
        const cudaStream_t stream = device_.gpus()[0]->stream.get();
        GC_TRY(device_.use(*device_.gpus()[0]));
        GC_CUDA(cudaMemcpyAsync(mirror_.host, gpus_[0].parameters.device, mirror_.bytes, cudaMemcpyDeviceToHost, stream));
        return check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    };
    if (std::exchange(stale_, false)) must(fetch());
    return {mirror_.as<float>(), layout_.elements};
}

uint64_t CudaNet::digest() {
    must(digest_.start(0));
    must(check(cudaStreamSynchronize(device_.gpus()[0]->stream.get()), "cudaStreamSynchronize"));
    return digest_.sum();
}

Status CudaNet::apply(Lanes&, Optimiser& optimiser, std::span<const BucketSum> sums, uint64_t* digest) {
    GC_ASSERT(sums.size() == layout_.buckets.size() && &optimiser == optimiser_);
    for (const BucketSum& each : sums) GC_TRY(apply(each.sum, each.units));
    GC_TRY(digest_.start(0));
    GC_TRY(optimiser_->digest_start(layout_.elements));
    GC_CUDA(cudaStreamSynchronize(device_.gpus()[0]->stream.get()));
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
    optimiser_->now(now);
    std::copy(units.begin(), units.end(), reinterpret_cast<double*>(now + 1));
    GC_CUDA(cudaGraphLaunch(updates_[sum.bucket].get(), stream));
    stale_ = updated_[sum.bucket] = true;
    return spread(sum.bucket);
}

}   // namespace

Status net_plan(const NetSpec& spec, const NetConfig& config, Device& device, std::unique_ptr<Net>* net) {
    auto made = std::make_unique<CudaNet>(static_cast<CudaDevice&>(device));
    GC_TRY(made->plan(spec, config));
    *net = std::move(made);
    return {};
}

Status net_ready(Net& net) { return static_cast<CudaNet&>(net).ready(); }

Status optimiser_plan(const OptimiserConfig& config, Net& net, std::unique_ptr<Optimiser>* optimiser) {
    return static_cast<CudaNet&>(net).plan(config, optimiser);
}

}   // namespace gradcast::cuda
