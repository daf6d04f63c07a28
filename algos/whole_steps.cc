#include "algos/whole_steps.h"

#include <optional>
#include <utility>

#include "algos/profile_trace.h"
#include "algos/synchronous.h"

namespace gradcast {

Status WholeSteps::begin(Context& context, StepId step) {
    blocks_.resize(context.blocks);   // allocates in the first round only
    Status status;
    uint32_t given = 0;
    {
        const Span span(context.profile, Profile::trainer, StepPhase::load);
        for (; given < context.blocks && status.ok(); ++given)
            status = context.loader->get({step, given}, context.deadline_us, &blocks_[given]);
    }
    if (!status.ok()) --given;
    if (status.ok()) {
        context.optimiser->step(step);
        status = context.net->step_begin(step, blocks_);
    }
    for (uint32_t block = 0; block < given; ++block) context.loader->done({step, block});
    GC_TRY(status);
    begun_ = step + 1;
    return {};
}

Status WholeSteps::round(Context& context, StepRecord* record) {
    const StepId step = context.step;
    if (begun_ != step + 1) {
        GC_TRY(std::exchange(next_, {}));
        GC_TRY(context.synchronous->poll());
        std::optional<ProfileTrace> trace;
        if (context.profile && context.profile->on()) context.net->trace(&trace.emplace(*context.profile));
        const Status status = begin(context, step);
        if (trace) context.net->trace(nullptr);
        GC_TRY(status);
    }
    if (context.at_once) {
        next_ = context.synchronous->poll();
        if (next_.ok()) next_ = begin(context, step + 1);
    }
    WholeStep done;
    GC_TRY(context.net->step_end(&done));
    int64_t loss = 0;
    for (const double each : done.losses) loss += loss_units(each, context.blocks);
    context.codec->commit_all(context.net->layout(), done.maxima);
    record->loss = static_cast<double>(loss) * 0x1p-20 / context.batch;
    record->clipped = done.clipped;
    record->digest = done.digest;
    context.gradients += context.batch;
    context.samples += context.batch;
    context.progress.advance();
    return {};
}

}   // namespace gradcast
