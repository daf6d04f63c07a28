#include "runtime/attach/attach.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

#include "nn/graph/layers.h"
#include "nn/graph/process.h"
#include "runtime/attach/kernel_set.h"
#include "runtime/attach/net.h"
#include "runtime/core/clock.h"
#include "runtime/core/inventory.h"
#include "runtime/core/thread.h"
#include "runtime/core/version.h"

namespace gradcast {
namespace {

constexpr uint32_t pids_least = 256;   // tasks of a process with its descendants, beside threads that compute
// That a process may take until it is ready: in deadlines, but not longer than start_most_us.
constexpr uint64_t start_deadlines = 10, start_most_us = uint64_t{3600} * 1'000'000;

/// What decides the bits of a process's kernels, beside the program: how many threads and which instruction set its libraries take.
std::vector<std::pair<std::string, std::string>> environment_of(const AttachConfig& config, uint32_t lane) {
    struct Level {
        const char *aten, *onednn, *openblas;
    };
    const auto level = [isa = nn_isa()]() -> Level {
        switch (isa) {
            case Isa::portable: return {"default", "SSE41", "Nehalem"};
            case Isa::common:
            case Isa::avx2: return {"avx2", "AVX2", "Haswell"};
            case Isa::avx512: return {"avx512", "AVX512_CORE", "SkylakeX"};
            case Isa::avx512_bf16: return {"avx512", "AVX512_CORE_BF16", "SkylakeX"};
            case Isa::amx: return {"avx512", "AVX512_CORE_AMX", "SkylakeX"};
        }
        return {};
    }();
    const std::string threads = fmt::format("{}", config.threads);
    // The first of equal names counts: the user's.
    std::vector<std::pair<std::string, std::string>> all = config.environment;
    const std::pair<const char*, std::string> ours[] = {{"OMP_NUM_THREADS", threads},
                                                        {"OPENBLAS_NUM_THREADS", threads},
                                                        {"MKL_NUM_THREADS", threads},
                                                        {"OMP_WAIT_POLICY", "passive"},
                                                        {"ATEN_CPU_CAPABILITY", level.aten},
                                                        {"ONEDNN_MAX_CPU_ISA", level.onednn},
                                                        {"DNNL_MAX_CPU_ISA", level.onednn},
                                                        {"OPENBLAS_CORETYPE", level.openblas},
                                                        {"CUBLAS_WORKSPACE_CONFIG", ":4096:8"},
                                                        {"PYTHONHASHSEED", fmt::format("{}", config.seed % (uint64_t{1} << 32))},
                                                        {"PYTHONUNBUFFERED", "1"},
                                                        {"GRADCAST_LANE", fmt::format("{}", lane)}};
    for (const auto& [name, value] : ours) all.emplace_back(name, value);
    return all;
}

/// A file has variances in place of second moments: they become such that a file of them gives the same bits again.
void as_variances(std::span<float> statistics) {
    const size_t channels = statistics.size() / 2;
    for (size_t c = 0; c < channels; ++c) {
        const double mean = statistics[c];
        float& held = statistics[channels + c];
        constexpr int rounds = 8;   // one does it but for ties of rounding
        float before = -1;
        for (int round = 0; round < rounds && before != held; ++round) {
            before = held;
            const auto variance = static_cast<float>(std::max(held - mean * mean, 0.0));
            held = static_cast<float>(variance + mean * mean);
        }
    }
}

/// The CPUs of a lane that starts a process of so many threads.
std::vector<uint32_t> lane_cpus(const std::vector<uint32_t>& cpus, uint32_t lane, uint32_t threads) {
    std::vector<uint32_t> own;
    for (uint32_t i = 0; i < threads && !cpus.empty(); ++i) own.push_back(cpus[(uint64_t{lane} * threads + i) % cpus.size()]);
    return own;
}

class LaneProcesses final : public NetProcesses {
public:
    explicit LaneProcesses(const AttachConfig& config) : config_(config), lanes_(config.lanes), deadline_us_(config.deadline_us) {}
    ~LaneProcesses() override {
        for (AttachLane& lane : lanes_) lane.close();   // all end side by side
        for (AttachLane& lane : lanes_) lane.end();
    }

    Status open() {
        memory_max_ = config_.memory_max;
        const ProcessChannel::Wait wait = starting();
        GC_TRY(start(0, wait));
        GC_TRY(lanes_[0].hello(wait, &hello_));
        spec_ = config_.samples;
        spec_.layers = hello_.layers;
        GC_TRY(layers_check(spec_, &layers_));
        layout_ = layers_layout(layers_, config_.bucket_bytes);
        samples_max_ = config_.samples_max;
        for (const uint32_t size : config_.block_sizes) samples_max_ = std::max(samples_max_, size);
        places_ = block_places(samples_max_, spec_, layout_.elements);
        measured_ = lanes_[0].channel().memory();
        return {};
    }

    const NetSpec& spec() const override { return spec_; }
    const ProcessHello& hello() const override { return hello_; }

    Status first() override {
        const ProcessChannel::Wait wait = starting();
        GC_TRY(parameters_.open("gradcast-parameters", parameters_bytes(), SharedMemory::Others::read));
        uint64_t bytes = 0;
        for (const LayerSpec& each : spec_.layers)
            if (each.kind == constant_kind.name) bytes += constant_of(each).bytes();
        const bool constants =
            config_.constants && std::ranges::find(spec_.layers, constant_kind.name, &LayerSpec::kind) != spec_.layers.end();
        GC_TRY(lanes_[0].give(parameters_, places_, spec_, memory_text_of(layout_, constants), wait));
        if (constants) GC_TRY(lanes_[0].constants(bytes, config_.constants, wait));
        GC_TRY(lanes_[0].ready(wait));
        std::unique_ptr<Net> net;
        GC_TRY(plan({.lanes = 1}, &net));
        GC_TRY(initial());
        KernelSetConfig tried = kernel_set_config();
        tried.lanes = 1;
        if (!tried.sizes.empty()) GC_TRY(lane_try(tried, config_.evaluation_samples));
        measured_ = lanes_[0].channel().memory();
        first_ready_ = true;
        net_ = nullptr;
        return {};
    }

    Status plan(const NetConfig& config, std::unique_ptr<Net>* net) override {
        GC_ASSERT(config.lanes >= 1 && config.lanes <= lanes_.size());
        planned_ = config.lanes;
        const NetConfig whole{.lanes = planned_,
                              .samples_max = samples_max_,
                              .block_sizes = config_.block_sizes,
                              .bucket_bytes = config_.bucket_bytes,
                              .seed = config_.seed};
        auto made = std::make_unique<AttachedNet>(
            AttachedNet::Parts{spec_, lanes_, parameters_, deadline_us_, config_.ending, config_.stop}, Layout(layout_), whole);
        net_ = made.get();
        *net = std::move(made);
        return {};
    }

    std::vector<MemoryUse> memory() const override {
        MemoryUse use{"processes", {}};
        use.add(programs_purpose, measured_.files + process_bytes() * planned_);
        use.add("parameters", parameters_bytes());
        use.add("blocks", places_.bytes * planned_);
        return {use};
    }
    uint64_t taken() const override { return measured_.own + (first_ready_ ? parameters_bytes() + places_.bytes : 0); }

    void limit(uint32_t lanes, uint64_t unplanned) override {
        const uint64_t bytes = measured_.files + process_bytes() + parameters_bytes() + places_.bytes;
        memory_max_ = bytes + std::min(unplanned / 2 / lanes, uint64_t{1} << 60);
        lanes_[0].limit_memory(memory_max_);
    }
    std::string process_text() const override {
        const auto mib = [](uint64_t bytes) { return static_cast<double>(bytes) / 0x1p20; };
        return fmt::format("{:.1f} MiB a process ({:.1f} measured)", mib(process_bytes() + places_.bytes), mib(measured_.peak()));
    }

    Status ready() override {
        const ProcessChannel::Wait wait = starting();
        for (uint32_t lane = 1; lane < planned_; ++lane) GC_TRY(start(lane, wait));
        for (uint32_t lane = 1; lane < planned_; ++lane) {
            ProcessHello hello;
            GC_TRY(lanes_[lane].hello(wait, &hello));
            GC_TRY(compare(lane, hello));
        }
        const std::string text = memory_text_of(layout_, false);
        for (uint32_t lane = 1; lane < planned_; ++lane) GC_TRY(lanes_[lane].give(parameters_, places_, spec_, text, wait));
        for (uint32_t lane = 1; lane < planned_; ++lane) {
            GC_TRY(lanes_[lane].ready(wait));
            forget_initial(lanes_[lane]);
        }
        return {};
    }

    Status measure(uint64_t* digest, uint64_t* block_us) override {
        GC_TRY(kernel_set_measure(kernel_set_config(), digest, block_us));
        if (!libraries_.empty() && config_.output) config_.output(0, libraries_ + ": they compute the same bits");
        return {};
    }
    bool failed() const override {
        return std::ranges::any_of(lanes_, [](const AttachLane& lane) { return lane.failed(); });
    }
    void deadline(uint64_t deadline_us) override { deadline_us_.store(deadline_us, std::memory_order_relaxed); }

private:
    using Json = nlohmann::ordered_json;

    /// A lane's process with that of lane 0.
    Status compare(uint32_t lane, const ProcessHello& hello) {
        const std::string first = hello_inventory(hello_), its = hello_inventory(hello);
        if (hello_digest(hello_) != hello_digest(hello)) {
            const std::string item = inventory_difference({"lane 0", first}, {fmt::format("lane {}", lane), its});
            return fail(Code::invalid, "{} is not like that of lane 0: {}", lanes_[lane].channel().name(),
                        item.empty() ? "its tensors or sources differ" : item);
        }
        if (const std::string libraries = inventory_libraries(first, its); !libraries.empty() && libraries_.empty())
            libraries_ = fmt::format("other versions of libraries in lane 0 than in lane {}: {}", lane, libraries);
        return {};
    }

    Status start(uint32_t lane, const ProcessChannel::Wait& wait) {
        const ThreadCpus cpus(lane_cpus(config_.cpus, lane, config_.threads));
        return lanes_[lane].start({.command = config_.command,
                                   .folder = config_.folder,
                                   .environment = environment_of(config_, lane),
                                   .name = fmt::format("lane {}", lane),
                                   .output =
                                       [this, lane](std::string_view line) {
                                           if (config_.output) config_.output(lane, line);
                                       },
                                   .memory_max = memory_max_,
                                   .control_group = config_.control_group,
                                   .pids_max = pids_least + 2 * config_.threads},
                                  start_text(lane), wait);
    }

    KernelSetConfig kernel_set_config() const {
        return {.spec = spec_,
                .layers = layers_,
                .mean = config_.mean,
                .std = config_.std,
                .own_samples = config_.own_samples,
                .net = *net_,
                .lanes = planned_,
                .sizes = config_.block_sizes,
                .command = lanes_[0].channel().name(),
                .libraries = libraries_,
                .stop = config_.stop};
    }

    uint64_t parameters_bytes() const { return std::max<uint64_t>(layout_.elements * sizeof(float), 1); }
    /// That is planned for a process, without files and what it shares with the daemon.
    uint64_t process_bytes() const { return measured_.peak() + std::max(measured_.peak() / 4, process_growth_min); }

    ProcessChannel::Wait starting() const {
        return {clock_us() + std::min(start_deadlines * deadline_us_.load(std::memory_order_relaxed), start_most_us),
                [this] { return config_.stop && config_.stop->load(std::memory_order_relaxed); }};
    }

    std::string start_text(uint32_t lane) const {
        const bool own = config_.own_samples;
        const NetSpec& of = config_.samples;
        const Json samples = {{"C", own ? 0 : of.C},
                              {"H", own ? 0 : of.H},
                              {"W", own ? 0 : of.W},
                              {"classes", own ? 0 : of.classes},
                              {"target_scale", of.target_scale},
                              {"element", element_name(of.element)},
                              {"targets", of.targets},
                              {"target_element", element_name(of.target_element)},
                              {"ignore", of.ignore},
                              {"vocabulary", of.vocabulary},
                              {"mean", own ? std::vector<float>() : config_.mean},
                              {"std", own ? std::vector<float>() : config_.std}};
        return Json{{"wire", GC_ATTACH_VERSION},    {"version", version_text}, {"lane", lane},
                    {"lanes", lanes_.size()},       {"seed", config_.seed},    {"threads", config_.threads},
                    {"block", config_.samples_max}, {"samples", samples}}
            .dump();
    }

    std::string memory_text_of(const Layout& layout, bool constants) const {
        Json tensors = Json::array(), running = Json::array(), buckets = Json::array();
        for (const Layer& layer : layers_)
            if (layer.kind->tensor) tensors.push_back(layer.offset);
            else if (layer.statistics > 0) running.push_back(layer.statistics_offset);
        for (const Bucket& bucket : layout.buckets) buckets.push_back({bucket.offset, bucket.count});
        return Json{{"parameters", parameters_.all().bytes},
                    {"bytes", places_.bytes},
                    {"elements", layout.elements},
                    {"tensors", std::move(tensors)},
                    {"running", std::move(running)},
                    {"buckets", std::move(buckets)},
                    {"constants", constants},
                    {"block", samples_max_},
                    {"images", places_.images},
                    {"labels", places_.labels},
                    {"targets", places_.targets},
                    {"indices", places_.indices},
                    {"predicted", places_.predicted},
                    {"gradients", places_.gradients}}
            .dump();
    }

    /// What lane 0 has written.  Between tensors there are zeros.
    Status initial() {
        const std::span<float> parameters = net_->parameters();
        for (const Layer& layer : layers_) {
            const uint64_t elements = layer.kind->tensor ? layer.weight_elements() : layer.statistics;
            const uint64_t offset = layer.kind->tensor ? layer.offset : layer.statistics_offset;
            const std::span<const float> from(lanes_[0].gradients() + offset, elements);
            if (!std::ranges::all_of(from, [](float value) { return std::isfinite(value); }))
                return fail(Code::invalid, "{}: the initial value of {} holds NaN or Inf", lanes_[0].channel().name(), layer.spec.name);
            std::ranges::copy(from, parameters.begin() + static_cast<ptrdiff_t>(offset));
            if (layer.statistics > 0) as_variances(parameters.subspan(offset, layer.statistics));
        }
        forget_initial(lanes_[0]);
        return {};
    }
    void forget_initial(const AttachLane& lane) const { std::fill_n(lane.gradients(), layout_.elements, 0.0f); }

    const AttachConfig config_;
    std::vector<AttachLane> lanes_;
    std::atomic<uint64_t> deadline_us_;   // a number: it orders nothing
    ProcessHello hello_;
    std::string libraries_;   // how the lanes' versions differ; empty: they do not
    NetSpec spec_;
    std::vector<Layer> layers_;
    Layout layout_;
    uint32_t samples_max_ = 0;
    BlockPlaces places_;
    ProcessMemory measured_;   // of the first process
    bool first_ready_ = false;
    uint64_t memory_max_ = 0;   // of a process that is started
    SharedMemory parameters_;
    // Of plan().
    uint32_t planned_ = 1;   // processes
    AttachedNet* net_ = nullptr;
};

}   // namespace

Status NetProcesses::open(const AttachConfig& config, std::unique_ptr<NetProcesses>* processes) {
    GC_ASSERT(config.lanes >= 1 && !config.command.empty());
    auto made = std::make_unique<LaneProcesses>(config);
    GC_TRY(made->open());
    *processes = std::move(made);
    return {};
}

}   // namespace gradcast
