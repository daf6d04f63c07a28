#include "runtime/attach/kernel_set.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "runtime/core/clock.h"
#include "runtime/core/digest.h"
#include "runtime/core/memory_room.h"
#include "runtime/core/rng.h"
#include "runtime/core/thread.h"

namespace gradcast {
namespace {

constexpr uint64_t seed = 1;   // of what is generated: alike on all nodes and in all jobs

/// Values of a net that has just been made: tensors of several axes as weights_initial() draws weights, the others near 1/2.
void fill(const std::vector<Layer>& layers, std::span<float> parameters) {
    for (const Layer& layer : layers) {
        if (layer.statistics > 0) {
            const uint64_t channels = layer.statistics / 2;
            for (uint64_t i = 0; i < layer.statistics; ++i) parameters[layer.statistics_offset + i] = i < channels ? 0.0f : 1.0f;
        }
        if (!layer.kind->tensor) continue;
        const uint64_t elements = layer.weight_elements();
        const bool several = layer.weight_shape.size() > 1;
        const double fan_in = several ? static_cast<double>(elements) / static_cast<double>(layer.weight_shape[0]) : 1;
        const double std = several ? std::sqrt(2 / fan_in) : 0.1, mean = several ? 0 : 0.5;
        for (uint64_t i = 0; i < elements; i += 4) {
            const Philox bits = random4(Purpose::test, seed, layer.number, static_cast<uint32_t>(i / 4));
            const std::array normals = {normal2(bits[0], bits[1]), normal2(bits[2], bits[3])};
            for (uint64_t j = 0; j < 4 && i + j < elements; ++j)
                parameters[layer.offset + i + j] = static_cast<float>(mean + std * normals[j / 2][j % 2]);
        }
    }
}

/// Keeps the digest of each group of a block.
struct DigestSink final : GradientSink {
    explicit DigestSink(const Layout& l) : layout(l), groups(l.groups.size()) {}
    Status bucket(uint32_t, BlockId, uint32_t bucket, Buffer from) override {
        const Bucket& range = layout.buckets[bucket];
        for (uint32_t g = range.group; g < range.group + range.group_count; ++g) {
            const Group& group = layout.groups[g];
            groups[g] = digest64(std::span<const float>(from.as<float>() + (group.offset - range.offset), group.count), group.offset);
        }
        return {};
    }
    void loss(uint32_t, BlockId, double sum) override { loss_sum = sum; }
    uint64_t digest() const {
        uint64_t all = splitmix64(std::bit_cast<uint64_t>(loss_sum));
        for (const uint64_t each : groups) all += each;
        return all;
    }
    const Layout& layout;
    std::vector<uint64_t> groups;
    double loss_sum = 0;
};

/// Samples of noise, whose labels take turns.
class Noise {
public:
    Noise(const KernelSetConfig& config, uint32_t count) {
        const NetSpec& spec = config.spec;
        images_.resize(count * spec.sample_bytes());
        for (uint64_t i = 0; i < images_.size(); i += 16) {
            const Philox bits = random4(Purpose::test, seed, ~uint64_t{0}, static_cast<uint32_t>(i / 16));
            for (uint64_t j = 0; j < 16 && i + j < images_.size(); ++j) images_[i + j] = static_cast<uint8_t>(bits[j / 4] >> j % 4 * 8);
        }
        if (spec.element != Element::u8) as_elements(spec, config);
        targets_.resize(count * spec.targets_bytes());   // zeros
        for (uint32_t i = 0; i < count; ++i) labels_.push_back(static_cast<int32_t>(i % spec.classes));
        for (uint32_t i = 0; i < count; ++i) places_.push_back({i, 0});
        samples_ = {images_.data(), labels_.data(), count, spec.C, spec.H, spec.W, config.mean.data(), config.std.data()};
        if (config.own_samples) samples_.places = places_.data();
        samples_.element = spec.element;
        if (spec.targets > 0) samples_.targets = targets_.data();
    }
    const Samples& samples() const { return samples_; }

private:
    /// Makes tokens below the vocabulary of the noise, or values around the mean.
    void as_elements(const NetSpec& spec, const KernelSetConfig& config) {
        const uint64_t width = element_bytes(spec.element), plane = uint64_t{spec.H} * spec.W;
        for (uint64_t i = 0; i < images_.size() / width; ++i) {
            const uint8_t noise = images_[i * width];
            const size_t c = i / plane % spec.C;
            const float value = config.mean[c] + config.std[c] * (static_cast<float>(noise) / 128 - 1);
            const uint32_t token = noise % std::max(spec.vocabulary, 1u);
            std::memcpy(&images_[i * width], spec.element == Element::f32 ? static_cast<const void*>(&value) : &token, width);
        }
    }
    std::vector<uint8_t> images_;
    std::vector<std::byte> targets_;
    std::vector<int32_t> labels_;
    std::vector<SamplePlace> places_;
    Samples samples_;
};

/// The first thing in which two computations of one block differ.
std::string difference(const DigestSink& a, const DigestSink& b) {
    for (size_t g = a.layout.groups.size(); g-- > 0;)
        if (a.groups[g] != b.groups[g]) return fmt::format("the gradient of {}", a.layout.groups[g].layer);
    return "the loss";
}

/// While it lives, the net has generated parameters.
class Filled {
public:
    explicit Filled(const KernelSetConfig& config) : config_(config) {}
    Filled(const Filled&) = delete;
    Filled& operator=(const Filled&) = delete;
    ~Filled() { std::ranges::copy(before_, config_.net.parameters().begin()); }
    Status open() {
        const std::span<float> parameters = config_.net.parameters();
        GC_TRY(memory_room_for(parameters.size_bytes(), "the initial values of a net"));
        before_.assign(parameters.begin(), parameters.end());
        fill(config_.layers, parameters);
        return {};
    }

private:
    const KernelSetConfig& config_;
    std::vector<float> before_;
};

bool stopped(const KernelSetConfig& config) { return config.stop && config.stop->load(std::memory_order_relaxed); }

}   // namespace

Status lane_try(const KernelSetConfig& config, uint32_t evaluation_samples) {
    Filled filled(config);
    GC_TRY(filled.open());
    const Noise block(config, *std::ranges::max_element(config.sizes));
    DigestSink sink(config.net.layout());
    GC_TRY(config.net.block(0, {0, 0}, block.samples(), sink));
    if (evaluation_samples == 0 || stopped(config)) return {};
    const Noise batch(config, evaluation_samples);
    uint32_t right;
    double loss;
    return config.net.evaluate(0, batch.samples(), &right, &loss, nullptr, nullptr);
}

Status kernel_set_measure(const KernelSetConfig& config, uint64_t* digest, uint64_t* block_us) {
    Filled filled(config);
    GC_TRY(filled.open());
    *digest = *block_us = 0;
    const Layout& layout = config.net.layout();
    /// What a lane computes: a block, another one, and the first again.
    struct Computed {
        explicit Computed(const Layout& layout) : once(layout), other(layout), again(layout) {}
        DigestSink once, other, again;
        uint64_t block_us = 0;
        Status status;
    };
    const auto compute = [&](uint32_t lane, const Samples& samples, Computed* computed) -> Status {
        for (const auto& [block, sink] : {std::pair{0u, &computed->once}, {1u, &computed->other}, {0u, &computed->again}}) {
            if (stopped(config)) return fail(Code::cancelled, "stopped while the job is prepared");
            const uint64_t begin_us = clock_us();
            GC_TRY(config.net.block(lane, {0, block}, samples, *sink));
            computed->block_us = std::max(computed->block_us, clock_us() - begin_us);
        }
        return {};
    };
    for (const uint32_t size : config.sizes) {
        const Noise noise(config, size);
        std::vector<Computed> all(config.lanes, Computed(layout));
        std::vector<Thread> threads(config.lanes - 1);
        const auto run = [&](uint32_t lane) { all[lane].status = compute(lane, noise.samples(), &all[lane]); };
        Status started;
        for (uint32_t lane = 1; lane < config.lanes && started.ok(); ++lane) started = threads[lane - 1].start([&run, lane] { run(lane); });
        run(0);
        for (Thread& thread : threads)
            if (thread.joinable()) thread.join();
        GC_TRY(started);
        for (uint32_t lane = 0; lane < config.lanes; ++lane) {
            const Computed& computed = all[lane];
            GC_TRY(computed.status);
            *block_us = std::max(*block_us, computed.block_us);
            const bool repeats = computed.again.digest() == computed.once.digest();
            if (repeats && computed.once.digest() == all[0].once.digest()) continue;
            return fail(
                Code::invalid,
                "{} computes other bits {}: {} of a block of {} samples differs. Let it use deterministic algorithms "
                "(torch.use_deterministic_algorithms(True)), draw random numbers from the seeds of gradcast alone, and keep nothing "
                "from one block to the next{}",
                config.command, repeats ? fmt::format("in lane {}", lane) : "the second time",
                repeats ? difference(all[0].once, computed.once) : difference(computed.once, computed.again), size,
                config.libraries.empty() ? "" : fmt::format("; {}", config.libraries));
        }
        *digest = splitmix64(*digest) + all[0].once.digest();
    }
    return {};
}

}   // namespace gradcast
