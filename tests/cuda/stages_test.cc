// Stages of a net on GPUs: the bits of the whole net there, whatever the cut and the order of passes.
#include <thread>

#include "tests/cuda/nn_rig.h"
#include "tests/nn/chain.h"
#include "tests/nn/slot_calls.h"

namespace gradcast {
namespace {

std::vector<uint32_t> begins_of(const NetSpec& spec) {
    NetOrder order;
    EXPECT_TRUE(net_gpu_order(spec, &order).ok());
    return order.begins;
}

NetSpec net_of(const std::string& name) { return name == "everything" ? everything() : preset(name.c_str()); }

/// Of as many stages, about equally long.
std::vector<uint32_t> begins_of(const NetSpec& spec, size_t stages) {
    const std::vector<uint32_t> all = begins_of(spec);
    std::vector<uint32_t> begins;
    for (size_t i = 0; i < stages; ++i) begins.push_back(all[all.size() * i / stages]);
    return begins;
}

// The second inner product begins at element 10 and the third one at element 16: one is aligned for the libraries, where the other is not.
TEST(CudaStages, KeepTheAlignmentOfTheWholeNet) {
    GC_NEED_GPU();
    const NetSpec spec = of(1, 2, 2, 0, 3, {fc(2), fc(2), fc(3), loss()});
    for (const uint32_t begin : {1u, 2u, 3u})
        for (const bool apart : {false, true}) expect_bits_of_the_whole<CudaRig>(spec, {0, begin}, apart);
}

// Each rig opens the device anew, which takes a GPU longer than a block.
TEST(CudaStages, TwoOfLenet5) {
    GC_NEED_GPU();
    const NetSpec spec = preset("lenet5");
    for (const uint32_t begin : begins_of(spec))
        if (begin > 0) expect_bits_of_the_whole<CudaRig>(spec, {0, begin}, begin % 2 == 0);
}

TEST(CudaStages, TwoOfEverything) {
    GC_NEED_GPU();
    const NetSpec spec = everything();
    const std::vector<uint32_t> begins = begins_of(spec);
    for (size_t i = 1; i < begins.size(); i += 3) {
        SCOPED_TRACE(spec.layers[begins[i]].kind + " " + std::to_string(begins[i]));
        expect_bits_of_the_whole<CudaRig>(spec, {0, begins[i]}, i % 2 == 0);
    }
}

TEST(CudaStages, AsManyAsThereCanBe) {
    GC_NEED_GPU();
    for (const bool apart : {false, true}) expect_bits_of_the_whole<CudaRig>(preset("lenet5"), begins_of(preset("lenet5")), apart);
}

TEST(CudaStages, ManyOfEverything) {
    GC_NEED_GPU();
    for (const bool apart : {false, true}) expect_bits_of_the_whole<CudaRig>(everything(), begins_of(everything(), 8), apart);
}

/// The first stage, or the whole net, on the first GPU; the others on a second one where there is one.
struct OwnGpuRig : CudaRig {
    OwnGpuRig(const NetSpec& spec, const NetConfig& config, const OptimiserConfig& rule)
        : CudaRig(spec, config, rule, {config.stage.first > 0 ? last_gpu() : 0}) {
        EXPECT_EQ(device.lane_count(), config.lanes);
        const std::vector<MemoryUse> memory = device.memory();
        EXPECT_EQ(memory.size(), 2u);   // of its GPU, and of page-locked memory
        EXPECT_TRUE(memory[0].place.starts_with(fmt::format("gpu {}", device.gpus()[0]->number))) << memory[0].place;
    }
    static uint32_t last_gpu() {
        int gpus = 0;
        EXPECT_EQ(cudaGetDeviceCount(&gpus), cudaSuccess);
        return gpus > 1 ? 1 : 0;
    }
};

// As the daemons of one host do it, each with a GPU of its own, but in one process.
TEST(CudaStages, OfTwoDevicesHaveTheDigestOfOne) {
    GC_NEED_GPU();
    for (const char* name : {"lenet5", "everything"})
        for (const bool apart : {false, true}) expect_bits_of_the_whole<OwnGpuRig>(net_of(name), begins_of(net_of(name), 2), apart);
}

#ifdef GC_CUDA_HOST
// A stage on the second GPU makes no call on the first one, from planning to its end.
TEST(CudaStages, LeaveTheOtherStagesGpuAlone) {
    const NetSpec spec = preset("lenet5");
    NetConfig config = sizes({3});
    config.stage = {begins_of(spec, 2)[1], ~0u};
    const uint64_t before = cuda_host_calls(0);
    std::thread([&] {   // whose current GPU is 0 at first
        OwnGpuRig rig(spec, config, adam);
        Data data(spec, 3);
        const Block block{{0, 0}, data.samples};
        Gather found(rig.net->layout());
        for (size_t i = 0; i < rig.net->edges().size(); ++i)
            std::memset(rig.net->edge(0, 0, i, false, 3).host, 0, rig.net->edge_bytes(i, false, 3));
        EXPECT_TRUE(rig.net->forward(0, 0, {&block, 1}, found).ok() && rig.net->backward(0, 0, Backward::both, found).ok());
        rig.step(0, found.gradient, 3);
        (void)rig.net->digest();
    })
        .join();
    EXPECT_EQ(cuda_host_calls(0), before);
}
#endif

#ifndef GC_CUDA_HOST   // the stand-in would take minutes
TEST(CudaStages, LargeNetsInThree) {
    GC_NEED_GPU();
    for (const char* name : {"nin", "resnet9"}) {
        SCOPED_TRACE(name);
        expect_bits_of_the_whole<CudaRig>(preset(name, 3, 32), begins_of(preset(name, 3, 32), 3), name[0] == 'r');
    }
}
#endif

TEST(CudaStages, EvaluateWithTheBitsOfTheWholeNet) {
    GC_NEED_GPU();
    for (const char* name : {"lenet5", "everything"})
        for (const size_t stages : {2, 3}) {
            SCOPED_TRACE(fmt::format("{}, {} stages", name, stages));
            const NetSpec spec = net_of(name);
            expect_evaluations_of_the_whole<CudaRig>(spec, begins_of(spec, stages), false, false);
        }
}

/// Blocks take the slots of both stages' last lanes in turn, which are on a second GPU where there is one; forward passes go up, the others
/// down.
void expect_bits_of_blocks(const NetSpec& spec, Precision precision, uint32_t slots, uint32_t blocks, const std::vector<Call>& calls) {
    constexpr uint32_t samples = 5, lane = 1;
    NetConfig config = sizes({samples});
    config.precision = precision;
    CudaRig whole(spec, config);
    int gpus = 0;
    EXPECT_EQ(cudaGetDeviceCount(&gpus), cudaSuccess);
    const std::vector<uint32_t> numbers = gpus > 1 ? std::vector<uint32_t>{0, 1} : std::vector<uint32_t>{0};
    config.lanes = 2;
    config.slots = slots;
    config.passes_apart = std::ranges::any_of(calls, [](const Call& each) { return each.pass >= Call::data; });
    const std::vector<uint32_t> begins = begins_of(spec, 2);
    std::vector<std::unique_ptr<CudaRig>> stages;
    for (size_t i = 0; i < 2; ++i) {
        config.stage = {begins[i], i == 0 ? begins[1] : ~0u};
        stages.push_back(std::make_unique<CudaRig>(spec, config, OptimiserConfig{}, numbers));
    }
    std::vector<std::unique_ptr<Data>> data;
    std::vector<Gather> wanted;
    std::vector<std::array<Gather, 2>> found;
    for (uint32_t b = 0; b < blocks; ++b) {
        data.push_back(std::make_unique<Data>(spec, samples, b + 1));
        ASSERT_TRUE(whole.net->block(0, {3, b}, data[b]->samples, wanted.emplace_back(whole.net->layout())).ok());
        found.push_back({Gather(stages[0]->net->layout()), Gather(stages[1]->net->layout())});
        found[b][0].has_loss = true;   // the last stage's
    }
    const auto carry = [&](uint32_t slot, size_t from, bool gradients) {
        Net &source = *stages[from]->net, &target = *stages[1 - from]->net;
        for (size_t i = 0; i < source.edges().size(); ++i) {   // of two stages both have the same, in the same order
            if (gradients && !source.edges()[i].learns) continue;
            const Buffer sent = source.edge(lane, slot, i, gradients, samples), got = target.edge(lane, slot, i, gradients, samples);
            ASSERT_EQ(sent.bytes, got.bytes);
            std::memcpy(got.host, sent.host, sent.bytes);
        }
    };
    for (const auto& [pass, b] : calls) {
        const uint32_t slot = b % slots;
        const Block block{{3, b}, data[b]->samples};
        const Backward passes = backward_of(pass);
        for (const size_t i : pass == Call::forward ? std::array<size_t, 2>{0, 1} : std::array<size_t, 2>{1, 0}) {
            Net& net = *stages[i]->net;
            if (pass == Call::forward && i == 1) carry(slot, 0, false);
            if (pass != Call::forward && pass != Call::weights && i == 0) carry(slot, 1, true);
            const Status status =
                pass == Call::forward ? net.forward(lane, slot, {&block, 1}, found[b][i]) : net.backward(lane, slot, passes, found[b][i]);
            ASSERT_TRUE(status.ok()) << status.what;
        }
        if (pass != Call::forward) continue;   // nobody reads the samples again
        std::ranges::fill(data[b]->images, uint8_t{0});
        std::ranges::fill(data[b]->labels, 0);
    }
    for (uint32_t b = 0; b < blocks; ++b) {
        std::vector<float> all(wanted[b].gradient.size(), NAN);
        for (size_t i = 0; i < 2; ++i) {
            EXPECT_EQ(found[b][i].next, stages[i]->net->layout().buckets.size());
            for (const Layout::Run& run : stages[i]->net->layout().runs())
                std::copy_n(&found[b][i].gradient[run.offset], run.count, &all[run.place]);
        }
        EXPECT_EQ(found[b][1].total, wanted[b].total);
        EXPECT_TRUE(same_bits(all, wanted[b].gradient)) << "block " << b;
    }
}

TEST(CudaStages, AllForwardThenAllBackward) {
    GC_NEED_GPU();
    for (const char* name : {"lenet5", "everything"})
        for (const Precision precision : {Precision::f32, Precision::bf16})
            expect_bits_of_blocks(net_of(name), precision, 3, 3, all_forward_then_all_backward);
}

TEST(CudaStages, OneForwardOneBackward) {
    GC_NEED_GPU();
    expect_bits_of_blocks(net_of("everything"), Precision::f32, 2, 4, one_forward_one_backward);
}

// A data pass depends on no weights pass.
TEST(CudaStages, WeightsPassesComeLast) {
    GC_NEED_GPU();
    for (const char* name : {"lenet5", "everything"})
        for (const Precision precision : {Precision::f32, Precision::bf16})
            expect_bits_of_blocks(net_of(name), precision, 3, 3, weights_passes_come_last);
}

// The loss is another stage's, which a ReLU of a library could hide NaN from.
TEST(CudaStages, ParametersThatAreNotFiniteSpoilTheGradient) {
    GC_NEED_GPU();
    const NetSpec spec = preset("lenet5");
    NetConfig config = sizes({4});
    config.stage = {0, begins_of(spec, 2)[1]};
    CudaRig first(spec, config);
    Data data(spec, 4);
    const Block block{{0, 0}, data.samples};
    for (const bool spoiled : {false, true}) {
        if (spoiled) first.net->parameters()[3] = NAN;
        first.net->refresh();
        Gather found(first.net->layout());
        found.has_loss = true;
        ASSERT_TRUE(first.net->forward(0, 0, {&block, 1}, found).ok());
        for (size_t i = 0; i < first.net->edges().size(); ++i)
            std::memset(first.net->edge(0, 0, i, true, 4).host, 0, first.net->edge_bytes(i, true, 4));
        ASSERT_TRUE(first.net->backward(0, 0, Backward::both, found).ok());
        for (const float x : found.gradient) ASSERT_EQ(std::isnan(x), spoiled);
    }
}

TEST(CudaStages, TakeTheMemoryOfTheirLayers) {
    GC_NEED_GPU();
    const NetSpec spec = preset("mlp");
    const auto bytes = [&](const Stage& stage) {
        NetConfig config = sizes({4});
        config.stage = stage;
        const CudaRig rig(spec, config);
        uint64_t all = 0;
        const std::vector<MemoryUse> memory = rig.device.memory();
        for (const auto& [purpose, count] : memory.front().bytes)
            if (purpose == "parameters" || purpose == "gradients") all += count;
        return all;
    };
    const uint64_t whole = bytes({});
    const std::vector<uint32_t> begins = begins_of(spec, 3);
    uint64_t sum = 0;
    for (size_t i = 0; i < 3; ++i) {
        const uint64_t stage = bytes({begins[i], i < 2 ? begins[i + 1] : ~0u});
        EXPECT_LT(stage, whole * 3 / 4);
        sum += stage;
    }
    EXPECT_NEAR(static_cast<double>(sum), static_cast<double>(whole), 4096);
}

TEST(CudaStages, RefuseWhatTheyDoNotCompute) {
    GC_NEED_GPU();
    const NetSpec spec = preset("lenet5");
    const auto mistake = [&](const NetConfig& config) {
        cuda::CudaDevice device;
        EXPECT_TRUE(device.open({}).ok());
        std::unique_ptr<Net> net;
        return std::string(cuda::net_plan(spec, config, device, &net).what);
    };
    NetConfig config = sizes({4});
    config.stage = {1, ~0u};
    EXPECT_NE(mistake(config).find("computed with the one before it"), std::string::npos) << mistake(config);
    config.stage = {};
    config.slots = 2;
    config.recompute = true;
    EXPECT_NE(mistake(config).find("recompute = false"), std::string::npos) << mistake(config);
}

}   // namespace
}   // namespace gradcast
