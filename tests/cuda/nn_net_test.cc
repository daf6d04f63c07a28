// The whole net on GPUs: presets as on the CPU, bits that do not depend on lane or GPU, memory, cancelling, updates with the CPU's bits.
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <thread>

#include "tests/cuda/nn_rig.h"
#include "tests/nn/llama.h"
#include "tests/nn/nets.h"

namespace gradcast {
namespace {

#ifdef GC_CUDA_HOST
constexpr bool on_host = true;   // the stand-in, far slower than a GPU
#else
constexpr bool on_host = false;
#endif

struct PresetCase {
    const char* name;
    uint32_t C, side;
    uint32_t samples;   // on a GPU; 2 on the stand-in
};
void PrintTo(const PresetCase& p, std::ostream* out) { *out << p.name; }
class CudaPresets : public testing::TestWithParam<PresetCase> {};

/// gpt, llama: of texts of `side` tokens; unet: of images with masks.
NetSpec net_of(const PresetCase& p) {
    const std::string name = p.name;
    if (name == "gpt") {
        NetSpec spec{.C = 1, .H = 1, .W = p.side, .classes = 1, .element = Element::u16, .vocabulary = 96};
        EXPECT_TRUE(preset_layers("gpt", {.depth = 4, .width = 128, .heads = 4}, &spec).ok());
        return spec;
    }
    if (name == "llama") return llama({.depth = 4, .width = 128, .heads = 4, .hidden = 320}, p.side, 96);
    if (name != "unet") return preset(p.name, p.C, p.side);
    NetSpec spec{.C = p.C, .H = p.side, .W = p.side, .classes = 4, .targets = p.side * p.side, .target_element = Element::u8, .ignore = 7};
    EXPECT_TRUE(preset_layers("unet", {}, &spec).ok());
    return spec;
}

/// Expects that the relative distance of the whole gradient from the CPU's in float is below `most`.
void expect_near(const PresetCase& p, const NetSpec& spec, Precision precision, double most) {
    const uint32_t samples = on_host ? 2 : p.samples;
    NetConfig config = sizes({samples});
    Rig cpu(spec, config);
    config.precision = precision;
    CudaRig gpu(spec, config);
    Data data(spec, samples);
    const Gather a = gpu.block(data.samples), b = cpu.block(data.samples);
    EXPECT_NEAR(a.total, b.total, (precision == Precision::f32 ? 1e-5 : 2e-2) * std::abs(b.total));
    std::string layer;
    const double worst = distance(gpu.net->layout(), b.gradient, a.gradient, &layer);
    EXPECT_LT(distance(a.gradient, b.gradient), most)
        << layer << " differs most, by " << worst << "; engines:\n  " << fmt::format("{}", fmt::join(gpu.net->engine_list(), "\n  "));
}

TEST_P(CudaPresets, AreAsOnTheCpu) {
    GC_NEED_GPU();
    // In large nets some ReLUs and poolings switch by the last bit, which moves a part of the gradient.
    const NetSpec spec = net_of(GetParam());
    expect_near(GetParam(), smooth(spec), Precision::f32, 1e-4);
    expect_near(GetParam(), spec, Precision::f32, 2e-2);
}
TEST_P(CudaPresets, AreNearInBf16) {
    GC_NEED_GPU();
    const NetSpec spec = net_of(GetParam());
    expect_near(GetParam(), smooth(spec), Precision::bf16, 2.5e-2);   // see nn_layers_test.cc
    expect_near(GetParam(), spec, Precision::bf16, 0.35);
}

/// The stand-in is too slow for large presets.
std::vector<PresetCase> presets_here() {
    std::vector<PresetCase> all = {{"lenet5", 1, 28, 64}, {"mlp", 1, 28, 64}, {"lenet3", 1, 28, 64}};
    if (on_host) return all;
    all.insert(all.end(), {{"cnn", 3, 32, 64},
                           {"cnn-norm", 3, 32, 64},
                           {"nin", 3, 32, 32},
                           {"resnet9", 3, 32, 32},
                           {"resnet18", 3, 32, 16},
                           {"unet", 3, 32, 4},
                           {"vit-s", 3, 32, 8},
                           {"gpt", 1, 65, 8},
                           {"llama", 1, 65, 8}});
    return all;
}
INSTANTIATE_TEST_SUITE_P(Presets, CudaPresets, testing::ValuesIn(presets_here()), [](const auto& p) {
    std::string name = p.param.name;
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
});

std::vector<uint32_t> gpus(uint32_t most) {
    int count = 0;
    EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
    std::vector<uint32_t> numbers;
    for (uint32_t number = 0; number < std::min(most, static_cast<uint32_t>(count)); ++number) numbers.push_back(number);
    return numbers;
}

TEST(CudaNet, BlockBitsDependOnTheBlockAlone) {
    GC_NEED_GPU();
    for (const Precision precision : {Precision::f32, Precision::bf16}) {
        const NetSpec spec = everything();
        NetConfig config = sizes({4, 5});
        config.precision = precision;
        CudaRig alone(spec, config);
        Data a(spec, 5, 1), b(spec, 4, 2);
        const std::vector<float> bits_a = alone.block(a.samples).gradient, bits_b = alone.block(b.samples).gradient;
        EXPECT_TRUE(same_bits(bits_a, alone.block(a.samples).gradient));
        // Several lanes at once, on all GPUs in turn.
        config = sizes({4, 5, 9}, 3);
        config.precision = precision;
        CudaRig many(spec, config, {}, gpus(2));
        std::vector<std::thread> threads;
        std::array<bool, 3> same = {true, true, true};
        for (uint32_t lane = 0; lane < 3; ++lane)
            threads.emplace_back([&, lane] {
                for (StepId step = 0; step < (on_host ? 3 : 40); ++step) {
                    const bool first = (lane + step) % 2;
                    same[lane] = same[lane] && same_bits(first ? bits_a : bits_b, many.block(first ? a.samples : b.samples, lane).gradient);
                }
            });
        for (std::thread& thread : threads) thread.join();
        EXPECT_TRUE(same[0] && same[1] && same[2]);
    }
}

TEST(CudaNet, SeveralGpusTrainAsOne) {
    GC_NEED_GPU();
    if (gpus(2).size() < 2) GTEST_SKIP() << "one GPU alone";
    const NetSpec spec = everything();
    const OptimiserConfig adam{.kind = "adam", .lr = 1e-3};
    for (const Precision precision : {Precision::f32, Precision::bf16}) {
        NetConfig config = sizes({3}, 2);
        config.precision = precision;
        CudaRig one(spec, config, adam), two(spec, config, adam, gpus(2));
        for (StepId step = 0; step < 3; ++step) {
            Data data(spec, 6, static_cast<uint32_t>(step) + 1);
            for (CudaRig* rig : {&one, &two}) {
                std::vector<float> sum(rig->net->layout().elements);
                for (uint32_t block = 0; block < 2; ++block) {   // lane 1 is on the other GPU
                    Samples part = data.samples;
                    part.count = 3;
                    part.images += block * 3 * 390;
                    part.labels += block * 3;
                    const Gather gather = rig->block(part, block, step);
                    for (size_t i = 0; i < sum.size(); ++i) sum[i] += gather.gradient[i];
                }
                rig->step(step, sum, 6);
            }
            EXPECT_EQ(one.net->digest(), two.net->digest());
            Data test(spec, 3);
            EXPECT_EQ(one.loss(test.samples), two.loss(test.samples));
        }
    }
}

// A block reads no memory that it has not written: all memory is NaN before.
TEST(CudaNet, PoisonedMemoryDoesNotShow) {
    GC_NEED_GPU();
    for (const Precision precision : {Precision::f32, Precision::bf16})
        for (const NetSpec& spec : {preset("lenet5"), everything()}) {
            NetConfig config = sizes({5, 8});
            config.precision = precision;
            CudaRig rig(spec, config);
            Data data(spec, 5), batch(spec, 3);
            const Gather clean = rig.block(data.samples);
            const double loss = rig.loss(batch.samples);
            auto poison = [&] {
                (void)rig.net->parameters();   // the host's copy, too
                const Buffer whole = rig.device.gpus()[0]->arena.whole();
                ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
                ASSERT_EQ(cudaMemset(whole.device, 0xff, whole.bytes), cudaSuccess);
                ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
                rig.net->refresh();
            };
            poison();
            const Gather poisoned = rig.block(data.samples);
            EXPECT_EQ(clean.total, poisoned.total);
            EXPECT_TRUE(same_bits(clean.gradient, poisoned.gradient));
            for (float g : poisoned.gradient) ASSERT_FALSE(std::isnan(g));
            poison();
            EXPECT_EQ(loss, rig.loss(batch.samples));
        }
}

TEST(CudaNet, NanReachesLossAndGradient) {
    GC_NEED_GPU();
    CudaRig rig(preset("lenet5"), sizes({4}));
    expect_nan_shows(rig);
}

TEST(CudaNet, CancelAndErrorsEndABlock) {
    GC_NEED_GPU();
    CudaRig rig(preset("lenet5"), sizes({4}));
    expect_cancel_ends_a_block(rig);
    expect_errors_end_a_block(rig);
    Gather gather(rig.net->layout());
    Data three(rig.net->spec(), 3), five(rig.net->spec(), 5);
    EXPECT_STREQ(rig.net->block(0, {0, 0}, three.samples, gather).what, "a block of 3 samples, but the net was planned for blocks of 4");
    uint32_t right = 0;
    double sum = 0;
    EXPECT_STREQ(rig.net->evaluate(0, five.samples, &right, &sum, nullptr).what, "a batch of 5 samples, but the net was planned for 4");
}

/// Copies gradients from device memory, in the lane's codec stream.
struct DeviceSink final : GradientSink {
    DeviceSink(CudaRig& r, float* to) : rig(r), host(to) {}
    bool on_device() const override { return true; }
    Status bucket(uint32_t lane, BlockId, uint32_t bucket, Buffer part) override {
        EXPECT_TRUE(part.device && !part.host);
        const Bucket& range = rig.net->layout().buckets[bucket];
        return cuda::check(
            cudaMemcpyAsync(host + range.offset, part.device, part.bytes, cudaMemcpyDeviceToHost, rig.device.lanes()[lane].codec.get()),
            "cudaMemcpyAsync");
    }
    void loss(uint32_t, BlockId, double) override {}
    CudaRig& rig;
    float* host;
};

TEST(CudaNet, SinksMayTakeGradientsOnTheGpu) {
    GC_NEED_GPU();
    const NetSpec spec = everything();
    CudaRig rig(spec, sizes({3, 4}));
    const uint64_t elements = rig.net->layout().elements;
    void* pinned = nullptr;
    ASSERT_EQ(cudaMallocHost(&pinned, 2 * elements * sizeof(float)), cudaSuccess);
    auto* host = static_cast<float*>(pinned);
    Data a(spec, 4, 1), b(spec, 3, 2);
    // Two blocks in a row: the second must not overwrite a gradient that the first one's sink has not read.
    DeviceSink first(rig, host), second(rig, host + elements);
    ASSERT_TRUE(rig.net->block(0, {0, 0}, a.samples, first).ok());
    ASSERT_TRUE(rig.net->block(0, {0, 1}, b.samples, second).ok());
    ASSERT_EQ(cudaStreamSynchronize(rig.device.lanes()[0].codec.get()), cudaSuccess);
    Gather gather(rig.net->layout());
    ASSERT_TRUE(rig.net->block(0, {0, 0}, a.samples, gather).ok());
    EXPECT_TRUE(same_bits(gather.gradient, {host, host + elements}));
    Gather other(rig.net->layout());
    ASSERT_TRUE(rig.net->block(0, {0, 1}, b.samples, other).ok());
    EXPECT_TRUE(same_bits(other.gradient, {host + elements, host + 2 * elements}));
    cudaFreeHost(pinned);
}

// The same words give the same parameters and state as nn/kernels.isa.cc, bit for bit.
TEST(CudaNet, AppliesSumsToTheBitAsTheCpu) {
    GC_NEED_GPU();
    const NetSpec spec{.C = 3, .H = 5, .W = 4, .classes = 3, .layers = {conv(7, 2), norm(), relu(), fc(3), loss()}};
    std::vector<OptimiserConfig> configs = {
        {.lr = 0.1},
        {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01},
        {.lr = 0.1, .momentum = 0.8, .weight_decay = 0.02, .nesterov = true},
        {.kind = "adam", .lr = 0.01, .weight_decay = 0.01},
        {.lr = 0.1, .ema = 0.75},
        {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .decay_exempt = true, .freeze = {"conv1"}},
        {.kind = "adam", .lr = 0.01, .weight_decay = 0.01, .freeze = {"fc1.weight"}, .ema = 0.5},
        {.kind = "adamw",
         .lr = 0.01,
         .weight_decay = 0.5,
         .decay_exempt_names = {"norm1", "conv1.weight"},
         .freeze = {"conv1.bias"},
         .ema = 0.9},
        {.kind = "lamb", .lr = 0.01, .weight_decay = 0.5},
        {.kind = "lamb", .lr = 0.01, .weight_decay = 0.5, .decay_exempt = true, .freeze = {"fc1.weight"}, .ema = 0.9}};
    std::vector<Layer> layers;
    ASSERT_TRUE(layers_check(spec, &layers).ok());
    for (OptimiserConfig& config : configs)
        for (const Word word : {Word::i16, Word::i32, Word::i64}) {
            const Status ranged = optimiser_ranges(layers, &config);
            ASSERT_TRUE(ranged.ok()) << ranged.what;
            Rig cpu(spec, sizes({2}), config);
            std::vector<uint64_t> all(3 * cpu.net->layout().elements);   // page-locked: copies of words do not wait
            CudaRig gpu(spec, sizes({2}), config);
            gpu.device.share({reinterpret_cast<std::byte*>(all.data()), nullptr, all.size() * 8});
            std::span<uint64_t> free = all;
            std::mt19937_64 random(5);
            for (StepId step = 0; step < 3; ++step) {
                cpu.optimiser->step(step);
                gpu.optimiser->step(step);
                const Layout& layout = cpu.net->layout();
                const std::span<uint64_t> words = free.first(layout.elements);
                free = free.subspan(layout.elements);
                for (uint64_t& each : words)
                    each = word == Word::i64 ? static_cast<uint64_t>(static_cast<int64_t>(random()) >> 30) : random();
                const std::vector<double> units(layout.groups.size(), word == Word::i32 ? 0x1p-31 / 3 : 0x1p-15 / 3);
                const std::vector<BucketSum> sums = sums_of(layout, words.data(), word, units);
                uint64_t digests[2] = {};
                ASSERT_TRUE(cpu.net->apply(cpu.lanes, *cpu.optimiser, sums, &digests[0]).ok());
                ASSERT_TRUE(gpu.net->apply(gpu.lanes, *gpu.optimiser, sums, &digests[1]).ok());
                EXPECT_EQ(digests[0], digests[1]);
            }
            auto same = [](std::span<const float> a, std::span<const float> b) {
                return same_bits({a.begin(), a.end()}, {b.begin(), b.end()});
            };
            EXPECT_TRUE(same(cpu.net->parameters(), gpu.net->parameters())) << config.kind << " " << config.momentum << " " << config.ema;
            EXPECT_TRUE(same(cpu.optimiser->state(), gpu.optimiser->state()));
            EXPECT_EQ(cpu.net->digest(), gpu.net->digest());
            EXPECT_EQ(cpu.optimiser->digest(11), gpu.optimiser->digest(11));
            EXPECT_EQ(cpu.optimiser->state_size(), gpu.optimiser->state_size());
        }
}

TEST(CudaNet, TracedBlocksHaveTheSameBits) {
    GC_NEED_GPU();
    const NetSpec spec = everything();
    CudaRig rig(spec, sizes({3}));
    Data data(spec, 3);
    const std::vector<float> graph = rig.block(data.samples).gradient;
    struct Count final : NetTrace {
        uint64_t now = 0, passes = 0;
        uint64_t now_ns() override { return ++now; }
        void pass(uint32_t, const Layer&, Pass, uint64_t begin_ns, uint64_t end_ns) override { passes += end_ns > begin_ns; }
    } count;
    rig.net->trace(&count);
    EXPECT_TRUE(same_bits(graph, rig.block(data.samples).gradient));
    EXPECT_GT(count.passes, 40u);
    rig.net->trace(nullptr);
    EXPECT_TRUE(same_bits(graph, rig.block(data.samples).gradient));
}

/// The number that is said fits, and `more` times it does not.
void expect_fits(const NetSpec& spec, Precision precision, double more) {
    size_t free = 0, total = 0, free_after = 0;
    auto plan = [&](uint32_t samples, std::string* error) {
        cuda::CudaDevice device;
        std::unique_ptr<Net> net;
        NetConfig config = sizes({samples});
        config.precision = precision;
        EXPECT_TRUE(device.open({}).ok());
        const Status planned = cuda::net_plan(spec, config, device, &net);
        EXPECT_TRUE(planned.ok()) << samples << " samples: " << planned.what;
        const Status status = device.seal();
        EXPECT_EQ(cudaMemGetInfo(&free_after, &total), cudaSuccess);
        *error = status.what;
        return status.code;
    };
    ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
    std::string error;
    // cuBLAS takes INT32_MAX pixels, and the convolutions give at most 16 of a sample.
    const size_t too_many = std::min(free / 1000, size_t{INT32_MAX} / 16);
    EXPECT_EQ(plan(static_cast<uint32_t>(too_many), &error), Code::node_memory);
    EXPECT_NE(error.find("activations"), std::string::npos) << error;
    uint32_t fits = 0;
    ASSERT_EQ(std::sscanf(error.substr(error.find("; blocks of")).c_str(), "; blocks of %u would fit", &fits), 1) << error;
    EXPECT_GT(fits, 1000u);
    if (on_host) {   // no other user of the GPU
        EXPECT_EQ(plan(fits, &error), Code::ok) << error;
        EXPECT_GE(free_after, free / 16);   // for the libraries' kernels
        EXPECT_EQ(plan(static_cast<uint32_t>(fits * more) + 2, &error), Code::node_memory);
    } else {   // other processes may change the free memory
        EXPECT_EQ(plan(2 * fits, &error), Code::node_memory);
    }
}

TEST(CudaNet, SaysWhatWouldFit) {
    GC_NEED_GPU();
    expect_fits({.C = 1, .H = 16, .W = 16, .classes = 10, .layers = {fc(500), relu(), fc(10), loss()}}, Precision::f32, 1.02);
    expect_fits({.C = 8, .H = 6, .W = 6, .classes = 10, .layers = {conv(8, 3), conv(8, 3), fc(10), loss()}}, Precision::bf16,
                1.5);   // cuDNN's workspaces grow, too
}

TEST(CudaNet, KernelsAreNamed) {
    GC_NEED_GPU();
    const NetSpec spec = preset("mlp");
    for (const auto& [precision, deterministic, name] : {std::tuple{Precision::f32, true, "cuda-f32, "},
                                                         {Precision::bf16, true, "cuda-bf16, "},
                                                         {Precision::tf32, true, "cuda-tf32, "},
                                                         {Precision::f32, false, "cuda-f32-any, "}}) {
        NetConfig config = sizes({2});
        config.precision = precision;
        config.deterministic = deterministic;
        CudaRig rig(spec, config);
        EXPECT_TRUE(std::string(rig.net->kernels()).starts_with(name)) << rig.net->kernels();
        EXPECT_NE(std::string(rig.net->kernels()).find("cuDNN"), std::string::npos);
    }
}

#ifdef GC_CUDA_HOST
// The stand-in refuses tensors above 2^31 elements, as most engines of cuDNN do; a GPU may run out of memory before.
TEST(CudaNet, ErrorsNameTheLayerAndTheCall) {
    for (const auto& [channels, why] :
         {std::pair(5u, "cudnnBackendFinalize: CUDNN_STATUS_NOT_SUPPORTED"),
          {1u, "a block of 33554433 samples has 6576668868 rows there, and GPUs take at most 2147483647: take smaller blocks"}}) {
        const NetSpec spec{.C = channels, .H = 16, .W = 16, .classes = 10, .layers = {named(conv(64, 3), "wide"), fc(10), loss()}};
        cuda::CudaDevice device;
        ASSERT_TRUE(device.open({}).ok());
        std::unique_ptr<Net> net;
        const Status status = cuda::net_plan(spec, sizes({(1u << 31) / 64 + 1}), device, &net);
        EXPECT_EQ(status.code, Code::unsupported);
        EXPECT_EQ(status.what, std::string("layer wide: ") + why);
    }
}

// A device's fault shows in the next call that waits, which may have no result.
TEST(CudaNetDeathTest, SaysWhatTheDeviceSaid) {
    GTEST_FLAG_SET(death_test_style, "fast");
    CudaRig rig(preset("mlp"), sizes({2}), {.momentum = 0.9});
    EXPECT_DEATH(cuda_host_break(); (void)rig.net->digest(), "cudaStreamSynchronize: cudaErrorIllegalAddress");
    EXPECT_DEATH(cuda_host_break(); (void)rig.optimiser->state(), "cudaStreamSynchronize: cudaErrorIllegalAddress");
}

// The stand-in counts what a step must not do.
TEST(CudaNet, TakesNoMemoryAndWaitsForTheExchangeAlone) {
    const NetSpec spec = everything();
    CudaRig rig(spec, sizes({3}), {.momentum = 0.9});
    Data data(spec, 3);
    const auto buckets = static_cast<uint64_t>(rig.net->layout().buckets.size());
    rig.block(data.samples);
    const CudaHostCounts before = cuda_host_counts();
    rig.block(data.samples);
    const CudaHostCounts block = cuda_host_counts();
    EXPECT_EQ(block.allocations, before.allocations);
    EXPECT_EQ(block.synchronisations - before.synchronisations, 1 + buckets);   // the loss, and each bucket's copy to the host
    struct Nothing final : GradientSink {
        bool on_device() const override { return true; }
        Status bucket(uint32_t, BlockId, uint32_t, Buffer) override { return {}; }
        void loss(uint32_t, BlockId, double) override {}
    } nothing;
    ASSERT_TRUE(rig.net->block(0, {1, 0}, data.samples, nothing).ok());
    EXPECT_EQ(cuda_host_counts().synchronisations - block.synchronisations, 1u);
    EXPECT_EQ(cuda_host_counts().allocations, before.allocations);
}
#endif

}   // namespace
}   // namespace gradcast
