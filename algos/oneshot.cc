// One-shot averaging (Zhang, Duchi, Wainwright, "Communication-efficient algorithms for statistical optimization", 2013): workers learn for
// the whole job, and their parameters are averaged once.  With `fraction` r > 0 the bias is corrected (section 2.2 there): each worker also
// trains on the first r of its part, with as many passes over it.
//
//     w   <- w0 + (1/W) sum_k ((w_k - r w_k,r) / (1 - r) - w0)
//
// Messages: one sum of P values in all.  Keeps a copy of w0.  May go wrong: networks that were trained apart for long have no mean worth
// the name, and the correction makes that worse.
#include <cmath>

#include "algos/averaging.h"
#include "algos/worker_sum.h"

namespace gradcast {
namespace {

class OneShot final : public Averaging {
public:
    Status plan(const AlgorithmPlan& plan) override {
        fraction_ = plan.settings.fraction;
        return Averaging::plan(plan);
    }

private:
    Status contribute(Context& context, size_t own, std::span<float> difference) override {
        GC_TRY(Averaging::contribute(context, own, difference));
        if (fraction_ == 0) return {};
        const auto steps = static_cast<uint32_t>(std::max(1.0, std::ceil(fraction_ * context.local->config().steps)));
        std::ranges::copy(before(), context.net->parameters().begin());
        context.net->refresh();
        worker_begins(own, context.optimiser->state());
        double loss;
        GC_TRY(context.local->train(context, context.workers->own()[own], 0, steps, {.share = fraction_}, &loss));
        const std::span<const float> some = context.net->parameters(), w = before();
        const auto r = static_cast<float>(fraction_), rest = static_cast<float>(1 - fraction_);
        for (size_t i = 0; i < difference.size(); ++i) difference[i] = (difference[i] - r * (some[i] - w[i])) / rest;
        for (const Group& group : statistics())
            for (uint64_t i = group.offset; i < group.offset + group.count; ++i) difference[i] = some[i] - w[i];
        return {};
    }

    double fraction_ = 0;
};

}   // namespace

std::unique_ptr<Algorithm> oneshot_create() { return std::make_unique<OneShot>(); }

}   // namespace gradcast
