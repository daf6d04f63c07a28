#include "algos/context.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <optional>

#include "runtime/core/digest.h"

namespace gradcast {
namespace {

/// Takes the gradients of one step's blocks from all lanes, and knows when a bucket is complete.
class StepSink final : public GradientSink {
public:
    explicit StepSink(Context& context) : context_(context), step_(context.step) {}

    void blocks(uint32_t lane, std::span<const uint32_t> numbers) {
        if (failed_.load(std::memory_order_relaxed)) return;
        std::array<Block, together_most> all;
        size_t count = 0;   // that the loader has given
        Status status;
        {
            const Span span(context_.profile, lane, "load");
            for (const uint32_t number : numbers) {
                Block& block = all[count];
                block.id = {step_, number};
                const Status got = context_.loader.get(block.id, context_.deadline_us, &block.samples);
                if (got.ok()) ++count;
                else if (status.ok()) status = got;
            }
        }
        const std::span given(all.data(), count);
        // Blocks that are not needed (any more) are taken from the loader all the same, which hands them out in order.
        if (status.ok() && !context_.exchange->summed(step_)) status = context_.net.blocks(lane, given, *this);
        for (const Block& each : given) context_.loader.done(each.id);
        if (!status.ok() && !context_.exchange->summed(step_)) fail_with(status);
    }

    Status bucket(uint32_t lane, BlockId id, uint32_t bucket, Buffer gradient) override {
        if (context_.spend_us) context_.host.spend(context_.spend_us);
        GC_TRY(needed());
        Fence fence;
        {
            const Span span(context_.profile, lane, "quantise");
            GC_TRY(context_.codec.add(lane, id, bucket, gradient, plan(id, bucket), &fence));
        }
        return added(bucket, fence);
    }

    bool pieces(uint32_t lane, std::span<const Block> blocks, uint32_t bucket, const GradientPiece& piece, Status* status) override {
        if (context_.spend_us) return false;
        *status = needed();
        Fence fence;
        std::array<Addition, together_most> all;
        for (size_t i = 0; i < blocks.size(); ++i) all[i] = {blocks[i].id, plan(blocks[i].id, bucket)};
        if (status->ok() && !context_.codec.add_pieces(lane, std::span(all.data(), blocks.size()), bucket, piece, &fence, status))
            return false;
        for (size_t i = 0; status->ok() && i < blocks.size(); ++i) *status = added(bucket, fence);
        return true;
    }

    bool on_device() const override { return context_.codec.device() != nullptr; }

    bool begin(uint32_t lane, BlockId id, Status* status) override {
        *status = context_.codec.device()->begin(lane, id, [this, &id](uint32_t bucket) { return plan(id, bucket); });
        return true;
    }

    // In whole units of 2^-20 per block, so that the sum depends on nobody's grouping.  A loss beyond what 64 bits hold for all blocks, NaN
    // among them, counts as the limit: what has gone wrong is told by the gradient's layer, or training goes on.
    void loss(uint32_t, BlockId id, double sum) override {
        double limit = std::ldexp(1.0, 42) / context_.blocks;
        context_.losses[context_.exchange->target_of(id.block)].fetch_add(std::llrint((std::abs(sum) < limit ? sum : limit) * 0x1p20),
                                                                          std::memory_order_relaxed);
    }

    Status ready(uint32_t bucket, Fence fence) {
        for (uint32_t target = 0; target < context_.exchange->targets(); ++target) {
            Plan plan = context_.exchange->plan(step_, bucket, target);
            GC_TRY(context_.codec.finish(step_, bucket, plan));
            plan.record->state = context_.state;
            plan.record->loss = context_.losses[target].load(std::memory_order_relaxed);   // a block tells it before its first bucket
        }
        Event event;
        event.kind = Event::Kind::ready;
        event.step = step_;
        event.bucket = bucket;
        event.fence = fence;
        context_.host.post(context_.channel, event);
        sched_yield();   // ranks that share cores all send their first bucket before any makes its last
        return {};
    }

    Status status() {
        std::lock_guard lock(mutex_);
        return status_;
    }

private:
    Status needed() {
        if (!context_.exchange->summed(step_)) return {};
        context_.net.cancel(step_);   // the other lanes' blocks too
        return fail(Code::cancelled, "the step is summed without this block");
    }

    Plan plan(BlockId id, uint32_t bucket) { return context_.exchange->plan(step_, bucket, context_.exchange->target_of(id.block)); }

    Status added(uint32_t bucket, Fence fence) {
        context_.progress.advance();
        // acq_rel: the lane that counts to zero has seen what all others added to the words, the record and the loss.
        return context_.blocks_left[bucket].fetch_sub(1, std::memory_order_acq_rel) == 1 ? ready(bucket, fence) : Status{};
    }

    void fail_with(Status status) {
        std::lock_guard lock(mutex_);
        if (!status_.ok()) return;
        status_ = status;
        failed_.store(true, std::memory_order_relaxed);
        context_.net.cancel(step_);
    }

    Context& context_;
    StepId step_;
    std::atomic<bool> failed_{false};
    std::mutex mutex_;   // of status_, taken by failing lanes only
    Status status_;
};

/// Passes of layers, for the profile.
struct ProfileTrace final : NetTrace {
    explicit ProfileTrace(Profile& p) : profile(p) {}
    uint64_t now_ns() override { return clock_ns(); }
    void pass(uint32_t lane, const Layer& layer, Pass pass, uint64_t begin_ns, uint64_t end_ns) override {
        const bool forward = pass == Pass::input || pass == Pass::forward;
        profile.add(lane, forward ? "forward" : "backward", pass == Pass::input ? "input" : layer_name(layer), begin_ns, end_ns);
    }
    Profile& profile;
};

constexpr uint16_t on(Channel channel) { return static_cast<uint16_t>(channel); }

/// Waits for something to happen and takes what ends the job out of it.
Status collect(Context& context, uint64_t until_us) {
    context.completions.clear();
    GC_TRY(context.host.wait(&context.completions, until_us));
    for (const Completion& each : context.completions) {
        if (each.channel != on(Channel::job)) continue;
        if (each.id != job_rank_lost) {
            if (!each.status.ok()) context.ended = each.status;
        } else {
            const auto rank = static_cast<Rank>(each.step);
            context.lost[rank] = true;
            context.why_lost.emplace_back(each.status.what);
            Event event;
            event.rank = rank, event.status = fail(Code::peer_lost, "rank {} is lost", rank);
            if (each.status.code == Code::conflict) {
                // Others may have taken what it has sent for other buckets, so all must get it before the link gives it up.
                event.kind = Event::Kind::command, event.id = static_cast<uint64_t>(ExchangeCommand::expel);
                context.host.post(context.channel, event);
                context.expelled.push_back(rank);
            } else {
                event.kind = Event::Kind::peer_lost;   // the link and all protocols hear of it, whoever found it out
                context.host.post(on(Channel::job), event);
            }
        }
    }
    GC_TRY(context.ended);
    const Completion* conflict = nullptr;
    for (const Completion& each : context.completions) {
        const bool summing = each.channel == on(Channel::gradient) || each.channel == on(Channel::chosen);
        if (each.channel == on(Channel::job) || (summing && each.channel != context.channel)) continue;   // `auto` left that exchange
        // Where ranks can be missed a sum may come before this trainer has begun its step.
        if (each.channel == context.channel && each.sum) context.sums[each.step % step_slots][each.id] = each.sum;
        const bool mail = each.channel == on(Channel::mail), lost = each.status.code == Code::peer_lost && !context.why_lost.empty();
        if (each.channel == context.channel && each.status.code == Code::conflict) conflict = conflict ? conflict : &each;
        else if (!mail || !lost) GC_TRY(each.status);
        if (!mail) continue;
        if (context.mailed.size() <= each.id) context.mailed.resize(each.id + 1);
        context.mailed[each.id] = lost ? Context::Mailed::lost : Context::Mailed::done;
    }
    if (!conflict) return {};
    // Others may be a step ahead.  What they disagree about can be computed here once this rank is there.
    if (conflict->step > context.step) return context.early = *conflict, Status{};
    return context.arbitrate(conflict->status, conflict->step);
}

/// The digest of a super-block's words in one bucket, computed here from the state of step `at`.  Rare, so it takes memory.
Status compute_again(Context& context, const Conflict& conflict, StepId at, Record* record) {
    const Plan like = context.exchange->plan(at, conflict.bucket, 0);
    std::vector<std::byte> words(like.words.bytes);
    std::vector<float> maxima(context.net.layout().buckets[conflict.bucket].group_count);
    record->maxima = maxima;
    const Plan plan{like.word, {words.data(), nullptr, words.size(), 0}, record, true};
    struct Sink final : GradientSink {
        Sink(Codec& c, const Plan& p, uint32_t b) : codec(c), plan(p), wanted(b) {}
        Status bucket(uint32_t lane, BlockId id, uint32_t bucket, Buffer gradient) override {
            Fence fence;
            return bucket == wanted ? codec.add(lane, id, bucket, gradient, plan, &fence) : Status{};
        }
        void loss(uint32_t, BlockId, double) override {}
        bool on_device() const override { return codec.device() != nullptr; }
        Codec& codec;
        const Plan& plan;
        const uint32_t wanted;
    } sink(context.codec, plan, conflict.bucket);
    const auto exchange_states = [&] {
        std::swap_ranges(context.kept_parameters.begin(), context.kept_parameters.end(), context.net.parameters().begin());
        std::swap_ranges(context.kept_exponents.begin(), context.kept_exponents.end(), context.codec.exponents().begin());
        context.net.refresh();
    };
    if (at != context.step) exchange_states();
    context.net.cancel(Net::no_step);
    Status status;
    for (uint32_t block = conflict.first_block; status.ok() && block < conflict.end_block; ++block) {
        const DataInfo& info = context.data.info();
        std::vector<uint64_t> indices(context.sampler.block_size(block));
        std::vector<uint8_t> images(indices.size() * context.data.sample_bytes());
        std::vector<int32_t> labels(indices.size());
        context.sampler.block({at, block}, indices);
        status = context.data.read(indices, images.data(), labels.data());
        if (!status.ok()) break;
        const auto count = static_cast<uint32_t>(indices.size());
        status = context.net.block(0, {at, block},
                                   {images.data(), labels.data(), count, info.C, info.H, info.W, info.mean.data(), info.std.data()}, sink);
    }
    if (at != context.step) exchange_states();
    GC_TRY(status);
    return context.codec.finish(at, conflict.bucket, plan);
}

/// Asks the exchange what is missing.
Status overdue(Context& context, uint64_t us) {
    Event explain;
    explain.kind = Event::Kind::command;
    explain.id = static_cast<uint64_t>(ExchangeCommand::explain);
    explain.step = context.step;
    context.host.post(context.channel, explain);
    (void)collect(context, context.host.now_us() + 1'000'000);
    GC_TRY(context.ended);
    const double seconds = static_cast<double>(us) / 1e6;
    for (const Completion& each : context.completions)
        if (each.channel == context.channel && each.status.code == Code::deadline)
            return fail(Code::deadline, "no sum within {} s: {}", seconds, each.status.what);
    return fail(Code::deadline, "no sum of step {} within {} s", context.step, seconds);
}

/// The trainer waits for others as long as this lives.
struct Waiting {
    explicit Waiting(Progress& p) : progress(p) { progress.waiting.store(true, std::memory_order_relaxed); }
    ~Waiting() {
        progress.advance();
        progress.waiting.store(false, std::memory_order_relaxed);
    }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    Progress& progress;
};

/// The network thread may not have come yet to the release of the step that had the memory before, or not be done with what that sends:
/// what lanes wrote now would be lost, or sent as if it were that step's.
Status wait_begun(Context& context) {
    if (context.exchange->begun(context.step)) return {};
    Waiting waiting(context.progress);
    const uint64_t us = (context.step == 0 ? 10 : 1) * context.deadline_us, until_us = context.host.now_us() + us;
    while (!context.exchange->begun(context.step)) {
        const Status status = collect(context, std::min(context.host.now_us() + 50, until_us));
        if (status.code != Code::deadline || !context.ended.ok()) GC_TRY(status);
        if (context.host.now_us() >= until_us) return overdue(context, us);
    }
    return {};
}

}   // namespace

void Context::take_memory(uint32_t targets) {
    const size_t buckets = net.layout().buckets.size();
    blocks_left = std::vector<std::atomic<uint32_t>>(buckets);
    losses = std::vector<std::atomic<int64_t>>(targets);
    for (auto& each : sums) each.resize(buckets);
    lost.resize(view.n());
    if (exchange->losses_tolerated() == 0) return;
    kept_parameters.resize(net.parameters().size());
    kept_exponents.resize(codec.exponents().size());
}

Status Context::compute() {
    const size_t buckets = net.layout().buckets.size();
    for (auto& loss : losses) loss.store(0, std::memory_order_relaxed);
    for (auto& left : blocks_left) left.store(static_cast<uint32_t>(own_blocks.size()), std::memory_order_relaxed);
    GC_TRY(wait_begun(*this));
    StepSink sink(*this);
    for (uint32_t bucket = 0; own_blocks.empty() && bucket < buckets; ++bucket) GC_TRY(sink.ready(bucket, {}));
    std::optional<ProfileTrace> trace;
    if (profile && profile->on()) net.trace(&trace.emplace(*profile));
    const auto own = static_cast<uint32_t>(own_blocks.size()), together = together_of(net, own, lanes.count());
    struct Shares {
        StepSink& sink;
        std::span<const uint32_t> own;
        uint32_t together;
    } const shares{sink, own_blocks, together};
    // One pointer fits into a std::function without memory of its own.
    lanes.run((own + together - 1) / together, [&shares](uint32_t lane, uint32_t item) {
        const size_t first = item * shares.together, count = std::min<size_t>(shares.together, shares.own.size() - first);
        shares.sink.blocks(lane, shares.own.subspan(first, count));
    });
    if (trace) net.trace(nullptr);
    GC_TRY(sink.status());
    // What was left out because others did it: no lane writes there any more.
    for (uint32_t bucket = 0; bucket < buckets && !own_blocks.empty(); ++bucket) {
        if (blocks_left[bucket].load(std::memory_order_relaxed) == 0) continue;
        Event event;
        event.kind = Event::Kind::command;
        event.id = static_cast<uint64_t>(ExchangeCommand::abandon);
        event.step = step, event.bucket = bucket;
        host.post(channel, event);
    }
    return {};
}

namespace {

/// Whoever holds the block has found it too, or that rank is told of as one that computes wrongly.  Where a sum may come from one holder (m
/// = 1), the others are given time to contradict.
Status finite(Context& context, const Sum& sum) {
    for (size_t g = 0; g < sum.maxima.size(); ++g) {
        if (std::isfinite(sum.maxima[g])) continue;
        const uint64_t until_us = context.host.now_us() + context.deadline_us / 8;
        Status status;
        while (status.ok() && context.exchange->losses_tolerated() > 0) status = collect(context, until_us);
        if (status.code != Code::deadline) GC_TRY(status);
        const Layout& layout = context.net.layout();
        return fail(Code::diverged,
                    "step {}: the gradient of layer {} holds NaN or Inf in block {}: lower the learning rate, or look at the data",
                    context.step, layout.groups[layout.buckets[sum.bucket].group + g].layer, sum.diverged - 1);
    }
    return {};
}

}   // namespace

Status Context::wait(std::span<const Sum*> into) {
    Waiting waiting(progress);
    const Span span(profile, Profile::trainer, "wait");
    std::vector<const Sum*>& come = sums[step % step_slots];
    uint64_t us = (step == 0 ? 10 : 1) * deadline_us, until_us = host.now_us() + us;
    if (!early.status.ok() && early.step == step) GC_TRY(arbitrate(std::exchange(early.status, {}), step));
    while (std::find(come.begin(), come.end(), nullptr) != come.end()) {
        Status status = collect(*this, until_us);
        if (status.code == Code::deadline && ended.ok()) return overdue(*this, us);
        GC_TRY(status);
    }
    std::copy(come.begin(), come.end(), into.begin());
    std::fill(come.begin(), come.end(), nullptr);
    for (const Sum* sum : into) GC_TRY(finite(*this, *sum));
    return {};
}

void Context::cut_expelled() {
    for (Rank rank : expelled) {
        Event event;
        event.kind = Event::Kind::peer_lost, event.rank = rank, event.status = fail(Code::peer_lost, "rank {} computes wrongly", rank);
        host.post(on(Channel::job), event);
    }
    expelled.clear();
}

void Context::keep_state() {
    if (exchange->losses_tolerated() == 0) return;
    std::copy(net.parameters().begin(), net.parameters().end(), kept_parameters.begin());
    std::copy(codec.exponents().begin(), codec.exponents().end(), kept_exponents.begin());
}

Status Context::arbitrate(Status found, StepId at) {
    const Conflict* conflict = exchange->conflict(at);
    if (!conflict || judging) return found;
    Rank wrong = conflict->ranks[1];
    Status verdict = found;
    if (!conflict->outvoted) {
        const bool party = self == conflict->ranks[0] || self == conflict->ranks[1];
        judging = true;
        for (uint64_t until_us = host.now_us() + deadline_us / 8; party && view.n() > 2 && host.now_us() < until_us;)
            (void)collect(*this, until_us);   // until the others have ended the job
        judging = false;
        GC_TRY(ended);
        if (at != step && (at + 1 != step || kept_parameters.empty())) return found;
        Record redone;
        GC_TRY(compute_again(*this, *conflict, at, &redone));
        const bool first = conflict->digests[0] == redone.digest, second = conflict->digests[1] == redone.digest;
        if (first == second) return found;
        wrong = conflict->ranks[first];
        verdict =
            fail(Code::conflict,
                 "step {}, bucket {}: rank {} ({}) computed blocks {} to {} wrongly: digest {:016x}, but {:016x} at rank {} ({}) and here",
                 at, conflict->bucket, wrong, view.members[wrong].name, conflict->first_block, conflict->end_block - 1,
                 conflict->digests[first], redone.digest, conflict->ranks[second], view.members[conflict->ranks[second]].name);
    }
    if (conflict->spoiled || exchange->losses_tolerated() == 0) return verdict;
    if (wrong == self) {
        outvoted = true;
        return verdict;
    }
    Event event;
    event.kind = Event::Kind::command, event.id = job_rank_lost, event.rank = wrong, event.status = verdict;
    host.post(on(Channel::job), event);
    return {};
}

Status Context::wait_mail(uint64_t first, uint64_t last, uint64_t us, const char* what) {
    Waiting waiting(progress);
    uint64_t until_us = host.now_us() + us;
    while (first <= last) {
        if (first < mailed.size() && mailed[first] != Mailed::open) {
            ++first;
            continue;
        }
        // Mail of an expelled rank will not come, but it has to hear why first.
        const uint64_t cut_us = host.now_us() + deadline_us / 40;
        Status status = collect(*this, expelled.empty() ? until_us : cut_us);
        if (status.code == Code::deadline && ended.ok() && !expelled.empty()) {
            cut_expelled();
            continue;
        }
        if (status.code == Code::deadline && ended.ok())
            return fail(Code::deadline, "no {} within {} s", what, static_cast<double>(us) / 1e6);
        GC_TRY(status);
    }
    return {};
}

Status Context::wait_job(uint64_t id) {
    Waiting waiting(progress);
    for (uint64_t until_us = host.now_us() + 20 * deadline_us;;) {
        GC_TRY(collect(*this, until_us));
        for (const Completion& each : completions)
            if (each.channel == on(Channel::job) && each.id == id) return {};
    }
}

uint64_t Context::digest(StepId next, uint64_t model) {
    std::span<const int32_t> exponents = codec.exponents();
    return model + splitmix64(next) +
           digest64({reinterpret_cast<const uint32_t*>(exponents.data()), exponents.size()},
                    net.layout().elements + optimiser.state_size());
}

}   // namespace gradcast
