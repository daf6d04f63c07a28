// How a daemon lets a job go on: it asks all nodes what they have of it (search.h), chooses, and submits the job once more.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "runtime/core/clock.h"
#include "runtime/core/short_texts.h"
#include "runtime/daemon/daemon.h"
#include "runtime/job/file/command.h"
#include "runtime/view/rules.h"

namespace gradcast {
namespace {
constexpr size_t asked_max = 64, searches_max = 16;

/// A warning about a job that has ended here because this node was cut off: members that do not answer now either may be its next view.
Status others_check(const JobDetail& before, std::span<const SearchAnswer> answers) {
    const JobStatus& status = before.summary.status;
    if (!status.may_rejoin || status.views.empty()) return {};
    std::vector<bool> ranks;
    std::vector<std::string> silent;
    for (const std::string& member : status.views.back().members) {
        const auto its = [&](const SearchAnswer& each) { return each.node == member && !each.answered; };
        ranks.push_back(std::any_of(answers.begin(), answers.end(), its));
        if (ranks.back()) silent.push_back(member);
    }
    if (!view_quorum(ranks, status.voters)) return {};
    return fail(
        Code::conflict,
        "{} cannot be asked, and may go on with it, because it ended here when they were not heard: bring them back, or, where they are "
        "dead, --force",
        fmt::join(silent, ", "));
}
}   // namespace

Status Daemon::resume(const std::string& which, const Submission& submission, std::string* id) {
    const ShortTexts for_the_client;
    if (submission.bench) return fail(Code::invalid, "a benchmark cannot be resumed: run it again");
    JobPlan checked;   // errors about nodes or text are reported at once
    if (!submission.text.empty()) GC_TRY(plan(submission, &checked));
    else GC_TRY(choose(submission, &checked.members));
    checked.members.resize(checked.first_nodes());

    std::lock_guard lock(mutex_);
    if (!leaving_.empty()) return fail(Code::cancelled, "{}", leaving_);
    JobDetail before;
    JobId job{};
    if (const Status known = find(which, true, &before); !known.ok()) {
        // Of another node's job its whole id is enough.
        if (!job_id_parse(which, &job)) return known;
        before.summary.id = which;
        before.summary.status.state = JobState::failed;
        before.summary.submitted_unix = static_cast<uint64_t>(std::time(nullptr));
    }
    GC_ASSERT(job_id_parse(before.summary.id, &job));
    const JobState state = before.summary.status.state;
    if (submitted_.contains(job) || state == JobState::preparing || state == JobState::running)
        return fail(Code::conflict, "job {} has not ended: there is nothing to resume", before.summary.id);
    if (state == JobState::done && submission.text.empty())
        return fail(Code::conflict, "job {} is done: a job file of more epochs or steps would let it go on", before.summary.id);

    if (searches_.size() >= searches_max)
        return fail(Code::conflict, "{} jobs are being resumed at node {}: wait for one to start", searches_.size(), config_.name);
    Search search;
    search.submission = submission;
    search.name = before.summary.name;
    search.submitted_unix = before.summary.submitted_unix;
    search.request = ++searches_made_;
    search.deadline_us = clock_us() + search_us;
    for (const PeerState& peer : membership_->peers()) {
        const bool member =
            std::any_of(checked.members.begin(), checked.members.end(), [&](const Member& each) { return each.name == peer.member.name; });
        search.answers.push_back({.node = peer.member.name, .member = member, .why = peer.alive ? "" : peer.why});
    }
    membership_->find(job, search.request);
    searches_.emplace(job, std::move(search));

    Submitted submitted;
    submitted.before = before;
    submitted.detail = before;
    submitted.detail.summary.status = {};   // of this attempt: nothing of the run before is reported as its result
    submitted.detail.summary.status.state = JobState::preparing;
    submitted.detail.started = false;
    submitted.detail.summary.nodes.clear();
    for (const Member& member : checked.members) submitted.detail.summary.nodes.push_back(member.name);
    submitted_.emplace(job, std::move(submitted));
    std::erase_if(ended_, [&](const JobDetail& each) { return each.summary.id == before.summary.id; });
    *id = before.summary.id;
    return {};
}

/// Two nodes resume one job at a time.  This one goes on, and the node that asks does not: this one has chosen, or has that node's word
/// that it does not resume the job, or is the lower one.
bool Daemon::claims(const JobId& id, Rank peer) const {
    if (peer == config_.self() || !submitted_.contains(id)) return false;
    auto search = searches_.find(id);
    if (search == searches_.end()) return true;
    const SearchAnswer& theirs = search->second.answers[peer];
    return theirs.answered ? !theirs.found.active : config_.self() < peer;
}

/// Somebody asks what there is of a job here.
void Daemon::act(const JobId& id, const Notice::Find& find) {
    Lookers::Look look{id, find.asker, find.request, {}};
    if (auto run = runs_.find(id); run != runs_.end()) {
        const JobState state = run->second->detail().summary.status.state;
        look.found.active = state == JobState::preparing || state == JobState::running;
        if (!look.found.active && asked_.size() < asked_max) return asked_.emplace_back(id, find), void();   // until it has ended
    } else if (claims(id, find.asker)) {
        look.found.active = true;
    } else if (lookers_.start(look, job_host_->folder + "/" + job_id_text(id))) {
        return;
    } else if (asked_.size() < asked_max) {
        return asked_.emplace_back(id, find), void();
    }
    if (!look.found.active) look.found.notes = "busy with other searches for checkpoints: resume again in a minute";
    membership_->found(look.id, look.peer, look.request, std::move(look.found));
}

void Daemon::act(const JobId& id, const Notice::Answer& answer) {
    auto at = searches_.find(id);
    if (at == searches_.end() || at->second.request != answer.request) return;
    SearchAnswer& here = at->second.answers[answer.peer];
    here.answered = true;
    here.found = answer.found;
}

/// What the lookers have found goes to those who asked; searches that have ended become jobs.
void Daemon::search() {
    std::vector<std::pair<JobId, Search>> finished;
    {
        std::lock_guard lock(mutex_);
        for (Lookers::Look& look : lookers_.take()) {
            if (claims(look.id, look.peer)) {
                look.found = {};
                look.found.active = true;
            }
            membership_->found(look.id, look.peer, look.request, std::move(look.found));
        }
        const std::vector<PeerState> peers = searches_.empty() ? std::vector<PeerState>() : membership_->peers();
        for (const auto& [id, find] : std::exchange(asked_, {})) act(id, find);
        for (auto at = searches_.begin(); at != searches_.end();) {
            Search& each = at->second;
            for (size_t peer = 0; peer < peers.size(); ++peer)
                if (!each.answers[peer].answered && !peers[peer].alive) each.answers[peer].why = peers[peer].why;
            auto submitted = submitted_.find(at->first);
            const bool cancelled = !submitted->second.cancelled.empty();
            if (!cancelled && !each.finished(clock_us())) {
                ++at;
                continue;
            }
            finished.emplace_back(at->first, std::move(each));
            at = searches_.erase(at);
        }
    }
    for (auto& [id, each] : finished) {
        Status status = resume_from(id, each);
        if (status.ok()) continue;
        std::lock_guard lock(mutex_);
        if (const std::string& why = submitted_.at(id).cancelled; !why.empty()) status = fail(Code::cancelled, "{}", why);
        log_.info("job {}: not resumed: {}", job_id_text(id), status.what);
        give_up(id, status);
    }
}

Status Daemon::resume_from(const JobId& id, const Search& search) {
    {
        std::lock_guard lock(mutex_);
        if (const std::string& why = submitted_.at(id).cancelled; !why.empty()) return fail(Code::cancelled, "{}", why);
        if (!leaving_.empty()) return fail(Code::cancelled, "{}", leaving_);
    }
    std::vector<SearchAnswer> answers = search.answers;
    for (SearchAnswer& each : answers)
        if (!each.answered && each.why.empty()) each.why = fmt::format("no answer within {} s", search_us / 1'000'000);
    if (!search.submission.force) {
        std::lock_guard lock(mutex_);
        if (const auto& before = submitted_.at(id).before) GC_TRY(others_check(*before, answers));
    }
    SearchChoice choice;
    std::vector<std::string> notes;
    GC_TRY(search_choose(job_id_text(id), answers, &choice, &notes));
    const SearchAnswer& from = answers[choice.holders[0]];
    Submission submission = search.submission;
    if (submission.text.empty()) {
        submission.text = from.found.text;
        submission.base = from.found.base;
        submission.path = fmt::format("the job file of {}", from.found.name.empty() ? search.name : from.found.name);
    }
    auto plan = std::make_shared<JobPlan>();
    GC_TRY(this->plan(submission, plan.get()));
    // A checkpoint may come from anywhere: somebody may have put it into the folder.
    if (search.submission.text.empty() && plan->parsed && plan->parsed->attached() && !submission.allow_command) {
        const std::string folder = job_host_->folder + "/" + job_id_text(id);
        Sources copies;
        GC_TRY(sources_read(folder, &copies));
        return command_refused(*plan->parsed, submission.path, copies, folder);
    }
    plan->copies = plan->parsed && plan->parsed->attached() && (search.submission.text.empty() || submission.copies);
    plan->id = id;
    plan->submitted_unix = search.submitted_unix;
    plan->resumes = true;
    plan->resume_steps = choice.steps;
    plan->resume_state = choice.state;
    std::vector<std::string> names;
    for (const size_t answer : choice.holders) {
        const std::string& node = answers[answer].node;
        auto holder = std::find_if(plan->members.begin(), plan->members.begin() + plan->first_nodes(),
                                   [&](const Member& each) { return each.name == node; });
        if (holder == plan->members.begin() + plan->first_nodes())
            return fail(Code::peer_lost, "node {}, which has the newest checkpoint, is not alive any more", node);
        plan->resume_holders.push_back(static_cast<Rank>(holder - plan->members.begin()));
        if (std::ranges::find(names, node) == names.end()) names.push_back(node);
    }
    notes.insert(notes.begin(), fmt::format("goes on from the checkpoint of node{} {} after {} steps", names.size() > 1 ? "s" : "",
                                            fmt::join(names, ", "), choice.steps));
    plan->notes += fmt::format("{}", fmt::join(notes, "\n"));
    std::lock_guard lock(mutex_);
    JobSummary& summary = submitted_.at(id).detail.summary;
    summary.name = plan->name;
    summary.nodes.clear();
    for (Rank rank = 0; rank < plan->first_nodes(); ++rank) summary.nodes.push_back(plan->members[rank].name);
    return prepare(plan);
}

}   // namespace gradcast
