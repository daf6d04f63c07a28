// Precision::bf16: gradients close to float's, bits that do not depend on lanes and block sizes, and training works.
#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <thread>

#include "nn/kernels.h"
#include "runtime/core/fd.h"
#include "tests/nn/nets.h"

namespace gradcast {
namespace {

constexpr char missing[] = "this CPU has neither AVX512-BF16 nor AMX";
bool here() { return isa_best() >= Isa::avx512_bf16; }

NetConfig bf16(std::vector<uint32_t> block_sizes, uint32_t lanes = 1) {
    NetConfig config = sizes(std::move(block_sizes), lanes);
    config.precision = Precision::bf16;
    return config;
}
/// Odd shapes: few and many channels, strides, padding, no bias, a branch, bf16 and float between layers.
std::vector<std::pair<const char*, NetSpec>> nets() {
    LayerSpec bare = conv(20, 3, 1, 1);
    bare.values.set("bias", false);
    return {
        {"inner_product", of(3, 5, 3, 0, 4, {fc(13), relu(), fc(4), loss()})},
        {"conv", of(3, 11, 9, 0, 5, {conv(7, 3, 2, 1), relu(), conv(17, 2), relu(), conv(33, 1), fc(5), loss()})},
        {"conv_to_loss", of(17, 6, 6, 0, 3, {conv(20, 4), conv(3, 3), loss()})},
        {"strides", of(19, 13, 10, 1, 4, {conv(24, 3, 2), relu(), conv(21, 3, 3, 2), relu(), bare, fc(4), loss()})},
        {"pools", of(3, 13, 10, 0, 4, {conv(19, 3, 1, 1), relu(), max_pool(3, 2, 1), conv(40, 2), relu(), average_pool(2), fc(4), loss()})},
        {"wide", of(16, 15, 13, 0, 4,
                    {conv(32, 5, 1, 2), relu(), conv(48, 3), max_pool(3, 2), conv(16, 5, 1, 1), average_pool(2, 1), fc(4), loss()})},
        {"branch", of(2, 7, 7, 0, 4,
                      {named(conv(16, 3, 2, 1), "a"), conv(18, 3, 1, 1), named(conv(18, 1), "b"), named(conv(18, 1), "c", "a"), add("b"),
                       relu(), fc(4), loss()})},
        {"shortcut_first", of(2, 7, 7, 0, 4,
                              {named(conv(16, 3, 1, 1), "x"), named(conv(32, 1), "s"), named(conv(16, 3, 1, 1), "c", "x"), relu(),
                               conv(32, 3, 1, 1), add("s"), relu(), fc(4), loss()})},
        {"everything", everything()},
        {"encoder_decoder", encoder_decoder()},
        {"nin", of(3, 9, 9, 0, 5,
                   {conv(48, 5, 1, 2), relu(), conv(32, 1), relu(), conv(24, 1), relu(), max_pool(3, 2), dropout(0.5), conv(48, 3, 1, 1),
                    relu(), conv(5, 1), relu(), global_pool(), loss()})},
        {"lenet5", preset("lenet5")},
        {"cnn", preset("cnn", 3, 32)},
        {"mlp", preset("mlp")}};
}

/// Compares the gradients of one block in both precisions.
void expect_near(const char* name, const NetSpec& spec, uint32_t count, double share) {
    Rig exact(spec, sizes({count})), rig(spec, bf16({count}));
    Data data(spec, count);
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (float& w : exact.net->parameters()) w += 0.02f * normal(random);   // initial biases are 0
    std::copy(exact.net->parameters().begin(), exact.net->parameters().end(), rig.net->parameters().begin());
    exact.net->refresh();
    rig.net->refresh();
    Gather wanted = exact.block(data.samples), found = rig.block(data.samples);
    std::string layer;
    const double apart = distance(rig.net->layout(), wanted.gradient, found.gradient, &layer);
    EXPECT_LT(apart, share) << name << ", " << count << " samples, layer " << layer;
    EXPECT_FALSE(same_bits(wanted.gradient, found.gradient)) << name;
    EXPECT_NEAR(wanted.total, found.total, 0.02 * std::abs(wanted.total)) << name;
    EXPECT_NEAR(exact.loss(data.samples), rig.loss(data.samples), 0.02 * std::abs(wanted.total)) << name;
}

// A product of two bf16 has a relative error up to 2^-8, a sum of many a smaller one.  ReLU and max pooling that switch near their kinks
// add more; a wrong or missing term has a relative error of about 1.
void gradients_are_near() {
    for (const auto& [name, spec] : nets())
        for (uint32_t count : {1u, 7u, 16u}) {
            if (count == 1 && (std::string(name) == "everything" || std::string(name) == "encoder_decoder"))
                continue;                               // batch norm of one sample
            if (count != 7 && spec.H >= 28) continue;   // large nets: one count
            expect_near(name, smooth(spec), count, 0.05);
            expect_near(name, spec, count, 0.35);
        }
}

TEST(Bf16, GradientsAreNearFloats) {
    if (!here()) GTEST_SKIP() << missing;
    gradients_are_near();
}

TEST(Bf16, BlockBitsDependOnTheBlockAlone) {
    if (!here()) GTEST_SKIP() << missing;
    for (const char* name : {"cnn", "mlp", "everything"}) {
        NetSpec spec = name == std::string("everything") ? everything() : preset(name);
        Rig alone(spec, bf16({12, 13}));
        Data a(spec, 13, 1), b(spec, 12, 2);
        const std::vector<float> bits_a = alone.block(a.samples).gradient, bits_b = alone.block(b.samples).gradient;
        Rig both(spec, bf16({12, 13, 40}, 2));
        bool same[2] = {true, true};
        std::thread threads[2];
        for (uint32_t lane : {0u, 1u})
            threads[lane] = std::thread([&, lane] {
                for (StepId step = 0; step < 10; ++step) {
                    const bool first = (lane + step) % 2;
                    same[lane] = same[lane] && same_bits(first ? bits_a : bits_b, both.block(first ? a.samples : b.samples, lane).gradient);
                }
            });
        for (std::thread& thread : threads) thread.join();
        EXPECT_TRUE(same[0] && same[1]) << name;
    }
}

TEST(Bf16, NothingComesFromMemoryThatABlockDidNotWrite) {
    if (!here()) GTEST_SKIP() << missing;
    for (const auto& [name, spec] : nets()) {
        Rig rig(spec, bf16({5, 8}));
        Data data(spec, 5), batch(spec, 3);
        const std::vector<float> parameters(rig.net->parameters().begin(), rig.net->parameters().end());
        const std::vector<float> clean = rig.block(data.samples).gradient;
        const double loss = rig.loss(batch.samples);
        auto poison = [&] {
            std::memset(rig.arena.whole().host, 0xff, rig.arena.whole().bytes);   // NaN in float and bf16
            std::copy(parameters.begin(), parameters.end(), rig.net->parameters().begin());
            rig.net->refresh();
        };
        poison();
        EXPECT_TRUE(same_bits(clean, rig.block(data.samples).gradient)) << name;
        poison();
        EXPECT_EQ(loss, rig.loss(batch.samples)) << name;
    }
}

TEST(Bf16, Learns) {
    if (!here()) GTEST_SKIP() << missing;
    for (const char* name : {"lenet5", "cnn"}) {
        NetSpec spec = preset(name);
        Rig rig(spec, bf16({32}), {.kind = "sgd", .lr = 0.02, .momentum = 0.9});
        Data data(spec, 32);
        const double before = rig.loss(data.samples);
        for (StepId step = 0; step < 12; ++step) rig.step(step, rig.block(data.samples, 0, step).gradient, 32);
        EXPECT_LT(rig.loss(data.samples), 0.9 * before) << name;
    }
}

TEST(Bf16, NanReachesLossAndGradient) {
    if (!here()) GTEST_SKIP() << missing;
    NetSpec spec = of(16, 8, 8, 0, 3, {conv(32, 3), relu(), conv(16, 3), relu(), fc(3), loss()});
    Rig rig(spec, bf16({4}));
    Data data(spec, 4);
    rig.net->parameters()[3] = NAN;
    rig.net->refresh();
    Gather at = rig.block(data.samples);
    EXPECT_TRUE(std::isnan(at.total));
    EXPECT_TRUE(std::isnan(at.gradient.back()));
}

TEST(Bf16, ReluKernelsAreThoseOfFloat) {
    std::vector<uint16_t> all(65536);
    for (uint32_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
    auto number = [](uint16_t half) { return std::bit_cast<float>(uint32_t{half} << 16); };
    for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
        if (isa > isa_best()) continue;
        const FloatKernels& kernels = float_kernels(isa);
        std::vector<uint16_t> y = all, dx(all.size(), 0x4040);
        std::vector<float> wide(all.size()), gradient(all.size(), 3.0f);
        for (size_t i = 0; i < all.size(); ++i) wide[i] = number(all[i]);
        kernels.relu_bf16(y.data(), y.size());
        kernels.relu(wide.data(), wide.size());
        kernels.relu_backward_bf16(dx.data(), all.data(), all.size());
        for (size_t i = 0; i < all.size(); ++i) {
            ASSERT_EQ(std::bit_cast<uint32_t>(number(y[i])), std::bit_cast<uint32_t>(wide[i])) << i;
            ASSERT_EQ(number(dx[i]), number(all[i]) > 0 ? 3.0f : 0.0f) << i;
        }
    }
}

// The instruction set is fixed once a process, so each one runs in a child.  AMX multiplies floats in some nets, too.
std::string float_bits(Isa isa) {
    uint64_t digest = 1469598103934665603u;
    for (const auto& [name, spec] : nets()) {
        const std::string known = name;
        const bool tiled = known == "nin" || known == "shortcut_first";
        Rig rig(spec, sizes({7}));
        EXPECT_STREQ(rig.net->kernels(), tiled && isa == Isa::amx ? "amx" : "avx512");
        if (tiled) continue;
        Data data(spec, 7);
        for (float g : rig.block(data.samples).gradient) digest = (digest ^ std::bit_cast<uint32_t>(g)) * 1099511628211u;
    }
    return fmt::format("{:016x}", digest);
}
std::string bits_file(Isa isa) { return testing::TempDir() + "gradcast_float_bits_" + isa_name(isa); }

void plans(Isa isa) {
    NetSpec spec = preset("lenet5");
    Arena arena;
    std::unique_ptr<Net> net;
    Status status = nn_isa(isa);
    if (status.ok()) status = net_cpu_plan(spec, bf16({4}), arena, &net);
    std::fputs(status.ok() ? net->kernels() : status.what, stderr);
    std::exit(0);
}
void computes(Isa isa) {
    if (!nn_isa(isa).ok()) std::exit(2);
    if (isa > Isa::avx512) gradients_are_near();
    const bool wrong = testing::Test::HasFailure() || !file_write(bits_file(isa), float_bits(isa)).ok();
    std::exit(wrong);
}

TEST(Bf16DeathTest, LevelsAreNamedAndFloatIsTheSameWhereAmxHasNoPart) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    const auto clean = testing::ExitedWithCode(0);
    if (!here()) {
        EXPECT_EXIT(plans(isa_best()), clean,
                    "precision bf16 needs AVX512-BF16 or AMX, and this CPU has neither: take f32, or nodes that have it");
        GTEST_SKIP() << missing;
    }
    for (Isa isa : {Isa::portable, Isa::avx512})
        EXPECT_EXIT(plans(isa), clean,
                    fmt::format("precision bf16 needs AVX512-BF16 or AMX, which this CPU has and isa {} leaves out: take isa {}, or f32",
                                isa_name(isa), isa_name(isa_best())));
    EXPECT_EXIT(plans(Isa::avx512_bf16), clean, "bf16-avx512");
    if (isa_best() == Isa::amx) {
        EXPECT_EXIT(plans(Isa::amx), clean, "bf16-amx");
    }
    EXPECT_EXIT(computes(Isa::avx512), clean, "");
    EXPECT_EXIT(computes(Isa::avx512_bf16), clean, "");
    // The parent only, from here on.
    const std::string own = float_bits(isa_best());
    for (Isa isa : {Isa::avx512, Isa::avx512_bf16}) {
        std::string bits;
        ASSERT_TRUE(file_read(bits_file(isa), &bits).ok());
        EXPECT_EQ(bits, own) << isa_name(isa);
    }
}

}   // namespace
}   // namespace gradcast
