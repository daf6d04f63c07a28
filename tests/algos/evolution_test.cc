// Differential evolution and the greedy soup against what their equations allow, with the workers' training as plain loops in double.
#include <array>
#include <cstring>
#include <numeric>

#include "algos/jde.h"
#include "tests/algos/softmax.h"

namespace gradcast {
namespace {

constexpr uint32_t evolution_workers = 4;

class EvolutionTest : public ChoiceTest<evolution_workers> {
protected:
    static std::string text(const char* kind, uint32_t steps, const std::string& more = "") {
        return job(
            fmt::format("kind = \"{}\"\nworkers = {}\nlocal_steps = 2\nvalidation = {}\n{}", kind, evolution_workers, validation, more),
            steps, part, lr, 0);
    }
    uint32_t right(const Vector& w) const {
        uint32_t count = 0;
        for (uint32_t n = evolution_workers * part; n < evolution_workers * part + validation; ++n) {
            const Vector p = outputs(w, n);
            count += label(n) == static_cast<uint32_t>(std::max_element(p.begin(), p.end()) - p.begin());
        }
        return count;
    }
    static bool near(double a, double b) { return std::abs(a - b) < 2e-5 * std::max(1.0, std::abs(b)); }
    static bool near(const Vector& a, const Vector& b) {
        return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](double x, double y) { return near(x, y); });
    }
};

/// The state after a round of DE, as in a checkpoint: the number of workers, whether it has begun, F and CR of each, their individuals.
struct Population {
    std::array<double, evolution_workers> f{}, cr{};
    std::array<Vector, evolution_workers> of;
};
Population population(const std::vector<std::byte>& state, size_t elements) {
    Population all;
    const std::byte* at = state.data() + 2 * sizeof(uint64_t);
    for (uint32_t k = 0; k < evolution_workers; ++k) {
        std::memcpy(&all.f[k], at + 2 * k * sizeof(double), sizeof(double));
        std::memcpy(&all.cr[k], at + (2 * k + 1) * sizeof(double), sizeof(double));
        std::vector<float> values(elements);
        std::memcpy(values.data(), at + 2 * evolution_workers * sizeof(double) + k * elements * sizeof(float), elements * sizeof(float));
        all.of[k] = {values.begin(), values.end()};
    }
    return all;
}

// An individual is what its worker has learnt, with the F and CR of before, or it is right about more validation samples, and then each
// of its values comes from the worker or from one mutant w_r1 + F (w_r2 - w_r3), of the F that it keeps.
TEST_F(EvolutionTest, TrialsAreThoseOfTheEquations) {
    constexpr uint32_t rounds = 60;
    const std::string more = "[job]\ncheckpoint_every = 1\ncheckpoint_keep = 99\n";
    const Run run = this->run(replaced(text("de", rounds), "[job]\n", more), 2);
    ASSERT_TRUE(run.status.ok()) << run.status.what;
    const auto paths = checkpoints(run);
    Population before;
    before.f.fill(0.5), before.cr.fill(0.9), before.of.fill(initial());
    uint32_t better = 0, new_f = 0, new_cr = 0, mutated = 0, kept = 0;
    double expected = 0;
    for (const auto& [round, path] : paths) {
        Model model;
        ModelVectors written;
        ASSERT_TRUE(checkpoint_read(path, &model, &written).ok());
        const Population after = population(written.algorithm, before.of[0].size());
        std::array<Vector, evolution_workers> learnt;
        for (uint32_t k = 0; k < evolution_workers; ++k) learnt[k] = trained_alone(before.of[k], k, 2);
        uint32_t best = 0;
        for (uint32_t k = 0; k < evolution_workers; ++k) {
            SCOPED_TRACE(fmt::format("round {} worker {}", round, k));
            best = std::max(best, right(after.of[k]));
            EXPECT_GE(right(after.of[k]), right(learnt[k]));
            if (near(after.of[k], learnt[k])) {
                EXPECT_EQ(after.f[k], before.f[k]);
                EXPECT_EQ(after.cr[k], before.cr[k]);
                continue;
            }
            ++better;
            new_f += after.f[k] != before.f[k];
            new_cr += after.cr[k] != before.cr[k];
            EXPECT_GT(right(after.of[k]), right(learnt[k]));
            EXPECT_TRUE(after.f[k] == before.f[k] || (after.f[k] >= 0.1 && after.f[k] <= 1)) << after.f[k];
            EXPECT_TRUE(after.cr[k] == before.cr[k] || (after.cr[k] >= 0 && after.cr[k] <= 1)) << after.cr[k];
            std::array<uint32_t, evolution_workers> r;
            std::iota(r.begin(), r.end(), 0u);
            bool found = false;
            do {
                if (r[3] != k) continue;
                uint32_t of_mutant = 0, of_worker = 0;
                for (size_t i = 0; i < after.of[k].size(); ++i) {
                    const double mutant = learnt[r[0]][i] + after.f[k] * (learnt[r[1]][i] - learnt[r[2]][i]);
                    if (near(after.of[k][i], mutant)) ++of_mutant;
                    else if (near(after.of[k][i], learnt[k][i])) ++of_worker;
                }
                if (of_mutant + of_worker < after.of[k].size() || of_mutant == 0) continue;
                found = true;
                mutated += of_mutant;
                kept += of_worker;
                expected += after.cr[k] * static_cast<double>(after.of[k].size());
                break;
            } while (std::next_permutation(r.begin(), r.end()));
            EXPECT_TRUE(found) << "no mutant of three others";
        }
        EXPECT_EQ(right({written.parameters.begin(), written.parameters.end()}), best);   // the net is the best individual
        before = after;
    }
    EXPECT_EQ(paths.rbegin()->first, rounds - 1);   // the model of the last round is no checkpoint
    EXPECT_GT(better, 10u);
    EXPECT_GT(kept, 0u);
    EXPECT_NEAR(mutated, expected, 0.2 * expected);   // CR is the share of the mutant's values
    EXPECT_GT(new_f + new_cr, 0u);
    EXPECT_LT(new_f, better / 2);   // each changes with a probability of 0.1
    EXPECT_LT(new_cr, better / 2);
}

// tau1 = tau2 = 0.1, F_l = 0.1, F_u = 0.9: at the edges of a draw, and over many.
TEST(JdeTest, ConstantsAreThoseOfThePaper) {
    constexpr Jde old{.f = 0.5, .cr = 0.9};
    constexpr uint32_t most = ~0u, under = 429496729, above = 429496730;   // about 0.1 * 2^32
    const auto drawn = [&](uint32_t a, uint32_t b, uint32_t c, uint32_t d) { return old.adapted({a, b, c, d}); };
    EXPECT_NEAR(drawn(0, under, 0, most).f, 0.1, 1e-9);
    EXPECT_NEAR(drawn(most, under, 0, most).f, 1, 1e-9);
    EXPECT_NEAR(drawn(1u << 31, 0, 0, most).f, 0.55, 1e-9);
    EXPECT_EQ(drawn(0, under, 0, most).cr, 0.9);
    EXPECT_NEAR(drawn(0, most, 0, under).cr, 0, 1e-9);
    EXPECT_NEAR(drawn(0, most, most, under).cr, 1, 1e-9);
    EXPECT_EQ(drawn(0, most, 0, under).f, 0.5);
    EXPECT_EQ(drawn(0, above, 0, above).f, 0.5);
    EXPECT_EQ(drawn(0, above, 0, above).cr, 0.9);

    constexpr uint32_t draws = 1'000'000;
    uint32_t new_f = 0, new_cr = 0, both = 0;
    double f = 0, cr = 0, f_least = 9, f_most = 0;
    for (uint32_t i = 0; i < draws; ++i) {
        const Jde now = old.adapted(random4(Purpose::test, 11, i, 0));
        const bool of_f = now.f != old.f, of_cr = now.cr != old.cr;
        new_f += of_f, new_cr += of_cr, both += of_f && of_cr;
        if (of_f) f += now.f, f_least = std::min(f_least, now.f), f_most = std::max(f_most, now.f);
        if (of_cr) cr += now.cr;
    }
    const auto five_sigma = [](double p) { return 5 * std::sqrt(p * (1 - p) * draws); };
    EXPECT_NEAR(new_f, 0.1 * draws, five_sigma(0.1));
    EXPECT_NEAR(new_cr, 0.1 * draws, five_sigma(0.1));
    EXPECT_NEAR(both, 0.01 * draws, five_sigma(0.01));   // one does not follow the other
    const double of_mean = 5 / std::sqrt(12 * 0.1 * draws);
    EXPECT_NEAR(f / new_f, 0.55, 0.9 * of_mean);
    EXPECT_NEAR(cr / new_cr, 0.5, of_mean);
    EXPECT_GE(f_least, 0.1);
    EXPECT_LT(f_least, 0.1001);
    EXPECT_LE(f_most, 1);
    EXPECT_GT(f_most, 0.9999);
}

TEST_F(EvolutionTest, TheSoupIsGreedy) {
    uint32_t missing = 0;
    for (const uint32_t rounds : {1u, 2u, 5u}) {
        Vector w = initial();
        for (uint32_t round = 0; round < rounds; ++round) {
            std::vector<Vector> models;
            for (uint32_t k = 0; k < evolution_workers; ++k) models.push_back(trained_alone(w, k, 2));
            std::vector<uint32_t> order(evolution_workers), in;
            std::iota(order.begin(), order.end(), 0u);
            std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return right(models[a]) > right(models[b]); });
            const auto mean = [&] {
                Vector sum(w.size());
                for (const uint32_t k : in)
                    for (size_t i = 0; i < sum.size(); ++i) sum[i] += models[k][i] / static_cast<double>(in.size());
                return sum;
            };
            for (const uint32_t k : order) {
                const uint32_t least = in.empty() ? 0 : right(mean());
                in.push_back(k);
                if (right(mean()) >= least) continue;
                in.pop_back();
                ++missing;
            }
            w = mean();
        }
        const Vector got = trained(text("soup", rounds));
        EXPECT_TRUE(near(got, w)) << rounds;
    }
    EXPECT_GT(missing, 0u);
}

}   // namespace
}   // namespace gradcast
