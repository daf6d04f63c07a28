// Nets with a loss by position beside PyTorch's numbers (make_positions.py), and their layers.
#include "nn/cpu/attention.h"
#include "nn/graph/slices.h"
#include "tests/nn/dropping.h"
#include "tests/nn/position_reference.h"

namespace gradcast {
namespace {

TEST_P(PositionReference, GivesPyTorchsNumbers) {
    Rig rig(spec, sizes({n}), sgd);
    expect_numbers(rig);
}

// A sample's part of a block's loss and gradient does not depend on the others, so blocks of other sizes add up to the same.
TEST_P(PositionReference, BlocksOfOtherSizesAddUpToTheSame) {
    Rig whole(spec, sizes({n})), parts(spec, sizes({1}));
    for (Rig* rig : {&whole, &parts}) {
        std::copy(start.begin(), start.end(), rig->net->parameters().begin());
        rig->net->refresh();
    }
    const Gather once = whole.block(all());
    std::vector<float> sum(once.gradient.size());
    double total = 0;
    for (uint32_t i = 0; i < n; ++i) {
        Samples one = all();
        one.count = 1;
        one.images += i * spec.sample_bytes();
        if (one.targets) one.targets += i * spec.targets_bytes();
        const Gather found = parts.block(one);
        total += found.total;
        for (size_t k = 0; k < sum.size(); ++k) sum[k] += found.gradient[k];
    }
    EXPECT_NEAR(total, once.total, 1e-6 * n);
    expect_near(whole.net->layout(), sum, once.gradient, 2e-5f);
}

INSTANTIATE_TEST_SUITE_P(Nets, PositionReference, testing::Values("gpt", "long", "masks", "gated", "tied"),
                         [](const auto& p) { return p.param; });

// Sums over slices have another order.
TEST_P(PositionReference, GivesPyTorchsNumbersInSlices) {
    std::vector<Layer> layers;
    ASSERT_TRUE(layers_check(spec, &layers).ok());
    std::vector<std::string> names;
    for (const Layer& each : layers)
        if (each.kind->slice_unit == 1 && each.uses == 1 && each.tied == Layer::none) names.push_back(each.spec.name);
    if (names.empty()) return;   // masks: its convolutions have too few channels
    std::string about;
    const Status status = slices_choose(2, names, &spec, &about);
    ASSERT_TRUE(status.ok()) << status.what;
    Rig rig(spec, sizes({n}), sgd);
    expect_numbers(rig);
}

NetSpec text_net(std::vector<LayerSpec> layers, uint32_t vocabulary = 7, uint32_t context = 5) {
    return {.C = 1, .H = 1, .W = context + 1, .classes = 1, .element = Element::u16, .vocabulary = vocabulary, .layers = std::move(layers)};
}

TEST(Positions, SlopesAreThoseOfTheLoss) {
    for (const Difference& each :
         {Difference{"gpt", small_gpt(), 4, false}, {"masks", of_masks(), 5, false}, {"dropping_gpt", dropping_gpt(), 4, false, true}}) {
        SCOPED_TRACE(each.name);
        Rig rig(each.spec, sizes({each.samples}));
        expect_slopes(rig, each);
    }
}

TEST(Positions, Mistakes) {
    std::vector<Layer> layers;
    const auto mistake = [&](const NetSpec& spec) { return std::string(layers_check(spec, &layers).what); };
    const LayerSpec loss = layer("softmax_cross_entropy");
    EXPECT_EQ(mistake(text_net({layer("linear outputs=7"), loss})),
              "layer linear1: the data are a text, so the first layer must be an embedding");
    EXPECT_EQ(mistake(text_net({layer("embedding outputs=4"), layer("linear outputs=6"), loss})),
              "layer loss1: its input 6x5x1 does not fit a vocabulary of 7 at each of 5 positions: 7x5x1 is needed");
    EXPECT_EQ(mistake(text_net({layer("embedding outputs=7"), layer("squared_loss")})),
              "layer loss1: squared_loss has one target a sample, but the data are a text: take softmax_cross_entropy");
    EXPECT_EQ(mistake(text_net({layer("embedding outputs=4"), layer("attention heads=2"), loss})),
              "layer attention1: its input 4x5x1 has 4 channels, which must be 3 x heads x a head's width: queries, keys and values");
    NetSpec other = text_net({layer("embedding outputs=7"), loss});
    other.W = 1;
    EXPECT_EQ(mistake(other), "a text has samples of 1x1x2 or more tokens of u16 or u32 without targets, not 1x1x1 of u16");
    NetSpec images{.C = 3, .H = 6, .W = 6, .classes = 4, .layers = {layer("embedding outputs=4"), loss}};
    EXPECT_EQ(mistake(images),
              "layer embedding1: an embedding takes the tokens of a text: make it the first layer of a net for data of "
              "`import text` or `import tokens`");
    images.targets = 35, images.target_element = Element::u8;
    EXPECT_EQ(mistake(images), "masks of 35 labels do not fit samples of 6x6");
    images.targets = 36;
    images.layers = {layer("conv outputs=4 kernel=3"), loss};
    EXPECT_EQ(mistake(images), "layer loss1: its input 4x4x4 does not fit masks of 4 classes for 6x6 pixels: 4x6x6 is needed");
}

TEST(Positions, LabelsAndTokensBeyondTheNetAreRefused) {
    const NetSpec text = text_net({layer("embedding outputs=7"), layer("softmax_cross_entropy")});
    Rig rig(text, sizes({2}));
    std::vector<uint16_t> tokens(12, 6);
    const std::vector<float> mean(1, 0.0f), std(1, 1.0f);
    Samples samples{reinterpret_cast<const uint8_t*>(tokens.data()), nullptr, 2, 1, 1, 6, mean.data(), std.data()};
    samples.element = Element::u16;
    Gather sink(rig.net->layout());
    EXPECT_TRUE(rig.net->block(0, {0, 0}, samples, sink).ok());
    tokens[8] = 7;
    EXPECT_STREQ(rig.net->block(0, {0, 0}, samples, sink).what, "sample 1 of a block has the token 7, but the vocabulary ends with 6");
}

TEST(Positions, EachBuildOfAttentionHasTheSameBits) {
    const cpu::AttentionKernels& wanted = cpu::attention_kernels(Isa::portable);
    std::mt19937 random(5);
    for (const Isa isa : {Isa::avx2, Isa::avx512}) {
        if (isa > isa_best()) continue;
        const cpu::AttentionKernels& kernels = cpu::attention_kernels(isa);
        for (const cpu::ScoreRows& shape : {cpu::ScoreRows{5, 37, 32, true}, {3, 64, 0, false}, {7, 7, 0, true}, {1, 1, 0, false}}) {
            std::vector<float> s(uint64_t{shape.rows} * shape.keys), dp(s.size());
            for (std::vector<float>* each : {&s, &dp})
                for (float& x : *each) x = static_cast<float>(random()) / 4e8f - 5;
            std::vector<float> same = s, dsame = dp;
            wanted.softmax(s.data(), 0.3f, shape);
            kernels.softmax(same.data(), 0.3f, shape);
            EXPECT_TRUE(same_bits(s, same));
            wanted.slope(dp.data(), s.data(), 0.3f, shape);
            kernels.slope(dsame.data(), s.data(), 0.3f, shape);
            EXPECT_TRUE(same_bits(dp, dsame));
            for (uint32_t row = 0; row < shape.rows; ++row) {
                double sum = 0;
                for (uint32_t k = 0; k < shape.keys; ++k) {
                    sum += static_cast<double>(s[row * shape.keys + k]);
                    if (shape.causal && k > shape.first + row) {
                        EXPECT_EQ(s[row * shape.keys + k], 0);
                    }
                }
                EXPECT_NEAR(sum, 1, 1e-5);
            }
        }
    }
}

// GPT-2's places of dropout; without it the preset is what it was.
TEST(Positions, GptHasDropoutWhereItIsAskedFor) {
    std::vector<std::string> dropped, all;
    for (const LayerSpec& each : dropping_gpt().layers) {
        if (each.kind == "dropout" || each.kind == "attention") dropped.push_back(layer_text(each));
        if (each.kind != "dropout") all.push_back(each.kind);
    }
    EXPECT_EQ(dropped, (std::vector<std::string>{"dropout name=drop rate=0.2", "attention name=h1_attention heads=3 causal=1 dropout=0.2",
                                                 "dropout name=h1_drop1 rate=0.2", "dropout name=h1_drop2 rate=0.2",
                                                 "attention name=h2_attention heads=3 causal=1 dropout=0.2",
                                                 "dropout name=h2_drop1 rate=0.2", "dropout name=h2_drop2 rate=0.2"}));
    std::vector<std::string> plain;
    for (const LayerSpec& each : small_gpt().layers) plain.push_back(each.kind);
    EXPECT_EQ(all, plain);
}

TEST(Positions, GptIsACausalNet) {
    NetSpec spec = small_gpt();
    Rig rig(spec, sizes({1}));
    Data data(spec, 1);
    std::vector<int32_t> before(9), after(9);
    uint32_t right = 0;
    double loss = 0, changed = 0;
    std::vector<float> outputs(9 * 7), others(9 * 7);
    ASSERT_TRUE(rig.net->evaluate(0, data.samples, &right, &loss, before.data(), outputs.data()).ok());
    data.images[2 * 5] = static_cast<uint8_t>((data.images[2 * 5] + 1) % 7);   // the sixth token
    ASSERT_TRUE(rig.net->evaluate(0, data.samples, &right, &changed, after.data(), others.data()).ok());
    for (uint32_t i = 0; i < 5 * 7; ++i) EXPECT_EQ(outputs[i], others[i]) << i;
    EXPECT_FALSE(std::equal(outputs.begin() + 5 * 7, outputs.end(), others.begin() + 5 * 7));
    std::vector<Layer> layers;
    ASSERT_TRUE(layers_check(spec, &layers).ok());
    EXPECT_STREQ(preset_layers("gpt", {.depth = 2, .width = 24, .heads = 5}, &spec).what,
                 "net gpt: 5 heads (net.heads) do not divide a width of 24 (net.width)");
    NetSpec images{.C = 3, .H = 6, .W = 6, .classes = 4};
    EXPECT_STREQ(preset_layers("gpt", {}, &images).what, "net gpt takes a text, and the data are images or a table");
}

}   // namespace
}   // namespace gradcast
