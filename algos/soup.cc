// Greedy soup (Wortsman et al., "Model soups: averaging weights of multiple fine-tuned models", 2022, recipe 1), in every round: models
// join the mean in the order of their validation accuracy, as long as that of the mean does not fall.
//
//     w_k <- local steps from w;   S = {}
//     for k by falling accuracy (the lower k first):  if accuracy(mean of S and w_k) >= accuracy(mean of S):  S <- S and w_k
//     w   <- mean of S
//
// Messages: W sums of P values a round, which bring all models to all nodes.  Computes (2 W - 1) passes over the validation samples: W at
// the models' nodes, W - 1 at every node.  Keeps all models.  May go wrong: models that were never close have no mean; then S stays the
// best one.
#include <algorithm>
#include <numeric>

#include "algos/gathering.h"

namespace gradcast {
namespace {

class Soup final : public Gathering {
public:
    Status plan(const AlgorithmPlan& plan) override {
        order_.resize(plan.workers);
        plan.arena.plan("sum of models", plan.net.layout().elements * sizeof(double), &sum_);
        plan.arena.plan("model on trial", plan.net.layout().elements * sizeof(float), &trial_);
        return Gathering::plan(plan);
    }

private:
    Status choose(Context& context, std::span<float> parameters) override {
        std::iota(order_.begin(), order_.end(), 0u);
        std::sort(order_.begin(), order_.end(),
                  [this](uint32_t a, uint32_t b) { return right()[a] != right()[b] ? right()[a] > right()[b] : a < b; });
        const std::span<double> sum(sum_.as<double>(), sum_.bytes / sizeof(double));
        const std::span<float> trial = floats(trial_);
        std::ranges::copy(model(order_[0]), sum.begin());
        uint32_t count = 1;
        auto best = static_cast<uint64_t>(right()[order_[0]]);
        for (size_t i = 1; i < order_.size(); ++i) {
            const std::span<const float> next = model(order_[i]);
            for (size_t j = 0; j < trial.size(); ++j) trial[j] = static_cast<float>((sum[j] + static_cast<double>(next[j])) / (count + 1));
            uint64_t right = 0;
            GC_TRY(validate(context, 0, trial, &right));
            if (right < best) continue;
            best = right;
            ++count;
            for (size_t j = 0; j < trial.size(); ++j) sum[j] += static_cast<double>(next[j]);
        }
        for (size_t j = 0; j < trial.size(); ++j) trial[j] = static_cast<float>(sum[j] / count);
        return count > 1 ? measure(context, 0, trial) : (std::ranges::copy(trial, parameters.begin()), Status{});
    }

    std::vector<uint32_t> order_;
    Buffer sum_, trial_;
};

}   // namespace

std::unique_ptr<Algorithm> soup_create() { return std::make_unique<Soup>(); }

}   // namespace gradcast
