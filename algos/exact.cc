// DANE and consensus ADMM with exact local solutions (solver = "exact"; sources: dane.cc, admm.cc) of convex problems O_k (exact.h).
// Averages are weighted by samples.
//
//     dane   g = mean of grad O_k(w);   s_k = argmin O_k(w + s) - <grad O_k(w) - eta g, s> + (mu/2) ||s||^2;   w <- w + mean of s_k
//     admm   s_k = argmin O_k(z + s) + (rho/2) ||s + u_k||^2;   z' = z + mean of s_k + u_k;   u_k <- u_k + s_k - (z' - z).   z = u = 0 at
//     first
//
// Everything is double, w = 0 at first.  A mean of doubles is two sums: of the values, and of their remainders.  Messages: 2
// sums of d values for each mean: dane 4 a round, admm 2.  Keeps what the problems take (ridge.cc, logistic.cc), and multipliers.  May go
// wrong: dane with a mu too small for unlike parts diverges, and the job ends by name when its loss is ten times the least one.
#include "algos/exact.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "algos/worker_states.h"
#include "algos/worker_sum.h"
#include "nn/graph/layer_kind.h"

namespace gradcast {
namespace {

using Row = std::span<double>;

class Exact final : public Algorithm {
public:
    explicit Exact(bool admm) : admm_(admm) {}

    Status plan(const AlgorithmPlan& plan) override {
        const NetSpec& spec = plan.net.spec();
        const bool one_layer = spec.layers.size() == 2 && spec.layers[0].kind == inner_product_kind.name;
        if (spec.element != Element::u8 || spec.targets > 0)
            return fail(Code::invalid, "algorithm.solver: exact takes images with labels, not {} with {}: take sgd",
                        element_name(spec.element), spec.targets > 0 ? "targets" : "labels");
        if (one_layer && spec.target_scale != 0 && layer_value(spec.layers[0], "bias") == 0) problems_ = ridge_problems();
        else if (one_layer && spec.target_scale == 0) problems_ = logistic_problems();
        else return fail(Code::invalid, "algorithm.solver: exact is for the nets ridge and logistic: take sgd");
        d_ = plan.net.layout().elements;
        mu_ = plan.settings.mu;
        eta_ = plan.settings.eta;
        rho_ = plan.settings.rho;
        own_ = plan.own_workers.size();
        losses_.resize(own_);
        const uint64_t vector = d_ * sizeof(double);
        plan.arena.plan("iterate", vector, &state_);
        plan.arena.plan("mean of workers", vector, &mean_);
        plan.arena.plan("vectors of workers", own_ * vectors_of_worker * vector, &vectors_);
        if (admm_) multipliers_.plan("workers' multipliers", plan, vector);
        return admm_ ? problems_->plan(plan, rho_, "rho") : problems_->plan(plan, mu_, "mu");
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
        if (state.size() != wanted) return fail(Code::data, "the state of the algorithm has {} bytes instead of {}", state.size(), wanted);
        std::memcpy(state_.host, state.data(), state_.bytes);
        std::ranges::copy(state.subspan(state_.bytes), multipliers.begin());
        return {};
    }

    Status round(Context& context) override {
        if (!admm_) context.advice = "raise algorithm.mu";
        const uint64_t begin_us = context.host.now_us();
        WorkerSum& all = *context.workers;
        if (all.own().size() != own_)
            return fail(Code::unsupported, "the exact solver keeps the workers of its first view: leave out survive");
        for (size_t i = 0; i < own_ && !built_; ++i) {
            const WorkerTurn turn(context, all.own()[i]);
            GC_TRY(problems_->build(context, i));
        }
        built_ = true;
        StepRecord record;
        for (size_t i = 0; i < own_; ++i) {
            const WorkerTurn turn(context, all.own()[i]);
            context.samples += context.local->samples(all.own()[i]);
            problems_->gradient(context, i, w(), vector(i, gradient), &losses_[i]);
            losses_[i] *= context.local->weight(all.own()[i]);
        }
        GC_TRY(admm_ ? admm_round(context, &record.loss) : dane_round(context, &record.loss));
        record.compute_us = context.host.now_us() - begin_us;
        const std::span<float> parameters = context.net->parameters();
        for (size_t j = 0; j < d_; ++j) parameters[j] = static_cast<float>(w()[j]);
        context.net->refresh();
        context.round_done(record);
        return {};
    }

private:
    enum Which : uint64_t { gradient, value, step, vectors_of_worker };
    Row w() { return {state_.as<double>(), d_}; }
    Row mean() { return {mean_.as<double>(), d_}; }
    Row vector(size_t own, Which which) { return {vectors_.as<double>() + (own * vectors_of_worker + which) * d_, d_}; }

    /// `which` of the own workers, weighted by samples, to mean().
    Status mean_of(Context& context, Which which, double* loss) {
        for (size_t i = 0; i < own_; ++i) {
            const double weight = context.local->weight(context.workers->own()[i]);
            for (size_t j = 0; j < d_; ++j) vector(i, value)[j] = vector(i, which)[j] * weight;
        }
        return context.workers->sum_exactly(
            losses_, [&](size_t i) { return std::span<const double>(vector(i, value)); }, mean(), loss);
    }

    Status dane_round(Context& context, double* loss) {
        GC_TRY(mean_of(context, gradient, loss));
        least_ = std::min(least_, *loss);
        if (*loss > 10 * least_ + 1e-3)
            return fail(Code::diverged, "round {}: the loss has risen from {:.4g} to {:.4g}: raise algorithm.mu", context.step + 1, least_,
                        *loss);
        for (size_t i = 0; i < own_; ++i) {
            const Row r = vector(i, value);
            for (size_t j = 0; j < d_; ++j) r[j] = eta_ * mean()[j];
            const WorkerTurn turn(context, context.workers->own()[i]);
            GC_TRY(problems_->step(context, i, w(), vector(i, gradient), r, vector(i, step)));
        }
        GC_TRY(mean_of(context, step, nullptr));
        for (size_t j = 0; j < d_; ++j) w()[j] += mean()[j];
        return {};
    }

    Status admm_round(Context& context, double* loss) {
        for (size_t i = 0; i < own_; ++i) {
            const Row u = multipliers_.of<double>(i), r = vector(i, value), s = vector(i, step), g = vector(i, gradient);
            for (size_t j = 0; j < d_; ++j) r[j] = g[j] + rho_ * u[j];
            const WorkerTurn turn(context, context.workers->own()[i]);
            GC_TRY(problems_->step(context, i, w(), g, r, s));
            for (size_t j = 0; j < d_; ++j) s[j] += u[j];
        }
        GC_TRY(mean_of(context, step, loss));
        for (size_t j = 0; j < d_; ++j) w()[j] += mean()[j];
        for (size_t i = 0; i < own_; ++i)
            for (size_t j = 0; j < d_; ++j) multipliers_.of<double>(i)[j] = vector(i, step)[j] - mean()[j];
        return {};
    }

    const bool admm_;
    uint64_t d_ = 0, own_ = 0;
    double mu_ = 0, eta_ = 1, rho_ = 1;
    std::unique_ptr<LocalProblems> problems_;
    std::vector<double> losses_;                               // of own workers
    double least_ = std::numeric_limits<double>::infinity();   // mean loss of a round of this run
    bool built_ = false;
    Buffer state_, mean_, vectors_;
    WorkerStates multipliers_;   // double [d]
    std::vector<std::byte> whole_;
};

}   // namespace

std::unique_ptr<Algorithm> exact_dane_create() { return std::make_unique<Exact>(false); }
std::unique_ptr<Algorithm> exact_admm_create() { return std::make_unique<Exact>(true); }

}   // namespace gradcast
