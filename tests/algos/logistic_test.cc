// DANE and ADMM on multinomial logistic regression with exact local solutions, against the gradient of all data in plain loops.
#include <bit>
#include <cstring>

#include "algos/lbfgs.h"
#include "algos/logistic_kernels.h"
#include "runtime/core/isa.h"
#include "runtime/job/model/checkpoint_files.h"
#include "runtime/job/model/model_file.h"
#include "tests/algos/softmax.h"

namespace gradcast {
namespace portable {
extern const LogisticKernels logistic;
}
namespace avx2 {
extern const LogisticKernels logistic;
}
namespace {

constexpr uint32_t samples = 120;
constexpr double l = 0.05;

double norm(const Vector& v) {
    double sum = 0;
    for (const double each : v) sum += each * each;
    return std::sqrt(sum);
}

class LogisticTest : public SoftmaxTest {
protected:
    void SetUp() override {
        SoftmaxTest::SetUp();
        make(samples);
    }
    /// What a run has trained, in double.
    static Vector iterate(const Run& run) {
        const ModelVectors all = trained_state(run);
        if (all.parameters.empty()) return Vector(features * classes);
        Vector w(all.parameters.size());
        if (all.algorithm.size() >= w.size() * sizeof(double)) std::memcpy(w.data(), all.algorithm.data(), w.size() * sizeof(double));
        return w;
    }
    static std::string exact(const std::string& algorithm, uint32_t rounds) {
        return job("solver = \"exact\"\n" + algorithm, rounds, 10, 0.1, l);
    }
    /// Of all data, relative to that at 0.  The runtime's samples are floats, so about 1e-7 remains at the minimum.
    double residual(const Vector& w) const { return norm(gradient(w, 0, samples, l)) / norm(gradient(Vector(w.size()), 0, samples, l)); }
};

TEST_F(LogisticTest, DaneAndAdmmComeToTheMinimum) {
    for (const uint32_t workers : {1u, 2u, 4u}) {
        EXPECT_LT(residual(iterate(run(exact(fmt::format("kind = \"dane\"\nmu = 0.1\nworkers = {}\n", workers), 25), 2))), 1e-6) << workers;
        EXPECT_LT(residual(iterate(run(exact(fmt::format("kind = \"admm\"\nrho = 0.1\nworkers = {}\n", workers), 150), 2))), 1e-6)
            << workers;
    }
    // One worker without a pull has the whole problem; L-BFGS leaves a thousandth of the gradient.
    EXPECT_LT(residual(iterate(run(exact("kind = \"dane\"\nmu = 0\nworkers = 1\n", 1), 1))), 1.1e-3);
    EXPECT_LT(residual(iterate(run(exact("kind = \"dane\"\nmu = 0\nworkers = 1\n", 3), 1))), 1e-6);
    EXPECT_GT(residual(iterate(run(exact("kind = \"dane\"\nmu = 0.1\nworkers = 4\n", 1), 1))), 1e-3);
}

TEST_F(LogisticTest, OneDigestOnAnyNumberOfNodes) {
    for (const char* kind : {"dane", "admm"}) {
        const std::string text = with_job(exact(fmt::format("kind = \"{}\"\nworkers = 4\n", kind), 6), "checkpoint_every = 3\n");
        const Run one = run(text, 1), three = run(text, 3);
        ASSERT_EQ(one.digest().size(), 64u) << one.digest();
        EXPECT_EQ(three.digest(), one.digest());
        EXPECT_EQ(iterate(three), iterate(one));
        for (const uint32_t n : {2u, 4u, 5u}) EXPECT_EQ(run(text, n).digest(), one.digest()) << n;
        for (const char* exchange : {"unicast", "multicast", "coded-rs", "ps"})
            EXPECT_EQ(run(fmt::format("{}exchange = \"{}\"\n", text, exchange), 3).digest(), one.digest()) << exchange;
        EXPECT_EQ(one.ranks[0].gradients, three.ranks[0].gradients + three.ranks[1].gradients + three.ranks[2].gradients);
        std::string path;
        for (const std::string& folder : three.folders)
            for (const CheckpointHere& each : checkpoints_in(folder)) path = each.path;
        EXPECT_EQ(iterate(run(text, {.ranks = 2}, false, {}, from(path))), iterate(one));
    }
}

TEST(LogisticKernels, GiveTheSameBitsOnAllInstructionSets) {
    constexpr uint64_t features = 13, wide = 16;
    for (const uint32_t rows : {1u, 3u, rows_most}) {
        std::vector<float> x(rows * features);
        std::vector<double> weights((features + 1) * wide), errors(rows * wide);
        uint32_t n = 0;
        const auto drawn = [&n] { return random4(Purpose::test, 9, n++, 0)[0] / 4294967296.0 - 0.5; };
        for (float& each : x) each = static_cast<float>(drawn());
        for (double& each : weights) each = drawn();
        for (double& each : errors) each = drawn();
        std::vector<std::vector<double>> outputs, sums;
        for (const LogisticKernels* kernels :
             {&portable::logistic, isa_best() >= Isa::avx2 ? &avx2::logistic : &portable::logistic, &logistic_kernels()}) {
            kernels->outputs(x.data(), rows, features, weights.data(), wide, outputs.emplace_back(rows * wide).data());
            kernels->products(x.data(), rows, features, errors.data(), wide, sums.emplace_back(weights).data());
        }
        EXPECT_TRUE(outputs[1] == outputs[0] && outputs[2] == outputs[0] && sums[1] == sums[0] && sums[2] == sums[0]);
        for (uint32_t row = 0; row < rows; ++row)
            for (uint64_t c = 0; c < wide; ++c) {
                double sum = weights[features * wide + c];
                for (uint64_t j = 0; j < features; ++j) sum += weights[j * wide + c] * static_cast<double>(x[row * features + j]);
                EXPECT_EQ(outputs[0][row * wide + c], sum);
            }
        for (uint64_t c = 0; c < wide; ++c)
            for (uint64_t j = 0; j <= features; ++j) {
                double sum = weights[j * wide + c];
                for (uint32_t row = 0; row < rows; ++row)
                    sum += errors[row * wide + c] * (j < features ? static_cast<double>(x[row * features + j]) : 1.0);
                EXPECT_EQ(sums[0][j * wide + c], sum);
            }
    }
}

TEST(Lbfgs, FindsTheMinimumOfABadlyScaledFunction) {
    // sum of k^2 (x_k - 1)^2 / 2 + log cosh(x_k - 1)
    constexpr size_t d = 40;
    const auto slope = [](std::span<const double> x, std::span<double> g) {
        for (size_t k = 0; k < d; ++k) g[k] = static_cast<double>((k + 1) * (k + 1)) * (x[k] - 1) + std::tanh(x[k] - 1);
        return Status{};
    };
    Vector memory(Lbfgs::vectors * d), x(d), g(d);
    Lbfgs solver{.memory = memory, .f = slope, .tolerance = 1e-12};
    ASSERT_TRUE(slope(x, g).ok());
    ASSERT_TRUE(solver.minimise(g, x).ok());
    for (const double each : x) EXPECT_NEAR(each, 1, 1e-8);
    solver.evaluations_max = 5;
    EXPECT_EQ(solver.minimise(g, x).code, Code::deadline);
}

}   // namespace
}   // namespace gradcast
