// SGD, apply(), the element-wise kernels, and the instruction set of the process.
#include <cstring>
#include <limits>
#include <set>

#include "nn/kernels.h"
#include "tests/nn/rig.h"

namespace gradcast {
namespace {

Layout flat(uint64_t elements) { return {.elements = elements, .groups = {{0, elements, "w"}}, .buckets = {}}; }

const char* optimiser_mistake(const OptimiserConfig& config) {
    Arena arena;
    std::unique_ptr<Optimiser> optimiser;
    return optimiser_plan(config, flat(1), arena, &optimiser).what;
}

TEST(Optimiser, RefusesWhatMakesNoSense) {
    EXPECT_STREQ(optimiser_mistake({.kind = "adams"}), "optimiser.kind \"adams\" is unknown: one of sgd, adam, adamw, lamb");
    EXPECT_STREQ(optimiser_mistake({.schedule = "steps"}), "optimiser.schedule \"steps\" is unknown: one of constant, step, cosine");
    EXPECT_STREQ(optimiser_mistake({.nesterov = true}), "optimiser.nesterov goes with a momentum above 0");
    EXPECT_STREQ(optimiser_mistake({.beta2 = 1}), "optimiser.beta2 1 must be at least 0 and below 1");
    EXPECT_STREQ(optimiser_mistake({.epsilon = 0}), "optimiser.epsilon 0 must be above 0");
    EXPECT_STREQ(optimiser_mistake({.schedule = "step"}), "optimiser.schedule step needs decay_every, a number of steps");
    EXPECT_STREQ(optimiser_mistake({.schedule = "cosine"}), "the schedule cosine needs to know how many steps there are");
    EXPECT_STREQ(optimiser_mistake({.lr_end = NAN}), "optimiser.lr_end nan must be at least 0");
    EXPECT_STREQ(optimiser_mistake({.lr = 0}), "optimiser.lr 0 must be above 0");
    EXPECT_STREQ(optimiser_mistake({.lr = NAN}), "optimiser.lr nan must be above 0");
    EXPECT_STREQ(optimiser_mistake({.momentum = 1}), "optimiser.momentum 1 must be at least 0 and below 1");
    EXPECT_STREQ(optimiser_mistake({.weight_decay = -0.5}), "optimiser.weight_decay -0.5 must be at least 0");
}

TEST(Optimiser, KeysHaveNamesOfTheirOwn) {
    std::set<std::string_view> names = {"kind", "schedule"};
    for (const auto& keys : {optimiser_keys(), schedule_keys()})
        for (const auto& [key, kinds] : keys) {
            EXPECT_TRUE(names.insert(key->name).second) << key->name;
            EXPECT_TRUE(key->in_range(key->value({}))) << key->name;
            EXPECT_FALSE(key->changed({})) << key->name;
        }
}

// Both optimisers list the same object.
TEST(Optimiser, KindsShareAKey) {
    for (const auto& [key, kinds] : optimiser_keys()) {
        const bool all = key == &weight_decay_key || std::string_view(key->name) == "lr";
        EXPECT_EQ(kinds.empty(), all) << key->name;
    }
    EXPECT_STREQ(optimiser_mistake({.kind = "adam", .weight_decay = 0.5}), optimiser_mistake({}));
    EXPECT_STREQ(optimiser_mistake({.kind = "adam", .momentum = 0.5}), "optimiser.momentum goes with kind = \"sgd\", not \"adam\"");
}

TEST(Optimiser, KeepsMomentumOnlyWhereThereIsSome) {
    for (double momentum : {0.0, 0.5}) {
        Arena arena;
        std::unique_ptr<Optimiser> optimiser;
        ASSERT_TRUE(optimiser_plan({.lr = 0.5, .momentum = momentum, .weight_decay = 0.25}, flat(3), arena, &optimiser).ok());
        ASSERT_TRUE(arena.seal().ok());
        EXPECT_EQ(optimiser->state().size(), momentum == 0 ? 0u : 3u);
        std::vector<float> w = {1, 2, 4}, g = {1, -1, 0};
        // Two steps by hand; the second in two pieces.
        optimiser->step(0);
        optimiser->update(0, w, g);
        EXPECT_EQ(w, (std::vector<float>{0.375f, 2.25f, 3.5f}));   // v = g + w/4; w -= v/2
        optimiser->step(1);
        optimiser->update(2, std::span(w).subspan(2), std::span(g).subspan(2));
        optimiser->update(0, std::span(w).first(2), std::span(g).first(2));
        auto m = static_cast<float>(momentum);
        EXPECT_EQ(w[0], 0.375f - 0.5f * (m * 1.25f + (1 + 0.25f * 0.375f)));
        EXPECT_EQ(w[2], 3.5f - 0.5f * (m * 1.0f + 0.25f * 3.5f));
    }
}

// Three steps with gradients {0.5 - t, t, -0.25} from {1, -2, 0.5}: numbers of torch.optim in double precision.
TEST(Optimiser, GivesPyTorchsNumbers) {
    struct Case {
        OptimiserConfig config;
        std::vector<double> want;
    };
    for (const Case& c : {Case{{.lr = 0.125, .momentum = 0.875, .weight_decay = 0.0625, .nesterov = true},
                               {1.2524596089497209, -2.6747426111251116, 0.7111415010876954}},
                          Case{{.kind = "adam", .lr = 0.125, .weight_decay = 0.0625, .beta1 = 0.75, .beta2 = 0.9375, .epsilon = 0.0625},
                               {0.9682571308203363, -2.0999678280960494, 0.7901326896642062}},
                          Case{{.kind = "adamw", .lr = 0.125, .weight_decay = 0.0625, .beta1 = 0.75, .beta2 = 0.9375, .epsilon = 0.0625},
                               {0.9657600793658019, -2.1514499429905896, 0.7860349178314209}}}) {
        Arena arena;
        std::unique_ptr<Optimiser> optimiser;
        ASSERT_TRUE(optimiser_plan(c.config, flat(3), arena, &optimiser).ok());
        ASSERT_TRUE(arena.seal().ok());
        std::fill(optimiser->state().begin(), optimiser->state().end(), 0.0f);
        EXPECT_EQ(optimiser->state().size(), c.config.kind == "sgd" ? 3u : 6u);
        std::vector<float> w = {1, -2, 0.5f};
        for (StepId t = 0; t < 3; ++t) {
            std::vector<float> g = {0.5f - static_cast<float>(t), static_cast<float>(t), -0.25f};
            optimiser->step(t);
            optimiser->update(2, std::span(w).subspan(2), std::span(g).subspan(2));   // two pieces
            optimiser->update(0, std::span(w).first(2), std::span(g).first(2));
        }
        for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(w[i], c.want[i], 1e-6) << c.config.kind;
    }
}

TEST(Schedule, StepCosineAndWarmUp) {
    OptimiserConfig config{.lr = 0.5};
    EXPECT_EQ(learning_rate(config, 1000000), 0.5);
    config.warm_up = 4;
    EXPECT_EQ(learning_rate(config, 0), 0.125);
    EXPECT_EQ(learning_rate(config, 2), 0.375);
    EXPECT_EQ(learning_rate(config, 3), 0.5);
    EXPECT_EQ(learning_rate(config, 4), 0.5);
    config.schedule = "step";
    config.decay_every = 10;
    config.decay = 0.5;
    EXPECT_EQ(learning_rate(config, 9), 0.5);
    EXPECT_EQ(learning_rate(config, 10), 0.25);
    EXPECT_EQ(learning_rate(config, 39), 0.0625);
    // Numbers of torch.optim.lr_scheduler.CosineAnnealingLR; the same after a warm-up; the last value stays.
    const double want[] = {0.5,
                           0.47833693985365416,
                           0.417638394156598,
                           0.32992645430294376,
                           0.23257354569705624,
                           0.14486160584340205,
                           0.08416306014634584,
                           0.0625,
                           0.0625};
    for (uint32_t warm_up : {0u, 3u}) {
        OptimiserConfig cosine{.lr = 0.5, .schedule = "cosine", .warm_up = warm_up, .lr_end = 0.0625, .steps = 7 + warm_up};
        for (StepId step = 0; step < 9; ++step) EXPECT_NEAR(learning_rate(cosine, step + warm_up), want[step], 1e-15);
    }
    // As accurate as the C library's cosine at every step.
    OptimiserConfig fine{.lr = 2, .schedule = "cosine", .steps = 997};
    for (StepId step = 0; step < 997; ++step)
        EXPECT_NEAR(learning_rate(fine, step), 1 + std::cos(M_PI * static_cast<double>(step) / 997), 1e-15);
}

// value = (float)((double)S * unit), rounded once, for both word sizes and each group's unit.
TEST(Apply, TurnsSumsIntoFloatOnce) {
    NetSpec spec{.C = 1, .H = 2, .W = 2, .classes = 3, .layers = {fc(5), fc(3), loss()}};
    for (Word word : {Word::i16, Word::i32, Word::i64}) {
        Rig rig(spec, sizes({1}), {.lr = 1});
        const Layout& layout = rig.net->layout();
        ASSERT_EQ(layout.buckets.size(), 1u);
        std::vector<float> before(rig.net->parameters().begin(), rig.net->parameters().end());
        std::vector<int16_t> small;
        std::vector<int32_t> narrow;
        std::vector<int64_t> wide;
        std::mt19937_64 random(3);
        for (uint64_t i = 0; i < layout.elements; ++i) {
            narrow.push_back(i == 0 ? std::numeric_limits<int32_t>::min() : static_cast<int32_t>(random()));
            small.push_back(static_cast<int16_t>(i == 0 ? std::numeric_limits<int16_t>::min() : narrow[i]));
            wide.push_back(word == Word::i16 ? small[i] : word == Word::i32 ? narrow[i] : static_cast<int64_t>(random()) >> 12);
        }
        void* words = word == Word::i16   ? static_cast<void*>(small.data())
                      : word == Word::i32 ? static_cast<void*>(narrow.data())
                                          : wide.data();
        const double units[] = {0x1p-30 / 3, 0x1p-20 / 7};
        uint64_t digest = 0;
        rig.optimiser->step(0);
        ASSERT_TRUE(rig.net->apply(rig.lanes, *rig.optimiser, sums_of(layout, words, word, units), &digest).ok());
        for (size_t g = 0; g < 2; ++g)
            for (uint64_t i = layout.groups[g].offset; i < layout.groups[g].offset + layout.groups[g].count; ++i)
                EXPECT_EQ(rig.net->parameters()[i], before[i] - static_cast<float>(static_cast<double>(wide[i]) * units[g])) << i;
    }
}

// Several lanes give the bits of one: layers of many pieces, copies of weights, statistics.
TEST(Apply, GivesTheSameBitsWhateverTheLanes) {
    const NetSpec spec{
        .C = 3, .H = 12, .W = 12, .classes = 3, .layers = {conv(9, 3), norm(), relu(), conv(16, 3), fc(200), relu(), fc(3), loss()}};
    for (const OptimiserConfig& optimiser : {OptimiserConfig{.momentum = 0.9}, OptimiserConfig{.kind = "adam", .lr = 0.01},
                                             OptimiserConfig{.kind = "adamw", .lr = 0.01, .weight_decay = 0.1},
                                             OptimiserConfig{.kind = "lamb", .lr = 0.01, .weight_decay = 0.1, .ema = 0.5}}) {
        Rig one(spec, sizes({4}, 3), optimiser), three(spec, sizes({4}, 3), optimiser);
        ASSERT_GT(one.net->layout().elements, 200'000u);
        ASSERT_TRUE(three.lanes.open(3).ok());
        Data data(spec, 4);
        for (StepId step = 0; step < 3; ++step) {
            one.step(step, one.block(data.samples).gradient, 4);
            three.step(step, three.block(data.samples, step % 3).gradient, 4);
            EXPECT_EQ(one.net->digest(), three.net->digest());
            EXPECT_EQ(one.optimiser->digest(0), three.optimiser->digest(0));
        }
    }
}

// apply() refreshes every copy of the parameters, as refresh() does.
TEST(Apply, RefreshesWhatKernelsKeep) {
    NetSpec spec;
    ASSERT_TRUE(preset_find("lenet5", 3, 32, 32, 10, &spec).ok());
    Rig rig(spec, sizes({4})), fresh(spec, sizes({4}));
    Data data(spec, 4);
    rig.step(0, rig.block(data.samples).gradient, 4);
    std::copy(rig.net->parameters().begin(), rig.net->parameters().end(), fresh.net->parameters().begin());
    fresh.net->refresh();
    Gather a = rig.block(data.samples), b = fresh.block(data.samples);
    EXPECT_EQ(a.total, b.total);
    EXPECT_EQ(0, std::memcmp(a.gradient.data(), b.gradient.data(), a.gradient.size() * sizeof(float)));
}

// Every build of the element-wise kernels gives the same bits, also for odd counts and special values.
TEST(Kernels, AreEqualOnEveryInstructionSet) {
    const uint64_t count = 1003;
    std::mt19937_64 random(5);
    std::normal_distribution<float> normal;
    std::vector<float> x(count), y(count);
    std::vector<uint8_t> pixels(count);
    std::vector<int32_t> narrow(count);
    std::vector<int64_t> wide(count);
    for (uint64_t i = 0; i < count; ++i) {
        x[i] = normal(random);
        y[i] = normal(random);
        pixels[i] = static_cast<uint8_t>(random());
        narrow[i] = static_cast<int32_t>(random());
        wide[i] = static_cast<int64_t>(random());
    }
    x[1] = -0.0f;
    x[2] = NAN;
    x[3] = INFINITY;
    x[4] = -INFINITY;
    x[5] = 1e-42f;
    auto run = [&](Isa isa) {
        const FloatKernels& k = float_kernels(isa);
        std::vector<std::vector<float>> results;
        auto out = [&](auto&& f) {
            std::vector<float> to(x);
            f(to.data());
            results.push_back(to);
        };
        out([&](float* to) { k.normalise(to, pixels.data(), count, 0.0131f, -0.42f); });
        out([&](float* to) { k.relu(to, count); });
        out([&](float* to) { k.relu_backward(to, y.data(), count); });
        out([&](float* to) { k.dequantise_i32(to, narrow.data(), count, 0x1p-20 / 3); });
        out([&](float* to) { k.dequantise_i64(to, wide.data(), count, 0x1p-50 / 3); });
        out([&](float* to) { k.sgd(to, nullptr, y.data(), count, 0.1f, 0, 0.01f); });
        std::vector<float> v(y);
        out([&](float* to) { k.sgd(to, v.data(), y.data(), count, 0.1f, 0.9f, 0.01f); });
        out([&](float* to) { k.nesterov(to, v.data(), y.data(), count, 0.1f, 0.9f, 0.01f); });
        std::vector<float> moments(count, 0.25f);
        out([&](float* to) {
            k.adam(to, v.data(), moments.data(), y.data(), count, {0.9f, 0.1f, 0.99f, 0.01f, 0.1f, 1.1f, 1e-8f, 0.01f});
        });
        results.push_back(moments);
        out([&](float* to) { k.add(to, to, y.data(), count); });
        for (uint32_t stride : {1u, 2u}) out([&](float* to) { k.dropout(to, count, {7, 0x123456789abcdef0, 77, stride, 20000, 1.5f}); });
        for (uint32_t width : {8u, 16u}) {
            ChannelShape s{.samples = 2, .groups = 2, .width = width, .pixels = 13};   // at most 832 values
            std::vector<double> sums(2 * width), squares(2 * width), products(2 * width);
            k.channel_sums(sums.data(), y.data(), nullptr, s);
            k.channel_sums(squares.data(), y.data(), y.data() + 900, s);
            k.channel_products(products.data(), sums.data(), y.data(), y.data() + 50, y.data() + 900, s);
            for (const auto* of : {&sums, &squares, &products}) {
                double check = 0;   // a fixed order
                for (double each : *of) check += each;
                results.push_back({static_cast<float>(check), static_cast<float>((*of)[3])});
            }
            out([&](float* to) { k.channel_affine(to, y.data(), y.data() + 900, y.data() + 1, y.data() + 40, s); });
            out([&](float* to) {
                k.channel_affine_backward(to, y.data(), y.data() + 50, y.data() + 900, y.data() + 1, y.data() + 40, y.data() + 70, s);
            });
        }
        results.push_back(v);
        for (uint32_t width : {8u, 16u})
            for (PoolShape s : {PoolShape{2, 4, 6, 2, 3, 2, 2, 0, width}, PoolShape{1, 7, 5, 4, 3, 3, 2, 1, width},
                                PoolShape{1, 7, 7, 2, 2, 2, 3, 0, width}}) {
                std::vector<float> pooled(uint64_t{s.planes} * s.P * s.Q * width), dx(uint64_t{s.planes} * s.H * s.W * width, NAN);
                std::vector<uint8_t> winners(pooled.size());
                k.max_pool(pooled.data(), winners.data(), x.data(), s);
                k.max_pool_backward(dx.data(), y.data(), winners.data(), s);
                results.insert(results.end(), {pooled, dx});
                k.average_pool(pooled.data(), y.data(), s);
                k.average_pool_backward(dx.data(), y.data(), s);
                results.insert(results.end(), {pooled, dx});
            }
        return results;
    };
    auto portable = run(Isa::portable);
    for (Isa isa : {Isa::avx2, Isa::avx512}) {
        if (isa > isa_best()) continue;
        auto other = run(isa);
        ASSERT_EQ(portable.size(), other.size());
        for (size_t i = 0; i < portable.size(); ++i)
            EXPECT_EQ(0, std::memcmp(portable[i].data(), other[i].data(), portable[i].size() * sizeof(float))) << isa_name(isa) << " " << i;
    }
    EXPECT_TRUE(std::isnan(portable[1][2]));   // ReLU keeps NaN
    EXPECT_EQ(portable[1][4], 0.0f);
}

TEST(Kernels, PoolingTakesTheFirstMaximumAndNanFirst) {
    const PoolShape shape{1, 2, 4, 1, 2, 2, 2, 0, 8};
    std::vector<float> x(64, 1.0f), y(16), dx(64, NAN), dy(16, 3.0f);
    x[8 + 1] = 2;   // first window, channel 1: places 1 and 2 are equal
    x[4 * 8 + 1] = 2;
    x[2] = -5;   // channel 2: NaN at place 1
    x[8 + 2] = NAN;
    std::vector<uint8_t> winners(16, 255);
    const FloatKernels& kernels = float_kernels(isa_best());
    kernels.max_pool(y.data(), winners.data(), x.data(), shape);
    kernels.max_pool_backward(dx.data(), dy.data(), winners.data(), shape);
    EXPECT_EQ(y[0], 1);
    EXPECT_EQ(winners[0], 0);
    EXPECT_EQ(y[1], 2);
    EXPECT_EQ(winners[1], 1);
    EXPECT_TRUE(std::isnan(y[2]));
    EXPECT_EQ(winners[2], 1);
    EXPECT_EQ(dx[0], 3);
    EXPECT_EQ(dx[8], 0);
    EXPECT_EQ(dx[8 + 1], 3);
    EXPECT_EQ(dx[4 * 8 + 1], 0);
    float sum = 0;
    for (float d : dx) sum += d;
    EXPECT_EQ(sum, 48);
}

// The instruction set is fixed once a process, so each one runs in a child.
void isa_child(Isa isa) {
    NetSpec spec;
    Status status = nn_isa(isa);
    if (status.ok()) status = preset_find("lenet5", 1, 28, 28, 10, &spec);
    if (status.ok()) {
        Rig rig(spec, sizes({4}));
        Data data(spec, 4);
        Gather gather = rig.block(data.samples);
        status = nn_isa(isa);   // the same level again is allowed
        if (status.ok()) status = nn_isa(isa == Isa::portable ? Isa::avx2 : Isa::portable);
    }
    std::fputs(status.what, stderr);
    std::exit(status.code == Code::unsupported ? 0 : 1);
}
TEST(IsaDeathTest, IsFixedBeforeTheFirstNet) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_EXIT(isa_child(Isa::portable), testing::ExitedWithCode(0), "isa .* comes too late|this CPU has");
    for (Isa isa : {Isa::avx2, Isa::avx512}) {
        if (isa > isa_best()) continue;
        EXPECT_EXIT(isa_child(isa), testing::ExitedWithCode(0), "isa portable comes too late: this process already computes with");
    }
}

}   // namespace
}   // namespace gradcast
