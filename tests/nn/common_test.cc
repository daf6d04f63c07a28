// The kernel set `common`: one result on every CPU with AVX2 or AVX-512, and no layer of oneDNN.
#include <fmt/format.h>

#include "tests/nn/nets.h"

namespace gradcast {
namespace {

/// Three steps of two blocks of unequal size.
uint64_t trained(const NetSpec& spec) {
    Rig rig(spec, sizes({20, 33}, 1), {.kind = "adam", .lr = 0.01});
    for (StepId step = 0; step < 3; ++step) {
        std::vector<float> sum(rig.net->layout().elements);
        for (uint32_t b = 0; b < 2; ++b) {
            const Data data(spec, b ? 33 : 20, static_cast<uint32_t>(2 * step + b));
            Gather found(rig.net->layout());
            EXPECT_TRUE(rig.net->block(0, {step, b}, data.samples, found).ok());
            for (size_t i = 0; i < sum.size(); ++i) sum[i] += found.gradient[i];
        }
        rig.step(step, sum, 53);
    }
    return rig.net->digest() + rig.optimiser->digest(rig.net->layout().elements);
}

/// Dot products of every remainder of 16 lanes, in pieces and whole.
NetSpec dots() {
    return {.C = 1, .H = 5, .W = 7, .pad = 0, .classes = 11, .layers = {fc(37), relu(), fc(24), norm(), fc(50), fc(11), loss()}};
}

/// Upsampling, and channels joined.
NetSpec maps() {
    return {.C = 3,
            .H = 8,
            .W = 8,
            .classes = 11,
            .layers = {conv(16, 3), named(relu(), "r"), upsample(2, true), conv(16, 3, 1, 1), upsample(3), average_pool(6, 6), concat("r"),
                       conv(16, 5, 1, 2), upsample(3, true), max_pool(2), relu(), fc(11), loss()}};
}

void trains(Isa isa, const NetSpec& spec) {
    if (!nn_isa(isa).ok()) std::exit(2);
    fmt::print(stderr, "{:016x}", trained(spec));
    std::exit(testing::Test::HasFailure());
}

// What these digests are, an AVX2 CPU and an AVX-512 CPU have to agree on.  The instruction set is fixed once a process.
TEST(CommonDeathTest, HasTheDigestsOfEveryLevelWithFusedMultiplyAdd) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    const std::tuple<const char*, NetSpec, const char*> nets[] = {{"lenet5", preset("lenet5", 1, 28), "07a9c70af2a0ea1c"},
                                                                  {"mlp", preset("mlp", 1, 28), "743c0164d49eff05"},
                                                                  {"cnn", preset("cnn", 3, 32), "5fcecffdaa095305"},
                                                                  {"dots", dots(), "79487aa285e93cb7"},
                                                                  {"maps", maps(), "d67bd6ba603828fe"}};
    for (const auto& [name, spec, digest] : nets)
        for (Isa isa : {Isa::common, Isa::avx2, Isa::avx512})
            if (isa <= isa_best()) {
                EXPECT_EXIT(trains(isa, spec), testing::ExitedWithCode(0), digest) << name << " " << isa_name(isa);
            }
}

void says_why(const NetSpec& spec, NetConfig config) {
    if (!nn_isa(Isa::common).ok() || nn_isa() != Isa::common) std::exit(2);
    Arena arena;
    std::unique_ptr<Net> net;
    const Status status = net_cpu_plan(spec, config, arena, &net);
    fmt::print(stderr, "{}", status.what);
    std::exit(status.code == Code::unsupported ? 0 : 1);
}

TEST(CommonDeathTest, RefusesWhatOneDnnComputes) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    if (isa_best() < Isa::avx2) GTEST_SKIP() << "this CPU has no AVX2";
    EXPECT_EXIT(says_why(everything(), sizes({4}, 1)), testing::ExitedWithCode(0),
                "layer conv1: isa = \"common\" has no kernel for its forward pass, because oneDNN computes it .* take another isa");
    const LayerSpec apart = grouped(conv(16, 3), 16), up = conv_transposed(16, 2, 2);
    for (const auto& [layer, name] : {std::pair{apart, "conv2"}, {up, "conv_transposed1"}}) {
        const NetSpec spec{.C = 3, .H = 8, .W = 8, .layers = {conv(16, 3), layer, fc(10), loss()}};
        EXPECT_EXIT(says_why(spec, sizes({4}, 1)), testing::ExitedWithCode(0),
                    fmt::format("layer {}: isa = \"common\" has no kernel for its forward pass", name));
    }
    NetConfig half = sizes({16}, 1);
    half.precision = Precision::bf16;
    EXPECT_EXIT(says_why(preset("mlp", 1, 28), half), testing::ExitedWithCode(0), "precision bf16 needs AVX512-BF16 or AMX");
}

/// Convolutions of images of 2x2.
NetSpec small_images() {
    return {.C = 3,
            .H = 8,
            .W = 8,
            .classes = 10,
            .layers = {conv(16, 3), max_pool(3), conv(128, 3, 1, 1), conv(128, 3, 1, 1), fc(10), loss()}};
}

// oneDNN's copies of weights are as large as the weights; those of tiles are 4 times as large.
TEST(CommonDeathTest, AloneComputesImagesOf2x2InTiles) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    if (isa_best() >= Isa::avx2) {
        EXPECT_EXIT(trains(Isa::common, small_images()), testing::ExitedWithCode(0), "");
    }
    Arena arena;
    std::unique_ptr<Net> net;
    ASSERT_TRUE(net_cpu_plan(small_images(), sizes({4}, 1), arena, &net).ok());
    const MemoryUse use = arena.use("");
    const auto copies = std::ranges::find(use.bytes, std::string("copies of weights"), &std::pair<std::string, uint64_t>::first);
    ASSERT_NE(copies, use.bytes.end());
    EXPECT_LE(copies->second, 2u << 20);
}

void comes_late() {
    if (!nn_isa(Isa::avx2).ok()) std::exit(2);
    (void)trained(dots());
    const Status status = nn_isa(Isa::common);
    fmt::print(stderr, "{}", status.what);
    std::exit(status.ok() || nn_isa() != Isa::avx2);
}

TEST(CommonDeathTest, ComesTooLateBehindANetOfAnotherLevel) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    if (isa_best() < Isa::avx2) GTEST_SKIP() << "this CPU has no AVX2";
    EXPECT_EXIT(comes_late(), testing::ExitedWithCode(0), "isa common comes too late: this process already computes with avx2");
}

}   // namespace
}   // namespace gradcast
