// Synchronous SGD (transport/exchange/CODES.md, "What is computed"):  g = (1/b) sum over all B blocks of G_T, then every rank applies the
// same optimiser step.
// The smallest algorithm, and the template for others.  Where one device computes whole steps, WholeSteps takes the place of the exchange.
#include <algorithm>
#include <optional>

#include "algos/algorithm.h"
#include "algos/cells.h"
#include "algos/kept_stages.h"
#include "algos/pipeline.h"
#include "algos/synchronous.h"
#include "algos/whole_steps.h"
#include "nn/clip.h"
#include "nn/graph/layers.h"

namespace gradcast {
namespace {

class Ssgd final : public Algorithm {
public:
    Status plan(const AlgorithmPlan& plan) override {
        optimiser_ = plan.optimiser;
        prepare_for(plan.net);
        return {};
    }
    Status round(Context& context) override {
        if (context.profile) context.profile->on(context.step == context.profile->step);
        prepare_for(*context.net);
        context.clip = clip_ ? &*clip_ : nullptr;
        StepRecord record;
        GC_TRY(WholeSteps::possible(context) ? whole(context, &record) : exchanged(context, &record));
        GC_TRY(context.digest(context.step + 1, record.digest, &record.digest));
        context.state = record.digest;
        context.unreported.reset();
        record.step = context.step++;
        if (context.profile) context.profile->on(false);
        context.record = record;
        context.progress.step.store(context.step, std::memory_order_relaxed);
        context.progress.advance();
        return {};
    }

    bool finish(Context& context, std::optional<double> factor, Status* status) override {
        if (context.spare || context.part_step != context.step || !context.cells->reported()) return false;
        if (!factor) {
            StepTotals totals;
            const bool known = context.cells->totals(&totals);
            if (!known && (clip_ || positions_ > 0)) return false;
            const double mean = mean_factor(context, totals.valid);
            factor = this->factor(mean, clip_ ? context.cells->norm() : 0);
        }
        if (!taken_) std::ranges::copy(context.synchronous->come(), sums_.begin());
        uint64_t digest = 0;
        collect(context);
        *status = apply(context, *factor, &digest);
        return true;
    }

private:
    /// Allocates where a view has changed the net.
    void prepare_for(const Net& net) {
        if (net_ == &net) return;
        positions_ = mean_over_valid(net.spec()) ? net.spec().positions() : 0;
        if (optimiser_.clip_norm > 0) clip_.emplace(optimiser_, net.layout());
        if (optimiser_.clip_norm > 0 || positions_ > 0) scaled_.emplace(net.layout());
        net_ = &net;
    }
    /// By what the mean over the step's positions that count differs from that over its samples.  If no
    /// position counts, all sums are 0, and the factor is 1.
    double mean_factor(const Context& context, uint64_t valid) const {
        return valid > 0 && positions_ > 0 ? static_cast<double>(uint64_t{context.batch} * positions_) / static_cast<double>(valid) : 1;
    }
    /// By what the step multiplies its sums.  norm: as NormClip::norm().
    double factor(double mean, double norm) const { return clip_ ? mean * clip_->factor(mean * norm) : mean; }
    /// Both write the digest of parameters and optimiser state.
    Status whole(Context& context, StepRecord* record) {
        const uint64_t begin_us = context.host.now_us();
        GC_TRY(whole_steps_.round(context, record));
        record->compute_us = context.host.now_us() - begin_us;
        return {};
    }
    Status exchanged(Context& context, StepRecord* record) {
        if (context.spare) return followed(context, record);
        sums_.resize(context.net->layout().buckets.size());   // allocates in the first round only
        taken_ = false;
        uint64_t begin_us = context.host.now_us();
        context.stage.begin(begin_us);
        if (context.kept) GC_TRY(context.kept->begin());
        GC_TRY(context.synchronous->compute());
        uint64_t computed_us = context.host.now_us() - (context.pipeline ? context.pipeline->waited_us() : 0);
        const uint64_t passed_us = context.host.now_us();
        GC_TRY(context.synchronous->wait(sums_));
        context.stage.wait(StageTime::sums, context.host.now_us() - passed_us);
        taken_ = true;
        for (const Sum* sum : sums_)
            if (sum->state != context.state)
                return fail(Code::conflict, "step {}: bucket {} was computed from the state {:016x}, ours is {:016x}", context.step + 1,
                            sum->bucket, sum->state, context.state);
        StepTotals totals{.loss = sums_[0]->loss, .valid = sums_[0]->valid};
        for (const Sum* sum : sums_) totals.clipped += sum->clipped;
        if (context.kept) GC_TRY(context.kept->wait());
        if (context.cells) GC_TRY(context.cells->commit(sums_, &totals));
        uint64_t summed_us = context.host.now_us();

        // All sums are complete, so no other rank can make the rest of the round fail.
        context.synchronous->keep_state();
        collect(context);
        const double mean = mean_factor(context, totals.valid);
        GC_TRY(apply(context, factor(mean, norm(context)), &record->digest));
        take(totals, mean, context, record);
        context.synchronous->applied();
        record->compute_us = computed_us - begin_us;
        record->wait_us = summed_us - computed_us;
        record->apply_us = context.host.now_us() - summed_us;
        if (context.cells) (context.unreported = *record)->step = context.step;
        return {};
    }
    static void take(const StepTotals& totals, double mean, const Context& context, StepRecord* record) {
        record->loss = static_cast<double>(totals.loss) * 0x1p-20 / context.batch * mean;
        record->clipped = totals.clipped;
    }
    /// Fills whole_.
    void collect(Context& context) {
        whole_.clear();
        for (const Sum* sum : sums_) whole_.push_back({context.codec->whole(*sum), context.codec->units(sum->bucket)});
    }
    /// Of the gradient in whole_, of which other ranks may have a part; 0 where no step is clipped.
    double norm(Context& context) {
        if (!clip_ || context.cells) return context.cells ? context.cells->norm() : 0;
        const Span span(context.profile, Profile::trainer, StepPhase::apply);
        return NormClip::norm(clip_->terms(&context.lanes, context.net->layout(), whole_));
    }
    /// Of the sums in whole_.
    Status apply(Context& context, double factor, uint64_t* digest) {
        context.optimiser->step(context.step);
        context.part_step = Context::no_part;   // until all of it is applied
        {
            const Span span(context.profile, Profile::trainer, StepPhase::apply);
            if (scaled_) scaled_->apply(context.net->layout(), factor, whole_);
            GC_TRY(context.net->apply(context.lanes, *context.optimiser, whole_, digest));
        }
        context.shared = context.net->shared_digest();
        for (const Sum* sum : sums_) context.codec->commit(*sum);
        if (context.kept) context.kept->apply(factor);
        context.part_step = context.step + 1;
        context.factor_is(context.step + 1, factor);
        return {};
    }
    /// The step of the others.
    Status followed(Context& context, StepRecord* record) {
        const uint64_t begin_us = context.host.now_us();
        StepTotals totals;
        GC_TRY(context.cells->begin());
        GC_TRY(context.cells->commit({}, &totals));
        const double mean = mean_factor(context, totals.valid);
        take(totals, mean, context, record);
        context.factor_is(context.step + 1, factor(mean, context.cells->norm()));
        record->wait_us = context.host.now_us() - begin_us;
        return {};
    }

    std::vector<const Sum*> sums_;   // by bucket
    bool taken_ = false;             // they are those of the present step
    std::vector<BucketSum> whole_;   // the same, as the net takes them
    OptimiserConfig optimiser_;
    std::optional<NormClip> clip_;
    std::optional<ScaledUnits> scaled_;
    uint64_t positions_ = 0;     // of a sample, where the loss is a mean over those that count; else 0
    const Net* net_ = nullptr;   // whose these are
    WholeSteps whole_steps_;
};

}   // namespace

std::unique_ptr<Algorithm> ssgd_create() { return std::make_unique<Ssgd>(); }

}   // namespace gradcast
