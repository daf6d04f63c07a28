// Multinomial logistic regression:  O_k(w) = (1/N_k) sum -log softmax(W x + b)_y + (l/2) ||w||^2,  w: W [classes, features], then b where
// the layer has a bias.  A step is found by L-BFGS, until the gradient has 1e-3 of its length at first.  The samples are
// floats, as networks see them, and all else is double.  A gradient is the sum over a fixed number of chunks in their order, so it does not
// depend on the lanes. Keeps the samples of each own worker as floats.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "algos/exact.h"
#include "algos/lbfgs.h"
#include "algos/logistic_kernels.h"
#include "algos/worker_sum.h"
#include "nn/graph/layer_kind.h"
#include "runtime/core/elementary.h"

namespace gradcast {
namespace {

constexpr uint32_t chunks = 16;   // of a worker's samples

class Logistic final : public LocalProblems {
public:
    Status plan(const AlgorithmPlan& plan, double pull, const char* key) override {
        const NetSpec& spec = plan.net.spec();
        features_ = uint64_t{spec.C} * spec.H * spec.W;
        classes_ = spec.classes;
        wide_ = (classes_ + width - 1) / width * width;
        bias_ = layer_value(spec.layers[0], "bias") != 0;
        d_ = plan.net.layout().elements;
        if (d_ != classes_ * (features_ + bias_))
            return fail(Code::invalid, "algorithm.solver: exact takes samples without padding: take sgd");
        pull_ = pull;
        key_ = key;
        l_ = plan.optimiser.weight_decay;
        lengths_.resize(plan.own_workers.size());
        samples_.resize(plan.own_workers.size()), labels_.resize(plan.own_workers.size());
        for (size_t i = 0; i < samples_.size(); ++i) {
            const uint64_t count = plan.local->samples(plan.own_workers[i]);
            plan.arena.plan("workers' samples", count * features_ * sizeof(float), &samples_[i]);
            labels_[i].resize(count);
        }
        plan.arena.plan("weights by feature", wide_ * (features_ + 1) * sizeof(double), &weights_);
        plan.arena.plan("gradients of chunks", chunks * wide_ * (features_ + 1) * sizeof(double), &gradients_);
        plan.arena.plan("vectors of L-BFGS", (Lbfgs::vectors + 1) * d_ * sizeof(double), &memory_);
        outputs_.resize(chunks * rows_most * wide_);
        return {};
    }

    Status build(Context& context, size_t own) override {
        const uint32_t worker = context.workers->own()[own];
        auto* x = samples_[own].as<float>();
        for (uint64_t n = 0; n < labels_[own].size(); ++n, x += features_) {
            if (n % 256 == 0) GC_TRY(context.workers->poll());
            Samples sample;
            GC_TRY(context.local->sample(worker, n, &sample));
            labels_[own][n] = sample.labels[0];
            const size_t plane = size_t{sample.H} * sample.W;
            for (size_t j = 0; j < features_; ++j)
                x[j] = (static_cast<float>(sample.images[j]) / 255.0f - sample.mean[j / plane]) / sample.std[j / plane];
            context.progress.advance();
        }
        const std::span<double> zero(memory_.as<double>(), d_), g(memory_.as<double>() + d_, d_);
        std::ranges::fill(zero, 0.0);
        double value, square = 0;
        gradient(context, own, zero, g, &value);
        for (const double each : g) square += each * each;
        lengths_[own] = std::sqrt(square);
        return {};
    }

    void gradient(Context& context, size_t own, std::span<const double> w, std::span<double> g, double* value) override {
        const uint64_t count = labels_[own].size(), stride = wide_ * (features_ + 1);
        auto* weights = weights_.as<double>();
        std::memset(weights, 0, weights_.bytes);
        for (uint64_t c = 0; c < classes_; ++c) {
            for (uint64_t j = 0; j < features_; ++j) weights[j * wide_ + c] = w[c * features_ + j];
            if (bias_) weights[features_ * wide_ + c] = w[classes_ * features_ + c];
        }
        context.lanes.run(chunks, [work = std::pair(this, own)](uint32_t, uint32_t chunk) {
            const auto [self, worker] = work;   // no larger than what a std::function holds without allocating
            self->values_[chunk] = self->chunk_gradient(worker, chunk);
        });
        auto* sums = gradients_.as<double>();
        for (uint32_t chunk = 1; chunk < chunks; ++chunk)
            for (uint64_t i = 0; i < stride; ++i) sums[i] += sums[chunk * stride + i];
        double objective = 0, square = 0;
        for (const double each : values_) objective += each;
        const double share = 1 / static_cast<double>(count);
        for (uint64_t c = 0; c < classes_; ++c) {
            for (uint64_t j = 0; j < features_; ++j) g[c * features_ + j] = sums[j * wide_ + c] * share;
            if (bias_) g[classes_ * features_ + c] = sums[features_ * wide_ + c] * share;
        }
        for (uint64_t i = 0; i < d_; ++i) {
            g[i] += l_ * w[i];
            square += w[i] * w[i];
        }
        *value = objective * share + l_ / 2 * square;
        context.gradients += count;
        context.progress.advance();
    }

    Status step(Context& context, size_t own, std::span<const double> w, std::span<const double> g, std::span<const double> r,
                std::span<double> step) override {
        const std::span<double> memory(memory_.as<double>(), (Lbfgs::vectors + 1) * d_), place = memory.last(d_);
        Lbfgs solver{.memory = memory.first(Lbfgs::vectors * d_),
                     .f =
                         [&](std::span<const double> s, std::span<double> gradient_there) {
                             GC_TRY(context.workers->poll());
                             for (uint64_t i = 0; i < d_; ++i) place[i] = w[i] + s[i];
                             double value;
                             gradient(context, own, place, gradient_there, &value);
                             for (uint64_t i = 0; i < d_; ++i) gradient_there[i] += pull_ * s[i] - g[i] + r[i];
                             return Status{};
                         },
                     .floor = 1e-13 * lengths_[own],
                     .tolerance = 1e-3};
        const Status status = solver.minimise(r, step);
        if (status.code != Code::deadline) return status;
        return fail(Code::diverged, "round {}: the problem of worker {} has {}: raise algorithm.{} or optimiser.weight_decay",
                    context.step + 1, context.workers->own()[own], status.what, key_);
    }

private:
    /// The sum over the chunk's samples to its place.  Returns the sum of their losses.
    double chunk_gradient(size_t own, uint32_t chunk) {
        const uint64_t count = labels_[own].size(), begin = count * chunk / chunks, end = count * (chunk + 1) / chunks;
        const auto* weights = weights_.as<double>();
        double* sum = gradients_.as<double>() + chunk * wide_ * (features_ + 1);
        double* z = outputs_.data() + chunk * rows_most * wide_;
        std::fill(sum, sum + wide_ * (features_ + 1), 0.0);
        double loss = 0;
        for (uint64_t n = begin; n < end; n += rows_most) {
            const auto rows = static_cast<uint32_t>(std::min<uint64_t>(rows_most, end - n));
            const float* x = samples_[own].as<float>() + n * features_;
            kernels_.outputs(x, rows, features_, weights, wide_, z);
            for (uint32_t row = 0; row < rows; ++row) loss += softmax(z + row * wide_, static_cast<uint32_t>(labels_[own][n + row]));
            kernels_.products(x, rows, features_, z, wide_, sum);
        }
        return loss;
    }
    /// z <- softmax(z) - the label's unit vector.  Returns the loss.
    double softmax(double* z, uint32_t label) const {
        const double most = *std::max_element(z, z + classes_);
        const double mine = z[label] - most;
        double sum = 0;
        for (uint64_t c = 0; c < classes_; ++c) sum += z[c] = elementary::exp(z[c] - most);
        for (uint64_t c = 0; c < classes_; ++c) z[c] /= sum;
        std::fill(z + classes_, z + wide_, 0.0);
        z[label] -= 1;
        return elementary::log(sum) - mine;
    }

    const LogisticKernels& kernels_ = logistic_kernels();
    uint64_t features_ = 0, classes_ = 0, wide_ = 0, d_ = 0;
    bool bias_ = true;
    double pull_ = 0, l_ = 0;
    const char* key_ = "";
    std::vector<Buffer> samples_;                // by own worker: float [samples, features]
    std::vector<std::vector<int32_t>> labels_;   // the same
    std::vector<double> lengths_;                // the same: of grad O_k(0), whose 1e-13 part is taken for rounding
    Buffer weights_, gradients_, memory_;        // [features + 1, wide], the bias last; that by chunk
    std::vector<double> outputs_;                // [chunks, rows_most, wide]
    double values_[chunks] = {};
};

}   // namespace

std::unique_ptr<LocalProblems> logistic_problems() { return std::make_unique<Logistic>(); }

}   // namespace gradcast
