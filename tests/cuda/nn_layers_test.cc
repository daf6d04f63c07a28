// Each kind of layer on a GPU: against finite differences, against the CPU, against PyTorch's numbers.
#include <algorithm>
#include <cstring>
#include <map>

#include "tests/cuda/nn_rig.h"
#include "tests/nn/nets.h"
#include "tests/nn/reference.h"

namespace gradcast {
namespace {

class CudaLayers : public testing::TestWithParam<Difference> {};

TEST_P(CudaLayers, MatchFiniteDifferences) {
    GC_NEED_GPU();
    CudaRig rig(GetParam().spec, sizes({GetParam().samples}));
    expect_slopes(rig, GetParam());
}

TEST(CudaKinds, RefuseByNameWhatTheyDoNotCompute) {
    GC_NEED_GPU();
    const auto mistake = [](LayerSpec layer) {
        const NetSpec spec{.C = 4, .H = 8, .W = 8, .classes = 10, .layers = {named(conv(4, 1), "c"), std::move(layer), fc(10), loss()}};
        cuda::CudaDevice device;
        EXPECT_TRUE(device.open({}).ok());
        std::unique_ptr<Net> net;
        return std::string(cuda::net_plan(spec, sizes({2}), device, &net).what);
    };
    for (const auto& [layer, name, what] : {std::tuple{grouped(conv(8, 3), 2), "conv2", "conv with groups"},
                                            {grouped(conv(8, 1), 4), "conv2", "conv with groups"},
                                            {grouped(conv(8, 3), 1, 2), "conv2", "conv with dilation"},
                                            {conv_transposed(3, 2, 2), "conv_transposed1", "conv_transposed"},
                                            {upsample(2), "upsample1", "upsample"},
                                            {concat("c"), "concat1", "concat"},
                                            {LayerSpec{.kind = "layer_norm"}, "layer_norm1", "layer_norm"}})
        EXPECT_EQ(mistake(layer), fmt::format("layer {}: GPUs do not compute {} in this version: take device cpu", name, what));
}

/// Compares loss and gradient of a block with the CPU's, layer by layer, and an evaluation of fewer samples.
void expect_as_cpu(const NetSpec& spec, uint32_t samples, Precision precision, double most) {
    NetConfig config = sizes({samples});
    Rig cpu(spec, config);
    config.precision = precision;
    CudaRig gpu(spec, config);
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (float& w : cpu.net->parameters()) w += 0.02f * normal(random);
    cpu.net->refresh();
    std::copy_n(cpu.net->parameters().begin(), cpu.net->layout().elements, gpu.net->parameters().begin());
    gpu.net->refresh();
    Data data(spec, samples);
    const Gather a = gpu.block(data.samples, 0, 2), b = cpu.block(data.samples, 0, 2);
    EXPECT_NEAR(a.total, b.total, most * std::abs(b.total));
    for (const Group& group : cpu.net->layout().groups)
        EXPECT_LT(
            distance(std::span(a.gradient).subspan(group.offset, group.count), std::span(b.gradient).subspan(group.offset, group.count)),
            most)
            << group.layer;
    Samples fewer = data.samples;
    fewer.count = std::max(1u, samples - 1);
    uint32_t right[2] = {};
    double losses[2] = {};
    std::vector<int32_t> classes[2] = {std::vector<int32_t>(fewer.count), std::vector<int32_t>(fewer.count)};
    ASSERT_TRUE(gpu.net->evaluate(0, fewer, &right[0], &losses[0], classes[0].data()).ok());
    ASSERT_TRUE(cpu.net->evaluate(0, fewer, &right[1], &losses[1], classes[1].data()).ok());
    EXPECT_NEAR(losses[0], losses[1], most * std::abs(losses[1]));
    if (precision == Precision::f32) {
        EXPECT_EQ(right[0], right[1]);
        EXPECT_EQ(classes[0], classes[1]);
    }
}

#ifdef GC_CUDA_HOST
// Bias, ReLU and the sums of a bias's gradient, by the libraries or by kernels of our own.
TEST(CudaFallbacks, AreAsOnTheCpu) {
    const NetSpec spec{.C = 3,
                       .H = 7,
                       .W = 7,
                       .classes = 5,
                       .layers = {conv(7, 3), relu(), conv(9, 1), relu(), conv(8, 1), relu(), conv(6, 3), relu(), fc(13), relu(), fc(16),
                                  relu(), fc(5), loss()}};
    constexpr unsigned none = 0, forward = 4, sums = 512, all = ~0u;   // bits of cublasLtEpilogue_t
    for (const unsigned epilogues : {none, forward, sums, all})
        for (const bool fuses : {false, true}) {
            SCOPED_TRACE(fmt::format("epilogues {:x}, {}", epilogues, fuses ? "fused" : "alone"));
            cuda_host_epilogues(epilogues);
            cuda_host_fuses(fuses);
            expect_as_cpu(spec, 5, Precision::f32, 1e-5);
            expect_as_cpu(spec, 5, Precision::bf16, 0.35);
        }
    cuda_host_epilogues(all);
    cuda_host_fuses(true);
}
#endif

TEST_P(CudaLayers, AreAsOnTheCpu) {
    GC_NEED_GPU();
    expect_as_cpu(GetParam().spec, GetParam().samples, Precision::f32, 1e-5);
}

TEST_P(CudaLayers, AreNearInTf32) {
    GC_NEED_GPU();
    // TF32 rounds the factors alone, by up to 2^-11.
    expect_as_cpu(smooth(GetParam().spec), GetParam().samples, Precision::tf32, 1e-2);
}

TEST_P(CudaLayers, AreNearInBf16) {
    GC_NEED_GPU();
    // bf16 rounds each value between two layers by up to 2^-9: about 4% through seven layers.
    expect_as_cpu(smooth(GetParam().spec), GetParam().samples, Precision::bf16, 5e-2);
    // ReLU and max pooling that switch near their kinks add more; a wrong term has an error of about 1.
    expect_as_cpu(GetParam().spec, GetParam().samples, Precision::bf16, 0.35);
}
INSTANTIATE_TEST_SUITE_P(Kinds, CudaLayers, testing::ValuesIn(differences()), [](const auto& p) { return p.param.name; });

class CudaReference : public testing::TestWithParam<const char*> {};
TEST_P(CudaReference, GivesPyTorchsNumbers) {
    GC_NEED_GPU();
    expect_reference<CudaRig>(GetParam());
}
INSTANTIATE_TEST_SUITE_P(Nets, CudaReference, testing::ValuesIn(reference_names), [](const auto& p) { return p.param; });

}   // namespace
}   // namespace gradcast
