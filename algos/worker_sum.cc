#include "algos/worker_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <mutex>

namespace gradcast {
namespace {

/// The largest |x|; Inf where there is NaN.
float maximum_of(std::span<const float> x) {
    uint32_t most = 0;   // as bits: NaN is above Inf, and Inf above all numbers
    for (const float each : x) most = std::max(most, std::bit_cast<uint32_t>(each) & 0x7fffffffu);
    const float maximum = std::bit_cast<float>(most);
    return std::isfinite(maximum) ? maximum : INFINITY;
}

/// mean: of `factor` times the vectors.
template <typename Word>
void mean_of(const Word* words, std::span<const double> units, double factor, const Layout& layout, const Bucket& bucket,
             std::span<float> mean) {
    for (uint32_t g = 0; g < bucket.group_count; ++g) {
        const Group& group = layout.groups[bucket.group + g];
        const Word* from = words + (group.offset - bucket.offset);
        const double unit = factor * units[g];
        for (uint64_t i = 0; i < group.count; ++i) mean[group.offset + i] = static_cast<float>(static_cast<double>(from[i]) * unit);
    }
}

/// Of int32 words.
void add_exactly(const Sum& sum, std::span<const double> units, const Layout& layout, std::span<double> mean) {
    const Bucket& bucket = layout.buckets[sum.bucket];
    for (uint32_t g = 0; g < bucket.group_count; ++g) {
        const Group& group = layout.groups[bucket.group + g];
        for (uint64_t i = group.offset; i < group.offset + group.count; ++i) {
            const int64_t word =
                sum.word == Word::i64 ? sum.words.as<int64_t>()[i - bucket.offset] : sum.words.as<int32_t>()[i - bucket.offset];
            mean[i] += static_cast<double>(word) * units[g];
        }
    }
}

}   // namespace

Layout layout_with_maxima(const Layout& net, uint32_t workers) {
    Layout layout = net;
    const auto groups = static_cast<uint32_t>(net.groups.size());
    for (const Group& group : net.groups) layout.groups.push_back({layout.elements++, 1, group.layer, false});
    for (uint32_t worker = 0; worker < workers; ++worker)
        layout.groups.push_back({layout.elements++, 1, fmt::format("note of worker {}", worker), false});
    layout.buckets.push_back({net.elements, groups + workers, groups, groups + workers});
    return layout;
}

WorkerSum::WorkerSum(Context& context, Dispatch& dispatch, Exchange& exchange, const WorkerSumConfig& config)
    : context_(context),
      dispatch_(dispatch),
      exchange_(exchange),
      config_(config),
      port_(context, dispatch, exchange, context.net->layout().buckets.size() + 1, config.first_step, nullptr),
      elements_(context.net->layout().elements),
      maxima_bucket_(static_cast<uint32_t>(context.net->layout().buckets.size())),
      maxima_(config.own.size() * context.net->layout().groups.size()),
      sums_(maxima_bucket_),
      scales_before_(context.codec->exponents().size()) {}

void WorkerSum::take_back() {
    if (scales_of_ == context_.step) std::ranges::copy(scales_before_, context_.codec->exponents().begin());
    scales_of_ = ~StepId{0};
}

Status WorkerSum::diverged(size_t group, uint32_t worker) const {
    return fail(Code::diverged, "round {}: the loss or layer {} of worker {} is NaN or Inf: {}", context_.step + 1,
                context_.net->layout().groups[group].layer, worker, context_.advice);
}

Status WorkerSum::share_maxima(const Input& input) {
    const Layout& layout = context_.net->layout();
    const size_t groups = layout.groups.size();
    for (size_t i = 0; i < config_.own.size(); ++i)
        for (size_t g = 0; g < groups; ++g)
            maxima_[i * groups + g] =
                counts(input, i) ? maximum_of(vector(i).subspan(layout.groups[g].offset, layout.groups[g].count)) : 0.0f;
    const double loss_limit = std::ldexp(1.0, 42) / context_.blocks;
    for (uint32_t target = 0; target < exchange_.targets(); ++target) {
        const Plan plan = exchange_.plan(port_.step(), maxima_bucket_, target);
        Record& record = *plan.record;
        int64_t loss = 0;
        for (size_t i = 0; i < config_.own.size(); ++i) {
            if (exchange_.target_of(config_.own[i]) != target) continue;
            if (record.blocks++ == 0) {
                std::memset(plan.words.host, 0, plan.words.bytes);
                std::fill(record.maxima.begin(), record.maxima.end(), 0.0f);
                record.clipped = record.diverged = 0;
            }
            const double own_loss = input.losses.empty() ? 0 : input.losses[i];
            for (size_t g = 0; g < groups; ++g) record.maxima[g] = std::max(record.maxima[g], maxima_[i * groups + g]);
            if (!input.notes.empty()) record.maxima[groups + config_.own[i]] = input.notes[i];
            if (!std::isfinite(own_loss)) record.maxima[0] = INFINITY;
            // Where holders compare, only the record shows it, so a faulty rank cannot end the job.
            for (size_t g = 0; g < groups && record.diverged == 0; ++g) {
                if (!std::isinf(record.maxima[g])) continue;
                if (!plan.audit) return diverged(g, config_.own[i]);
                record.diverged = config_.own[i] + 1;
            }
            loss += std::llrint((std::abs(own_loss) < loss_limit ? own_loss : loss_limit) * 0x1p20);
        }
        GC_TRY(context_.codec->finish(port_.step(), maxima_bucket_, plan));
        record.state = context_.state;
        record.loss = loss;
    }
    port_.ready(maxima_bucket_);
    return {};
}

Status WorkerSum::share_bucket(const Input& input, uint32_t lane, uint32_t bucket) {
    const Bucket& range = context_.net->layout().buckets[bucket];
    for (size_t i = 0; i < config_.own.size(); ++i) {
        if (!counts(input, i)) continue;
        const Buffer from{reinterpret_cast<std::byte*>(vector(i).data() + range.offset), nullptr, range.count * sizeof(float)};
        const Plan plan = exchange_.plan(port_.step(), bucket, exchange_.target_of(config_.own[i]));
        GC_TRY(context_.codec->add(lane, {port_.step(), config_.own[i]}, bucket, from, plan));
    }
    for (uint32_t target = 0; target < exchange_.targets(); ++target) {
        const Plan plan = exchange_.plan(port_.step(), bucket, target);
        GC_TRY(context_.codec->finish(port_.step(), bucket, plan));
        plan.record->state = context_.state;
        plan.record->loss = 0;
    }
    port_.ready(bucket);
    context_.progress.advance();
    return {};
}

Status WorkerSum::share_vectors(const Input& input) {
    struct Work {   // behind one pointer: a std::function of it allocates nothing
        WorkerSum& sum;
        const Input& input;
        std::mutex mutex = {};
        Status status = {};
    } work{*this, input};
    context_.lanes.run(maxima_bucket_, [&work](uint32_t lane, uint32_t bucket) {
        const Status status = work.sum.share_bucket(work.input, lane, bucket);
        if (status.ok()) return;
        std::lock_guard lock(work.mutex);
        if (work.status.ok()) work.status = status;
    });
    return work.status;
}

/// mean: of `factor` times the vectors that count; empty: not wanted.
Status WorkerSum::add_up(const Input& input, double factor, std::span<float> mean, std::span<float> all_notes, double* loss) {
    const Layout& layout = context_.net->layout();
    const bool expelling = dispatch_.expelling();
    if (scales_of_ != context_.step) std::ranges::copy(context_.codec->exponents(), scales_before_.begin());
    scales_of_ = context_.step;
    GC_TRY(port_.begin());
    GC_TRY(share_maxima(input));
    const Sum* maxima = nullptr;
    GC_TRY(port_.wait(maxima_bucket_, {&maxima, 1}, config_.patience));
    if (maxima->state != context_.state)
        return fail(Code::conflict, "round {}: vectors were computed from the state {:016x}, ours is {:016x}", context_.step + 1,
                    maxima->state, context_.state);
    const size_t groups = layout.groups.size();
    for (size_t g = 0; g < groups; ++g)
        if (!std::isfinite(maxima->maxima[g])) return diverged(g, maxima->diverged - 1);
    if (!all_notes.empty()) std::ranges::copy(maxima->maxima.subspan(groups), all_notes.begin());
    for (uint32_t b = 0; b < maxima_bucket_; ++b) {
        Sum scale;   // what commit() takes of it
        scale.bucket = b;
        scale.maxima = maxima->maxima.subspan(layout.buckets[b].group, layout.buckets[b].group_count);
        context_.codec->commit(scale);
    }
    GC_TRY(share_vectors(input));
    GC_TRY(port_.wait(0, sums_));
    for (const Sum* each : sums_) {
        if (!input.exact.empty()) add_exactly(*each, context_.codec->units(each->bucket), layout, input.exact);
        if (mean.empty()) continue;
        const Sum whole = context_.codec->whole(*each);
        const std::span<const double> units = context_.codec->units(each->bucket);
        const Bucket& bucket = layout.buckets[each->bucket];
        switch (whole.word) {
            case Word::i16: mean_of(whole.words.as<int16_t>(), units, factor, layout, bucket, mean); break;
            case Word::i32: mean_of(whole.words.as<int32_t>(), units, factor, layout, bucket, mean); break;
            case Word::i64: mean_of(whole.words.as<int64_t>(), units, factor, layout, bucket, mean); break;
        }
    }
    if (loss) *loss = static_cast<double>(maxima->loss) * 0x1p-20 / context_.blocks;
    port_.applied();
    if (expelling) dispatch_.cut_expelled();
    return {};
}

Status WorkerSum::sum(std::span<const double> losses, std::span<float> mean, double* loss, std::span<const float> notes,
                      std::span<float> all_notes) {
    return add_up({.losses = losses, .notes = notes}, 1, mean, all_notes, loss);
}

Status WorkerSum::gather(std::span<const double> losses, std::span<const float> notes, std::span<float> all, std::span<float> all_notes,
                         double* loss, std::span<const float> more, std::span<float> all_more) {
    GC_ASSERT(all.size() == context_.blocks * elements_ && all_notes.size() == context_.blocks);
    for (uint32_t worker = 0; worker < context_.blocks; ++worker) {
        const std::span<float> to = all.subspan(worker * elements_, elements_);
        if (worker == 0) GC_TRY(add_up({losses, notes, worker}, context_.blocks, to, all_notes, loss));
        else if (worker == 1) GC_TRY(add_up({.notes = more, .only = worker}, context_.blocks, to, all_more, nullptr));
        else GC_TRY(add_up({.only = worker}, context_.blocks, to, {}, nullptr));
    }
    return {};
}

Status WorkerSum::sum_exactly(std::span<const double> losses, const std::function<std::span<const double>(size_t)>& values,
                              std::span<double> mean, double* loss) {
    std::ranges::fill(mean, 0.0);
    for (size_t i = 0; i < config_.own.size(); ++i)
        for (size_t j = 0; j < elements_; ++j) vector(i)[j] = static_cast<float>(values(i)[j]);
    GC_TRY(add_up({.losses = losses, .exact = mean}, 1, {}, {}, loss));
    const std::span<const int32_t> exponents = context_.codec->exponents();
    const std::vector<Group>& groups = context_.net->layout().groups;
    for (size_t i = 0; i < config_.own.size(); ++i)
        for (size_t g = 0; g < groups.size(); ++g)
            for (uint64_t j = groups[g].offset; j < groups[g].offset + groups[g].count; ++j) {
                const double word = std::rint(std::ldexp(static_cast<double>(vector(i)[j]), -exponents[g]));   // as the codec rounds
                vector(i)[j] = static_cast<float>(values(i)[j] - std::ldexp(word, exponents[g]));
            }
    return add_up({.exact = mean}, 1, {}, {}, nullptr);
}

Status WorkerSum::share_notes(std::span<const float> notes, std::span<float> all_notes) {
    return add_up({.notes = notes, .only = no_worker}, 1, {}, all_notes, nullptr);
}

}   // namespace gradcast
