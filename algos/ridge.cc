// DANE and consensus ADMM for ridge regression, with exact local solutions (solver = "exact"; sources: dane.cc, admm.cc).  Worker k's part
// has O_k(w) = (1/N_k) sum (<x, w> - y)^2 + (l/2) ||w||^2, l: optimiser.weight_decay; so grad O_k(w) = A_k w - b_k with A_k = (2/N_k) sum x
// x^T + l I,  b_k = (2/N_k) sum y x.  Averages are weighted by samples.
//
//     dane   g = mean of A_k w - b_k;   w <- w - mean of eta (A_k + mu I)^-1 g
//     admm   w_k = (A_k + rho I)^-1 (b_k + rho (z - u_k));   z <- mean of w_k + u_k;   u_k <- u_k + w_k - z.   z = u = 0 at first
//
// Everything is double, w = 0 at first.  The matrix of a worker is factored once (Cholesky).  A mean of doubles is two sums: of the values,
// and of what their words have left over.  Messages: 2 sums of d values for each mean: dane 4 a round, admm 2.  Keeps d^2 values for each
// own worker. May go wrong: dane with a mu too small for unlike parts diverges, and the job ends by name.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "algos/algorithm.h"
#include "algos/cholesky.h"
#include "algos/worker_states.h"
#include "algos/worker_sum.h"

namespace gradcast {
namespace {

using Row = std::span<double>;

class Ridge final : public Algorithm {
public:
    explicit Ridge(bool admm) : admm_(admm) {}

    Status plan(const AlgorithmPlan& plan) override {
        const NetSpec& spec = plan.net.spec();
        d_ = plan.net.layout().elements;
        if (spec.target_scale == 0 || spec.layers.size() != 2 || spec.layers[0].kind != "inner_product" || spec.layers[0].bias ||
            d_ != uint64_t{spec.C} * spec.H * spec.W)
            return fail(Code::invalid, "algorithm.solver: exact is for regression with the net ridge: take sgd");
        scale_ = static_cast<double>(spec.target_scale), zero_ = spec.classes / 2.0;
        mu_ = plan.settings.mu, eta_ = plan.settings.eta, rho_ = plan.settings.rho, l_ = plan.optimiser.weight_decay;
        own_ = plan.own_workers.size();
        constants_.assign(own_, 0), losses_.resize(own_);
        const uint64_t vector = d_ * sizeof(double);
        plan.arena.plan("iterate", vector, &state_);
        plan.arena.plan("mean of workers", vector, &mean_);
        plan.arena.plan("workers' problems", own_ * (2 * d_ + vectors_of_worker) * vector, &problems_);
        if (admm_) multipliers_.plan("workers' multipliers", plan, vector);
        return {};
    }

    std::span<const std::byte> state() override {
        const std::span<const std::byte> multipliers = multipliers_.all();
        whole_.assign(state_.host, state_.host + state_.bytes);
        whole_.insert(whole_.end(), multipliers.begin(), multipliers.end());
        return whole_;
    }
    Status gather(Context& context) override { return multipliers_.gather(context); }
    Status restore(std::span<const std::byte> state) override {
        const std::span<std::byte> multipliers = multipliers_.all();
        const uint64_t wanted = state_.bytes + multipliers.size();
        if (state.size() != wanted) return fail(Code::data, "the state of ridge has {} bytes instead of {}", state.size(), wanted);
        std::memcpy(state_.host, state.data(), state_.bytes);
        std::ranges::copy(state.subspan(state_.bytes), multipliers.begin());
        return {};
    }

    Status round(Context& context) override {
        if (mu_ == 0) context.advice = "raise algorithm.mu";
        const uint64_t begin_us = context.host.now_us();
        WorkerSum& all = *context.workers;
        if (all.own().size() != own_)
            return fail(Code::unsupported, "the exact solver keeps the workers of its first view: leave out survive");
        for (size_t i = 0; i < own_ && !built_; ++i) GC_TRY(build(context, i));
        built_ = true;
        StepRecord record;
        GC_TRY(admm_ ? admm_round(context, &record.loss) : dane_round(context, &record.loss));
        record.compute_us = context.host.now_us() - begin_us;
        const std::span<float> parameters = context.net.parameters();
        for (size_t j = 0; j < d_; ++j) parameters[j] = static_cast<float>(w()[j]);
        context.net.refresh();
        context.round_done(record);
        return {};
    }

private:
    enum Which : uint64_t { right_side, value, scratch, vectors_of_worker };
    Row w() { return {state_.as<double>(), d_}; }
    Row mean() { return {mean_.as<double>(), d_}; }
    Row of(size_t own, uint64_t vector, uint64_t count) {
        return {problems_.as<double>() + (own * (2 * d_ + vectors_of_worker) + vector) * d_, count * d_};
    }
    Row a(size_t own) { return of(own, vectors_of_worker, d_); }
    Row factors(size_t own) { return of(own, vectors_of_worker + d_, d_); }
    Row vector(size_t own, Which which) { return of(own, which, 1); }

    /// The worker's A, b and factors.
    Status build(Context& context, size_t own) {
        const Row A = a(own), b = vector(own, right_side), x = vector(own, scratch);
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
        for (size_t i = 0; i < d_; ++i) factors(own)[i * d_ + i] += admm_ ? rho_ : mu_;
        if (cholesky_factor(factors(own), d_)) return {};
        return fail(Code::invalid, "the problem of worker {} has no single solution: raise algorithm.{} or optimiser.weight_decay", worker,
                    admm_ ? "rho" : "mu");
    }

    /// `which` of the own workers, weighted by samples, to mean().
    Status mean_of(Context& context, Which which, double* loss) {
        for (size_t i = 0; i < own_; ++i) {
            const double weight = context.local->weight(context.workers->own()[i]);
            for (double& each : vector(i, which)) each *= weight;
        }
        return context.workers->sum_exactly(
            losses_, [&](size_t i) { return std::span<const double>(vector(i, which)); }, mean(), loss);
    }

    /// grad O_k(w), to `value`, and O_k(w).
    void gradient(Context& context, size_t own) {
        const Row A = a(own), b = vector(own, right_side), g = vector(own, value);
        double objective = 0;
        for (size_t j = 0; j < d_; ++j) {
            g[j] = -b[j];
            for (size_t k = 0; k < d_; ++k) g[j] += A[j * d_ + k] * w()[k];
            objective += 0.5 * w()[j] * (g[j] - b[j]);
        }
        losses_[own] = (objective + constants_[own]) * context.local->weight(context.workers->own()[own]);
    }

    Status dane_round(Context& context, double* loss) {
        for (size_t i = 0; i < own_; ++i) gradient(context, i);
        GC_TRY(mean_of(context, value, loss));
        for (size_t i = 0; i < own_; ++i) {
            const Row step = vector(i, value);
            for (size_t j = 0; j < d_; ++j) step[j] = -eta_ * mean()[j];
            cholesky_solve(factors(i), step);
        }
        GC_TRY(mean_of(context, value, nullptr));
        for (size_t j = 0; j < d_; ++j) w()[j] += mean()[j];
        return {};
    }

    Status admm_round(Context& context, double* loss) {
        for (size_t i = 0; i < own_; ++i) {
            gradient(context, i);
            const Row x = vector(i, scratch), u = multipliers_.of<double>(i), sum = vector(i, value);
            for (size_t j = 0; j < d_; ++j) x[j] = vector(i, right_side)[j] + rho_ * (w()[j] - u[j]);
            cholesky_solve(factors(i), x);
            for (size_t j = 0; j < d_; ++j) sum[j] = x[j] + u[j];
        }
        GC_TRY(mean_of(context, value, loss));
        std::ranges::copy(mean(), w().begin());
        for (size_t i = 0; i < own_; ++i)
            for (size_t j = 0; j < d_; ++j) multipliers_.of<double>(i)[j] += vector(i, scratch)[j] - w()[j];
        return {};
    }

    const bool admm_;
    uint64_t d_ = 0;
    double scale_ = 0, zero_ = 0, mu_ = 0, eta_ = 1, rho_ = 1, l_ = 0;
    uint64_t own_ = 0;
    std::vector<double> constants_, losses_;   // of own workers
    bool built_ = false;
    Buffer state_, mean_, problems_;
    WorkerStates multipliers_;   // double [d]
    std::vector<std::byte> whole_;
};

}   // namespace

std::unique_ptr<Algorithm> ridge_dane_create() { return std::make_unique<Ridge>(false); }
std::unique_ptr<Algorithm> ridge_admm_create() { return std::make_unique<Ridge>(true); }

}   // namespace gradcast
