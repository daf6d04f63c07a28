// A daemon's jobs and the nodes that leave them: drain, and what an operator says of a dead one.
#include <fmt/format.h>

#include <unistd.h>
#include <algorithm>

#include "runtime/core/short_texts.h"
#include "runtime/daemon/daemon.h"

namespace gradcast {

Status Daemon::drain(const std::string& node, bool on, bool cancel) {
    const ShortTexts for_the_client;
    const std::vector<PeerState> peers = membership_->peers();
    for (Rank peer = 0; peer < peers.size(); ++peer) {
        if (peers[peer].member.name != node) continue;
        if (!peers[peer].alive) return fail(Code::peer_lost, "node {} is not alive: {}; new jobs leave it out", node, peers[peer].why);
        membership_->drain(peer, on, cancel);
        return {};
    }
    std::vector<std::string> names;
    for (const PeerState& peer : peers) names.push_back(peer.member.name);
    return fail(Code::invalid, "there is no node {}: the nodes are {}", node, fmt::join(names, ", "));
}

/// The order has come.
void Daemon::act(const JobId&, const Notice::Drain& drain) {
    const std::string path = config_.drained_path();
    if (drain.on && !draining_) log_.info("this node is drained: it takes no new jobs");
    if (!drain.on && draining_) log_.info("this node takes jobs again");
    if (drain.on) {
        if (const Status written = file_write(path, "by gradcastctl drain\n"); !written.ok())
            log_.warn("after a restart this node takes jobs again: {}", written.what);
    } else {
        ::unlink(path.c_str());
    }
    draining_ = drain.on;
    if (!draining_) return membership_->draining(false, "");
    if (drain.cancel)
        for (const auto& [id, run] : runs_)
            if (const std::string why = fmt::format("node {} is drained", config_.name); !run->drain(why).ok()) run->cancel(why);
    drain_jobs();
}

/// Leaves the jobs that go on without this node, and reports the others.
void Daemon::drain_jobs() {
    std::vector<std::string> hinders;
    for (const auto& [id, run] : runs_) {
        const Status drained = run->drain(fmt::format("node {} is drained", config_.name));
        if (!drained.ok())
            hinders.push_back(fmt::format("job {} ({}): {}", job_id_text(id).substr(0, 8), run->detail().summary.name, drained.what));
    }
    membership_->draining(true, fmt::format("{}", fmt::join(hinders, "; ")));
}

Status Daemon::running(const std::string& which, JobDetail* detail, Runs::iterator* run) {
    GC_TRY(find(which, true, detail));
    *run = std::find_if(runs_.begin(), runs_.end(), [&](const auto& each) { return job_id_text(each.first) == detail->summary.id; });
    if (*run == runs_.end()) return fail(Code::conflict, "job {} is not running here", detail->summary.id);
    return {};
}

Status Daemon::add_node(const std::string& which, const std::string& node, std::string* id) {
    const ShortTexts for_the_client;
    const std::vector<PeerState> peers = membership_->peers();
    std::lock_guard lock(mutex_);
    JobDetail detail;
    Runs::iterator run;
    GC_TRY(running(which, &detail, &run));
    if (detail.summary.status.state != JobState::running) return fail(Code::conflict, "job {} is not running here", detail.summary.id);
    const auto peer = std::find_if(peers.begin(), peers.end(), [&](const PeerState& each) { return each.member.name == node; });
    if (peer == peers.end()) return fail(Code::invalid, "there is no node {} in gradcastd.toml", node);
    if (!peer->alive) return fail(Code::peer_lost, "node {} is not alive: {}", node, peer->why);
    if (peer->draining) return fail(Code::conflict, "node {0} is drained: `gradcastctl undrain {0}` lets it take jobs again", node);
    const std::vector<ViewRecord>& views = detail.summary.status.views;
    if (!views.empty() && std::find(views.back().members.begin(), views.back().members.end(), node) != views.back().members.end())
        return fail(Code::conflict, "node {} is in job {} already", node, detail.summary.id);
    GC_TRY(run->second->may_join(node));
    membership_->add(run->first, node);
    *id = detail.summary.id;
    return {};
}

Status Daemon::force_view(const std::string& which, const std::string& dead, std::string* id) {
    const ShortTexts for_the_client;
    const std::vector<PeerState> peers = membership_->peers();
    std::lock_guard lock(mutex_);
    JobDetail detail;
    Runs::iterator run;
    GC_TRY(running(which, &detail, &run));
    const auto peer = std::find_if(peers.begin(), peers.end(), [&](const PeerState& each) { return each.member.name == dead; });
    if (peer != peers.end() && peer->alive)
        return fail(Code::conflict, "node {} answers, so it is not dead: if it is to go, stop its gradcastd", dead);
    GC_TRY(run->second->force_dead(dead));
    log_.warn("job {}: an operator says that node {} is dead", detail.summary.id, dead);
    *id = detail.summary.id;
    return {};
}

}   // namespace gradcast
