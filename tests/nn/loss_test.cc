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

}   // namespace
}   // namespace gradcast
