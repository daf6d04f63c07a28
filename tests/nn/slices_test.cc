// Sliced layers: against double loops, against layers that are the slices alone, and their sums in the order of the tree.
#include "nn/graph/slices.h"

#include <cmath>
#include <numeric>

#include "runtime/core/elementary.h"
#include "tests/nn/sliced.h"

namespace gradcast {
namespace {

/// Sets all parameters of a layer's weights or biases.
void set(Rig& rig, const std::string& layer, bool biases, const std::vector<float>& values) {
    std::vector<Layer> layers;
    ASSERT_TRUE(layers_check(rig.net->spec(), &layers).ok());
    for (const Layer& each : layers) {
        if (each.spec.name != layer) continue;
        ASSERT_EQ(values.size(), biases ? each.biases : each.weights);
        std::ranges::copy(values, rig.net->parameters().begin() + static_cast<int64_t>(biases ? each.bias_offset : each.offset));
    }
    rig.net->refresh();
}

float tree(std::span<const float> parts) {
    if (parts.size() == 1) return parts[0];
    return tree(parts.first(parts.size() / 2)) + tree(parts.last(parts.size() / 2));
}

// ---- values ---------------------------------------------------------------------------------------------------------

/// Loss and gradient of fc1, ReLU, fc2 and softmax, in double.
struct Loops {
    double loss = 0;
    std::vector<double> gradient;
    Loops(const Rig& rig, const Data& data, uint32_t C, uint32_t K1, uint32_t K2)
        : gradient(uint64_t{K1} * C + K1 + uint64_t{K2} * K1 + K2) {
        const std::span<const float> all = const_cast<Rig&>(rig).net->parameters();
        const float *w1 = all.data(), *b1 = w1 + uint64_t{K1} * C, *w2 = b1 + K1, *b2 = w2 + uint64_t{K2} * K1;
        double *dw1 = gradient.data(), *db1 = dw1 + uint64_t{K1} * C, *dw2 = db1 + K1, *db2 = dw2 + uint64_t{K2} * K1;
        for (uint32_t n = 0; n < data.samples.count; ++n) {
            std::vector<double> x(C), h(K1), y(K2), dh(K1);
            for (uint32_t c = 0; c < C; ++c) x[c] = (static_cast<double>(data.images[n * C + c]) / 255 - data.mean[0]) / data.std[0];
            for (uint32_t k = 0; k < K1; ++k) {
                h[k] = b1[k];
                for (uint32_t c = 0; c < C; ++c) h[k] += static_cast<double>(w1[k * C + c]) * x[c];
                h[k] = std::max(h[k], 0.0);
            }
            double largest = -1e300, sum = 0;
            for (uint32_t k = 0; k < K2; ++k) {
                y[k] = b2[k];
                for (uint32_t c = 0; c < K1; ++c) y[k] += static_cast<double>(w2[k * K1 + c]) * h[c];
                largest = std::max(largest, y[k]);
            }
            for (uint32_t k = 0; k < K2; ++k) sum += std::exp(y[k] - largest);
            const auto label = static_cast<uint32_t>(data.labels[n]);
            loss += std::log(sum) + largest - y[label];
            for (uint32_t k = 0; k < K2; ++k) {
                const double dy = std::exp(y[k] - largest) / sum - (k == label);
                db2[k] += dy;
                for (uint32_t c = 0; c < K1; ++c) dw2[k * K1 + c] += dy * h[c], dh[c] += dy * w2[k * K1 + c];
            }
            for (uint32_t k = 0; k < K1; ++k) {
                if (h[k] <= 0) continue;
                db1[k] += dh[k];
                for (uint32_t c = 0; c < C; ++c) dw1[k * C + c] += dh[k] * x[c];
            }
        }
    }
};

TEST(Slices, InnerProductsAreThoseOfDoubleLoops) {
    constexpr uint32_t H = 6, W = 9, K1 = 77, K2 = 13;   // no slices of equal size
    for (const uint32_t samples : {3u, 50u})             // kernels of few samples, and of many
        for (const uint32_t slices : {1u, 2u, 4u, 8u}) {
            SCOPED_TRACE(fmt::format("{} samples, {} slices", samples, slices));
            const NetSpec spec = cut(of(1, H, W, 0, K2, {fc(K1), relu(), fc(K2), loss()}), slices, {"fc1", "fc2"});
            Rig rig(spec, sizes({samples}));
            set(rig, "fc1", true, numbers(K1, 3));
            set(rig, "fc2", true, numbers(K2, 4));
            Data data(spec, samples);
            const Gather found = rig.block(data.samples);
            const Loops wanted(rig, data, H * W, K1, K2);
            EXPECT_NEAR(found.total, wanted.loss, 1e-5 * std::abs(wanted.loss));
            double most = 0;
            for (const double each : wanted.gradient) most = std::max(most, std::abs(each));
            for (size_t i = 0; i < wanted.gradient.size(); ++i)
                ASSERT_NEAR(found.gradient[i], wanted.gradient[i], 2e-5 * most) << "element " << i;
            EXPECT_NEAR(rig.loss(data.samples), wanted.loss, 1e-5 * std::abs(wanted.loss));
        }
}

// The gradients of whole layers, which other tests compare with slopes.
TEST(Slices, LayersOfEachKernelHaveTheGradientsOfWholeOnes) {
    struct Case {
        const char* name;
        NetSpec spec;
        uint32_t samples;
    };
    const Case cases[] = {
        {"few channels and pooling", of(3, 12, 10, 0, 4, {conv(32, 3), max_pool(2), relu(), fc(9), relu(), fc(4), loss()}), 5},
        {"few channels", of(3, 9, 9, 0, 4, {conv(32, 2), fc(4), loss()}), 20},
        {"few channels, again", of(3, 9, 9, 0, 4, {conv(8, 2), conv(32, 3), conv(32, 1), fc(4), loss()}), 32},
        {"many channels", of(3, 9, 7, 0, 4, {conv(16, 3, 1, 1), conv(64, 3, 1, 1), conv(32, 5, 1, 2), conv(32, 1), fc(4), loss()}), 5},
        {"strides", of(3, 9, 9, 1, 4, {conv(32, 3, 2, 1), relu(), conv(64, 3, 2), fc(4), loss()}), 5},
        {"several readers",
         of(3, 6, 6, 0, 4,
            {conv(32, 3, 1, 1), named(relu(), "r"), conv(32, 3, 1, 1), add("r"), norm(), average_pool(2), fc(9), fc(4), loss()}),
         5},
        {"without bias",
         of(2, 6, 5, 0, 4,
            {{.kind = "conv", .values = {{"outputs", 32}, {"kernel", 2}, {"pad", 1}, {"bias", false}}},
             {.kind = "inner_product", .values = {{"outputs", 5}, {"bias", false}}},
             fc(4),
             squared_loss()}),
         5},
        {"a transformer", small_gpt(), 4},
        {"weights that layers share", tied_gpt(), 4},
        {"more rows than positions", small_text(90, 6), 3},
        {"masks", of_masks(), 5}};
    for (const auto& [name, spec, samples] : cases) {
        SCOPED_TRACE(name);
        std::vector<Layer> layers;
        ASSERT_TRUE(layers_check(spec, &layers).ok());
        std::vector<std::string> names;
        for (const Layer& layer : layers)
            if (layer.kind->slice_unit == 1 || (layer.kind->slice_unit > 0 && layer.out.C % 32 == 0)) names.push_back(layer.spec.name);
        Rig rig(cut(spec, 2, names), sizes({samples})), whole(spec, sizes({samples}));
        Data data(spec, samples);
        const Gather wanted = whole.block(data.samples), found = rig.block(data.samples);
        EXPECT_NEAR(found.total, wanted.total, 1e-5 * wanted.total);
        EXPECT_NEAR(rig.loss(data.samples), whole.loss(data.samples), 1e-5 * wanted.total);
        std::string where;
        EXPECT_LT(distance(whole.net->layout(), wanted.gradient, found.gradient, &where), 1e-5) << where;
    }
}

TEST(Slices, SlopesOfLinearLayersAreThoseOfTheLoss) {
    for (const uint32_t slices : {2u, 4u}) {
        SCOPED_TRACE(fmt::format("{} slices", slices));
        const Difference gpt{"gpt", cut(small_gpt(), slices, {"wte", "h1_qkv", "h1_projection", "h2_mlp1", "h2_mlp2", "head"}), 4, false};
        Rig rig(gpt.spec, sizes({gpt.samples}));
        expect_slopes(rig, gpt);
        const Difference tied{"tied", cut(tied_gpt(), slices, {"wte", "h1_qkv", "h2_mlp2", "head"}), 4, false};
        Rig both(tied.spec, sizes({tied.samples}));
        expect_slopes(both, tied);
    }
}

// A slice of the embedding and that of the head are the same rows, and each hands in a gradient of them.
TEST(Slices, OfLayersWithTheSameWeights) {
    for (const uint32_t slices : {2u, 4u}) {
        const std::vector<std::string> names = {"wte", "head"};
        Rig apart(cut(small_gpt(), slices, names), sizes({3})), rig(cut(tied_gpt(), slices, names), sizes({3}));
        const Layout& layout = rig.net->layout();
        const uint64_t shared = 7 * 24;
        const std::span<float> weights = rig.net->parameters();
        ASSERT_EQ(apart.net->layout().elements, layout.elements + shared);
        std::ranges::copy(weights, apart.net->parameters().begin());
        std::ranges::copy(weights.first(shared), apart.net->parameters().end() - shared);
        apart.net->refresh();
        Data data(tied_gpt(), 3);
        const Gather wanted = apart.block(data.samples), found = rig.block(data.samples);
        EXPECT_EQ(found.total, wanted.total);
        EXPECT_EQ(rig.loss(data.samples), apart.loss(data.samples));
        for (uint64_t i = 0; i < layout.elements; ++i) {
            const float more = i < shared ? wanted.gradient[layout.elements + i] : 0;
            ASSERT_EQ(found.gradient[i], more + wanted.gradient[i]) << "element " << i;
        }
        for (uint32_t t = 0; t < slices; ++t) {
            EXPECT_EQ(layout.groups[t].layer, fmt::format("wte slice {} of {}", t + 1, slices));
            EXPECT_EQ(layout.groups[t].uses, 2u);
        }
        EXPECT_EQ(layout.buckets.back().count, shared);
        EXPECT_EQ(layout.buckets.back().group_count, slices);
        EXPECT_EQ(found.came.back(), 2u);
    }
}

// An embedding in slices selects the same rows, and adds up the same gradients.
TEST(Slices, OfAnEmbeddingChangeNoBit) {
    for (const auto& [vocabulary, context, samples] : {std::tuple{7u, 9u, 4u}, {101u, 5u, 2u}, {256u, 8u, 16u}})
        for (const uint32_t slices : {2u, 4u}) {
            SCOPED_TRACE(fmt::format("vocabulary of {}, {} slices", vocabulary, slices));
            const NetSpec spec = small_text(vocabulary, context);
            Rig whole(spec, sizes({samples})), rig(cut(spec, slices, {"wte"}), sizes({samples}));
            EXPECT_TRUE(std::ranges::equal(whole.net->parameters(), rig.net->parameters()));
            Data data(spec, samples);
            const Gather wanted = whole.block(data.samples), found = rig.block(data.samples);
            EXPECT_EQ(found.total, wanted.total);
            EXPECT_TRUE(same_bits(found.gradient, wanted.gradient));
            EXPECT_EQ(rig.loss(data.samples), whole.loss(data.samples));
            const Layout& layout = rig.net->layout();
            for (uint32_t t = 0; t < slices; ++t) {
                EXPECT_EQ(layout.groups[t].layer, fmt::format("wte slice {} of {}", t + 1, slices));
                EXPECT_EQ(layout.groups[t].offset, uint64_t{12} * slice_begin(t, vocabulary, slices));
            }
        }
}

TEST(Slices, InBf16) {
    if (isa_best() < Isa::avx512_bf16) GTEST_SKIP() << "this CPU has no bf16";
    const NetSpec spec = of(3, 8, 8, 0, 6, {conv(32, 3, 1, 1), conv(64, 3, 1, 1), relu(), conv(32, 1), fc(70), relu(), fc(6), loss()});
    NetConfig config = sizes({16});
    config.precision = Precision::bf16;
    Rig whole(spec, config);
    Rig rig(cut(spec, 2, {"conv1", "conv2", "conv3", "fc1", "fc2"}), config);
    Data data(spec, 16);
    const Gather wanted = whole.block(data.samples), found = rig.block(data.samples);
    EXPECT_NEAR(found.total, wanted.total, 0.02 * wanted.total);
    std::string where;
    EXPECT_LT(distance(whole.net->layout(), wanted.gradient, found.gradient, &where), 0.05) << where;
}

// ---- bits -----------------------------------------------------------------------------------------------------------

// A node that has one slice computes the bits of the node that has all.
TEST(Slices, KnowNothingOfEachOther) {
    constexpr uint32_t H = 7, W = 11, C = H * W, K = 150, slices = 4;
    for (const uint32_t samples : {5u, 64u}) {
        const NetSpec spec = cut(of(1, H, W, 0, K, {fc(K), squared_loss()}), slices, {"fc1"});
        Rig rig(spec, sizes({samples}));
        set(rig, "fc1", true, numbers(K, 3));
        const std::span<const float> parameters = rig.net->parameters();
        Data data(spec, samples);
        std::ranges::fill(data.labels, 0);
        const Gather gradient = rig.block(data.samples);
        uint32_t right = 0;
        double loss_sum = 0;
        std::vector<float> outputs(samples * K);
        ASSERT_TRUE(rig.net->evaluate(0, data.samples, &right, &loss_sum, nullptr, outputs.data()).ok());
        for (uint32_t t = 0; t < slices; ++t) {
            SCOPED_TRACE(fmt::format("{} samples, slice {}", samples, t));
            const uint32_t first = slice_begin(t, K, slices), count = slice_begin(t + 1, K, slices) - first;
            const NetSpec one = of(1, H, W, 0, count, {fc(count), squared_loss()});
            Rig alone(one, sizes({samples}));
            std::copy_n(parameters.begin() + first * C, count * C, alone.net->parameters().begin());
            std::copy_n(parameters.begin() + K * C + first, count, alone.net->parameters().begin() + count * C);
            alone.net->refresh();
            std::vector<float> own(samples * count);
            ASSERT_TRUE(alone.net->evaluate(0, data.samples, &right, &loss_sum, nullptr, own.data()).ok());
            for (uint32_t n = 0; n < samples; ++n)
                ASSERT_EQ(std::memcmp(&outputs[n * K + first], &own[n * count], count * sizeof(float)), 0) << "sample " << n;
            const Gather own_gradient = alone.block(data.samples);
            for (uint32_t k = t > 0; k < count; ++k) {   // the first output is each slice's label alone, and none's in the whole
                ASSERT_EQ(std::memcmp(&gradient.gradient[(first + k) * C], &own_gradient.gradient[k * C], C * sizeof(float)), 0);
                ASSERT_EQ(gradient.gradient[K * C + first + k], own_gradient.gradient[count * C + k]);
            }
        }
    }
}

// fc1 has one output and is 0, so the gradient of its bias is dx of fc2: the sum of its weights times dy, which is 1.
TEST(Slices, PartsOfTheGradientAreAddedAsATree) {
    uint32_t others = 0;   // whose sum in the order of the slices is another
    for (const uint32_t slices : {2u, 4u, 8u, 16u, 32u, 64u}) {
        const NetSpec spec = cut(of(1, 1, 1, 0, slices, {fc(1), fc(slices), squared_loss()}), slices, {"fc2"});
        Rig rig(spec, sizes({1}));
        Data data(spec, 1);
        data.labels[0] = 0;
        std::vector<float> weights = numbers(slices, 8), biases(slices, 0.5f);
        for (uint32_t k = 0; k < slices; ++k) weights[k] = std::ldexp(weights[k], static_cast<int>(splitmix64(k) % 12));
        biases[0] = 1.5f;
        set(rig, "fc1", false, {0});
        set(rig, "fc1", true, {0});
        set(rig, "fc2", false, weights);
        set(rig, "fc2", true, biases);
        const float found = rig.block(data.samples).gradient[1];
        EXPECT_EQ(found, tree(weights)) << slices;
        others += found != std::accumulate(weights.begin(), weights.end(), 0.0f);
    }
    EXPECT_GE(others, 2u);
}

TEST(Slices, ExponentialsAreAddedAsATree) {
    constexpr uint32_t K = 37;
    for (const uint32_t slices : {1u, 2u, 4u, 8u, 32u}) {
        const NetSpec spec = cut(of(1, 1, 1, 0, K, {fc(K), loss()}), slices, {"fc1"});
        Rig rig(spec, sizes({1}));
        Data data(spec, 1);
        const auto label = static_cast<uint32_t>(data.labels[0] = 20);
        std::vector<float> logits = numbers(K, 9);
        for (float& each : logits) each *= 7;
        set(rig, "fc1", false, std::vector<float>(K));
        set(rig, "fc1", true, logits);
        const float largest = *std::ranges::max_element(logits);
        std::vector<float> exps, sums;
        for (const float each : logits) exps.push_back(elementary::exp(each - largest));
        for (uint32_t t = 0; t < slices; ++t)
            sums.push_back(std::accumulate(exps.begin() + slice_begin(t, K, slices), exps.begin() + slice_begin(t + 1, K, slices), 0.0f));
        const float sum = tree(sums);
        const double wanted = elementary::log(static_cast<double>(sum)) + static_cast<double>(largest) - static_cast<double>(logits[label]);
        const Gather found = rig.block(data.samples);
        EXPECT_EQ(found.total, wanted);
        EXPECT_EQ(rig.loss(data.samples), wanted);
        for (uint32_t k = 0; k < K; ++k) EXPECT_EQ(found.gradient[K + k], exps[k] / sum - static_cast<float>(k == label));
    }
}

TEST(Slices, PredictTheFirstOfTheLargest) {
    constexpr uint32_t K = 11;
    const NetSpec spec = cut(of(1, 1, 1, 0, K, {fc(K), loss()}), 4, {"fc1"});
    Rig rig(spec, sizes({1}));
    Data data(spec, 1);
    set(rig, "fc1", false, std::vector<float>(K));
    auto predicted = [&](std::vector<std::pair<uint32_t, float>> logits, double* sum) {
        std::vector<float> all(K, -1);
        for (const auto& [k, value] : logits) all[k] = value;
        set(rig, "fc1", true, all);
        uint32_t right = 0;
        int32_t found = -1;
        EXPECT_TRUE(rig.net->evaluate(0, data.samples, &right, sum, &found).ok());
        return found;
    };
    double sum = 0;
    EXPECT_EQ(predicted({{9, 3.0f}}, &sum), 9);
    EXPECT_EQ(predicted({{4, 3.0f}, {9, 3.0f}}, &sum), 4);
    EXPECT_EQ(predicted({}, &sum), 0);
    EXPECT_TRUE(std::isfinite(sum));
    EXPECT_EQ(predicted({{2, INFINITY}, {7, NAN}, {10, NAN}}, &sum), 7);
    EXPECT_TRUE(std::isnan(sum));
}

/// Three steps of three blocks, on the lanes in turn.
uint64_t trained(const NetSpec& spec, uint32_t lanes, bool together) {
    constexpr uint32_t samples = 16, blocks = 3;
    Rig rig(spec, sizes({samples}, lanes), {.kind = "adam", .lr = 0.01});
    EXPECT_GE(rig.net->together(), blocks);
    for (StepId step = 0; step < 3; ++step) {
        std::vector<std::unique_ptr<Data>> data;
        std::vector<Block> all;
        for (uint32_t b = 0; b < blocks; ++b) {
            data.push_back(std::make_unique<Data>(spec, samples, static_cast<uint32_t>(step * blocks + b)));
            all.push_back({{step, b}, data[b]->samples});
        }
        GatherEach found(rig.net->layout(), blocks, step % 2 == 0);
        if (together) EXPECT_TRUE(rig.net->blocks(lanes - 1, all, found).ok());
        else
            for (uint32_t b = 0; b < blocks; ++b) EXPECT_TRUE(rig.net->block(b % lanes, all[b].id, all[b].samples, found).ok());
        std::vector<float> sum(rig.net->layout().elements);
        for (uint32_t b = 0; b < blocks; ++b)
            for (size_t i = 0; i < sum.size(); ++i) sum[i] += found.each[b].gradient[i];
        rig.step(step, sum, samples * blocks);
    }
    return rig.net->digest() + rig.optimiser->digest(rig.net->layout().elements);
}

NetSpec net_of_digest(uint32_t slices) {
    const NetSpec whole = of(1, 20, 20, 0, 10, {fc(700), relu(), dropout(0.2), fc(150), relu(), fc(10), loss()});
    return cut(whole, slices, slices > 1 ? std::vector<std::string>{"fc1", "fc2", "fc3"} : std::vector<std::string>{});
}

TEST(Slices, OneDigestWhateverTheLanes) {
    const uint64_t digest = trained(net_of_digest(4), 1, false);
    for (const uint32_t lanes : {1u, 2u, 3u})
        for (const bool together : {false, true}) EXPECT_EQ(trained(net_of_digest(4), lanes, together), digest) << lanes;
    for (const uint32_t other : {1u, 2u, 8u}) EXPECT_NE(trained(net_of_digest(other), 1, false), digest) << other;
}

void trains(Isa isa) {
    if (!nn_isa(isa).ok()) std::exit(2);
    fmt::print(stderr, "{:016x}", trained(net_of_digest(4), 1, false));
    std::exit(testing::Test::HasFailure());
}

// How slices are computed is part of what a training is, so these values stay.  The instruction set is fixed once a process.
TEST(SlicesDeathTest, HaveTheDigestsThatTheyAlwaysHad) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    for (const auto& [isa, digest] :
         {std::pair{Isa::portable, "fb896554c69defa5"}, {Isa::avx2, "127e93cebd61718e"}, {Isa::avx512, "127e93cebd61718e"}})
        if (isa <= isa_best()) {
            EXPECT_EXIT(trains(isa), testing::ExitedWithCode(0), digest) << isa_name(isa);
        }
}

// ---- layout and mistakes --------------------------------------------------------------------------------------------

TEST(Slices, HaveGroupsOfTheirOwnInTheLayersPlace) {
    const NetSpec whole = of(1, 4, 4, 0, 10, {fc(33), relu(), fc(10), loss()}), spec = cut(whole, 4, {"fc1"});
    std::vector<Layer> layers, of_whole;
    ASSERT_TRUE(layers_check(spec, &layers).ok());
    ASSERT_TRUE(layers_check(whole, &of_whole).ok());
    const Layout layout = layers_layout(layers, 4), before = layers_layout(of_whole, 4);
    EXPECT_EQ(layout.elements, before.elements);
    ASSERT_EQ(layout.groups.size(), 9u);
    const uint64_t counts[] = {8 * 16, 8 * 16, 8 * 16, 9 * 16, 8, 8, 8, 9, 10 * 33 + 10};
    uint64_t offset = 0;
    for (size_t g = 0; g < 9; ++g) {
        EXPECT_EQ(layout.groups[g].offset, offset);
        EXPECT_EQ(layout.groups[g].count, counts[g]);
        offset += counts[g];
    }
    EXPECT_EQ(layout.groups[2].layer, "fc1 slice 3 of 4");
    ASSERT_EQ(layout.buckets.size(), before.buckets.size());   // a bucket has whole layers
    for (size_t b = 0; b < before.buckets.size(); ++b) EXPECT_EQ(layout.buckets[b].offset, before.buckets[b].offset);
    EXPECT_EQ(layer_text(spec.layers[0]), "inner_product outputs=33 slices=4");
    LayerSpec read;
    ASSERT_TRUE(layer_parse("inner_product outputs=33 slices=4", &read));
    EXPECT_EQ(read.values, spec.layers[0].values);
}

TEST(Slices, AreInnerProductsOfManyWeights) {
    EXPECT_EQ(sliced_layers([] {
                  std::vector<Layer> layers;
                  EXPECT_TRUE(layers_check(cut(preset("mlp"), 4, {}), &layers).ok());
                  return layers;
              }()),
              (std::vector<std::string>{"fc1", "fc2", "fc3"}));
}

// Inner products come first: so nets that have both are cut as before linear layers could be.
TEST(Slices, AreLinearLayersAndEmbeddingsWhereNoInnerProductHasManyWeights) {
    const auto chosen = [](const NetSpec& spec) {
        std::vector<Layer> layers;
        EXPECT_TRUE(layers_check(cut(spec, 2, {}), &layers).ok());
        return sliced_layers(layers);
    };
    const auto gpt = [](bool tied, uint32_t vocabulary = 2000, uint32_t width = 256) {
        NetSpec spec{.C = 1, .H = 1, .W = 10, .classes = 1, .element = Element::u16, .vocabulary = vocabulary};
        EXPECT_TRUE(preset_layers("gpt", {.depth = 1, .width = width, .heads = 4, .tied_head = tied}, &spec).ok());
        return spec;
    };
    EXPECT_EQ(chosen(gpt(false)), (std::vector<std::string>{"wte", "h1_mlp1", "h1_mlp2", "head"}));
    EXPECT_EQ(chosen(gpt(true)), (std::vector<std::string>{"h1_mlp1", "h1_mlp2"}));
    EXPECT_EQ(chosen(gpt(true, 4096, 64)), (std::vector<std::string>{"wte", "head"}));
    const NetSpec other{
        .C = 1,
        .H = 1,
        .W = 512,
        .classes = 512,
        .layers = {layer("inner_product name=fc outputs=512 bias=0"), layer("linear outputs=512 weights_of=fc bias=0"), loss()}};
    EXPECT_EQ(chosen(other), (std::vector<std::string>{"fc", "linear1"}));
    NetSpec both;
    EXPECT_TRUE(preset_find("vit-s", 3, 64, 64, 1000, &both).ok());
    EXPECT_EQ(chosen(both), (std::vector<std::string>{"head"}));
    EXPECT_TRUE(preset_find("vit-s", 3, 64, 64, 10, &both).ok());
    EXPECT_EQ(chosen(both).size(), 12u * 3);   // all linear layers but those of 384 x 384 weights
}

TEST(Slices, AreRefusedWithWhatIsPossible) {
    auto mistake = [](NetSpec spec, uint32_t slices, const std::vector<std::string>& names) {
        std::string about;
        const Status status = slices_choose(slices, names, &spec, &about);
        EXPECT_FALSE(status.ok());
        return about + ": " + status.what;
    };
    const NetSpec lenet = preset("lenet5"), net = of(3, 8, 8, 0, 10, {conv(48, 3, 1, 1), conv(64, 3), relu(), fc(10), loss()});
    EXPECT_EQ(mistake(lenet, 3, {"fc1"}), "parallel.slices: 3 is not a power of two: take 2 or 4");
    EXPECT_EQ(mistake(lenet, 2, {}),
              "parallel.slices: no inner product, linear layer or embedding has 262144 weights: name layers in `sliced`; possible are fc1, "
              "fc2, fc3");
    EXPECT_EQ(mistake(lenet, 2, {"fc9"}), "parallel.sliced: \"fc9\" is no layer of the net: did you mean fc1? possible are fc1, fc2, fc3");
    EXPECT_EQ(mistake(lenet, 2, {"fc1", "fc2", "fc1"}), "parallel.sliced: \"fc1\" is named twice");
    EXPECT_EQ(mistake(lenet, 2, {"relu1"}), "parallel.sliced: relu1 (relu) has no outputs of its own to slice: possible are fc1, fc2, fc3");
    EXPECT_EQ(mistake(lenet, 16, {"fc1", "fc3"}), "parallel.sliced: layer fc3: 10 outputs do not make 16 slices: take 2, 4 or 8");
    EXPECT_EQ(mistake(net, 8, {"conv2"}), "parallel.sliced: layer conv2: 64 outputs do not make 8 slices of a multiple of 16: take 2 or 4");
    EXPECT_EQ(mistake(net, 2, {"conv1"}),
              "parallel.sliced: layer conv1: 48 outputs do not make 2 slices of a multiple of 16: it cannot be sliced");
    EXPECT_EQ(mistake(small_gpt(), 8, {"wte"}), "parallel.sliced: layer wte: 7 rows do not make 8 slices: take 2 or 4");
    NetSpec file = lenet;   // of a file
    file.layers[6].values.set("slices", 3);
    std::vector<Layer> layers;
    EXPECT_STREQ(layers_check(file, &layers).what, "layer fc1: 3 slices are not a power of two");
    NetSpec tied{.C = 1, .H = 1, .W = 10, .classes = 1, .element = Element::u16, .vocabulary = 7};
    ASSERT_TRUE(preset_layers("gpt", {.depth = 1, .width = 24, .heads = 3, .tied_head = true}, &tied).ok());
    NetSpec of_file = tied;
    of_file.layers[0].values.set("slices", 2);
    EXPECT_STREQ(layers_check(of_file, &layers).what,
                 "layer head: wte and head have the same weights (weights_of), and not as many slices: 2 and 1");
    of_file = tied;
    of_file.layers[of_file.layers.size() - 2].values.set("slices", 2);
    EXPECT_STREQ(layers_check(of_file, &layers).what,
                 "layer head: wte and head have the same weights (weights_of), and not as many slices: 1 and 2");
    EXPECT_EQ(mistake(tied, 2, {"wte"}), "parallel.sliced: wte and head have the same weights (weights_of): name both, or neither");
    EXPECT_EQ(mistake(tied, 2, {"h1_qkv", "head"}),
              "parallel.sliced: head and wte have the same weights (weights_of): name both, or neither");
    EXPECT_EQ(mistake(tied, 8, {"wte", "head"}), "parallel.sliced: layer wte: 7 rows do not make 8 slices: take 2 or 4");
    // Vectors of positions have no slices.
    NetSpec places{.C = 1, .H = 1, .W = 10, .classes = 1, .element = Element::u16, .vocabulary = 9};
    for (const char* each : {"embedding name=wte outputs=4", "positions name=wpe", "linear name=head outputs=9 weights_of=wpe bias=0",
                             "softmax_cross_entropy"})
        places.layers.push_back(layer(each));
    EXPECT_EQ(mistake(places, 2, {"wpe", "head"}), "parallel.sliced: wpe (positions) has no outputs of its own to slice: possible are wte");
    EXPECT_EQ(mistake(places, 2, {"head", "wte"}),
              "parallel.sliced: head has the weights of wpe (weights_of), which is no layer with slices: possible are wte");
}

}   // namespace
}   // namespace gradcast
