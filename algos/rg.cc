// RG, the regression of the DE-DNN paper (Zhu, Xie, Zhu, "DE-DNN"; weighted averages of networks by their outputs): worker k of n learns
// alone, and P_k [samples, classes] are its model's softmax outputs on the validation samples, Y their one-hot labels.
//
//     w_k   <- local steps from w
//     alpha  = argmin (1/N) |Y - sum_k alpha_k P_k|^2 + shrink |alpha - 1/n|^2   with sum alpha = 1; they may be negative
//     w     <- sum_k alpha_k w_k
//
// With A_kl = (1/N) <P_k, P_l> + shrink [k = l] and c_k = (1/N) <P_k, Y> + shrink / n the solution is alpha = A^-1 c + z A^-1 1, with z so
// that they sum to 1 (Lagrange).  Running statistics of w are measured anew.
//
// Messages: W sums of P values a round, which bring all models to all nodes.  Computes W passes over the validation samples at every node.
// Keeps all models and their outputs.  May go wrong: outputs may be mixed where parameters may not; models that were never close have no
// weighted mean worth the name.
#include <algorithm>

#include "algos/cholesky.h"
#include "algos/gathering.h"

namespace gradcast {
namespace {

class Rg final : public Gathering {
public:
    Status plan(const AlgorithmPlan& plan) override {
        shrink_ = plan.settings.shrink;
        n_ = plan.workers;
        classes_ = plan.net.spec().classes;
        samples_ = plan.local->config().validation;
        plan.arena.plan("outputs of models", n_ * samples_ * classes_ * sizeof(float), &outputs_);
        plan.arena.plan("mean of models", plan.net.layout().elements * sizeof(double), &mean_);
        labels_.resize(samples_);
        A_.resize(n_ * n_), alpha_.resize(n_), ones_.resize(n_);
        return Gathering::plan(plan);
    }

private:
    bool by_accuracy() const override { return false; }
    std::span<float> outputs(size_t k) { return floats(outputs_).subspan(k * samples_ * classes_, samples_ * classes_); }

    Status choose(Context& context, std::span<float> parameters) override {
        for (uint32_t k = 0; k < n_; ++k) {
            std::ranges::copy(model(k), context.net->parameters().begin());
            context.net->refresh();
            uint64_t right;
            GC_TRY(context.local->validate(context, &right, outputs(k), labels_));
        }
        if (!weigh())
            return fail(Code::diverged, "round {}: models' outputs on validation samples are NaN, or too alike: raise algorithm.shrink",
                        context.step + 1);
        const std::span<double> mean(mean_.as<double>(), mean_.bytes / sizeof(double));
        std::ranges::fill(mean, 0.0);
        for (uint32_t k = 0; k < n_; ++k)
            for (size_t i = 0; i < mean.size(); ++i) mean[i] += alpha_[k] * static_cast<double>(model(k)[i]);
        if (n_ == 1) return std::ranges::copy(model(0), parameters.begin()), Status{};
        for (size_t i = 0; i < mean.size(); ++i) model(0)[i] = static_cast<float>(mean[i]);
        return measure(context, 0, model(0));
    }

    /// alpha_ of outputs_ and labels_.  False: there are no such weights.
    bool weigh() {
        const double share = 1.0 / static_cast<double>(samples_);
        for (size_t k = 0; k < n_; ++k) {
            for (size_t l = 0; l <= k; ++l) {
                double dot = 0;
                for (size_t i = 0; i < outputs(k).size(); ++i)
                    dot += static_cast<double>(outputs(k)[i]) * static_cast<double>(outputs(l)[i]);
                A_[k * n_ + l] = share * dot + (k == l ? shrink_ : 0);
            }
            double of_labels = 0;
            for (size_t i = 0; i < samples_; ++i)
                of_labels += static_cast<double>(outputs(k)[i * classes_ + static_cast<size_t>(labels_[i])]);
            alpha_[k] = share * of_labels + shrink_ / static_cast<double>(n_);
        }
        if (!cholesky_factor(A_, n_)) return false;
        std::ranges::fill(ones_, 1.0);
        cholesky_solve(A_, alpha_), cholesky_solve(A_, ones_);
        double sum = 0, of_ones = 0;
        for (size_t k = 0; k < n_; ++k) {
            sum += alpha_[k];
            of_ones += ones_[k];
        }
        for (size_t k = 0; k < n_; ++k) alpha_[k] += (1 - sum) / of_ones * ones_[k];
        return true;
    }

    double shrink_ = 0;
    size_t n_ = 0, classes_ = 0, samples_ = 0;
    Buffer outputs_, mean_;   // float [n, samples, classes]
    std::vector<int32_t> labels_;
    std::vector<double> A_, alpha_, ones_;
};

}   // namespace

std::unique_ptr<Algorithm> rg_create() { return std::make_unique<Rg>(); }

}   // namespace gradcast
