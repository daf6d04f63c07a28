#include "algos/server_update.h"

#include <algorithm>

#include "nn/graph/layers.h"
#include "nn/net.h"

namespace gradcast {

void ServerUpdate::plan(const AlgorithmPlan& plan, uint32_t collect, bool exact) {
    const Layout& layout = plan.net.layout();
    collect_ = collect;
    exact_ = exact;
    batch_ = plan.local->config().batch;
    elements_ = layout.elements;
    plan.arena.plan("server", elements_ * sizeof(float), &sum_);
    maxima_.resize(layout.groups.size());
    records_.resize(layout.buckets.size());
    for (size_t b = 0; b < records_.size(); ++b)
        records_[b].maxima = std::span(maxima_).subspan(layout.buckets[b].group, layout.buckets[b].group_count);
}

void ServerUpdate::begin(const ServerParts& parts, uint32_t part) {
    parts_ = parts;
    part_ = part;
    collected_.clear();
    for (Record& each : records_) each.blocks = 0;
}

// Words have the scales that the update before has set, as blocks of synchronous SGD.
Plan ServerUpdate::words(const Context& context, uint32_t bucket) {
    const Bucket& range = context.net->layout().buckets[bucket];
    return {Word::i32, sum_.part(range.offset * sizeof(int32_t), range.count * sizeof(int32_t)), &records_[bucket]};
}

Status ServerUpdate::add(Context& context, BlockId id, const Buffer& gradient, double factor) {
    if (full()) collected_.clear();
    const std::span<float> sum(sum_.as<float>(), elements_), values(gradient.as<float>(), elements_);
    if (exact_) {
        for (uint32_t b = 0; b < records_.size(); ++b) {
            const Bucket& range = context.net->layout().buckets[b];
            const Buffer from = gradient.part(range.offset * sizeof(float), range.count * sizeof(float));
            GC_TRY(context.codec->add(0, id, b, from, words(context, b)));
        }
    } else {
        if (collected_.empty()) std::ranges::fill(sum, 0.0f);
        const uint64_t first = parts_.first(part_), last = parts_.first(part_ + 1);
        for (const Group& group : context.net->layout().groups) {
            const auto share = static_cast<float>((group.statistics ? 1 : factor) / (static_cast<double>(collect_) * batch_));
            const uint64_t end = std::min(group.offset + group.count, last);
            for (uint64_t i = std::max(group.offset, first); i < end; ++i) sum[i] += share * values[i];
        }
    }
    collected_.push_back(id.block);
    return {};
}

Status ServerUpdate::apply(Context& context, uint64_t version, std::span<float> w) {
    context.optimiser->step(version);
    if (!exact_) {
        context.local->apply(context, w, {sum_.as<float>(), elements_}, parts_.first(part_), parts_.count(part_));
        return {};
    }
    sums_.clear();
    for (uint32_t b = 0; b < records_.size(); ++b) {
        GC_TRY(context.codec->finish(version, b, words(context, b)));
        Sum sum;
        sum.step = version;
        sum.bucket = b;
        sum.words = words(context, b).words;
        sum.maxima = records_[b].maxima;
        sums_.push_back({sum, context.codec->units(b)});
        clipped_ += records_[b].clipped;
    }
    std::ranges::copy(w, context.net->parameters().begin());
    uint64_t digest = 0;
    GC_TRY(context.net->apply(context.lanes, *context.optimiser, sums_, &digest));
    std::ranges::copy(context.net->parameters(), w.begin());
    for (const BucketSum& each : sums_) context.codec->commit(each.sum);
    for (Record& each : records_) each.blocks = 0;
    return {};
}

}   // namespace gradcast
