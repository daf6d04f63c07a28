// softmax_cross_entropy with label_smoothing beside PyTorch's formula: (1 - s) of the cross entropy, and s of the mean of -log p.
#include "tests/nn/nets.h"

namespace gradcast {
namespace {

NetSpec smoothed(double s) { return of(1, 3, 3, 0, 4, {fc(4), {.kind = "softmax_cross_entropy", .values = {{"label_smoothing", s}}}}); }

TEST(Loss, LabelSmoothing) {
    constexpr uint32_t count = 5, classes = 4, features = 9;
    for (const double s : {0.0, 0.1, 0.75}) {
        const NetSpec spec = smoothed(s);
        const Data data(spec, count);
        Rig rig(spec, sizes({count}));
        const Gather found = rig.block(data.samples);
        const std::span<float> w = rig.net->parameters();
        double loss = 0;
        std::vector<double> gradient(w.size());
        for (uint32_t n = 0; n < count; ++n) {
            double x[features], y[classes], sum = 0;
            for (uint32_t i = 0; i < features; ++i) x[i] = (data.images[n * features + i] / 255.0 - 0.4) / 0.3;
            for (uint32_t k = 0; k < classes; ++k) {
                y[k] = static_cast<double>(w[classes * features + k]);
                for (uint32_t i = 0; i < features; ++i) y[k] += static_cast<double>(w[k * features + i]) * x[i];
                sum += std::exp(y[k]);
            }
            for (uint32_t k = 0; k < classes; ++k) {
                const double p = std::exp(y[k]) / sum;
                const double t = (static_cast<uint32_t>(data.labels[n]) == k ? 1 - s : 0) + s / classes;
                loss -= t * std::log(p);
                for (uint32_t i = 0; i < features; ++i) gradient[k * features + i] += (p - t) * x[i];
                gradient[classes * features + k] += p - t;
            }
        }
        EXPECT_NEAR(found.total, loss, 1e-5 * loss) << s;
        EXPECT_NEAR(rig.loss(data.samples), loss, 1e-5 * loss) << s;
        for (size_t i = 0; i < gradient.size(); ++i) EXPECT_NEAR(found.gradient[i], gradient[i], 1e-4) << s << " " << i;
    }
}

// Without smoothing the bits are those of a loss that does not name it.
TEST(Loss, NoSmoothingIsTheDefault) {
    const NetSpec named = smoothed(0), plain = of(1, 3, 3, 0, 4, {fc(4), loss()});
    const Data data(plain, 7);
    Rig a(named, sizes({7})), b(plain, sizes({7}));
    const Gather first = a.block(data.samples), second = b.block(data.samples);
    EXPECT_EQ(first.total, second.total);
    EXPECT_TRUE(same_bits(first.gradient, second.gradient));
    std::vector<Layer> layers;
    EXPECT_STREQ(layers_check(smoothed(1), &layers).what, "layer loss1: its label_smoothing 1 must be at least 0 and below 1");
}

struct Counted : Gather {
    using Gather::Gather;
    uint64_t positions = 0;
    uint32_t calls = 0;
    void valid(uint32_t, BlockId, uint64_t count) override {
        EXPECT_TRUE(has_loss && next == 0);
        positions = count;
        ++calls;
    }
};

// A block has the loss and the gradient of a mean over all positions, and says how many count.  The factor of mean_over_valid() makes the
// gradient the slope of the mean over those.
TEST(Loss, MeanOverValidPositions) {
    NetSpec spec = of_masks();
    EXPECT_FALSE(mean_over_valid(spec));
    Rig plain(spec, sizes({3, 4}));
    EXPECT_TRUE(layer_set(spec.layers.back(), "mean_over", "valid"));
    EXPECT_TRUE(mean_over_valid(spec));
    EXPECT_EQ(layer_text(spec.layers.back()), "softmax_cross_entropy mean_over=valid");
    Rig rig(spec, sizes({3, 4}));
    const PositionLabels labels(spec);
    for (const uint32_t count : {3u, 4u}) {
        const Data data(spec, count, count);
        uint64_t wanted = 0;
        for (uint32_t n = 0; n < count; ++n)
            for (uint32_t at = 0; at < labels.positions(); ++at) wanted += labels.counts(labels.of(data.samples, n, at));
        EXPECT_LT(wanted, count * labels.positions());
        Counted found(rig.net->layout()), before(rig.net->layout());
        ASSERT_TRUE(rig.net->block(0, {1, 2}, data.samples, found).ok());
        ASSERT_TRUE(plain.net->block(0, {1, 2}, data.samples, before).ok());
        EXPECT_EQ(found.positions, wanted);
        EXPECT_EQ(found.calls, 1u);
        EXPECT_EQ(before.calls, 0u);
        EXPECT_EQ(found.total, before.total);
        EXPECT_TRUE(same_bits(found.gradient, before.gradient));
        const double factor = labels.positions() / static_cast<double>(wanted);
        const std::span<float> w = rig.net->parameters();
        for (uint64_t i = 0; i < w.size(); i += 7) {
            const float was = w[i], h = 0x1p-7f;
            const auto mean = [&](float is) {
                w[i] = is;
                rig.net->refresh();
                return rig.loss(data.samples) * factor;
            };
            const double slope = (mean(was + h) - mean(was - h)) / (2 * static_cast<double>(h));
            mean(was);
            EXPECT_NEAR(static_cast<double>(found.gradient[i]) * factor, slope, 2e-3) << i;
        }
    }
}

TEST(Loss, MeanOverIsOfPositions) {
    NetSpec spec = of(1, 3, 3, 0, 4, {fc(4), {.kind = "softmax_cross_entropy", .values = {{"mean_over", 1}}}});
    std::vector<Layer> layers;
    EXPECT_STREQ(layers_check(spec, &layers).what,
                 "layer loss1: mean_over = \"valid\" is of masks and texts, but the data have one label a sample: leave it out");
    spec = {.C = 1, .H = 32, .W = 32, .classes = 3, .targets = 1024, .target_element = Element::u8};
    ASSERT_TRUE(preset_layers("unet", {.valid = true}, &spec).ok());
    EXPECT_TRUE(mean_over_valid(spec));
    NetSpec ridge;
    EXPECT_STREQ(preset_layers("ridge", {.valid = true}, &ridge).what,
                 "net ridge: its loss is squared_loss, which has no mean_over: leave net.mean_over out");
}

}   // namespace
}   // namespace gradcast
