#include "algos/push_log.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace gradcast {
namespace {
constexpr const char* word_anew = " anew";
}

Status PushLog::plan(const AlgorithmPlan& plan) {
    updates_ = plan.updates;
    log_.open(plan.folder + "/replay.log");
    last_.resize(plan.workers);
    plan.arena.plan("order of pushes", updates_ * sizeof(Push), &pushes_);
    plan.arena.plan("order of pushes", sizeof(uint64_t) + updates_ * sizeof(Push), &last_round_);
    const std::string& from = plan.settings.replay;
    if (from.empty()) return {};
    GC_TRY(read(from, plan.job));
    if (order_.size() < plan.rounds * updates_)
        return fail(Code::data, "{}: has {} pushes, the job makes {}: a node that was away or behind has a part, take another one's log",
                    from, order_.size(), plan.rounds * updates_);
    return {};
}

/// Bytes from outside.
Status PushLog::read(const std::string& path, const Facts& job) {
    std::string text;
    GC_TRY(replay_read(path, job, &text));
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find('\n', at), text.size());
        uint64_t worker = 0;
        const auto [stop, error] = std::from_chars(text.data() + at, text.data() + end, worker);
        if (error != std::errc() || worker >= last_.size() || stop == text.data() + end || *stop != ' ')
            return fail(Code::data, "{}: push {} is no worker and its staleness", path, order_.size() + 1);
        const bool anew = std::string_view(text).substr(at, end - at).ends_with(word_anew);
        order_.push_back({static_cast<uint32_t>(worker), 0, anew});
        at = end + 1;
    }
    return {};
}

void PushLog::begin(uint64_t round) {
    first_ = round * updates_;
    std::ranges::fill(last_, 0);
    for (uint64_t i = 0; replays() && i < updates_; ++i) last_[of_round(i).worker] = i + 1;
}

Status PushLog::keep(const std::string& head, uint64_t round) {
    *last_round_.as<uint64_t>() = round;
    std::ranges::copy(std::as_bytes(pushes()), last_round_.host + sizeof round);
    has_last_ = true;
    behind_ = false;
    return write(head, round, pushes());
}

Status PushLog::restore(std::span<const std::byte> state) {
    has_last_ = behind_ = !state.empty();
    if (state.empty()) return {};
    if (state.size() != last_round_.bytes)
        return fail(Code::data, "the order of pushes has {} bytes instead of {}", state.size(), last_round_.bytes);
    std::ranges::copy(state, last_round_.host);
    return {};
}

Status PushLog::catch_up(const std::string& head) {
    if (!std::exchange(behind_, false)) return {};
    const Buffer kept = last_round_.part(sizeof(uint64_t), updates_ * sizeof(Push));
    return write(head, *last_round_.as<uint64_t>(), {kept.as<Push>(), updates_});
}

Status PushLog::write(const std::string& head, uint64_t round, std::span<const Push> pushes) {
    lines_.clear();
    for (const Push& push : pushes)
        fmt::format_to(std::back_inserter(lines_), "{} {}{}\n", push.worker, push.tau, push.anew ? word_anew : "");
    return log_.keep(head, round * updates_, lines_);
}

}   // namespace gradcast
