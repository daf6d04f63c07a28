// Samples that are no bytes, and targets that are floats.
#include "tests/nn/nets.h"

namespace gradcast {
namespace {

/// The same numbers as data of another type, scaled so that a net sees the same.
struct SameAs {
    std::vector<uint8_t> bytes;
    std::vector<float> mean, std;
    Samples samples;
    SameAs(const Data& of, Element element) : mean(of.mean), std(of.std), samples(of.samples) {
        for (const uint8_t pixel : of.images) {
            const float value = static_cast<float>(pixel) / 255;
            std::vector<uint8_t> as(element_bytes(element));
            if (element == Element::f32) std::memcpy(as.data(), &value, sizeof value);
            else as[0] = pixel;
            bytes.insert(bytes.end(), as.begin(), as.end());
        }
        if (element != Element::f32)
            for (std::vector<float>* each : {&mean, &std})
                for (float& x : *each) x *= 255;
        samples.images = bytes.data();
        samples.mean = mean.data();
        samples.std = std.data();
        samples.element = element;
    }
};

// Nets whose first layer takes samples side by side, takes them plainly, and has a margin or none.
TEST(Typed, TheTypeOfTheSamplesChangesNothingElse) {
    for (const NetSpec& spec : {preset("lenet5"), preset("mlp"), everything()})
        for (const Element element : {Element::u16, Element::u32, Element::f32}) {
            SCOPED_TRACE(fmt::format("{} {}", spec.layers[0].kind, element_name(element)));
            const Data data(spec, 19);
            const SameAs same(data, element);
            Rig bytes(spec, sizes({19}));
            const Gather wanted = bytes.block(data.samples);
            NetSpec other = spec;
            other.element = element;
            Rig typed(other, sizes({19}));
            const Gather found = typed.block(same.samples);
            EXPECT_NEAR(found.total, wanted.total, 1e-4 * wanted.total);
            float largest = 0;
            for (const float x : wanted.gradient) largest = std::max(largest, std::fabs(x));
            for (size_t i = 0; i < wanted.gradient.size(); ++i)
                ASSERT_NEAR(found.gradient[i], wanted.gradient[i], 1e-3 * largest) << "element " << i;
        }
}

// One inner product: loss and gradient by hand.
TEST(Typed, SquaredLossOfFloatTargets) {
    constexpr uint32_t features = 5, outputs = 3, count = 7;
    const NetSpec spec{.C = features,
                       .H = 1,
                       .W = 1,
                       .classes = 1,
                       .targets = outputs,
                       .element = Element::f32,
                       .layers = {fc(outputs), {.kind = "squared_loss"}}};
    const Data data(spec, count);
    Rig rig(spec, sizes({count}));
    const Gather found = rig.block(data.samples);
    const std::span<float> w = rig.net->parameters();
    double loss = 0;
    std::vector<double> gradient(w.size());
    for (uint32_t n = 0; n < count; ++n) {
        double x[features];
        for (uint32_t i = 0; i < features; ++i) {
            float value;
            std::memcpy(&value, &data.images[(n * features + i) * sizeof value], sizeof value);
            x[i] = (static_cast<double>(value) - 0.4) / 0.3;
        }
        for (uint32_t k = 0; k < outputs; ++k) {
            double y = static_cast<double>(w[outputs * features + k]);
            for (uint32_t i = 0; i < features; ++i) y += static_cast<double>(w[k * features + i]) * x[i];
            const double off = y - static_cast<double>(data.targets[n * outputs + k]);
            loss += off * off;
            for (uint32_t i = 0; i < features; ++i) gradient[k * features + i] += 2 * off * x[i];
            gradient[outputs * features + k] += 2 * off;
        }
    }
    EXPECT_NEAR(found.total, loss, 1e-4 * loss);
    for (size_t i = 0; i < gradient.size(); ++i) EXPECT_NEAR(found.gradient[i], gradient[i], 1e-4 * std::fabs(gradient[i]) + 1e-4) << i;
    uint32_t right = 7;
    double evaluated = 0;
    std::vector<int32_t> predicted(count, 5);
    std::vector<float> out(count * outputs);
    ASSERT_TRUE(rig.net->evaluate(0, data.samples, &right, &evaluated, predicted.data(), out.data()).ok());
    EXPECT_EQ(right, 0u);
    EXPECT_NEAR(evaluated, loss, 1e-4 * loss);
    double again = 0;
    for (size_t i = 0; i < out.size(); ++i) again += std::pow(static_cast<double>(out[i]) - static_cast<double>(data.targets[i]), 2);
    EXPECT_NEAR(again, loss, 1e-4 * loss);
}

TEST(Typed, OtherSamplesAreRefused) {
    const NetSpec spec = regression_on_floats(Element::f32);
    Rig rig(spec, sizes({4}));
    const Data data(spec, 4);
    Gather sink(rig.net->layout());
    Samples bytes = data.samples, labels = data.samples;
    bytes.element = Element::u8;
    labels.targets = nullptr;
    EXPECT_STREQ(rig.net->block(0, {0, 0}, bytes, sink).what, "samples of u8 do not fit the net's input of f32");
    EXPECT_STREQ(rig.net->block(0, {0, 0}, labels, sink).what, "samples with labels, but the net takes targets");
    NetSpec other = regression_on_floats(Element::f32);
    other.layers.back().kind = "softmax_cross_entropy";
    std::vector<Layer> layers;
    EXPECT_STREQ(
        layers_check(other, &layers).what,
        "layer loss1: softmax_cross_entropy is for classes, but the data are a regression (targets are floats): take squared_loss");
    other = regression_on_floats(Element::f32);
    other.targets = 3;
    EXPECT_STREQ(layers_check(other, &layers).what, "layer loss1: its input 4x1x1 does not fit a regression, which has 3 outputs (3x1x1)");
}

}   // namespace
}   // namespace gradcast
