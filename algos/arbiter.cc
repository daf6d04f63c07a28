#include "algos/arbiter.h"

#include <algorithm>

namespace gradcast {

Arbiter::Arbiter(Context& context, Dispatch& dispatch, Exchange& exchange, Rank self, const View& view, std::vector<Rank> view_ranks,
                 Buffer parameters, Buffer exponents)
    : context_(context),
      dispatch_(dispatch),
      exchange_(exchange),
      self_(self),
      view_(view),
      view_ranks_(std::move(view_ranks)),
      kept_parameters_(parameters.as<float>(), parameters.bytes / sizeof(float)),
      kept_exponents_(exponents.as<int32_t>(), exponents.bytes / sizeof(int32_t)) {}

void Arbiter::keep_state() {
    if (kept_parameters_.empty()) return;
    std::copy(context_.net->parameters().begin(), context_.net->parameters().end(), kept_parameters_.begin());
    std::copy(context_.codec->exponents().begin(), context_.codec->exponents().end(), kept_exponents_.begin());
}

Status Arbiter::judge(Status found, StepId at) {
    const Conflict* conflict = exchange_.conflict(at);
    if (!conflict || judging_) return found;
    Rank wrong = conflict->ranks[1];
    Status verdict = found;
    if (!conflict->outvoted) {
        const bool party = self_ == conflict->ranks[0] || self_ == conflict->ranks[1];
        judging_ = true;
        for (uint64_t until_us = context_.host.now_us() + context_.deadline_us / 8;
             party && view_.n() > 2 && context_.host.now_us() < until_us;)
            (void)dispatch_.collect(until_us);   // until the other ranks end the job
        judging_ = false;
        GC_TRY(dispatch_.ended());
        if (at != context_.step && (at + 1 != context_.step || kept_parameters_.empty())) return found;
        if (context_.pipeline) return found;   // a stage cannot compute a block again by itself
        Record redone;
        GC_TRY(compute_again(*conflict, at, &redone));
        const bool first = conflict->digests[0] == redone.digest, second = conflict->digests[1] == redone.digest;
        if (first == second) return found;
        wrong = conflict->ranks[first];
        verdict =
            fail(Code::conflict,
                 "step {}, bucket {}: rank {} ({}) computed blocks {} to {} wrongly: digest {:016x}, but {:016x} at rank {} ({}) and here",
                 at + 1, conflict->bucket, wrong, view_.members[wrong].name, conflict->first_block, conflict->end_block - 1,
                 conflict->digests[first], redone.digest, conflict->ranks[second], view_.members[conflict->ranks[second]].name);
    }
    if (conflict->spoiled || exchange_.losses_tolerated() == 0) return verdict;
    if (wrong == self_) {
        outvoted_ = true;
        return verdict;
    }
    context_.host.post(job_channel, command_event(WrongRank{view_ranks_.empty() ? wrong : view_ranks_[wrong], verdict}));
    return {};
}

/// The digest of a super-block's words in one bucket, computed from the state of step `at`.  Allocates; only after a conflict.
Status Arbiter::compute_again(const Conflict& conflict, StepId at, Record* record) {
    const Plan like = exchange_.plan(at, conflict.bucket, 0);
    std::vector<std::byte> words(like.words.bytes);
    std::vector<float> maxima(context_.net->layout().buckets[conflict.bucket].group_count);
    record->maxima = maxima;
    const Plan plan{like.word, {words.data(), nullptr, words.size()}, record, true};
    struct Sink final : GradientSink {
        Sink(Codec& c, const Plan& p, uint32_t b) : codec(c), plan(p), wanted(b) {}
        Status bucket(uint32_t lane, BlockId id, uint32_t bucket, Buffer gradient) override {
            return bucket == wanted ? codec.add(lane, id, bucket, gradient, plan) : Status{};
        }
        void loss(uint32_t, BlockId, double) override {}
        bool on_device() const override { return codec.device() != nullptr; }
        Codec& codec;
        const Plan& plan;
        const uint32_t wanted;
    } sink(*context_.codec, plan, conflict.bucket);
    const auto exchange_states = [&] {
        std::swap_ranges(kept_parameters_.begin(), kept_parameters_.end(), context_.net->parameters().begin());
        std::swap_ranges(kept_exponents_.begin(), kept_exponents_.end(), context_.codec->exponents().begin());
        context_.net->refresh();
    };
    if (at != context_.step) exchange_states();
    context_.net->cancel(Net::no_step);
    Status status;
    for (uint32_t block = conflict.first_block; status.ok() && block < conflict.end_block; ++block) {
        std::vector<uint64_t> indices(context_.sampler.block_size(block));
        std::vector<uint8_t> images(indices.size() * context_.data.sample_bytes());
        std::vector<int32_t> labels(indices.size());
        std::vector<std::byte> targets(indices.size() * context_.data.info().targets_bytes());
        context_.sampler.block({at, block}, indices);
        for (uint32_t i = 0; i < indices.size(); ++i)
            indices[i] = context_.data.in_epoch(indices[i], context_.sampler.seed(), context_.sampler.epoch_of({at, block}, i));
        status = context_.data.read(indices, images.data(), labels.data(), targets.data());
        if (!status.ok()) break;
        const auto count = static_cast<uint32_t>(indices.size());
        status = context_.net->block(0, {at, block}, context_.data.samples(count, images.data(), labels.data(), targets.data()), sink);
    }
    if (at != context_.step) exchange_states();
    GC_TRY(status);
    return context_.codec->finish(at, conflict.bucket, plan);
}

}   // namespace gradcast
