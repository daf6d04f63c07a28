#include "runtime/job/run/exchange_choice.h"

#include <algorithm>

namespace gradcast {

Status ExchangeChoice::open(const EngineConfig& config, const JobParts& parts, Report& report) {
    const JobConfig& job = config.job;
    window_ = config.resume.steps;
    steps_ = parts.steps;
    balance_ = job.balance;
    Codec& codec = *parts.compute.codec;
    const uint32_t n = parts.pipeline ? config.nodes() / parts.pipeline->cells() : config.nodes();
    name_ = job.exchange;
    datagram_bytes_ = config.datagram_bytes;
    grows_ = job.survive && n == 1;
    asked_ = {.layout = parts.pipeline ? &parts.largest_stage : &codec.words(),   // that predictions are for, the same at all ranks
              .blocks = static_cast<uint32_t>(parts.block_sizes.size()),
              .quantiser = job.quantiser,
              .m = job.m,
              .s = job.s,
              .words_always = parts.pipeline.has_value(),   // a rank whose replica is broken computes nothing
              .r = job.r,
              .weights = job.weights,
              .servers = job.servers,
              .deadline_us = job.deadline_us,
              .device = codec.device(),
              .cells = parts.pipeline ? parts.pipeline->cells() : 1};
    GC_TRY(alternatives_find(job.exchange, asked_, n, config.datagram_bytes, &alternatives_));
    std::vector<std::string> notes;
    GC_TRY(tolerance_check(job.exchange, asked_, n, &notes));
    for (const std::string& note : notes) report.warn(note);
    return {};
}

Status ExchangeChoice::for_view(const ViewExchange& exchange, uint32_t n, StepId step, Alternative* alternative) {
    ExchangeConfig config = asked_;
    config.m = exchange.m;
    config.s = exchange.s;
    config.r = std::min(config.r, n);
    config.servers = std::min(config.servers, n);
    if (config.weights.size() != n) config.weights.clear();   // of the ranks that the job began with
    // What shares blocks is for two nodes and more; multicast sums all that it does.
    const ExchangeKind* kind;
    const bool shares = exchange_find(name_, Quantiser::auto32, &kind).ok() && kind->shares;
    const std::string name = n == 1 && shares ? "multicast" : name_;
    alternatives_.clear();
    GC_TRY(alternatives_find(name, config, n, datagram_bytes_, &alternatives_));
    window_ = step;   // as at a node that comes
    tried_.clear();
    present_ = 0;
    chosen_ = false;
    agreements_ = 0;
    block_us_.clear();
    *alternative = first();
    return {};
}

Status ExchangeChoice::alone(Alternative* alternative) const {
    ExchangeChoice one = *this;
    GC_TRY(one.for_view({.name = name_, .r = 1, .m = 1, .s = 0}, 1, window_, alternative));
    alternative->datagrams = false;
    return {};
}

uint32_t ExchangeChoice::targets_most(uint32_t first) const {
    uint32_t most = first;
    for (const Alternative& each : alternatives_)   // cssgd has r = n - 1 and as many targets
        if (alternatives_.size() > 1) most = std::max({most, each.config.m + each.config.s, each.config.r});
    return most;
}

bool ExchangeChoice::datagrams(StepId steps) const {
    if (grows_ && datagram_bytes_ > 0)
        return std::ranges::any_of(exchange_kinds(), [this](const ExchangeKind& kind) {
            return kind.datagrams && (name_ == "auto" ? kind.candidates != nullptr : name_ == kind.name);
        });
    if (steps <= measured_end) return first().datagrams;
    return std::any_of(alternatives_.begin(), alternatives_.end(), [](const Alternative& each) { return each.datagrams; });
}

void ExchangeChoice::record(const StepRecord& step) {
    const StepId at = step.step - window_;
    if (at < measured_first || at >= measured_end) return;
    computes_us_[at - measured_first] = step.compute_us;
    waits_us_[at - measured_first] = step.wait_us;
    steps_us_[at - measured_first] = step.compute_us + step.wait_us + step.apply_us;
}

namespace {

uint64_t median(auto& values) {
    std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
    return values[values.size() / 2];
}

}   // namespace

uint64_t ExchangeChoice::compute_us() { return median(computes_us_); }

Status ExchangeChoice::balance(Context& context, const Session& session, Report& report, const Alternative** next) {
    const uint32_t n = session.view().n(), blocks = context.blocks;
    const size_t own = session.own_blocks().size();
    Measured measured{.wave_us = own > 0 ? std::max<uint64_t>(compute_us() / own, 1) : 0};
    GC_TRY(agree(context, session, &measured));
    block_us_.resize(n);
    for (Rank rank = 0; rank < n; ++rank)
        if (measured_[rank].wave_us > 0) block_us_[rank] = static_cast<double>(measured_[rank].wave_us);
    *next = nullptr;
    window_ = context.step + balance_every - measured_end;
    if (std::ranges::any_of(block_us_, [](double us) { return us == 0; })) return {};

    std::vector<double> speeds;
    for (const double us : block_us_) speeds.push_back(1 / us);
    const auto slowest_us = [&](const std::vector<uint32_t>& bounds) {
        double most = 0;
        for (Rank rank = 0; rank < n; ++rank) most = std::max(most, (bounds[rank + 1] - bounds[rank]) * block_us_[rank]);
        return most;
    };
    Alternative& present = alternatives_.front();
    const std::vector<uint32_t> now = block_bounds(blocks, n, present.config.weights), then = block_bounds(blocks, n, speeds);
    const double now_us = slowest_us(now), then_us = slowest_us(then);
    if (now_us < balance_gain * then_us) return {};
    window_ = context.step;
    present.config.weights = speeds;
    *next = &present;
    if (session.self() != 0) return {};
    std::string shares;
    for (Rank rank = 0; rank < n; ++rank) shares += fmt::format("{}{}", rank > 0 ? ", " : "", then[rank + 1] - then[rank]);
    report.log().info("balance: the nodes compute {} of {} blocks, so that the slowest takes {:.1f} ms instead of {:.1f} ms", shares,
                      blocks, then_us / 1e3, now_us / 1e3);
    return {};
}

Status ExchangeChoice::choose(Context& context, const Session& session, uint64_t lanes, Report& report, const Alternative** next) {
    Measured measured{.step_us = median(steps_us_)};
    const Alternative* const before = &alternatives_[tried_.empty() ? 0 : tried_[present_]];
    const Alternative* best = before;
    if (tried_.empty()) {
        GC_TRY(measure(context, session, lanes, report, &measured));
        first_ = measured;
        best = &alternatives_choose(alternatives_, first_, session.summing());
        tried_ = alternatives_to_try(alternatives_, session.summing());
        if (steps_ - context.step < tried_least) tried_.resize(1);
    } else {
        GC_TRY(agree(context, session, &measured));
    }
    if (tried_.size() > 1) {   // else the prediction decides
        alternatives_[tried_[present_]].measured_us = measured.step_us;
        if (++present_ < tried_.size()) {
            window_ = context.step;
            *next = &alternatives_[tried_[present_]];
            return {};
        }
        for (const size_t each : tried_)
            if (alternatives_[each].measured_us < best->measured_us) best = &alternatives_[each];
    }
    chosen_ = true;
    *next = best != before ? best : nullptr;
    const ExchangeReport choice = alternatives_report(alternatives_, *best, first_);
    if (session.self() == 0) report.log().info("auto: {}", exchange_report_text(choice));
    report.update([&](JobStatus& status) { status.choice = choice; });
    return {};
}

/// Fills in what the predictions follow from, the same at all ranks.
Status ExchangeChoice::measure(Context& context, const Session& session, uint64_t lanes, Report& report, Measured* measured) {
    const uint64_t compute_us = this->compute_us(), waves = (session.own_blocks().size() + lanes - 1) / lanes;
    measured->wave_us = waves > 0 ? compute_us / waves : 0;
    measured->lanes = lanes;
    measured->wait_us = median(waits_us_);
    measured->copies = report.copies();
    GC_TRY(agree(context, session, measured));
    constexpr uint64_t echoes = 4;   // every rank waits for all others, so each takes about a latency
    const uint64_t begin_us = context.host.now_us();
    for (uint64_t i = 0; i < echoes; ++i) GC_TRY(agree(context, session, measured));
    const uint64_t rounds = echoes * (session.ranks_tolerated() + 1);
    measured->latency_us = std::max<uint64_t>(measured->latency_us, (context.host.now_us() - begin_us) / rounds);
    return agree(context, session, measured);
}

/// Merges the measurements of all ranks.  The result is the same at every rank, also when some are lost meanwhile: each round passes on
/// what only some have received from a rank, and there is one round more than ranks may be lost.
Status ExchangeChoice::agree(Context& context, const Session& session, Measured* measured) {
    const uint32_t n = session.view().n();
    const Rank self = session.self();
    measured_.resize(n);
    auto part = [&](Rank rank) { return Buffer{reinterpret_cast<std::byte*>(&measured_[rank]), nullptr, sizeof(Measured)}; };
    for (uint32_t round = 0; round <= session.ranks_tolerated(); ++round) {
        measured_[self] = *measured;
        context.mail->exchange(uint64_t{1} << 63 | agreements_++, part(self), part);
        GC_TRY(context.mail->wait(1, n + 1, session.first_step_us(), "measurements to choose an exchange by"));
        for (Rank rank = 0; rank < n; ++rank)
            if (rank != self && !context.mail->lost(rank + 1)) measured->merge(measured_[rank]);
    }
    return {};
}

}   // namespace gradcast
