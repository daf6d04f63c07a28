#include "runtime/mesh/departed_jobs.h"

#include <algorithm>
#include <utility>

namespace gradcast {
namespace {

constexpr uint64_t runs_max = 255;                 // of a job at one start of a daemon: see identity_open
constexpr uint64_t backoff_us_max = 600'000'000;   // between two requests
constexpr uint64_t never_us = UINT64_MAX;

}   // namespace

void DepartedJobs::add(const DepartedJob& job, Wish wish, uint64_t now_us) {
    Record& record = jobs_[job.id];
    if (job.member_us > backoff_us_max) record.requests = 0;
    record.incarnation = std::max(record.incarnation, job.incarnation);
    record.submitted_unix = job.submitted_unix;
    record.departed_us = now_us;
    record.asks_us = never_us;
    record.by_invitation = wish == Wish::by_invitation;
    if (wish == Wish::asks) ask(&record, job.deadline_us, now_us);
    forget_oldest();
}

void DepartedJobs::stay_out(const JobId& id) {
    if (const auto at = jobs_.find(id); at != jobs_.end()) at->second.asks_us = never_us, at->second.by_invitation = true;
}

bool DepartedJobs::done(const JobId& id, uint64_t now_us) {
    const auto at = jobs_.find(id);
    if (at == jobs_.end() || at->second.asks_us > now_us) return false;
    at->second.asks_us = now_us + backoff_us_max;
    at->second.by_invitation = true;
    return true;
}

uint64_t DepartedJobs::incarnation_for(const JobId& id, uint64_t submitted_unix) const {
    if (const auto at = jobs_.find(id); at != jobs_.end()) return at->second.incarnation;
    return forgotten_unix_ > 0 && submitted_unix <= forgotten_unix_ ? 0 : incarnation_;
}

void DepartedJobs::invited_as_another(const JobId& id, uint64_t deadline_us, uint64_t now_us) {
    const auto at = jobs_.find(id);
    if (at != jobs_.end() && std::exchange(at->second.by_invitation, false)) ask(&at->second, deadline_us, now_us);
}

std::vector<RejoinRequest> DepartedJobs::rejoin_requests(const std::function<bool(const JobId&)>& runs_here, uint64_t now_us) const {
    std::vector<std::pair<uint64_t, RejoinRequest>> all;
    for (const auto& [id, job] : jobs_)
        if (job.asks_us <= now_us && !runs_here(id)) all.push_back({job.departed_us, {id, job.incarnation}});
    std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    std::vector<RejoinRequest> result;
    for (const auto& each : all) result.push_back(each.second);
    return result;
}

void DepartedJobs::ask(Record* job, uint64_t deadline_us, uint64_t now_us) const {
    const uint64_t runs = job->incarnation - incarnation_;
    const uint64_t wait_us = job->requests == 0 ? 0 : std::min(deadline_us << std::min(job->requests - 1, 20u), backoff_us_max);
    if (runs <= runs_max) job->asks_us = now_us + wait_us;
    ++job->requests;
}

/// A job as old as a forgotten one might be the forgotten one, so the node does not join it any more.
void DepartedJobs::forget_oldest() {
    if (jobs_.size() <= jobs_max_) return;
    const auto oldest = std::min_element(jobs_.begin(), jobs_.end(),
                                         [](const auto& a, const auto& b) { return a.second.departed_us < b.second.departed_us; });
    forgotten_unix_ = std::max(forgotten_unix_, oldest->second.submitted_unix);
    jobs_.erase(oldest);
}

}   // namespace gradcast
