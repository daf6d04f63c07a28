// DANE and ADMM on ridge regression, against the solution in closed form.
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "datasets/import.h"
#include "datasets/reader.h"
#include "datasets/sampler.h"
#include "runtime/job/model/checkpoint_files.h"
#include "runtime/job/model/model_file.h"
#include "tests/algos/runs.h"

namespace gradcast {
namespace {

constexpr double l = 0.01;   // (l/2) ||w||^2

class RidgeTest : public AlgosTest {
protected:
    void import(uint64_t samples) {
        ImportResult imported;
        std::filesystem::remove_all(folder_ + "/ridge");
        const Status status = data_import({.kind = "ridge", .from = "", .out = folder_ + "/ridge", .samples = samples}, &imported);
        ASSERT_TRUE(status.ok()) << status.what;
        best_ = solution(folder_ + "/ridge/train.h5");
    }
    /// The workers' samples differ in their targets alone.
    void alike(uint32_t workers, uint32_t part, uint32_t features) {
        const uint32_t samples = workers * part, levels = 200;
        std::vector<uint64_t> order(samples);
        Sampler(samples, 1, 1, 1).range(0, order);
        std::vector<uint8_t> pixels(samples * features);
        std::vector<int32_t> labels(samples);
        for (uint32_t n = 0; n < samples; ++n) {
            labels[order[n]] = static_cast<int32_t>(random4(Purpose::test, 7, n, features)[0] % levels);
            for (uint32_t f = 0; f < features; ++f)
                pixels[order[n] * features + f] = static_cast<uint8_t>(random4(Purpose::test, 7, n % part, f)[0] % 256);
        }
        const DataInfo info = regression(samples, features, levels);
        std::filesystem::create_directories(folder_ + "/ridge");
        ASSERT_TRUE(shard_write(folder_ + "/ridge/train.h5", info, pixels.data(), labels.data()).ok());
        best_ = solution(folder_ + "/ridge/train.h5");
    }
    static std::string job(const std::string& algorithm, uint32_t rounds) {
        return fmt::format(
            "[job]\nsteps = {}\nbatch = 100\nblocks = 1\n[data]\ntrain = \"ridge/train.h5\"\n[net]\npreset = \"ridge\"\n"
            "[optimiser]\nweight_decay = {}\n[algorithm]\nsolver = \"exact\"\n{}",
            rounds, l, algorithm);
    }
    /// ||w - w*|| / ||w*|| of what a run has trained, in double.
    double error(const Run& run) const {
        const ModelVectors all = trained_state(run);
        std::vector<double> w(best_.size());
        EXPECT_EQ(all.algorithm.size() % (w.size() * sizeof(double)), 0u);   // admm: multipliers behind it
        if (all.algorithm.size() >= w.size() * sizeof(double)) std::memcpy(w.data(), all.algorithm.data(), w.size() * sizeof(double));
        double off = 0, size = 0;
        for (size_t i = 0; i < w.size(); ++i) {
            off += (w[i] - best_[i]) * (w[i] - best_[i]);
            size += best_[i] * best_[i];
        }
        return std::sqrt(off / size);
    }

private:
    /// Conjugate gradients on (2/N X'X + l I) w = 2/N X'y until the residual is at the end of double's digits.
    static std::vector<double> solution(const std::string& path) {
        std::unique_ptr<DataSet> data;
        EXPECT_TRUE(data_open(path, &data).ok());
        const DataInfo& info = data->info();
        const size_t N = info.count, d = data->sample_bytes();
        std::vector<double> X(N * d), y(N), b(d);
        std::vector<uint8_t> bytes(d);
        for (uint64_t n = 0; n < N; ++n) {
            int32_t label;
            EXPECT_TRUE(data->read(std::span(&n, 1), bytes.data(), &label).ok());
            y[n] = (label - info.classes / 2.0) * static_cast<double>(info.target_scale);
            for (size_t i = 0; i < d; ++i) {
                X[n * d + i] = (bytes[i] / 255.0 - static_cast<double>(info.mean[0])) / static_cast<double>(info.std[0]);
                b[i] += 2.0 / static_cast<double>(N) * X[n * d + i] * y[n];
            }
        }
        const auto times = [&](const std::vector<double>& p) {
            std::vector<double> result(d);
            for (size_t i = 0; i < d; ++i) result[i] = l * p[i];
            for (size_t n = 0; n < N; ++n) {
                double dot = 0;
                for (size_t i = 0; i < d; ++i) dot += X[n * d + i] * p[i];
                for (size_t i = 0; i < d; ++i) result[i] += 2.0 / static_cast<double>(N) * dot * X[n * d + i];
            }
            return result;
        };
        const auto dot = [](const std::vector<double>& u, const std::vector<double>& v) {
            double sum = 0;
            for (size_t i = 0; i < u.size(); ++i) sum += u[i] * v[i];
            return sum;
        };
        std::vector<double> w(d), r = b, p = b;
        for (double rr = dot(r, r), first = rr; rr > 1e-28 * first;) {
            const std::vector<double> Ap = times(p);
            const double alpha = rr / dot(p, Ap), before = rr;
            for (size_t i = 0; i < d; ++i) {
                w[i] += alpha * p[i];
                r[i] -= alpha * Ap[i];
            }
            rr = dot(r, r);
            for (size_t i = 0; i < d; ++i) p[i] = r[i] + rr / before * p[i];
        }
        return w;
    }
    std::vector<double> best_;
};

TEST_F(RidgeTest, DaneComesToTheClosedFormInThirtyRounds) {
    import(6000);
    EXPECT_LT(error(run(job("kind = \"dane\"\nmu = 1\nworkers = 8\n", 30), 1)), 1e-8);
    // With one worker and no pull a round is a step of Newton's method.
    EXPECT_LT(error(run(job("kind = \"dane\"\nmu = 0\nworkers = 1\n", 1), 1)), 1e-12);
}

// Where all workers have one Hessian H, w_k = w - H^-1 (eta grad O(w)): Newton's step of the whole.
TEST_F(RidgeTest, DaneTakesOneRoundWhereHessiansAreEqual) {
    alike(4, 40, 12);
    EXPECT_LT(error(run(job("kind = \"dane\"\nmu = 0\nworkers = 4\n", 1), 2)), 1e-12);
    EXPECT_GT(error(run(job("kind = \"dane\"\nmu = 1\nworkers = 4\n", 1), 2)), 1e-3);
}

// The paper's numbers of samples and workers, each once; make nightly takes each with each.
using SlowRidgeTest = RidgeTest;
TEST_F(SlowRidgeTest, AllSizesOfThePaper) {
    const bool nightly = std::getenv("GC_SEEDS") != nullptr;
    for (const uint32_t row : {0, 1, 2, 3}) {
        const uint64_t samples = 6000 + 4000 * row;
        import(samples);
        for (const uint32_t column : {0, 1, 2, 3}) {
            if (!nightly && row + column != 3) continue;   // few samples and many workers take the most rounds
            const uint32_t workers = 1 << column;
            SCOPED_TRACE(fmt::format("{} samples, {} workers", samples, workers));
            EXPECT_LT(error(run(job(fmt::format("kind = \"dane\"\nmu = 1\nworkers = {}\n", workers), 30), 1)), 1e-8);
            EXPECT_LT(error(run(job(fmt::format("kind = \"admm\"\nrho = 2\nworkers = {}\n", workers), 48), 1)), 1e-8);
        }
    }
}

TEST_F(RidgeTest, AdmmComesToTheClosedForm) {
    import(2000);
    for (const uint32_t workers : {1u, 2u, 4u}) {
        const Run run = this->run(job(fmt::format("kind = \"admm\"\nrho = 2\nworkers = {}\n", workers), 120), 1);
        EXPECT_LT(error(run), 1e-8) << workers;
    }
}

TEST_F(RidgeTest, OneDigestOnAnyNumberOfNodes) {
    import(1200);
    for (const char* kind : {"dane", "admm"}) {
        const std::string text = job(fmt::format("kind = \"{}\"\nworkers = 4\n{}", kind, kind[0] == 'd' ? "mu = 1\n" : ""), 6);
        const Run one = run(text, 1), three = run(text, 3);
        ASSERT_EQ(one.digest().size(), 64u) << one.digest();
        EXPECT_EQ(three.digest(), one.digest());
        EXPECT_EQ(error(three), error(one));

        const std::string kept = with_job(text, "checkpoint_every = 3\n");
        std::string path;
        for (const std::string& folder : run(kept, 3).folders)
            for (const CheckpointHere& each : checkpoints_in(folder)) path = each.path;
        const Run two = run(kept, {.ranks = 2}, false, {}, from(path));
        EXPECT_EQ(two.digest(), one.digest());
        EXPECT_EQ(error(two), error(one));
    }
}

TEST_F(RidgeTest, OneDigestByEveryExchange) {
    alike(5, 40, 12);
    for (const char* kind : {"dane", "admm"}) {
        const std::string text = job(fmt::format("kind = \"{}\"\nworkers = 5\n{}", kind, kind[0] == 'd' ? "mu = 1\n" : ""), 6);
        const std::string wanted = run(text, 1).digest();
        ASSERT_EQ(wanted.size(), 64u) << wanted;
        for (uint32_t n = 2; n < 10; ++n) EXPECT_EQ(run(text, n).digest(), wanted) << n;
        for (const ExchangeKind& each : exchange_kinds()) {
            const uint32_t n = each.name == std::string_view("cssgd") ? 2 : 3;
            EXPECT_EQ(run(fmt::format("{}exchange = \"{}\"\n", text, each.name), n).digest(), wanted) << each.name;
        }
        const SimConfig lossy{.seed = 1, .ranks = 4, .jitter_us = 300, .loss = 0.02, .break_per_packet = 0.002};
        EXPECT_EQ(run(text + "exchange = \"coded-rs\"\nm = 2\ns = 1\n", lossy, true).digest(), wanted);
        EXPECT_EQ(run(text + "exchange = \"multicast\"\n", lossy, true).digest(), wanted);
    }
}

TEST_F(RidgeTest, DaneWithoutAPullDivergesByName) {
    import(1000);   // 250 samples of a worker leave half of the directions to the L2 term
    const Run run = this->run(job("kind = \"dane\"\nmu = 0\nworkers = 4\n", 400), 2);
    EXPECT_EQ(run.status.code, Code::diverged);
    EXPECT_NE(std::string(run.status.what).find("raise algorithm.mu"), std::string::npos) << run.status.what;
}

// Long before anything is NaN, and within the 30 rounds that a mu of 1 takes.
TEST_F(RidgeTest, ALossThatRisesEndsTheJobByName) {
    import(6000);
    const Run run = this->run(job("kind = \"dane\"\nmu = 0\nworkers = 4\n", 30), 2);
    EXPECT_EQ(run.status.code, Code::diverged);
    const std::string what(run.status.what);
    EXPECT_NE(what.find("the loss has risen from "), std::string::npos) << what;
    EXPECT_NE(what.find(": raise algorithm.mu"), std::string::npos) << what;
}

TEST_F(RidgeTest, ItIsForConvexNetsAlone) {
    EXPECT_EQ(run(text("dane", "solver = \"exact\"\n"), 1).digest(),
              "algorithm.solver: exact is for the nets ridge and logistic: take sgd");
}

}   // namespace
}   // namespace gradcast
