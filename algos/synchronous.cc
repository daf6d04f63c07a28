#include "algos/synchronous.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <optional>

#include "algos/cells.h"
#include "algos/pipeline.h"
#include "algos/profile_trace.h"
#include "algos/tied_sums.h"

namespace gradcast {
namespace {

struct LoaderSource final : BlockSource {
    explicit LoaderSource(Context& c) : context(c) {}
    Status get(BlockId id, Samples* samples) override { return context.loader->get(id, context.deadline_us, samples); }
    void done(BlockId id) override { context.loader->done(id); }
    Context& context;
};

}   // namespace

int64_t loss_units(double sum, uint32_t blocks) {
    const double limit = std::ldexp(1.0, 42) / blocks;
    return std::llrint((std::abs(sum) < limit ? sum : limit) * 0x1p20);
}

/// Takes the gradients of one step's blocks from all lanes and makes a bucket `ready` when it is complete.
class SynchronousStep::Sink final : public GradientSink {
public:
    explicit Sink(SynchronousStep& step) : all_(step), context_(step.context_), exchange_(step.exchange_), step_(context_.step) {}

    void blocks(uint32_t lane, std::span<const uint32_t> numbers) {
        if (failed_.load(std::memory_order_relaxed)) return;
        std::array<Block, together_most> all;
        size_t count = 0;   // that the loader has given
        Status status;
        {
            const Span span(context_.profile, lane, StepPhase::load);
            for (const uint32_t number : numbers) {
                Block& block = all[count];
                block.id = {step_, number};
                const Status got = context_.loader->get(block.id, context_.deadline_us, &block.samples);
                if (got.ok()) ++count;
                else if (status.ok()) status = got;
            }
        }
        const std::span given(all.data(), count);
        // Blocks that are not needed are also taken from the loader, which returns them in order.
        if (status.ok() && !exchange_.summed(step_)) status = context_.net->blocks(lane, given, *this);
        for (const Block& each : given) context_.loader->done(each.id);
        if (!status.ok() && !exchange_.summed(step_)) fail_with(status);
    }

    Status bucket(uint32_t lane, BlockId id, uint32_t bucket, Buffer gradient) override {
        if (context_.spend_us && !context_.pipeline) context_.host.spend(context_.spend_us);
        GC_TRY(needed());
        {
            const Span span(context_.profile, lane, StepPhase::quantise);
            GC_TRY(context_.codec->add(lane, id, bucket, gradient, plan(id, bucket)));
        }
        return added(bucket);
    }

    bool pieces(uint32_t lane, std::span<const Block> blocks, uint32_t bucket, const GradientPiece& piece, Status* status) override {
        if (context_.spend_us) return false;
        *status = needed();
        std::array<Addition, together_most> all;
        for (size_t i = 0; i < blocks.size(); ++i) all[i] = {blocks[i].id, plan(blocks[i].id, bucket)};
        if (status->ok() && !context_.codec->add_pieces(lane, std::span(all.data(), blocks.size()), bucket, piece, status)) return false;
        for (size_t i = 0; status->ok() && i < blocks.size(); ++i) *status = added(bucket);
        return true;
    }

    bool on_device() const override { return context_.codec->device() != nullptr; }

    bool begin(uint32_t lane, BlockId id, Status* status) override {
        *status = context_.codec->device()->begin(lane, id, [this, &id](uint32_t bucket) { return plan(id, bucket); });
        return true;
    }

    void loss(uint32_t, BlockId id, double sum) override {
        all_.losses_[exchange_.target_of(id.block)].fetch_add(loss_units(sum, context_.blocks), std::memory_order_relaxed);
    }

    void valid(uint32_t, BlockId id, uint64_t positions) override {
        all_.valid_[exchange_.target_of(id.block)].fetch_add(positions, std::memory_order_relaxed);
    }

    Status status() {
        std::lock_guard lock(mutex_);
        return status_;
    }

private:
    Status needed() {
        // The other stages of the replica may still need this one's blocks.
        if (context_.pipeline || !exchange_.summed(step_)) return {};
        context_.net->cancel(step_);   // the other lanes' blocks too
        return fail(Code::cancelled, "the step is summed without this block");
    }

    Plan plan(BlockId id, uint32_t bucket) { return exchange_.plan(step_, bucket, exchange_.target_of(id.block)); }

    Status added(uint32_t bucket) {
        context_.progress.advance();
        // acq_rel: the lane that counts to zero sees what all lanes have added to words, record and loss.
        if (all_.gradients_remaining_[bucket].fetch_sub(1, std::memory_order_acq_rel) > 1) return {};
        if (context_.tied && context_.tied->has(bucket)) return {};   // tie() goes on with it
        return all_.ready(bucket);
    }

    void fail_with(Status status) {
        std::lock_guard lock(mutex_);
        if (!status_.ok()) return;
        status_ = status;
        failed_.store(true, std::memory_order_relaxed);
        context_.net->cancel(step_);
    }

    SynchronousStep& all_;
    Context& context_;
    Exchange& exchange_;
    const StepId step_;
    std::atomic<bool> failed_{false};
    std::mutex mutex_;   // of status_, taken by failing lanes only
    Status status_;
};

SynchronousStep::SynchronousStep(Context& context, Dispatch& dispatch, Exchange& exchange, const SynchronousConfig& config)
    : context_(context),
      dispatch_(dispatch),
      exchange_(exchange),
      config_(config),
      arbiter_(context, dispatch, exchange, config.self, config.view, config.view_ranks, config.kept_parameters, config.kept_exponents),
      port_(context, dispatch, exchange, context.net->layout().buckets.size(), config.first_step, &arbiter_, config.view_ranks),
      gradients_remaining_(context.net->layout().buckets.size()),
      losses_(exchange.targets()),
      valid_(exchange.targets()) {}

Status SynchronousStep::compute() {
    const size_t buckets = context_.net->layout().buckets.size();
    for (auto& loss : losses_) loss.store(0, std::memory_order_relaxed);
    for (auto& positions : valid_) positions.store(0, std::memory_order_relaxed);
    for (size_t bucket = 0; bucket < buckets; ++bucket)
        gradients_remaining_[bucket].store(static_cast<uint32_t>(config_.own_blocks.size()) * config_.gradients[bucket],
                                           std::memory_order_relaxed);
    expelling_ = dispatch_.expelling();
    GC_TRY(port_.begin());
    if (context_.cells) GC_TRY(context_.cells->begin());
    Sink sink(*this);
    for (uint32_t bucket = 0; config_.own_blocks.empty() && bucket < buckets; ++bucket) GC_TRY(ready(bucket));
    std::optional<ProfileTrace> trace;
    if (context_.profile && context_.profile->on()) context_.net->trace(&trace.emplace(*context_.profile));
    Status status;
    if (context_.pipeline) {
        LoaderSource source(context_);
        std::function<bool()> needless;
        if (exchange_.losses_tolerated() > 0) needless = [this] { return this->needless(); };
        status = context_.pipeline->run(context_.step, config_.own_blocks, source, sink, needless);
    } else {
        whole(sink);
    }
    if (trace) context_.net->trace(nullptr);
    GC_TRY(status);
    // Those of a replica are its first stage's, like its samples.
    if (!context_.pipeline || config_.own_samples > 0)
        for (const uint32_t block : config_.own_blocks) context_.gradients += context_.sampler.block_size(block);
    GC_TRY(sink.status());
    // Blocks that were skipped because the sum does not need them: no lane writes there any more.
    for (uint32_t bucket = 0; bucket < buckets && !config_.own_blocks.empty(); ++bucket) {
        if (gradients_remaining_[bucket].load(std::memory_order_relaxed) == 0) continue;
        port_.abandon(bucket);
    }
    return {};
}

/// All ranks that live hold the sums of their cells of the step, so that nobody needs what this rank has not computed.  A rank that holds
/// its own must go on for the other stages of its replica, which may need their own words: another rank may die with what it has not sent.
bool SynchronousStep::needless() {
    const std::span<const Sum* const> sums = port_.come();
    for (const Sum* sum : sums)
        if (!sum || sum->state != context_.state || !std::ranges::all_of(sum->maxima, [](float each) { return std::isfinite(each); }))
            return false;   // wait() reports what is wrong
    context_.cells->report_held(sums, nullptr);
    return context_.cells->all_hold();
}

/// The blocks of a net that is whole at this node.
void SynchronousStep::whole(Sink& sink) {
    const auto own = static_cast<uint32_t>(config_.own_blocks.size()), together = together_of(*context_.net, own, context_.lanes.count());
    struct Shares {
        Sink& sink;
        std::span<const uint32_t> own;
        uint32_t together;
    } const shares{sink, config_.own_blocks, together};
    // A std::function of one pointer does not allocate.
    context_.lanes.run((own + together - 1) / together, [&shares](uint32_t lane, uint32_t item) {
        const size_t first = item * shares.together, count = std::min<size_t>(shares.together, shares.own.size() - first);
        shares.sink.blocks(lane, shares.own.subspan(first, count));
    });
}

Status SynchronousStep::ready(uint32_t bucket) {
    for (uint32_t target = 0; target < exchange_.targets(); ++target) {
        Plan plan = exchange_.plan(context_.step, bucket, target);
        GC_TRY(context_.codec->finish(context_.step, bucket, plan));
        plan.record->state = context_.state;
        // Added before the block's first bucket.
        plan.record->loss = losses_[target].load(std::memory_order_relaxed);
        plan.record->valid = valid_[target].load(std::memory_order_relaxed);
    }
    port_.ready(bucket);
    sched_yield();   // of ranks that share cores all send their first bucket before one computes its last
    return {};
}

Status SynchronousStep::tie() {
    if (!context_.tied || config_.own_blocks.empty()) return {};
    // The other ranks may need to hear that this one holds the sums of the step, before they end it early.
    std::function<void()> ask;
    if (exchange_.losses_tolerated() > 0) ask = [this] { (void)this->needless(); };
    for (size_t tensor = 0; tensor < context_.tied->count(); ++tensor) {
        const uint32_t bucket = context_.tied->bucket(tensor);
        const bool own_whole = gradients_remaining_[bucket].load(std::memory_order_relaxed) == 0;
        bool whole = own_whole;
        GC_TRY(context_.tied->add(tensor, &whole, ask));
        if (whole) GC_TRY(ready(bucket));
        else if (own_whole) port_.abandon(bucket);   // else compute() has done so
    }
    return {};
}

Status SynchronousStep::wait(std::span<const Sum*> into) {
    GC_TRY(tie());
    GC_TRY(port_.wait(0, into));
    for (const Sum* sum : into) GC_TRY(finite(*sum));
    return {};
}

void SynchronousStep::applied() {
    context_.samples += config_.own_samples;
    port_.applied();
    if (expelling_) dispatch_.cut_expelled();
}

/// All holders of the block find NaN or Inf too; a rank that finds it alone is reported as one that computes wrong values.  With m = 1 a
/// sum may come from one holder, so the others get time to contradict.
Status SynchronousStep::finite(const Sum& sum) {
    for (size_t g = 0; g < sum.maxima.size(); ++g) {
        if (std::isfinite(sum.maxima[g])) continue;
        const uint64_t until_us = context_.host.now_us() + context_.deadline_us / 8;
        Status status;
        while (status.ok() && exchange_.losses_tolerated() > 0) status = dispatch_.collect(until_us);
        if (status.code != Code::deadline) GC_TRY(status);
        const Layout& layout = context_.net->layout();
        return fail(Code::diverged,
                    "step {}: the gradient of layer {} holds NaN or Inf in block {}: lower the learning rate, or look at the data",
                    context_.step + 1, layout.groups[layout.buckets[sum.bucket].group + g].layer, sum.diverged - 1);
    }
    return {};
}

}   // namespace gradcast
