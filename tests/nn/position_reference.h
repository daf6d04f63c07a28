// Nets with a loss by position and PyTorch's numbers of them (make_positions.py).
#pragma once
#include <fstream>

#include "tests/nn/reference.h"

namespace gradcast {

struct PositionReference : testing::TestWithParam<const char*> {
    NetSpec spec;
    OptimiserConfig sgd;
    uint32_t n = 0, steps = 0;
    std::vector<uint8_t> samples;
    std::vector<std::byte> masks;
    std::vector<float> mean, std, start, gradient, end;
    std::vector<int32_t> predicted;
    double loss = 0;

    void SetUp() override {
        const std::string here = __FILE__, path = here.substr(0, here.rfind('/')) + "/reference/positions_" + GetParam() + ".bin";
        std::ifstream file(path, std::ios::binary);
        if (!file) GTEST_SKIP() << path << " (run from the top of the source tree)";
        for (std::string line; std::getline(file, line) && line != "end";) {
            std::istringstream words(line);
            std::string word;
            words >> word;
            if (word == "net") words >> spec.C >> spec.H >> spec.W >> spec.classes >> spec.vocabulary >> spec.ignore;
            if (word == "samples") words >> n;
            if (word == "steps") words >> steps >> sgd.lr >> sgd.momentum >> sgd.weight_decay;
            if (word == "layer") {
                ASSERT_TRUE(layer_parse(line.substr(6), &spec.layers.emplace_back())) << line;
            }
            ASSERT_FALSE(words.fail()) << line;
        }
        if (spec.vocabulary > 0) spec.element = Element::u16;
        else spec.targets = spec.H * spec.W, spec.target_element = Element::u8;
        std::vector<Layer> layers;
        ASSERT_TRUE(layers_check(spec, &layers).ok()) << layers_check(spec, &layers).what;
        uint64_t parameters = 0;
        for (const Layer& layer : layers) parameters += layer.parameters();
        samples = reference_read<uint8_t>(file, n * spec.sample_bytes());
        masks = reference_read<std::byte>(file, n * spec.targets_bytes());
        mean = reference_read<float>(file, spec.C), std = reference_read<float>(file, spec.C);
        start = reference_read<float>(file, parameters);
        loss = reference_read<double>(file, 1)[0];
        gradient = reference_read<float>(file, parameters);
        predicted = reference_read<int32_t>(file, uint64_t{n} * spec.positions());
        end = reference_read<float>(file, parameters);
        EXPECT_EQ(file.peek(), std::ifstream::traits_type::eof());
    }
    Samples all() const {
        Samples of{samples.data(), nullptr, n, spec.C, spec.H, spec.W, mean.data(), std.data()};
        of.element = spec.element;
        of.targets = masks.empty() ? nullptr : masks.data();
        return of;
    }
    /// Of a net with `sgd` that takes blocks of `n`.
    void expect_numbers(AnyRig& rig) const {
        const Layout& layout = rig.net->layout();
        std::copy(start.begin(), start.end(), rig.net->parameters().begin());
        rig.net->refresh();
        const Gather first = rig.block(all());
        EXPECT_NEAR(first.total, loss, 2e-6 * n);
        expect_near(layout, first.gradient, gradient, 5e-5f);
        EXPECT_TRUE(rig.net->by_position());
        std::vector<int32_t> classes(predicted.size(), -1);
        uint32_t right = 0, wanted = 0;
        double sum = 0;
        ASSERT_TRUE(rig.net->evaluate(0, all(), &right, &sum, classes.data()).ok());
        EXPECT_EQ(classes, predicted);
        EXPECT_NEAR(sum, loss, 2e-6 * n);
        const PositionLabels labels(spec);
        for (uint32_t i = 0; i < n; ++i)
            for (uint32_t at = 0; at < labels.positions(); ++at) {
                const uint32_t label = labels.of(all(), i, at);
                wanted += labels.counts(label) && label == static_cast<uint32_t>(predicted[uint64_t{i} * labels.positions() + at]);
            }
        EXPECT_EQ(right, wanted);
        for (uint32_t step = 0; step < steps; ++step) rig.step(step, rig.block(all(), 0, step).gradient, n);
        expect_near(layout, rig.net->parameters(), end, 5e-5f);
    }
};

}   // namespace gradcast
