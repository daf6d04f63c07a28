// Whole steps: several under way, gradients that are not finite, and what a step's graph is made of.
#include "tests/cuda/steps.h"
#include "tests/nn/llama.h"
#include "tests/nn/nets.h"

namespace gradcast {
namespace {

const OptimiserConfig whole_sgd{.lr = 0.05, .momentum = 0.9};

using CudaWhole = testing::Test;

TEST_F(CudaWhole, OneMayBeginBeforeTheOneBeforeHasEnded) {
    GC_NEED_GPU();
    for (const Quantiser quantiser : {Quantiser::auto32, Quantiser::auto16}) {
        const StepCase how{2, 1, 1, quantiser, whole_sgd, false};
        const NetSpec spec = everything();
        Steps one(how, spec, true), two(how, spec, true);
        const std::vector<float> ones(one.net->layout().elements, 1.0f);
        one.codec->probe(ones.data());
        two.codec->probe(ones.data());
        ASSERT_EQ(two.net->steps_ahead(), 2u);
        constexpr StepId steps = 5;
        std::vector<std::unique_ptr<Data>> data;
        for (uint32_t step = 0; step < steps; ++step) data.push_back(std::make_unique<Data>(spec, batch, step + 1));
        EXPECT_TRUE(Steps::ok(two.begin_whole(0, data[0]->samples)));
        for (StepId step = 0; step < steps; ++step) {
            const WholeStep want = one.whole_step(step, data[step]->samples);
            const std::vector<double> losses(want.losses.begin(), want.losses.end());
            if (step + 1 < steps) {
                EXPECT_TRUE(Steps::ok(two.begin_whole(step + 1, data[step + 1]->samples)));
            }
            WholeStep done;
            EXPECT_TRUE(Steps::ok(two.end_whole(&done)));
            EXPECT_EQ(done.digest, want.digest) << step;
            EXPECT_EQ(done.clipped, want.clipped);
            EXPECT_TRUE(std::equal(losses.begin(), losses.end(), done.losses.begin()));
            EXPECT_TRUE(std::ranges::equal(one.codec->exponents(), two.codec->exponents()));
        }
        EXPECT_TRUE(std::ranges::equal(one.net->parameters(), two.net->parameters()));
        // Scales that the host changes, as at a resume, are those of the next step.
        for (Steps* each : {&one, &two})
            for (int32_t& exponent : each->codec->exponents()) exponent += 3;
        EXPECT_EQ(two.whole_step(steps, data[0]->samples).digest, one.whole_step(steps, data[0]->samples).digest);
    }
}

// Samples and labels of other types come with each step, as their data stay on the host.
TEST_F(CudaWhole, OfTextsMasksAndFloatsAreAsByBuckets) {
    GC_NEED_GPU();
    for (const NetSpec& spec : {small_gpt(), small_llama(), of_masks(), regression_on_floats(Element::f32)}) {
        const StepCase how{2, 1, 1, Quantiser::auto32, whole_sgd, false};
        Steps buckets(how, spec), whole(how, spec, true);
        const std::vector<float> ones(whole.net->layout().elements, 1.0f);
        buckets.codec->probe(ones.data());
        whole.codec->probe(ones.data());
        ASSERT_EQ(whole.net->steps_ahead(), 2u);
        for (StepId step = 0; step < 3; ++step) {
            const Data data(spec, batch, static_cast<uint32_t>(step) + 1);
            EXPECT_EQ(buckets.step(step, data.samples), whole.whole_step(step, data.samples).digest) << step;
        }
    }
}

// Step 1 starts from parameters that are not finite in their products; steps 1 and 2 are under way.
TEST_F(CudaWhole, AGradientThatIsNotFiniteLeavesTheStateBefore) {
    GC_NEED_GPU();
    OptimiserConfig wild = whole_sgd;
    wild.lr = 1e30;
    const NetSpec spec = everything();
    Steps steps({2, 1, 1, Quantiser::auto32, wild, false}, spec, true);
    const Data data(spec, batch, 1);
    const std::vector<float> ones(steps.net->layout().elements, 1.0f);
    steps.codec->probe(ones.data());
    WholeStep done = steps.whole_step(0, data.samples);
    Status status;
    uint64_t digest = done.digest;
    StepId step = 1;
    EXPECT_TRUE(Steps::ok(steps.begin_whole(step, data.samples)));
    for (; step < 20; ++step) {
        EXPECT_TRUE(Steps::ok(steps.begin_whole(step + 1, data.samples)));
        status = steps.end_whole(&done);
        if (!status.ok()) break;
        digest = done.digest;
    }
    EXPECT_EQ(status.code, Code::diverged);
    EXPECT_TRUE(std::string_view(status.what).starts_with(fmt::format("step {}: the gradient of layer ", step + 1))) << status.what;
    EXPECT_TRUE(std::string_view(status.what).ends_with("in block 0: lower the learning rate, or look at the data")) << status.what;
    EXPECT_EQ(steps.net->digest() + steps.optimiser->digest(steps.net->layout().elements), digest);
}

// As where another node joins and dies within a step: its maxima must not set the scales of the step that this node then computes alone.
TEST_F(CudaWhole, AnUnfinishedStepLeavesNothing) {
    GC_NEED_GPU();
    const StepCase how{1, 1, 1, Quantiser::auto32, whole_sgd, false};
    const NetSpec spec = everything();
    Steps one(how, spec, true), two(how, spec, true);
    const std::vector<float> ones(one.net->layout().elements, 1.0f);
    one.codec->probe(ones.data());
    two.codec->probe(ones.data());
    const Data data(spec, batch, 1), other(spec, batch, 77);
    EXPECT_TRUE(Steps::ok(two.one_block(0, other.samples)));
    for (StepId step = 0; step < 3; ++step) {
        EXPECT_EQ(two.whole_step(step, data.samples).digest, one.whole_step(step, data.samples).digest) << step;
        EXPECT_TRUE(std::ranges::equal(one.codec->exponents(), two.codec->exponents()));
    }
}

#ifdef GC_CUDA_HOST
// Nodes of one step's graph, of one block of 100 samples that the GPU holds.
void expect_nodes(const char* preset, uint32_t most) {
    constexpr uint32_t count = 100;
    NetSpec spec;
    ASSERT_TRUE(preset_find(preset, 1, 28, 28, 10, &spec).ok());
    cuda::CudaDevice device;
    std::unique_ptr<Net> net;
    std::unique_ptr<Optimiser> optimiser;
    std::unique_ptr<ResidentImages> resident;
    ASSERT_TRUE(Steps::ok(device.open({.lanes_max = 1, .lanes_per_gpu = 1, .numbers = {0}})));
    NetConfig config = sizes({count}, 1);
    config.precision = Precision::tf32;
    config.step_blocks = {count};
    ASSERT_TRUE(Steps::ok(cuda::net_plan(spec, config, device, &net)));
    ASSERT_TRUE(Steps::ok(cuda::optimiser_plan(whole_sgd, *net, &optimiser)));
    const auto codec = cuda::codec_plan(net->layout(), {Quantiser::auto32, count, 1, 99}, device);
    codec->device()->expect(1);
    const DataInfo info{.count = count, .C = 1, .H = 28, .W = 28, .classes = 10, .mean = {}, .std = {}, .source = {}};
    ASSERT_TRUE(Steps::ok(cuda::resident_plan(info, {}, device, &resident)));
    ASSERT_TRUE(Steps::ok(device.seal()));
    ASSERT_TRUE(Steps::ok(cuda::codec_ready(*codec)));
    ASSERT_TRUE(Steps::ok(cuda::net_ready(*net)));
    const Data data(spec, count, 1);
    ASSERT_TRUE(Steps::ok(resident->put(0, data.samples.images, count)));
    std::vector<SamplePlace> places;
    for (uint32_t i = 0; i < count; ++i) places.push_back({i, 0});
    Samples samples = data.samples;
    samples.images = nullptr;
    samples.places = places.data();
    samples.resident = resident.get();
    WholeStep done;
    uint64_t nodes = 0;
    for (StepId step = 0; step < 2; ++step) {
        optimiser->step(step);
        const CudaHostCounts before = cuda_host_counts();
        ASSERT_TRUE(Steps::ok(net->step_begin(step, std::span(&samples, 1))));
        ASSERT_TRUE(Steps::ok(net->step_end(&done)));
        nodes = cuda_host_counts().run - before.run;
    }
    EXPECT_LE(nodes - 4, most) << preset;   // the copy of the scales, the launch and two events are outside of the graph
    net.reset();
}
TEST_F(CudaWhole, AStepIsAFewNodes) {
    expect_nodes("lenet5", 34);
    expect_nodes("mlp", 20);
}
#endif

}   // namespace
}   // namespace gradcast
