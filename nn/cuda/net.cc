#include "nn/cuda/net.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "nn/cuda/cuda.h"
#include "nn/graph/fusions.h"

namespace gradcast::cuda {

CudaNet::~CudaNet() {
    // Members free memory afterwards: wait until no stream uses it.
    for (auto& gpu : device_.gpus())
        if (cudaSetDevice(gpu->number) == cudaSuccess) (void)cudaDeviceSynchronize();
}

Status CudaNet::make(Build& build, Program& program) {
    build.begin(program.samples, program.training, &program.layers, &program.edges);
    const Shape& in = layers_[0].in;
    // Of a text: uint32_t tokens.
    program.input = build.kept(spec_.vocabulary > 0 ? uint64_t{program.samples} * spec_.positions() * sizeof(uint32_t)
                                                    : build.rows(in) * in.C * build.value_bytes());
    return layers_build(build, layers_, Activation{.value = program.input, .gradient = {}});
}

Status CudaNet::plan(const NetSpec& spec, const NetConfig& config) {
    GC_ASSERT(config.lanes == device_.lanes().size() && config.slots >= 1 && config.samples_max >= 1);
    if (config.recompute && config.slots > 1)
        return fail(Code::unsupported, "a GPU keeps the activations of a stage: take recompute = false, or device cpu");
    spec_ = spec;
    config_ = config;
    GC_TRY(layers_check(spec_, &layers_));
    GC_TRY(computed_check(layers_));
    counts_valid_ = mean_over_valid(spec_);
    if (config.stage.slice_groups > 1) return fail(Code::unsupported, "nodes share slices on CPUs alone in this version: take device cpu");
    for (const Layer& layer : layers_)
        if (!layer.slices.empty())
            return fail(Code::unsupported, "layer {}: slices compute on CPUs in this version: take device cpu", layer_name(layer));
    layers_pool_first(layers_);
    const std::vector<bool> fused = layers_fused(layers_, gpu_fusions());
    stage_begins_ = gradcast::stage_begins(layers_, fused);
    GC_TRY(stage_check(layers_, stage_begins_, config.stage, &stage_));
    config_.stage = stage_;
    graphs_ = stage_.first == 0 && has_loss() && config.slots == 1 && !config.passes_apart;
    layout_ = layers_layout(layers_, config.bucket_bytes, stage_);
    for (const Group& group : layout_.groups)   // of weights that another stage has too, without the layers between
        if (!group.statistics && (lead() + group.offset) % 4 != group.place() % 4)
            return fail(
                Code::unsupported,
                "layer {}: in this stage it would lie at another alignment than in the whole net, by which GPUs choose kernels: cut the "
                "net elsewhere (parallel.cuts), or take device cpu",
                group.layer);
    bucket_of_layer_ = buckets_of_layers(layers_, layout_);
    for (const Group& group : layout_.groups) statistics_ = statistics_ || group.statistics;
    for (uint32_t i = 0; i < layers_.size(); ++i)
        if (layer_draws(layers_[i])) dropout_seeds_.push_back(dropout_mixed(config.seed, i));
    kernels_name_ = fmt::format("cuda-{}{}, {}", precision_names()[static_cast<size_t>(config.precision)],
                                config.deterministic ? "" : "-any", device_.name());

    GC_TRY(device_.use(device_.gpu_of(0)));
    Build build(config_, layers_, layout_, fused, device_);
    for (const ProgramSize& size : program_sizes(config)) {
        programs_.push_back({size, {}, {}, {}, {}});
        Program& program = programs_.back();
        GC_TRY(make(build, program));
        for (uint32_t i = 0; i < layers_.size(); ++i)
            if (!stage_.has(i)) program.layers[i] = {};
    }
    const uint32_t most = programs_.back().samples;
    further_ = std::move(build.further);
    gradient_elements_ = further_.empty() ? layout_.elements : further_.back().at + further_.back().count;
    std::vector<size_t> order(stage_.end - stage_.first);   // by their parameters, which a later layer may take from an earlier one
    std::iota(order.begin(), order.end(), stage_.first);
    std::ranges::stable_sort(order, {}, [&](size_t l) { return layers_[l].offset; });
    for (const size_t l : order)
        for (const Build::CopyPart& part : build.copies[l].parts) {
            if (part.A * part.B * part.C == 0) continue;
            copy_offsets_.push_back(layout_.offset_of(layers_[l].offset));
            copies_.push_back({part.from.offset / sizeof(float), build.copies[l].tensor.offset / build.value_bytes() + part.at,
                               static_cast<uint32_t>(part.A), static_cast<uint32_t>(part.B), static_cast<uint32_t>(part.C), part.width, 0});
        }
    constants_ = std::move(build.constants);
    engines_ = build.engines;
    engine_list_ = std::move(build.engine_list);

    const uint64_t channels = aligned(spec_.C * sizeof(float));
    input_.scale = aligned(sizeof(BlockHeader));
    input_.shift = input_.scale + channels;
    input_.seeds = input_.shift + channels;
    input_.labels = input_.seeds + aligned(dropout_seeds_.size() * sizeof(uint64_t));
    input_.images = input_.labels + aligned(uint64_t{most} * sample_labels() * sizeof(int32_t));
    input_.image_bytes = stage_.has(0) ? spec_.sample_bytes() : 0;
    const uint64_t place_bytes = stage_.has(0) ? sizeof(SamplePlace) : 0;

    build.memory.reserve(Place::gradient, (lead() + gradient_elements_) * sizeof(float));
    lanes_ = std::vector<Lane>(config.lanes);
    uint64_t growing = 0;
    for (uint32_t number = 0; number < config.lanes; ++number) {
        Lane& lane = lanes_[number];
        DeviceArena& arena = device_.gpu_of(number).arena;
        for (uint8_t place = 0; place < place_count; ++place) {
            if (!place_purposes[place]) continue;
            const uint64_t bytes = build.memory.bytes(Place{place}) * (Place{place} == Place::kept ? config.slots : 1);
            arena.plan(place_purposes[place], bytes, &lane.memory[place]);
            if (device_.lanes()[number].gpu == 0 && Place{place} < Place::scratch) growing += bytes;
        }
        arena.plan("samples", config.slots * input_.images + most * input_.image_bytes, &lane.input);
        arena.plan_pinned("samples", input_.images + most * std::max<uint64_t>(input_.image_bytes, place_bytes), &lane.staged);
        arena.plan_pinned("samples", result_bytes(most), &lane.results);
        if (device_.lanes()[number].gpu == 0) growing += most * (input_.image_bytes + sample_labels() * sizeof(int32_t)) + build.columns;
        arena.plan_pinned("gradients", gradient_elements_ * sizeof(float), &lane.gradient);
    }
    device_.grows(growing, most);
    plan_edges();
    gpus_ = std::vector<Gpu>(device_.gpus().size());
    for (size_t i = 0; i < gpus_.size(); ++i) {
        DeviceArena& arena = device_.gpus()[i]->arena;
        arena.plan("parameters", (lead() + layout_.elements + 1) * sizeof(float), &gpus_[i].parameters);
        arena.plan("copies of weights", build.memory.bytes(Place::copies), &gpus_[i].copies);
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
    digest_.plan(*device_.gpus()[0], layout_.runs());
    plan_whole();
    first.plan_pinned("parameters", (layout_.elements + 1) * sizeof(float), &mirror_);
    return {};
}

Status CudaNet::plan(const OptimiserConfig& config, std::unique_ptr<Optimiser>* optimiser) {
    GC_TRY(optimiser_check(config));
    auto made = std::make_unique<CudaOptimiser>(config, layout_, device_);
    optimiser_ = made.get();
    *optimiser = std::move(made);
    plan_whole_update();
    return {};
}

/// Sets the lane's frames and makes its events.
Status CudaNet::ready_lane(uint32_t number) {
    Lane& lane = lanes_[number];
    const CudaDevice::Lane& with = device_.lanes()[number];
    GC_TRY(device_.use(device_.gpu_of(number)));
    Buffer& gradient = lane.memory[static_cast<size_t>(Place::gradient)];
    gradient = gradient.part(lead() * sizeof(float), gradient_elements_ * sizeof(float));
    lane.stream = with.stream.get();
    lane.slots.resize(config_.slots);
    for (uint32_t s = 0; s < config_.slots; ++s) {
        Slot& slot = lane.slots[s];
        Frame& f = slot.frame;
        f.lane = number;
        f.stream = lane.stream;
        f.cudnn = with.cudnn.get();
        f.cublas = with.cublas.get();
        f.workspace = with.workspace.device;
        for (size_t place = 0; place < place_count; ++place) f.base[place] = static_cast<std::byte*>(lane.memory[place].device);
        f.base[static_cast<size_t>(Place::kept)] += s * (lane.memory[static_cast<size_t>(Place::kept)].bytes / config_.slots);
        f.base[static_cast<size_t>(Place::parameters)] = static_cast<std::byte*>(gpus_[with.gpu].parameters.device);
        f.base[static_cast<size_t>(Place::copies)] = static_cast<std::byte*>(gpus_[with.gpu].copies.device);
        f.bf16 = config_.precision == Precision::bf16;
        auto* const input = static_cast<std::byte*>(lane.input.device);
        slot.head = input + s * input_.images;
        f.header = reinterpret_cast<BlockHeader*>(slot.head);
        f.scale = reinterpret_cast<float*>(slot.head + input_.scale);
        f.shift = reinterpret_cast<float*>(slot.head + input_.shift);
        f.seeds = reinterpret_cast<uint64_t*>(slot.head + input_.seeds);
        f.labels = reinterpret_cast<int32_t*>(slot.head + input_.labels);
        f.images = reinterpret_cast<uint8_t*>(input + config_.slots * input_.images);
        f.spoiled = spoiled(gpus_[with.gpu]);
        slot.beside = f;
        slot.beside.stream = with.beside.stream.get();
        slot.beside.cudnn = with.beside.cudnn.get();
        slot.beside.cublas = with.beside.cublas.get();
        slot.beside.workspace = with.beside.workspace.device;
    }
    for (Event* event : {&lane.lost, &lane.done, &lane.taken, &lane.forked, &lane.joined, &lane.complete, &lane.followed, &lane.stepped})
        GC_TRY(cuda::make(event));
    for (Event* event : {&lane.loss_read, &lane.passed}) GC_TRY(cuda::make(event, true));
    lane.buckets.resize(layout_.buckets.size());
    lane.copied.resize(layout_.buckets.size());
    for (Event& event : lane.buckets) GC_TRY(cuda::make(&event));
    for (Event& event : lane.copied) GC_TRY(cuda::make(&event, true));
    return {};
}

Status CudaNet::ready() {
    for (Gpu& gpu : gpus_) gpu.parameters = gpu.parameters.part(lead() * sizeof(float), (layout_.elements + 1) * sizeof(float));
    for (uint32_t number = 0; number < lanes_.size(); ++number) GC_TRY(ready_lane(number));
    for (size_t i = 0; i < gpus_.size(); ++i) gpus_[i].stream = device_.gpus()[i]->stream.get();
    // Run everything once before the capture: libraries load kernels on first use, which a capture forbids.
    std::memset(update_here_.host, 0, update_here_.bytes);
    for (size_t i = 0; i < gpus_.size(); ++i) {
        GC_TRY(device_.use(*device_.gpus()[i]));
        const cudaStream_t stream = gpus_[i].stream;
        for (const Build::Constant& each : constants_)
            GC_TRY(device_.copy_in(static_cast<std::byte*>(gpus_[i].copies.device) + each.tensor.offset, each.values.data(),
                                   each.values.size() * sizeof(float), stream));
        for (uint32_t b = 0; b < layout_.buckets.size(); ++b) {
            const Bucket& bucket = layout_.buckets[b];
            *reinterpret_cast<ApplyNow*>(update_here_.host + update_at_[b]) = {words_.device, {}, {}, spoiled(gpus_[0])};
            auto walk = [&] { return i > 0 ? refresh(gpus_[i], bucket.offset, bucket.offset + bucket.count) : update(b); };
            if (i == 0 && !optimiser_) break;
            GC_TRY(walk());
            GC_CUDA(cudaStreamSynchronize(stream));
            GC_TRY(capture(stream, walk, &(i > 0 ? gpus_[i].refreshes : updates_).emplace_back()));
        }
    }
    if (device_.follower) device_.follower->gradients(gradients_of_buckets(layers_, layout_, stage_));
    GC_TRY(ready_whole());
    if (optimiser_) GC_TRY(optimiser_->ready());
    GC_TRY(digest_.ready(*device_.gpus()[0], gpus_[0].parameters.part(0, layout_.elements * sizeof(float))));
    weights_initial(spec_, layout_, config_.seed, {mirror_.as<float>(), layout_.elements});
    GC_TRY(upload());
    if (!graphs_) return {};

    const std::vector<uint8_t> images(programs_.back().samples * input_.image_bytes);
    const std::vector<int32_t> labels(programs_.back().samples);
    const std::vector<std::byte> targets(programs_.back().samples * spec_.targets_bytes());
    const std::vector<float> mean(spec_.C, 0.0f), std(spec_.C, 1.0f);
    for (uint32_t number = 0; number < lanes_.size(); ++number) {
        GC_TRY(device_.use(device_.gpu_of(number)));
        const Lane& lane = lanes_[number];
        const cudaStream_t stream = lane.stream;
        for (Program& program : programs_) {
            program.graphs.resize(lanes_.size());
            Samples samples{images.data(), labels.data(), program.samples, spec_.C, spec_.H, spec_.W, mean.data(), std.data()};
            samples.element = spec_.element;
            if (spec_.targets > 0) samples.targets = targets.data();
            for (const Work work : {Work::evaluation, Work::block, Work::quantised}) {
                if (work != Work::evaluation && !program.training) continue;
                if (work == Work::quantised && !device_.follower) continue;
                GC_TRY(put(number, lane.slots[0], samples, {0, 0}, program));
                GC_CUDA(cudaStreamWaitEvent(stream, device_.gpu_of(number).changed.get(), 0));
                auto walk = [&] { return enqueue({program, number, work, lane.staged.host, lane.results.host}); };
                GC_TRY(walk());
                GC_CUDA(cudaStreamSynchronize(stream));
                GC_TRY(capture(stream, walk, &program.graphs[number][static_cast<size_t>(work)]));
            }
        }
    }
    return {};
}

Status CudaNet::evaluate(uint32_t number, const Samples& samples, uint32_t* right, double* loss, int32_t* predicted, float* outputs) {
    if (outputs) return fail(Code::unsupported, "nets on GPUs do not give their outputs: take device cpu");
    GC_ASSERT(number < lanes_.size());
    GC_TRY(check_samples(samples));
    Program* program = nullptr;
    GC_TRY(program_find(programs_, samples.count, false, &program));
    GC_TRY(device_.use(device_.gpu_of(number)));
    if (graphs_) GC_TRY(start(*program, number, samples, {0, 0}, Work::evaluation));
    else GC_TRY(evaluate_stage(number, samples, *program));
    if (!has_loss()) return *right = 0, *loss = 0, Status{};
    const auto* result = lanes_[number].results.as<LossResult>();
    *right = static_cast<uint32_t>(result->right);
    *loss = result->loss;
    if (predicted) std::copy_n(reinterpret_cast<const int32_t*>(result + 1), uint64_t{samples.count} * spec_.positions(), predicted);
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
