#include "runtime/mesh/returns.h"

#include <algorithm>
#include <utility>

namespace gradcast {
namespace {

constexpr uint64_t runs_max = 255;              // of a job at one start of a daemon: see identity_open
constexpr uint64_t wait_max_us = 600'000'000;   // until a node asks again
constexpr uint64_t never_us = UINT64_MAX;

}   // namespace

void Returns::left(const JobLeft& job, Wish wish, uint64_t now_us) {
    Left& left = left_[job.id];
    if (job.member_us > wait_max_us) left.tries = 0;
    left.incarnation = std::max(left.incarnation, job.incarnation);
    left.submitted_unix = job.submitted_unix;
    left.left_us = now_us;
    left.asks_us = never_us;
    left.by_invitation = wish == Wish::by_invitation;
    if (wish == Wish::asks) ask(&left, job.deadline_us, now_us);
    forget_oldest();
}

void Returns::stay_out(const JobId& id) {
    if (const auto at = left_.find(id); at != left_.end()) at->second.asks_us = never_us, at->second.by_invitation = true;
}

bool Returns::over(const JobId& id, uint64_t now_us) {
    const auto at = left_.find(id);
    if (at == left_.end() || at->second.asks_us > now_us) return false;
    at->second.asks_us = now_us + wait_max_us;
    at->second.by_invitation = true;
    return true;
}

uint64_t Returns::invited_as(const JobId& id, uint64_t submitted_unix) const {
    if (const auto at = left_.find(id); at != left_.end()) return at->second.incarnation;
    return forgotten_unix_ > 0 && submitted_unix <= forgotten_unix_ ? 0 : incarnation_;
}

void Returns::invited_as_another(const JobId& id, uint64_t deadline_us, uint64_t now_us) {
    const auto at = left_.find(id);
    if (at != left_.end() && std::exchange(at->second.by_invitation, false)) ask(&at->second, deadline_us, now_us);
}

std::vector<JobReturn> Returns::asked(const std::function<bool(const JobId&)>& runs_here, uint64_t now_us) const {
    std::vector<std::pair<uint64_t, JobReturn>> all;
    for (const auto& [id, left] : left_)
        if (left.asks_us <= now_us && !runs_here(id)) all.push_back({left.left_us, {id, left.incarnation}});
    std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    std::vector<JobReturn> result;
    for (const auto& each : all) result.push_back(each.second);
    return result;
}

void Returns::ask(Left* left, uint64_t deadline_us, uint64_t now_us) const {
    const uint64_t runs = left->incarnation - incarnation_;
    const uint64_t wait_us = left->tries == 0 ? 0 : std::min(deadline_us << std::min(left->tries - 1, 20u), wait_max_us);
    if (runs <= runs_max) left->asks_us = now_us + wait_us;
    ++left->tries;
}

/// Where there are too many.  A job that is as old as one that is forgotten might be that one: it is not joined any more.
void Returns::forget_oldest() {
    if (left_.size() <= jobs_max_) return;
    const auto oldest =
        std::min_element(left_.begin(), left_.end(), [](const auto& a, const auto& b) { return a.second.left_us < b.second.left_us; });
    forgotten_unix_ = std::max(forgotten_unix_, oldest->second.submitted_unix);
    left_.erase(oldest);
}

}   // namespace gradcast
