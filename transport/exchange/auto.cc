#include "transport/exchange/auto.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "transport/wire/packet.h"

namespace gradcast {

Cost Alternative::cost(uint32_t n, bool copies) const {
    // Headers of TCP, UDP and below are a similar share of both.
    return cost_of(kind->name, config, n,
                   {datagrams ? datagram_overhead_bytes : packet_head_bytes + 16,
                    datagrams && !copies ? CostWire::Multicast::flat : CostWire::Multicast::copies});
}

void Measured::merge(const Measured& other) {
    wave_us = std::max(wave_us, other.wave_us);
    lanes = std::min(lanes, other.lanes);
    wait_us = std::min(wait_us, other.wait_us);
    step_us = std::max(step_us, other.step_us);
    latency_us = std::max(latency_us, other.latency_us);
    copies = std::max(copies, other.copies);
}

ExchangePrediction Alternative::prediction() const {
    return {.exchange = kind->name,
            .m = kind->codes ? config.m : 0,
            .s = kind->codes ? config.s : 0,
            .r = kind->shares ? config.r : 0,
            .servers = kind->serves ? config.servers : 0,
            .step_us = predicted_us,
            .measured_us = measured_us};
}

std::string ExchangePrediction::text() const {
    if (m > 0) return fmt::format("{} m={} s={}", exchange, m, s);
    if (r > 0) return fmt::format("{} r={}", exchange, r);
    if (servers > 0) return fmt::format("{} servers={}", exchange, servers);
    return exchange;
}

Status tolerance_check(std::string_view exchange, const ExchangeConfig& job, uint32_t n, std::vector<std::string>* notes) {
    notes->clear();
    const bool choose = exchange == "auto";
    if (const ExchangeKind * kind; !choose && (!exchange_find(exchange, Quantiser::auto32, &kind).ok() || !kind->codes)) return {};
    if (job.quantiser == Quantiser::fixed) return {};
    const std::string ranks = ranks_text(job, n);
    const uint64_t least = uint64_t{job.s} + 1;
    if (job.s >= n)
        return fail(Code::invalid, "algorithm.s = {} with {}{}: at most {} can be lost: set s = {}, or take at least {}{}", job.s, ranks,
                    job.cells > 1 ? fmt::format(" of {} nodes each", job.cells) : "", n - 1, n - 1, ranks_text(job, least),
                    job.cells > 1 ? fmt::format(" ({} nodes)", least * job.cells) : "");
    if (n == 1) return {};
    const uint32_t m = choose ? 1 : std::min(job.m, n - job.s);
    if (!choose && m < job.m)
        notes->push_back(fmt::format("{} with s = {} allow m = {} at most: m = {} is used instead of {}", ranks, job.s, m, m, job.m));
    if (m + job.s == n)
        notes->push_back(
            fmt::format("every {0} computes all blocks, as m + s is the number of {0}s ({1} + {2} = {3}): a step takes as long to compute "
                        "as on one {0}, unless there are more {0}s or m or s is smaller",
                        rank_name(job), m, job.s, n));
    return {};
}

Status alternatives_find(std::string_view name, const ExchangeConfig& job, uint32_t n, uint32_t datagram_bytes,
                         std::vector<Alternative>* alternatives) {
    alternatives->clear();
    auto add = [&](const ExchangeKind& kind, const ExchangeConfig& config) {
        Alternative each{.kind = &kind, .config = config, .datagrams = kind.datagrams && datagram_bytes > 0 && n > 1};
        each.config.segment_bytes = each.datagrams ? datagram_bytes : segment_bytes_stream;
        alternatives->push_back(each);
    };
    std::vector<std::string> notes;
    GC_TRY(tolerance_check(name, job, n, &notes));
    if (name != "auto") {
        const ExchangeKind* kind;
        GC_TRY(exchange_find(name, job.quantiser, &kind));
        ExchangeConfig config = job;
        if (job.s < n) config.m = std::min(job.m, n - job.s);
        add(*kind, config);
        return {};
    }
    for (const ExchangeKind& kind : exchange_kinds())
        if (kind.candidates && (kind.fixed || job.quantiser != Quantiser::fixed))
            for (const ExchangeConfig& config : kind.candidates(job, n)) add(kind, config);
    return {};
}

const Alternative& alternatives_choose(std::vector<Alternative>& alternatives, const Measured& measured, uint32_t n) {
    // The rate follows from the measured wait, although part of the bytes travelled while the ranks computed.  The wait is divided into
    // bytes and latencies, at most half of it for latencies.
    const Cost first = alternatives.front().cost(n, measured.copies > 0);
    const double wait_us = std::max(1.0, static_cast<double>(measured.wait_us));
    const double latency_us = std::min(static_cast<double>(measured.latency_us), wait_us / 2 / std::max(1.0, first.rounds));
    const double bits_per_s = std::max(first.sent, first.received) * 8e6 / (wait_us - first.rounds * latency_us);
    const Alternative* best = &alternatives.front();
    for (Alternative& each : alternatives) {
        const Cost its = each.cost(n, measured.copies > 0);
        const double own = std::ceil(static_cast<double>(each.config.blocks) / n) * its.d;
        const double compute_us =
            std::ceil(own / static_cast<double>(std::max<uint64_t>(measured.lanes, 1))) * static_cast<double>(measured.wave_us);
        each.predicted_us = gradcast::predicted_us(its, compute_us / its.d, std::max(bits_per_s, 1.0), latency_us);
        if (each.predicted_us < best->predicted_us) best = &each;
    }
    return best->predicted_us < 0.9 * alternatives.front().predicted_us ? *best : alternatives.front();
}

std::vector<size_t> alternatives_to_try(const std::vector<Alternative>& alternatives, uint32_t n) {
    const size_t none = alternatives.size();
    size_t part = none, all = none;
    double least_us = alternatives.front().predicted_us;
    for (size_t i = 1; i < alternatives.size(); ++i) {
        const Alternative& each = alternatives[i];
        const bool computes_all = each.kind->codes && each.config.m + each.config.s == n;
        size_t& best = computes_all ? all : part;
        if (best == none || each.predicted_us < alternatives[best].predicted_us) best = i;
        least_us = std::min(least_us, each.predicted_us);
    }
    std::vector<size_t> tried{0};
    for (const size_t i : {part, all})
        if (i != none && alternatives[i].predicted_us <= 4 * least_us) tried.push_back(i);
    return tried;
}

ExchangeReport alternatives_report(const std::vector<Alternative>& alternatives, const Alternative& chosen, const Measured& measured) {
    ExchangeReport report;
    for (const Alternative& each : alternatives) report.predictions.push_back(each.prediction());
    report.chosen = static_cast<size_t>(&chosen - alternatives.data());
    report.block_us = measured.wave_us;
    report.wait_us = measured.wait_us;
    report.latency_us = measured.latency_us;
    return report;
}

std::string exchange_report_text(const ExchangeReport& report) {
    if (report.chosen >= report.predictions.size()) return {};
    const ExchangePrediction& chosen = report.predictions[report.chosen];
    std::string tried, predicted;
    for (const ExchangePrediction& each : report.predictions) {
        if (&each != &chosen && each.measured_us > 0)
            tried += fmt::format("{}{} {:.3f}", tried.empty() ? "" : ", ", each.text(), static_cast<double>(each.measured_us) * 1e-3);
        predicted += fmt::format("{}{} {:.3f}", predicted.empty() ? "" : ", ", each.text(), each.step_us * 1e-3);
    }
    auto ms = [](uint64_t us) { return static_cast<double>(us) * 1e-3; };
    return fmt::format("{}{}; predicted: {}, where a block takes {:.3f} ms, {} waits {:.3f} ms for sums, a message {:.3f} ms",
                       chosen.text(), tried.empty() ? "" : fmt::format(", {:.3f} ms a step ({})", ms(chosen.measured_us), tried), predicted,
                       ms(report.block_us), report.predictions.front().text(), ms(report.wait_us), ms(report.latency_us));
}

}   // namespace gradcast
