// Algorithms on least squares against plain loops in double, which are written from the equations alone: whole parts as mini-batches, so
// that the order of samples does not count.
#include <cmath>
#include <numeric>

#include "algos/local.h"
#include "datasets/sampler.h"
#include "nn/graph/layers.h"
#include "runtime/job/model/model_file.h"
#include "tests/algos/runs.h"

namespace gradcast {
namespace {

using Vector = std::vector<double>;

Vector operator+(Vector a, const Vector& b) {
    for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
    return a;
}
Vector operator*(double f, Vector a) {
    for (double& each : a) each *= f;
    return a;
}
Vector operator-(const Vector& a, const Vector& b) { return a + -1 * b; }

class ReferenceTest : public AlgosTest {
protected:
    static constexpr uint32_t samples = 48, features = 6, workers = 3, part = samples / workers, levels = 200, seed = 5;
    static constexpr double lr = 0.05, momentum = 0.5, decay = 0.02;

    void SetUp() override {
        AlgosTest::SetUp();
        std::vector<uint8_t> pixels(samples * features);
        std::vector<int32_t> labels(samples);
        for (uint32_t n = 0; n < samples; ++n) {
            double sum = 0;
            for (uint32_t f = 0; f < features; ++f) {
                pixels[n * features + f] = static_cast<uint8_t>(random4(Purpose::test, 3, n, f)[0] % 256);
                sum += pixels[n * features + f] * (f % 2 ? 0.1 : 0.15);
            }
            labels[n] = static_cast<int32_t>(sum) % static_cast<int32_t>(levels);
        }
        const DataInfo info = regression(samples, features, levels);
        ASSERT_TRUE(shard_write(folder_ + "/line.h5", info, pixels.data(), labels.data()).ok());
        std::vector<uint64_t> order(samples);
        Sampler(samples, seed, 1, 1).range(0, order);
        for (const uint64_t n : order) {
            Vector row;
            for (uint32_t f = 0; f < features; ++f) row.push_back((pixels[n * features + f] / 255.0 - 0.5) / 0.25);
            x_.push_back(row);
            target_.push_back((labels[n] - levels / 2.0) * 0.03125);
        }
    }
    std::string job(const std::string& algorithm, uint32_t steps) const {
        return fmt::format(
            "[job]\nsteps = {}\nseed = {}\nbatch = {}\nblocks = 4\n[data]\ntrain = \"line.h5\"\n[net]\n[[net.layers]]\nkind = "
            "\"inner_product\"\noutputs = 1\nbias = false\n[[net.layers]]\nkind = \"squared_loss\"\n[optimiser]\nlr = {}\nmomentum = {}\n"
            "weight_decay = {}\n[algorithm]\nworkers = 3\n{}",
            steps, seed, part, lr, momentum, decay, algorithm);
    }
    /// What two nodes train.
    Vector trained(const std::string& algorithm, uint32_t steps) { return trained(job(algorithm, steps)); }
    Vector trained(const std::string& text) {
        const Run run = this->run(text, 2);
        Model model;
        std::vector<float> parameters;
        EXPECT_TRUE(run.status.ok()) << run.status.what;
        if (!run.status.ok()) return {};
        EXPECT_TRUE(model_read(run.ranks[0].model, &model, &parameters).ok());
        return {parameters.begin(), parameters.end()};
    }
    Vector initial() const {
        Layout layout{features, {{0, features, "fc1"}}, {{0, features, 0, 1}}};
        const NetSpec spec{.C = 1,
                           .H = 1,
                           .W = features,
                           .classes = levels,
                           .target_scale = 0.03125f,
                           .layers = {{.kind = "inner_product", .values = {{"outputs", 1}, {"bias", false}}}, {.kind = "squared_loss"}}};
        std::vector<float> w(features);
        weights_initial(spec, layout, seed, w);
        return {w.begin(), w.end()};
    }
    /// Of samples first .. first + count - 1 of the permutation, the L2 term too where `l2`.
    Vector gradient(const Vector& w, uint32_t first, uint32_t count, bool l2 = true) const {
        Vector g = (l2 ? decay : 0) * w;
        for (uint32_t n = first; n < first + count; ++n)
            g = g + 2.0 / count * (std::inner_product(w.begin(), w.end(), x_[n].begin(), 0.0) - target_[n]) * x_[n];
        return g;
    }
    /// Of mini-batch `step` of a worker, which has `count` samples.
    Vector of_batch(const Vector& w, uint32_t k, uint32_t step, uint32_t count) const {
        std::vector<uint64_t> places(count);
        Sampler(part, worker_seed(seed, k), count, 1).range(uint64_t{step} * count, places);
        Vector g = zero;
        for (const uint64_t place : places) g = g + 1.0 / count * gradient(w, k * part + static_cast<uint32_t>(place), 1);
        return g;
    }
    Vector of_worker(const Vector& w, uint32_t k) const { return gradient(w, k * part, part); }
    /// `steps` of momentum from w with the gradient of a function.
    template <typename Gradient>
    static Vector descend(Vector w, uint32_t steps, Vector* v, Gradient g) {
        for (uint32_t i = 0; i < steps; ++i) {
            *v = momentum * *v + g(w);
            w = w - lr * *v;
        }
        return w;
    }
    static void near(const Vector& got, const Vector& wanted) {
        ASSERT_EQ(got.size(), wanted.size());
        for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 3e-6 * std::max(1.0, std::abs(wanted[i]))) << i;
    }
    const Vector zero = Vector(features);

private:
    std::vector<Vector> x_;   // in the order of the permutation
    Vector target_;
};

TEST_F(ReferenceTest, Gd) {
    Vector v = zero;
    near(trained("kind = \"gd\"\n", 7), descend(initial(), 7, &v, [&](const Vector& w) { return gradient(w, 0, samples); }));
}

TEST_F(ReferenceTest, Ma) {
    Vector w = initial();
    for (uint32_t round = 0; round < 4; ++round) {
        Vector sum = zero;
        for (uint32_t k = 0; k < workers; ++k) {
            Vector v = zero;
            sum = sum + descend(w, 5, &v, [&](const Vector& at) { return of_worker(at, k); });
        }
        w = 1.0 / workers * sum;
    }
    near(trained("kind = \"ma\"\nlocal_steps = 5\n", 4), w);
}

TEST_F(ReferenceTest, DiLoCo) {
    constexpr double alpha = 0.6, beta = 0.7;
    Vector w = initial(), outer = zero;
    std::vector<Vector> inner(workers, zero);
    for (uint32_t round = 0; round < 4; ++round) {
        Vector delta = zero;
        for (uint32_t k = 0; k < workers; ++k)
            delta = delta + 1.0 / workers * (w - descend(w, 3, &inner[k], [&](const Vector& at) { return of_worker(at, k); }));
        outer = beta * outer + delta;
        w = w - alpha * (delta + beta * outer);
    }
    near(trained("kind = \"diloco\"\nlocal_steps = 3\nouter_lr = 0.6\nouter_momentum = 0.7\n", 4), w);
}

TEST_F(ReferenceTest, Dane) {
    constexpr double eta = 0.8, mu = 0.3;
    Vector w = initial();
    for (uint32_t round = 0; round < 4; ++round) {
        const Vector g = gradient(w, 0, samples);
        Vector sum = zero;
        for (uint32_t k = 0; k < workers; ++k) {
            const Vector shift = of_worker(w, k) - eta * g;
            Vector v = zero;
            sum = sum + descend(w, 6, &v, [&](const Vector& at) { return of_worker(at, k) - shift + mu * (at - w); });
        }
        w = 1.0 / workers * sum;
    }
    near(trained("kind = \"dane\"\nlocal_steps = 6\neta = 0.8\nmu = 0.3\n", 4), w);
}

// The round begins with the gradients of as many samples as a mini-batch has: round t with those of mini-batch t of each worker.
TEST_F(ReferenceTest, DaneFromMiniBatches) {
    constexpr double eta = 0.8, mu = 0.3;
    constexpr uint32_t batch = 4, steps = 3;
    Vector w = initial();
    for (uint32_t round = 0; round < 5; ++round) {
        Vector g = zero, sum = zero;
        for (uint32_t k = 0; k < workers; ++k) g = g + 1.0 / workers * of_batch(w, k, round, batch);
        for (uint32_t k = 0; k < workers; ++k) {
            const Vector shift = of_batch(w, k, round, batch) - eta * g;
            Vector v = zero;
            uint32_t step = round * steps;
            sum = sum + descend(w, steps, &v, [&](const Vector& at) { return of_batch(at, k, step++, batch) - shift + mu * (at - w); });
        }
        w = 1.0 / workers * sum;
    }
    const std::string algorithm = "kind = \"dane\"\nlocal_steps = 3\neta = 0.8\nmu = 0.3\nanchor = \"batch\"\n";
    near(trained(replaced(job(algorithm, 5), "batch = 16\n", "batch = 4\n")), w);

    // With one step from the anchor's own mini-batch and eta = 1 its gradient cancels, and all workers step along the mean.
    const auto once = [&](const char* more) { return replaced(job(more, 5), "batch = 16\n", "batch = 4\n"); };
    const Vector mean = trained(once("kind = \"ma\"\nlocal_steps = 1\n"));
    near(trained(once("kind = \"dane\"\nlocal_steps = 1\nanchor = \"batch\"\n")), mean);
}

TEST_F(ReferenceTest, FedProx) {
    constexpr double mu = 0.4;
    Vector w = initial();
    for (uint32_t round = 0; round < 4; ++round) {
        Vector sum = zero;
        for (uint32_t k = 0; k < workers; ++k) {
            Vector v = zero;
            sum = sum + descend(w, 6, &v, [&](const Vector& at) { return of_worker(at, k) + mu * (at - w); });
        }
        w = 1.0 / workers * sum;
    }
    near(trained("kind = \"fedprox\"\nlocal_steps = 6\nmu = 0.4\n", 4), w);
}

TEST_F(ReferenceTest, Admm) {
    constexpr double rho = 0.5;
    Vector z = initial();
    std::vector<Vector> w(workers, z), u(workers, zero);
    for (uint32_t round = 0; round < 5; ++round) {
        Vector sum = zero;
        for (uint32_t k = 0; k < workers; ++k) {
            Vector v = zero;
            w[k] = descend(w[k], 6, &v, [&](const Vector& at) { return of_worker(at, k) + rho * (at - z + u[k]); });
            sum = sum + w[k] + u[k];
        }
        z = 1.0 / workers * sum;
        for (uint32_t k = 0; k < workers; ++k) u[k] = u[k] + w[k] - z;
    }
    near(trained("kind = \"admm\"\nlocal_steps = 6\nrho = 0.5\n", 5), z);
}

TEST_F(ReferenceTest, OneShot) {
    const Vector w0 = initial();
    const auto mean = [&](uint32_t count, uint32_t steps) {
        Vector sum = zero;
        for (uint32_t k = 0; k < workers; ++k) {
            Vector v = zero;
            sum = sum + descend(w0, steps, &v, [&](const Vector& at) { return gradient(at, k * part, count); });
        }
        return 1.0 / workers * sum;
    };
    near(trained("kind = \"oneshot\"\n", 8), mean(part, 8));
    near(trained("kind = \"oneshot\"\nfraction = 0.25\n", 8), 1 / 0.75 * (mean(part, 8) - 0.25 * mean(part / 4, 2)));
}

}   // namespace
}   // namespace gradcast
