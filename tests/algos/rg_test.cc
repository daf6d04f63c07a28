// RG's weights against least squares, written from the equations alone.
#include "tests/algos/softmax.h"

namespace gradcast {
namespace {

constexpr uint32_t rg_workers = 3;

class RgTest : public ChoiceTest<rg_workers> {
protected:
    /// (1/N) |Y - sum_k alpha_k P_k|^2 + shrink |alpha - 1/n|^2
    double objective(const std::vector<Vector>& models, const Vector& alpha, double shrink) const {
        double sum = 0;
        for (uint32_t n = rg_workers * part; n < rg_workers * part + validation; ++n) {
            Vector off(classes);
            off[label(n)] = 1;
            for (uint32_t k = 0; k < rg_workers; ++k) {
                const Vector p = outputs(models[k], n);
                for (uint32_t c = 0; c < classes; ++c) off[c] -= alpha[k] * p[c];
            }
            for (const double each : off) sum += each * each / validation;
        }
        for (const double each : alpha) sum += shrink * (each - 1.0 / rg_workers) * (each - 1.0 / rg_workers);
        return sum;
    }
    /// Its argmin among those that sum to 1: the objective is a quadratic of alpha_1, alpha_2, so finite differences are exact.
    Vector weights(const std::vector<Vector>& models, double shrink) const {
        const auto at = [&](double a, double b) { return objective(models, {a, b, 1 - a - b}, shrink); };
        const double zero = at(0, 0), ga = (at(1, 0) - at(-1, 0)) / 2, gb = (at(0, 1) - at(0, -1)) / 2;
        const double haa = at(1, 0) + at(-1, 0) - 2 * zero, hbb = at(0, 1) + at(0, -1) - 2 * zero;
        const double hab = (at(1, 1) - at(1, -1) - at(-1, 1) + at(-1, -1)) / 4, det = haa * hbb - hab * hab;
        const double a = -(hbb * ga - hab * gb) / det, b = -(haa * gb - hab * ga) / det;
        return {a, b, 1 - a - b};
    }
};

TEST_F(RgTest, WeightsAreThoseOfLeastSquares) {
    for (const double shrink : {1e-3, 0.1, 10.0}) {
        Vector w = initial();
        for (uint32_t round = 0; round < 3; ++round) {
            std::vector<Vector> models;
            for (uint32_t k = 0; k < rg_workers; ++k) models.push_back(trained_alone(w, k, 5));
            const Vector alpha = weights(models, shrink);
            if (shrink < 1e-2) {
                EXPECT_GT(std::abs(alpha[0] - alpha[1]), 0.1);   // not the mean
            }
            for (size_t i = 0; i < w.size(); ++i) {
                w[i] = 0;
                for (uint32_t k = 0; k < rg_workers; ++k) w[i] += alpha[k] * models[k][i];
            }
        }
        const Vector got =
            trained(job(fmt::format("kind = \"rg\"\nworkers = 3\nlocal_steps = 5\nvalidation = {}\nshrink = {}\n", validation, shrink), 3,
                        part, lr, 0));
        ASSERT_EQ(got.size(), w.size());
        for (size_t i = 0; i < w.size(); ++i) EXPECT_NEAR(got[i], w[i], 2e-5 * std::max(1.0, std::abs(w[i]))) << shrink << " " << i;
    }
}

TEST_F(RgTest, ModelsThatAreAlikeGetEqualWeights) {
    // The first round's models are one where a step is too small to be seen.
    const auto text = [](const char* kind, const std::string& more) {
        return job(fmt::format("kind = \"{}\"\nworkers = 3\nlocal_steps = 1\n{}", kind, more), 1, part, 1e-30, 0);
    };
    const Vector got = trained(text("rg", fmt::format("validation = {}\n", validation))), same = initial();
    ASSERT_EQ(got.size(), same.size());
    for (size_t i = 0; i < same.size(); ++i) EXPECT_NEAR(got[i], same[i], 1e-6);
    const Run alike = run(text("rg", fmt::format("validation = {}\nshrink = 1e-30\n", validation)), 2);
    EXPECT_EQ(alike.status.code, Code::diverged);
    EXPECT_NE(std::string(alike.status.what).find("raise algorithm.shrink"), std::string::npos) << alike.status.what;
}

}   // namespace
}   // namespace gradcast
