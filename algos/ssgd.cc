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

namespace gradcast {
namespace {

class Ssgd final : public Algorithm {
public:
    Status plan(const AlgorithmPlan& plan) override {
        optimiser_ = plan.optimiser;
        clip_for(plan.net);
        return {};
    }
    Status round(Context& context) override {
        if (context.profile) context.profile->on(context.step == context.profile->step);
        clip_for(*context.net);
        context.clip = clip_ ? &*clip_ : nullptr;
        StepRecord record;
        GC_TRY(WholeSteps::possible(context) ? whole(context, &record) : exchanged(context, &record));
        GC_TRY(context.digest(context.step + 1, record.digest, &record.digest));
        context.state = record.digest;
        context.unreported.reset();
        if (context.spare) context.norm_is(context.step + 1, context.cells->norm());
        record.step = context.step++;
        if (context.profile) context.profile->on(false);
        context.record = record;
        context.progress.step.store(context.step, std::memory_order_relaxed);
        context.progress.advance();
        return {};
    }

    bool finish(Context& context, double norm, Status* status) override {
        if (context.spare || context.part_step != context.step || !context.cells->told()) return false;
        if (!taken_) std::ranges::copy(context.synchronous->come(), sums_.begin());
        uint64_t digest = 0;
        *status = apply(context, norm, &digest);
        return true;
    }

private:
    /// Allocates where a view has changed the net.
    void clip_for(const Net& net) {
        if (optimiser_.clip_norm == 0 || net_ == &net) return;
        clip_.emplace(optimiser_, net.layout());
        net_ = &net;
    }
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
        int64_t loss = sums_[0]->loss;
        for (const Sum* sum : sums_) record->clipped += sum->clipped;
        if (context.kept) GC_TRY(context.kept->wait());
        if (context.cells) GC_TRY(context.cells->commit(sums_, &loss, &record->clipped));
        uint64_t summed_us = context.host.now_us();

        // All sums are complete, so no other rank can make the rest of the round fail.
        context.synchronous->keep_state();
        GC_TRY(apply(context, context.cells ? context.cells->norm() : 0, &record->digest));
        record->loss = static_cast<double>(loss) * 0x1p-20 / context.batch;
        context.synchronous->applied();
        record->compute_us = computed_us - begin_us;
        record->wait_us = summed_us - computed_us;
        record->apply_us = context.host.now_us() - summed_us;
        if (context.cells) (context.unreported = *record)->step = context.step;
        return {};
    }
    /// norm: of the gradient, where other ranks have a part of it.
    Status apply(Context& context, double norm, uint64_t* digest) {
        context.optimiser->step(context.step);
        whole_.clear();
        for (const Sum* sum : sums_) whole_.push_back({context.codec->whole(*sum), context.codec->units(sum->bucket)});
        {
            const Span span(context.profile, Profile::trainer, StepPhase::apply);
            if (clip_ && !context.cells) norm = NormClip::norm(clip_->terms(&context.lanes, context.net->layout(), whole_));
            if (clip_) clip_->apply(context.net->layout(), norm, whole_);
            GC_TRY(context.net->apply(context.lanes, *context.optimiser, whole_, digest));
        }
        context.shared = context.net->shared_digest();
        for (const Sum* sum : sums_) context.codec->commit(*sum);
        if (context.kept) context.kept->apply(norm);
        context.part_step = context.step + 1;
        context.norm_is(context.step + 1, norm);
        return {};
    }
    /// The step of the others.
    Status followed(Context& context, StepRecord* record) {
        const uint64_t begin_us = context.host.now_us();
        int64_t loss = 0;
        GC_TRY(context.cells->begin());
        GC_TRY(context.cells->commit({}, &loss, &record->clipped));
        record->loss = static_cast<double>(loss) * 0x1p-20 / context.batch;
        record->wait_us = context.host.now_us() - begin_us;
        return {};
    }

    std::vector<const Sum*> sums_;   // by bucket
    bool taken_ = false;             // they are those of the present step
    std::vector<BucketSum> whole_;   // the same, as the net takes them
    OptimiserConfig optimiser_;
    std::optional<NormClip> clip_;   // on CPUs alone
    const Net* net_ = nullptr;       // whose it is
    WholeSteps whole_steps_;
};

}   // namespace

std::unique_ptr<Algorithm> ssgd_create() { return std::make_unique<Ssgd>(); }

}   // namespace gradcast
