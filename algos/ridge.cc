// Ridge regression:  O_k(w) = (1/N_k) sum (<x, w> - y)^2 + (l/2) ||w||^2,  so grad O_k(w) = A_k w - b_k with A_k = (2/N_k) sum x x^T + l I
// and b_k = (2/N_k) sum y x.  A step is -(A_k + pull I)^-1 r; the matrix is factored once (Cholesky).  Keeps 2 d^2 values for each own
// worker.
#include <algorithm>

#include "algos/cholesky.h"
#include "algos/exact.h"
#include "algos/worker_sum.h"

namespace gradcast {
namespace {

using Row = std::span<double>;

class Ridge final : public LocalProblems {
public:
    Status plan(const AlgorithmPlan& plan, double pull, const char* key) override {
        const NetSpec& spec = plan.net.spec();
        d_ = plan.net.layout().elements;
        if (d_ != uint64_t{spec.C} * spec.H * spec.W)
            return fail(Code::invalid, "algorithm.solver: exact takes samples without padding: take sgd");
        scale_ = static_cast<double>(spec.target_scale);
        zero_ = spec.classes / 2.0;
        pull_ = pull;
        l_ = plan.optimiser.weight_decay;
        key_ = key;
        constants_.assign(plan.own_workers.size(), 0);
        plan.arena.plan("workers' problems", plan.own_workers.size() * (2 * d_ + vectors_of_worker) * d_ * sizeof(double), &problems_);
        return {};
    }

    Status build(Context& context, size_t own) override {
        const Row A = a(own), b = right_side(own), x = sample_of(own);
        const uint32_t worker = context.workers->own()[own];
        const uint64_t samples = context.local->samples(worker);
        std::ranges::fill(A, 0.0), std::ranges::fill(b, 0.0);
        const double share = 2.0 / static_cast<double>(samples);
        for (uint64_t n = 0; n < samples; ++n) {
            if (n % 256 == 0) GC_TRY(context.workers->poll());
            Samples sample;
            GC_TRY(context.local->sample(worker, n, &sample));
            const double y = (static_cast<double>(sample.labels[0]) - zero_) * scale_;
            const size_t plane = size_t{sample.H} * sample.W;
            constants_[own] += share / 2 * y * y;
            for (size_t j = 0; j < d_; ++j) {
                const size_t c = j / plane;
                x[j] = (sample.images[j] / 255.0 - static_cast<double>(sample.mean[c])) / static_cast<double>(sample.std[c]);
            }
            for (size_t i = 0; i < d_; ++i) {
                b[i] += share * y * x[i];
                const double factor = share * x[i];
                for (size_t j = 0; j <= i; ++j) A[i * d_ + j] += factor * x[j];
            }
            context.progress.advance();
        }
        context.gradients += samples;
        for (size_t i = 0; i < d_; ++i) {
            A[i * d_ + i] += l_;
            for (size_t j = 0; j < i; ++j) A[j * d_ + i] = A[i * d_ + j];
        }
        std::ranges::copy(A, factors(own).begin());
        for (size_t i = 0; i < d_; ++i) factors(own)[i * d_ + i] += pull_;
        if (cholesky_factor(factors(own), d_)) return {};
        return fail(Code::invalid, "the problem of worker {} has no single solution: raise algorithm.{} or optimiser.weight_decay", worker,
                    key_);
    }

    void gradient(Context&, size_t own, std::span<const double> w, std::span<double> g, double* value) override {
        const Row A = a(own), b = right_side(own);
        double objective = 0;
        for (size_t j = 0; j < d_; ++j) {
            g[j] = -b[j];
            for (size_t k = 0; k < d_; ++k) g[j] += A[j * d_ + k] * w[k];
            objective += 0.5 * w[j] * (g[j] - b[j]);
        }
        *value = objective + constants_[own];
    }

    Status step(Context&, size_t own, std::span<const double>, std::span<const double>, std::span<const double> r,
                std::span<double> step) override {
        for (size_t j = 0; j < d_; ++j) step[j] = -r[j];
        cholesky_solve(factors(own), step);
        return {};
    }

private:
    static constexpr uint64_t vectors_of_worker = 2;
    Row of(size_t own, uint64_t vector, uint64_t count) {
        return {problems_.as<double>() + (own * (2 * d_ + vectors_of_worker) + vector) * d_, count * d_};
    }
    Row right_side(size_t own) { return of(own, 0, 1); }
    Row sample_of(size_t own) { return of(own, 1, 1); }
    Row a(size_t own) { return of(own, vectors_of_worker, d_); }
    Row factors(size_t own) { return of(own, vectors_of_worker + d_, d_); }

    uint64_t d_ = 0;
    double scale_ = 0, zero_ = 0, pull_ = 0, l_ = 0;
    const char* key_ = "";
    std::vector<double> constants_;   // of own workers
    Buffer problems_;
};

}   // namespace

std::unique_ptr<LocalProblems> ridge_problems() { return std::make_unique<Ridge>(); }

}   // namespace gradcast
