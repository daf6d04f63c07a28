// The kernels that cuDNN and cuBLAS are asked for, and the errors if there is none.
#include <algorithm>
#include <bit>

#include "tests/cuda/nn_rig.h"
#include "tests/nn/nets.h"

namespace gradcast {
namespace {

NetConfig with(Precision precision, uint32_t samples = 3, uint32_t lanes = 1) {
    NetConfig config = sizes({samples}, lanes);
    config.precision = precision;
    return config;
}

// With bf16 factors, gradients of weights still have float's precision.
TEST(CudaChoice, GradientsOfWeightsAreFloat) {
    GC_NEED_GPU();
    const NetSpec spec{.C = 3, .H = 8, .W = 8, .classes = 4, .layers = {conv(8, 3), relu(), conv(8, 1), relu(), fc(4), loss()}};
    CudaRig rig(spec, with(Precision::bf16));
    Data data(spec, 3);
    const std::vector<float> gradient = rig.block(data.samples).gradient;
    for (const Group& group : rig.net->layout().groups) {
        const auto all = std::span(gradient).subspan(group.offset, group.count);
        EXPECT_TRUE(std::any_of(all.begin(), all.end(), [](float g) { return std::bit_cast<uint32_t>(g) & 0xffff; })) << group.layer;
    }
}

#ifdef GC_CUDA_HOST
NetSpec one_conv() { return {.C = 5, .H = 8, .W = 8, .classes = 4, .layers = {named(conv(8, 3), "only"), relu(), fc(4), loss()}}; }

struct Engines {   // sets the engines of the stand-in for one scope
    explicit Engines(bool fallback, int64_t knob = 0) { cuda_host_engines(fallback, knob); }
    Engines(const Engines&) = delete;
    ~Engines() { cuda_host_engines(true, 0); }
};

TEST(CudaChoice, SaysWhyEachEngineWasSkipped) {
    const Engines none(false);
    std::unique_ptr<Net> net;
    cuda::CudaDevice device;
    ASSERT_TRUE(device.open({}).ok());
    Status status = cuda::net_plan(one_conv(), with(Precision::f32), device, &net);
    EXPECT_EQ(status.code, Code::unsupported);
    EXPECT_STREQ(
        status.what,
        "layer only: cuDNN has no deterministic kernel for its forward pass with 3 samples (engine 0: not deterministic; engine 1: "
        "tensor cores, which round float to TF32; engine 2: cudnnBackendFinalize: CUDNN_STATUS_NOT_SUPPORTED; engine 3: 1048576 "
        "MiB of workspace, more than 2048): net.deterministic = false would allow others");
    EXPECT_TRUE(cuda::net_plan(one_conv(), with(Precision::tf32), device, &net).ok());
}

// Nodes compare kernel sets: other engines or knobs give another name.
TEST(CudaChoice, EnginesAndKnobsAreTold) {
    auto engines = [](const NetSpec& spec, Precision precision, uint32_t samples, int64_t knob) {
        const Engines all(true, knob);
        return CudaRig(spec, with(precision, samples)).net->engines();
    };
    const uint64_t known = engines(one_conv(), Precision::f32, 3, 0);
    EXPECT_NE(known, 0u);
    EXPECT_EQ(engines(one_conv(), Precision::f32, 3, 0), known);
    EXPECT_NE(engines(one_conv(), Precision::f32, 3, 1), known);
    EXPECT_NE(engines(one_conv(), Precision::tf32, 3, 0), known);
    const uint64_t products = engines(preset("mlp"), Precision::f32, 3, 0);
    EXPECT_EQ(engines(preset("mlp"), Precision::f32, 3, 0), products);
    cuda_host_epilogues(0);
    EXPECT_NE(engines(preset("mlp"), Precision::f32, 3, 0), products);
    cuda_host_epilogues(~0u);
}

TEST(CudaChoice, LanesOfAGpuShareItsPlans) {
    auto plans = [](uint32_t lanes, std::vector<uint32_t> gpus) {
        const uint64_t before = cuda_host_plans();
        CudaRig rig(one_conv(), with(Precision::f32, 3, lanes), {}, std::move(gpus));
        return cuda_host_plans() - before;
    };
    const uint64_t one = plans(1, {0});
    EXPECT_EQ(plans(4, {0}), one);
    EXPECT_EQ(plans(4, {0, 1}), 2 * one);
}

// The second GPU's plan needs more workspace, and fills it with NaN.
TEST(CudaChoice, WorkspaceIsTheMostOfAllGpus) {
    const NetSpec spec = one_conv();
    CudaRig one(spec, with(Precision::f32)), two(spec, with(Precision::f32, 3, 2), {}, {0, 1});
    Data data(spec, 3);
    const std::vector<float> wanted = one.block(data.samples).gradient;
    for (uint32_t lane : {0u, 1u}) EXPECT_TRUE(same_bits(wanted, two.block(data.samples, lane).gradient)) << lane;
}
#endif

}   // namespace
}   // namespace gradcast
