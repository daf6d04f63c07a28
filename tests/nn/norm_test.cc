// layer_norm and group_norm; their numbers beside PyTorch's are those of reference_test.cc.
#include "nn/cpu/norm.h"

#include "tests/nn/nets.h"

namespace gradcast {
namespace {

std::vector<float> noise(uint64_t count, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<float> values(count);
    for (float& value : values) value = static_cast<float>(random()) / 4e8f - 3;
    return values;
}

// Rows of all lengths: whole runs of 16 lanes, and a rest.
TEST(Norm, EachBuildHasTheSameBits) {
    const cpu::NormKernels& wanted = cpu::norm_kernels(Isa::portable);
    for (const Isa isa : {Isa::avx2, Isa::avx512}) {
        if (isa > isa_best()) continue;
        const cpu::NormKernels& kernels = cpu::norm_kernels(isa);
        for (const uint64_t count : {1, 2, 7, 15, 16, 17, 33, 64, 100, 1000}) {
            SCOPED_TRACE(fmt::format("{} {}", isa_name(isa), count));
            const std::vector<float> x = noise(count, 1), dy = noise(count, 2), w = noise(count, 3), b = noise(count, 4);
            const cpu::RowScale by = wanted.scale(x.data(), count, 1e-5), same = kernels.scale(x.data(), count, 1e-5);
            EXPECT_EQ(by.mean, same.mean);
            EXPECT_EQ(by.inverse, same.inverse);
            std::vector<float> first(count), second(count);
            const auto compare = [&](auto run) {
                run(wanted, first.data());
                run(kernels, second.data());
                EXPECT_TRUE(same_bits(first, second));
            };
            compare([&](const auto& of, float* y) { of.forward(y, x.data(), count, by, w.data(), b.data()); });
            compare([&](const auto& of, float* y) { of.forward_all(y, x.data(), count, by, 0.7f, 0.3f); });
            compare([&](const auto& of, float* y) { of.backward(y, dy.data(), x.data(), count, by, w.data(), 0.1f, 0.2f); });
            compare([&](const auto& of, float* y) { of.backward_all(y, dy.data(), x.data(), count, by, 1.2f, 0.1f, 0.2f); });
            for (const float* weight : {w.data(), static_cast<const float*>(nullptr)}) {
                double sums[2][2];
                wanted.sums(dy.data(), x.data(), count, by, weight, &sums[0][0], &sums[0][1]);
                kernels.sums(dy.data(), x.data(), count, by, weight, &sums[1][0], &sums[1][1]);
                EXPECT_EQ(sums[0][0], sums[1][0]);
                EXPECT_EQ(sums[0][1], sums[1][1]);
            }
            std::vector<double> gradient[2] = {std::vector<double>(2 * count, 0.5), std::vector<double>(2 * count, 0.5)};
            wanted.weights(gradient[0].data(), gradient[0].data() + count, dy.data(), x.data(), count, by);
            kernels.weights(gradient[1].data(), gradient[1].data() + count, dy.data(), x.data(), count, by);
            EXPECT_EQ(gradient[0], gradient[1]);
        }
    }
}

// What a sample gives does not depend on the others in its block.
TEST(Norm, SamplesAreNormalisedAlone) {
    const NetSpec spec = regression_on_floats(Element::f32);
    const Data data(spec, 6);
    Rig rig(spec, sizes({6, 1}));
    uint32_t right;
    double loss;
    std::vector<float> all(6 * 4), one(4);
    ASSERT_TRUE(rig.net->evaluate(0, data.samples, &right, &loss, nullptr, all.data()).ok());
    for (uint32_t n = 0; n < 6; ++n) {
        Samples alone = data.samples;
        alone.images += n * spec.sample_bytes();
        alone.targets += n * spec.targets_bytes();
        alone.count = 1;
        ASSERT_TRUE(rig.net->evaluate(0, alone, &right, &loss, nullptr, one.data()).ok());
        for (uint32_t k = 0; k < 4; ++k) EXPECT_NEAR(one[k], all[n * 4 + k], 1e-5) << n;
    }
}

TEST(Norm, Mistakes) {
    std::vector<Layer> layers;
    const auto mistake = [&](LayerSpec norm, uint32_t H) {
        return std::string(layers_check(of(6, H, H, 0, 4, {std::move(norm), fc(4), loss()}), &layers).what);
    };
    EXPECT_EQ(mistake({.kind = "group_norm", .values = {{"groups", 4}}}, 2),
              "layer group_norm1: 4 groups do not divide the 6 channels of its input");
    EXPECT_EQ(mistake({.kind = "group_norm", .values = {{"groups", 6}}}, 1),
              "layer group_norm1: a group of one value has nothing to normalise it by: take fewer groups");
    EXPECT_EQ(mistake({.kind = "layer_norm", .values = {{"epsilon", 0}}}, 2),
              "layer layer_norm1: its epsilon 0 must be at least 1e-12 and at most 1");
    EXPECT_EQ(mistake({.kind = "layer_norm", .values = {{"groups", 2}}}, 2), "layer layer_norm1: layer_norm has no groups, but epsilon");
}

}   // namespace
}   // namespace gradcast
