// Layers of images beyond plain convolutions: groups, dilation, transposed ones, upsampling, joined channels.  Their numbers beside
// PyTorch's are those of reference_test.cc.
#include "nn/graph/slices.h"
#include "tests/nn/nets.h"

namespace gradcast {
namespace {

class ImageDifferences : public testing::TestWithParam<Difference> {};
TEST_P(ImageDifferences, MatchTheGradient) {
    Rig rig(GetParam().spec, sizes({GetParam().samples}));
    expect_slopes(rig, GetParam());
}

std::vector<Difference> image_differences() {
    return {
        Difference{"groups",
                   of(6, 7, 8, 0, 4, {grouped(conv(9, 3, 1, 1), 3), grouped(conv(9, 2, 2), 9), grouped(conv(4, 1), 1), fc(4), loss()}), 5,
                   false},
        Difference{"wide_groups",
                   of(3, 7, 8, 0, 4,
                      {conv(32, 3, 1, 1), grouped(conv(32, 3, 1, 1), 32), conv(48, 1), grouped(conv(32, 3, 1, 1), 2), fc(4), loss()}),
                   5, false},
        Difference{"dilation",
                   of(3, 11, 9, 0, 4,
                      {grouped(conv(16, 3), 1, 2), grouped(conv(16, 3, 2, 2), 1, 2), grouped(conv(6, 2, 1, 3), 2, 4), fc(4), loss()}),
                   5, false},
        Difference{"conv_transposed",
                   of(2, 4, 5, 0, 4, {conv_transposed(16, 2, 2), conv_transposed(7, 3, 2, 1), conv_transposed(5, 4, 3, 2), fc(4), loss()}),
                   5, false},
        Difference{
            "upsample",
            of(3, 4, 3, 0, 4,
               {conv(5, 3, 1, 1), upsample(2), conv(16, 3, 1, 1), upsample(3, true), conv(9, 3, 2), upsample(2, true), fc(4), loss()}),
            5, false},
        Difference{"upsample_first", of(3, 4, 3, 0, 4, {upsample(2, true), upsample(2), fc(4), loss()}), 5, false},
        Difference{"upsample_of_one_pixel", of(3, 4, 3, 0, 4, {fc(9), upsample(3, true), upsample(2), conv(4, 6), loss()}), 5, false},
        Difference{"concat",
                   of(3, 6, 5, 0, 4,
                      {named(conv(7, 3, 1, 1), "a"), conv(16, 3, 1, 1), named(concat("a"), "b", "a"), conv(5, 1),
                       named(concat("b"), "c", "b"), concat("c"), concat("a"), fc(4), loss()}),
                   5, false},
        Difference{"concat_of_features", of(3, 6, 5, 0, 4, {named(fc(7), "a"), fc(16), concat("a"), fc(4), loss()}), 5, false},
        Difference{"concat_of_blocks",
                   of(3, 6, 5, 0, 4,
                      {named(conv(16, 3, 1, 1), "a"), conv(32, 3, 1, 1), named(concat("a"), "b", "a"), conv(7, 3, 1, 1), named(norm(), "n"),
                       named(conv(32, 3, 1, 1), "", "b"), concat("n"), fc(4), loss()}),
                   5, false, true},
        Difference{"concat_of_what_does_not_learn",
                   of(3, 6, 5, 0, 4, {named(relu(), "x"), conv(5, 3, 1, 1), concat("x"), conv(4, 3, 1, 1), concat("x"), fc(4), loss()}), 5,
                   true},
        Difference{"multiply",
                   of(3, 6, 5, 0, 4,
                      {named(conv(7, 3, 1, 1), "a"), relu(), conv(7, 3, 1, 1), named({.kind = "sigmoid"}, "s"), multiply("a"), conv(16, 3),
                       named(norm(), "b"), conv(16, 1), multiply("b"), fc(4), loss()}),
                   7, true, true},
        Difference{"multiply_with_itself", of(1, 6, 5, 0, 4, {conv(3, 2), multiply("conv1"), fc(4), loss()}), 5, false},
        Difference{"multiply_by_what_does_not_learn",
                   of(3, 6, 5, 0, 4, {named(relu(), "x"), conv(3, 3, 1, 1), multiply("x"), conv(4, 3, 1, 1), fc(4), loss()}), 5, false},
        Difference{"rms_norm",
                   of(5, 6, 5, 0, 4, {conv(19, 3), {.kind = "rms_norm"}, conv(6, 2), fc(9), {.kind = "rms_norm"}, fc(4), loss()}), 7,
                   false},
        Difference{"concat_with_itself", of(1, 6, 5, 0, 4, {conv(3, 2), concat("conv1"), fc(4), loss()}), 5, false},
        Difference{"encoder_decoder", encoder_decoder(), 6, true, true}};
}
INSTANTIATE_TEST_SUITE_P(Layers, ImageDifferences, testing::ValuesIn(image_differences()), [](const auto& p) { return p.param.name; });

std::string image_mistake(std::vector<LayerSpec> layers) {
    layers.push_back(loss());
    std::vector<Layer> checked;
    return layers_check({.C = 6, .H = 4, .W = 5, .layers = std::move(layers)}, &checked).what;
}

TEST(Images, MistakesNameTheLayer) {
    EXPECT_EQ(image_mistake({grouped(conv(8, 1), 4), fc(10)}), "layer conv1: 4 groups do not divide the 6 channels of its input");
    EXPECT_EQ(image_mistake({grouped(conv(8, 1), 3), fc(10)}), "layer conv1: 3 groups do not divide its 8 outputs");
    EXPECT_EQ(image_mistake({grouped(conv(8, 3), 1, 2), fc(10)}),
              "layer conv1: kernel 3x3 (5x5 with dilation 2) does not fit its input 6x4x5");
    EXPECT_EQ(image_mistake({grouped(conv(8, 3, 1, 5), 1, 2), fc(10)}),
              "layer conv1: pad 5 must be below its kernel 3x3 (5x5 with dilation 2)");
    EXPECT_EQ(image_mistake({conv(7, 1), conv(8, 2), concat("conv1"), fc(10)}),
              "layer concat1: its inputs conv2 8x3x4 and conv1 7x4x5 must be alike in height and width");
    EXPECT_EQ(image_mistake({conv(7, 1), {.kind = "concat"}, fc(10)}),
              "layer concat1: it needs `from`, the earlier layer whose output it appends");
    EXPECT_EQ(image_mistake({conv(7, 1), {.kind = "multiply"}, fc(10)}),
              "layer multiply1: it needs `from`, the earlier layer whose output it multiplies by");
    EXPECT_EQ(image_mistake({conv_transposed(0, 2), fc(10)}), "layer conv_transposed1: outputs must be at least 1 for its input 6x4x5");
    EXPECT_EQ(image_mistake({conv_transposed(3, 2, 2, 2), fc(10)}), "layer conv_transposed1: pad 2 must be below its kernel 2x2");
    EXPECT_EQ(image_mistake({max_pool(4), conv_transposed(3, 2, 1, 1), fc(10)}),
              "layer conv_transposed1: pad 1 leaves nothing of its output 2x2");
    EXPECT_EQ(image_mistake({upsample(1), fc(10)}), "layer upsample1: its scale 1 must be at least 2 and at most 64");
    EXPECT_EQ(image_mistake({{.kind = "conv_transposed", .values = {{"outputs", 3}, {"kernel", 2}, {"groups", 2}}}, fc(10)}),
              "layer conv_transposed1: conv_transposed has no groups, but outputs kernel stride pad bias");
}

// Numbers of torch.nn.
TEST(Images, ShapesAreThoseOfPyTorch) {
    const auto out = [](uint32_t H, uint32_t W, LayerSpec layer) {
        std::vector<Layer> layers;
        const Status status = layers_check({.C = 4, .H = H, .W = W, .layers = {std::move(layer), fc(10), loss()}}, &layers);
        EXPECT_TRUE(status.ok()) << status.what;
        return shape_text(layers[0].out);
    };
    EXPECT_EQ(out(9, 12, grouped(conv(8, 3, 2, 2), 2, 2)), "8x5x6");
    EXPECT_EQ(out(9, 12, grouped(conv(8, 1, 1, 0), 1, 7)), "8x9x12");
    EXPECT_EQ(out(5, 6, conv_transposed(3, 2, 2)), "3x10x12");
    EXPECT_EQ(out(5, 6, conv_transposed(3, 3, 2, 1)), "3x9x11");
    EXPECT_EQ(out(5, 6, conv_transposed(3, 2, 3)), "3x14x17");   // the last row and column of a gap are not computed
    EXPECT_EQ(out(5, 6, upsample(3)), "4x15x18");
}

TEST(Images, InitialWeightsHaveTheFanInOfPyTorch) {
    const NetSpec spec{.C = 8, .H = 9, .W = 9, .layers = {grouped(conv(512, 5), 8), conv_transposed(64, 3), fc(10), loss()}};
    std::vector<Layer> layers;
    ASSERT_TRUE(layers_check(spec, &layers).ok());
    EXPECT_EQ(layers[0].weight_shape, (std::vector<uint64_t>{512, 1, 5, 5}));
    EXPECT_EQ(layers[1].weight_shape, (std::vector<uint64_t>{512, 64, 3, 3}));
    const Layout layout = layers_layout(layers, 1);
    std::vector<float> w(layout.elements);
    weights_initial(spec, layout, 1, w);
    for (const auto& [at, fan_in] : {std::pair{0, 25.0}, {1, 64 * 9.0}}) {
        double squares = 0;
        const auto count = static_cast<double>(layers[at].weights);
        for (uint64_t i = 0; i < layers[at].weights; ++i) squares += std::pow(static_cast<double>(w[layers[at].offset + i]), 2);
        EXPECT_NEAR(squares / count * fan_in / 2, 1, 5 * std::sqrt(2 / count));
    }
}

TEST(Images, GroupsAreNotSliced) {
    NetSpec spec{
        .C = 4, .H = 4, .W = 4, .layers = {named(grouped(conv(64, 3), 4), "g"), named(conv_transposed(64, 2), "t"), fc(10), loss()}};
    std::string about;
    const std::string names[] = {"g", "t"};
    EXPECT_STREQ(slices_choose(2, std::span(names, 1), &spec, &about).what, "layer g: a convolution in 4 groups cannot be sliced");
    EXPECT_EQ(about, "parallel.sliced");
    EXPECT_STREQ(slices_choose(2, std::span(names + 1, 1), &spec, &about).what,
                 "t (conv_transposed) has no outputs of its own to slice: possible are fc1");
}

// By hand: rows 0 and 3 lie beyond the outer centres, the others a quarter away from one.
TEST(Images, BilinearGoesBetweenCentres) {
    NetSpec spec{.C = 1, .H = 2, .W = 1, .classes = 1, .targets = 8, .element = Element::f32};
    spec.layers = {upsample(2, true), {.kind = "inner_product", .name = "f", .values = {{"outputs", 8}, {"bias", false}}}, squared_loss()};
    Rig rig(spec, sizes({1}));
    for (uint32_t k = 0; k < 8; ++k)
        for (uint32_t i = 0; i < 8; ++i) rig.net->parameters()[k * 8 + i] = k == i;
    rig.net->refresh();
    const float pixels[] = {8, 16}, mean = 0, std = 1, targets[8] = {};
    Samples samples{reinterpret_cast<const uint8_t*>(pixels), nullptr, 1, 1, 2, 1, &mean, &std};
    samples.element = Element::f32;
    samples.targets = std::as_bytes(std::span(targets)).data();
    uint32_t right;
    double loss;
    std::vector<float> outputs(8);
    ASSERT_TRUE(rig.net->evaluate(0, samples, &right, &loss, nullptr, outputs.data()).ok());
    EXPECT_EQ(outputs, (std::vector<float>{8, 8, 10, 10, 14, 14, 16, 16}));
}

}   // namespace
}   // namespace gradcast
