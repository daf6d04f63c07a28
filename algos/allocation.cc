#include "algos/allocation.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "algos/algorithm.h"

namespace gradcast {

void allocate(std::span<const float> speeds, uint64_t count, std::span<uint32_t> shares, std::span<double> rest) {
    const size_t n = shares.size();
    GC_ASSERT(speeds.size() == n && rest.size() == n && count >= n);
    const double sum = std::accumulate(speeds.begin(), speeds.end(), 0.0);
    uint64_t given = 0;
    for (size_t k = 0; k < n; ++k) {
        const double wanted = static_cast<double>(count) * static_cast<double>(speeds[k]) / sum;
        shares[k] = std::max(static_cast<uint32_t>(wanted), 1u);
        rest[k] = wanted - shares[k];   // what it has too little
        given += shares[k];
    }
    for (; given < count; ++given) {
        const auto k = static_cast<size_t>(std::max_element(rest.begin(), rest.end()) - rest.begin());
        ++shares[k];
        rest[k] -= 1;
    }
    for (; given > count; --given) {   // those that were raised to one
        size_t k = n;
        for (size_t i = 0; i < n; ++i)
            if (shares[i] > 1 && (k == n || rest[i] < rest[k])) k = i;
        --shares[k];
        rest[k] += 1;
    }
}

Status Allocation::plan(const AlgorithmPlan& plan) {
    const AlgorithmSettings& settings = plan.settings;
    const LocalConfig& local = plan.local->config();
    on_ = settings.allocation != "parts";
    measures_ = settings.allocation == "bsda";
    if (!on_) return {};
    speeds_.assign(plan.workers, 1), shares_.resize(plan.workers), rest_.resize(plan.workers);
    // Shares, wherever they come from, may be repeated by any job that has mini-batches for them.
    const Facts job = {{"job.seed", fmt::format("{}", local.seed)},
                       {"job.batch", fmt::format("{}", local.batch)},
                       {"algorithm.workers", fmt::format("{}", plan.workers)},
                       {"algorithm.allocation_batches", fmt::format("{}", settings.allocation_batches)},
                       {"samples", fmt::format("{}", plan.local->samples_in_all())}};
    head_ = replay_head(job);
    kept_.open(plan.folder + "/replay.log");
    if (settings.replay.empty()) return {};
    std::string text;
    GC_TRY(replay_read(settings.replay, job, &text));
    for (const char *at = text.data(), *end = at + text.size(); at < end;) {
        uint32_t share = 0;
        const auto [stop, error] = std::from_chars(at, end, share);
        if (error != std::errc() || share == 0 || stop == end || (*stop != ' ' && *stop != '\n'))
            return fail(Code::data, "{}: round {} has no share for worker {}", settings.replay, log_.size() / plan.workers + 1,
                        log_.size() % plan.workers);
        log_.push_back(share);
        at = stop + 1;
    }
    if (log_.size() < plan.rounds * plan.workers)
        return fail(Code::data, "{}: has the shares of {} rounds, the job has {}", settings.replay, log_.size() / plan.workers,
                    plan.rounds);
    return {};
}

Status Allocation::begin(uint64_t round, uint64_t count) {
    if (log_.empty()) return allocate(speeds_, count, shares_, rest_), Status{};
    std::copy_n(log_.begin() + static_cast<ptrdiff_t>(round * shares_.size()), shares_.size(), shares_.begin());
    const uint64_t sum = std::accumulate(shares_.begin(), shares_.end(), uint64_t{0});
    return sum == count ? Status{}
                        : fail(Code::data, "the replay log shares out {} mini-batches in round {}, which has {}", sum, round + 1, count);
}

uint64_t Allocation::first(uint32_t worker) const {
    return std::accumulate(shares_.begin(), shares_.begin() + static_cast<ptrdiff_t>(worker), uint64_t{0});
}

Status Allocation::applied(uint64_t round) {
    line_.clear();
    for (const uint32_t each : shares_) fmt::format_to(std::back_inserter(line_), "{}{}", line_.empty() ? "" : " ", each);
    line_ += '\n';
    return kept_.keep(head_, round, line_);
}

}   // namespace gradcast
