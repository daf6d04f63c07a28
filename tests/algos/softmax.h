// Multinomial logistic regression on a few samples, in the runtime and as plain loops in double, for comparison.
#pragma once
#include <algorithm>
#include <cmath>

#include "datasets/sampler.h"
#include "nn/graph/layers.h"
#include "runtime/job/model/model_file.h"
#include "tests/algos/runs.h"

namespace gradcast {

using Vector = std::vector<double>;

class SoftmaxTest : public AlgosTest {
protected:
    static constexpr uint32_t features = 6, classes = 3, seed = 5;

    /// Samples of three classes that overlap, as line.h5.
    void make(uint32_t samples) {
        std::vector<uint8_t> pixels(samples * features);
        std::vector<int32_t> labels(samples);
        for (uint32_t n = 0; n < samples; ++n) {
            const auto drawn = [n](uint32_t i) { return random4(Purpose::test, 4, n, i)[0]; };
            labels[n] = static_cast<int32_t>(drawn(features) % classes);
            for (uint32_t f = 0; f < features; ++f)
                pixels[n * features + f] =
                    static_cast<uint8_t>(drawn(f) % 200 + (f % classes == static_cast<uint32_t>(labels[n]) ? 55 : 0));
        }
        const DataInfo info{
            .count = samples, .C = 1, .H = 1, .W = features, .classes = classes, .mean = {0.5f}, .std = {0.25f}, .source = "test"};
        ASSERT_TRUE(shard_write(folder_ + "/line.h5", info, pixels.data(), labels.data()).ok());
        std::vector<uint64_t> order(samples);
        Sampler(samples, seed, 1, 1).range(0, order);
        for (const uint64_t n : order) {
            Vector row;
            for (uint32_t f = 0; f < features; ++f) row.push_back((pixels[n * features + f] / 255.0 - 0.5) / 0.25);
            x_.push_back(row);
            label_.push_back(static_cast<uint32_t>(labels[n]));
        }
    }
    static std::string job(const std::string& algorithm, uint32_t steps, uint32_t batch, double lr, double decay) {
        return fmt::format(
            "[job]\nsteps = {}\nseed = {}\nbatch = {}\nblocks = 1\n[data]\ntrain = \"line.h5\"\n[net]\n[[net.layers]]\nkind = "
            "\"inner_product\"\noutputs = 3\nbias = false\n[[net.layers]]\nkind = \"softmax_cross_entropy\"\n[optimiser]\nlr = "
            "{}\nweight_decay = {}\n[algorithm]\n{}",
            steps, seed, batch, lr, decay, algorithm);
    }
    /// What two nodes train.
    Vector trained(const std::string& text) {
        const Run run = this->run(text, 2);
        Model model;
        std::vector<float> parameters;
        EXPECT_TRUE(run.status.ok()) << run.status.what;
        if (!run.status.ok()) return {};
        EXPECT_TRUE(model_read(run.ranks[0].model, &model, &parameters).ok());
        return {parameters.begin(), parameters.end()};
    }
    static Vector initial() {
        Layout layout{features * classes, {{0, features * classes, "fc1"}}, {{0, features * classes, 0, 1}}};
        const NetSpec spec{
            .C = 1,
            .H = 1,
            .W = features,
            .classes = classes,
            .layers = {{.kind = "inner_product", .values = {{"outputs", classes}, {"bias", false}}}, {.kind = "softmax_cross_entropy"}}};
        std::vector<float> w(features * classes);
        weights_initial(spec, layout, seed, w);
        return {w.begin(), w.end()};
    }
    /// Softmax of sample n of the permutation.
    Vector outputs(const Vector& w, uint32_t n) const {
        Vector p(classes);
        double sum = 0;
        for (uint32_t k = 0; k < classes; ++k) {
            for (uint32_t f = 0; f < features; ++f) p[k] += w[k * features + f] * x_[n][f];
            sum += p[k] = std::exp(p[k]);
        }
        for (double& each : p) each /= sum;
        return p;
    }
    /// Of the mean loss of samples first .. first + count - 1, and of (l/2) ||w||^2.
    Vector gradient(const Vector& w, uint32_t first, uint32_t count, double l) const {
        Vector g(w.size());
        for (size_t i = 0; i < w.size(); ++i) g[i] = l * w[i];
        for (uint32_t n = first; n < first + count; ++n) {
            const Vector p = outputs(w, n);
            for (uint32_t k = 0; k < classes; ++k)
                for (uint32_t f = 0; f < features; ++f) g[k * features + f] += (p[k] - (k == label_[n])) * x_[n][f] / count;
        }
        return g;
    }
    uint32_t label(uint32_t n) const { return label_[n]; }

private:
    std::vector<Vector> x_;   // in the order of the permutation
    std::vector<uint32_t> label_;
};

/// Of those that choose among models: workers with parts of their own, and samples to choose by behind these.
template <uint32_t workers>
class ChoiceTest : public SoftmaxTest {
protected:
    static constexpr uint32_t part = 16, validation = 30;
    static constexpr double lr = 0.2;

    void SetUp() override {
        SoftmaxTest::SetUp();
        make(workers * part + validation);
    }
    /// What worker k makes of w.
    Vector trained_alone(Vector w, uint32_t k, uint32_t steps) const {
        for (uint32_t step = 0; step < steps; ++step) {
            const Vector g = gradient(w, k * part, part, 0);
            for (size_t i = 0; i < g.size(); ++i) w[i] -= lr * g[i];
        }
        return w;
    }
};

}   // namespace gradcast
