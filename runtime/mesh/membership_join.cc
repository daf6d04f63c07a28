// Nodes that come while a job runs: who invites them, and what they must have.
#include <algorithm>
#include <utility>

#include "runtime/core/inventory.h"
#include "runtime/mesh/membership.h"
#include "runtime/mesh/membership_messages.h"

namespace gradcast {

/// To all nodes that are configured here, where the job grows, and a part for each.
void Membership::extend(Session& session) {
    auto plan = std::make_shared<JobPlan>(*session.plan);
    plan->extend(names_);
    if (plan->members.size() > session.plan->members.size()) session.plan = plan;
    while (session.parts.size() < session.plan->members.size()) {
        const auto rank = static_cast<Rank>(session.parts.size());
        const Member& member = session.plan->members[rank];
        Part part;
        part.peer = static_cast<Rank>(std::find(names_.begin(), names_.end(), member.name) - names_.begin());
        part.incarnation = member.incarnation;
        part.ready = part.ended = rank >= session.plan->first_nodes() && rank != session.self;
        session.parts.push_back(std::move(part));
    }
}

void JobPlan::extend(std::span<const std::string> names) {
    if (!grows()) return;
    first = first_nodes();
    for (const std::string& node : names) {
        if (std::any_of(members.begin(), members.end(), [&](const Member& each) { return each.name == node; })) continue;
        members.push_back({node, {}, 0});
        if (!addresses.empty()) addresses.emplace_back();
    }
}

void Membership::add_peer(const std::string& name) {
    std::lock_guard lock(mutex_);
    coming_.push_back(name);
}

void Membership::take_peer() {
    GC_ASSERT(!coming_.empty());
    names_.push_back(std::move(coming_.front()));
    coming_.pop_front();
    peers_.emplace_back().member.name = names_.back();
    for (auto& [id, session] : sessions_) extend(session);
}

/// This node has ended its part of a job that may go on without it.
void Membership::departed(const Session& session, const JobEnd& end, uint64_t now_us) {
    const JobPlan& plan = *session.plan;
    const uint64_t member_us = session.trains || !plan.joins ? now_us - session.began_us : 0;
    const auto wish = end.rejoins ? DepartedJobs::Wish::asks : end.leaves ? DepartedJobs::Wish::by_invitation : DepartedJobs::Wish::stays;
    departed_jobs_.add({plan.id, plan.members[session.self].incarnation + 1, plan.submitted_unix, plan.deadline_us, member_us}, wish,
                       now_us);
}

/// This node has not become a member.  The incarnation that was invited has promised nothing, so it may be invited once more.
void Membership::not_joined(const Session& session, const Status& why, uint64_t now_us) {
    const JobPlan& plan = *session.plan;
    const bool lasts = why.code == Code::invalid || why.code == Code::conflict || why.code == Code::data || why.code == Code::unsupported ||
                       why.code == Code::cancelled;
    departed_jobs_.add({plan.id, plan.members[session.self].incarnation, plan.submitted_unix, plan.deadline_us},
                       lasts ? DepartedJobs::Wish::by_invitation : DepartedJobs::Wish::asks, now_us);
}

void Membership::stays_out(const JobId& id) {
    std::lock_guard lock(mutex_);
    departed_jobs_.stay_out(id);
}

/// The requests of this node; none while it can take no job.
std::vector<RejoinRequest> Membership::rejoin_requests(uint64_t now_us) const {
    if (peers_[config_.self].draining || sessions_.size() >= config_.jobs_max) return {};
    std::vector<RejoinRequest> result = departed_jobs_.rejoin_requests([this](const JobId& id) { return sessions_.contains(id); }, now_us);
    result.resize(std::min(result.size(), rejoin_requests_max));
    return result;
}

bool Membership::member(const Session& session) {
    return session.plan->survive && session.state != State::ended && (session.trains || !session.plan->joins);
}

std::vector<JobId> Membership::runs() const {
    std::vector<JobId> result;
    for (const auto& [id, session] : sessions_)
        if (member(session) && result.size() < runs_announced_max) result.push_back(id);
    return result;
}

/// Takes from a node's last HELLO whether the node is a member of a job that runs here.
void Membership::apply_hello(Session& session, Rank rank) {
    Part& part = session.parts[rank];
    const Peer& peer = peers_[part.peer];
    const JobId& id = session.plan->id;
    if (std::find(peer.runs.begin(), peer.runs.end(), id) != peer.runs.end()) {
        part.ended = part.said_ended = part.wanted = false;
        part.incarnation = std::max(part.incarnation, peer.member.incarnation);   // that at least
    } else if (std::any_of(peer.rejoin_requests.begin(), peer.rejoin_requests.end(),
                           [&](const RejoinRequest& each) { return each.id == id; })) {
        part.ended = true;
    }
}

/// Answers DONE to requests to rejoin a job that is done.
void Membership::answer_rejoin_requests(Rank peer, Actions& actions) {
    if (flights_.contains(peers_[peer].done_ticket)) return;
    for (const RejoinRequest& each : peers_[peer].rejoin_requests)
        if (std::find(done_.begin(), done_.end(), each.id) != done_.end())
            peers_[peer].done_ticket = send(peer, Kind::done, id_write(each.id), actions);
}

void Membership::done_elsewhere(const JobId& id, uint64_t now_us) {
    const bool runs = sessions_.contains(id) || std::any_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
                          return peer.alive && std::find(peer.runs.begin(), peer.runs.end(), id) != peer.runs.end();
                      });
    if (!runs && departed_jobs_.done(id, now_us)) notice(id, Notice::EndedElsewhere{});
}

/// Ends the wait of a joiner when all nodes that are alive have ended the job.
void Membership::notice_if_ended_elsewhere(const Session& session) {
    if (!session.plan->joins || session.trains || session.state != State::running) return;
    bool said = false;
    for (Rank rank = 0; rank < session.parts.size(); ++rank) {
        if (rank != session.self && !session.parts[rank].ended) return;
        said |= session.parts[rank].said_ended;   // if nobody is alive, the job may go on elsewhere
    }
    if (said) notice(session.plan->id, Notice::EndedElsewhere{});
}

/// Invites nodes that were started anew, that ask to rejoin, or that an operator wants.  Only the lowest node that runs the job invites.
void Membership::invite(Session& session, Actions& actions) {
    // A node that is still to join does not know whether the job goes on.
    if (session.state != State::running || !member(session)) return;
    for (Rank rank = 0; rank < session.self; ++rank)
        if (const Part& part = session.parts[rank]; !part.ended && peers_[part.peer].alive) return;
    for (Rank rank = 0; rank < session.parts.size(); ++rank) {
        Part& part = session.parts[rank];
        const Peer& peer = peers_[part.peer];
        if (rank == session.self || !part.ended || !peer.alive || peer.draining || peer.jobs >= config_.jobs_max) continue;
        Member member = peer.member;
        bool asks = false;
        for (const RejoinRequest& each : peer.rejoin_requests)
            if (each.id == session.plan->id) asks = true, member.incarnation = std::max(member.incarnation, each.incarnation);
        // Who still asks has not got the last one, or could not open its engine.
        const bool again = asks && member.incarnation == part.incarnation && actions.now_us >= part.invited_us + session.plan->deadline_us;
        if (member.incarnation <= part.incarnation && !again) continue;
        const bool comes = rank < session.plan->first_nodes() || session.plan->elastic || part.wanted || part.incarnation > 0;
        if (!comes) continue;
        JobPlan plan = *session.plan;
        plan.joins = true;
        plan.resumes = false;
        plan.resume_holders.clear();
        plan.notes.clear();
        plan.with = session.parts[session.self].with;
        part.incarnation = member.incarnation;
        part.invited_us = actions.now_us;
        plan.members[rank] = std::move(member);
        part.wanted = false;
        send(part.peer, Kind::invite, plan_write(plan), actions);
    }
}

void Membership::add_here(Session& session, const std::string& node) {
    for (Rank rank = 0; rank < session.parts.size(); ++rank)
        if (session.plan->members[rank].name == node && rank != session.self && session.parts[rank].ended) {
            session.parts[rank].wanted = true;
            session.parts[rank].incarnation = 0;   // invited as whatever it is by now
        }
}

void Membership::invited(Rank from, std::span<const std::byte> bytes, Actions& actions) {
    JobPlan plan;
    if (!plan_parse(bytes, &plan) || !plan.joins || sessions_.contains(plan.id) || sessions_.size() >= config_.jobs_max ||
        peers_[config_.self].draining)
        return;
    const auto member = [&](const std::string& name) {
        const auto at = std::find_if(plan.members.begin(), plan.members.end(), [&](const Member& each) { return each.name == name; });
        return static_cast<Rank>(at - plan.members.begin());
    };
    const Rank self = member(config_.identity.name);
    if (self == plan.members.size() || member(names_[from]) == plan.members.size()) return;
    const uint64_t incarnation = departed_jobs_.incarnation_for(plan.id, plan.submitted_unix);
    if (incarnation == 0 || plan.members[self].incarnation != incarnation) {
        departed_jobs_.invited_as_another(plan.id, plan.deadline_us, actions.now_us);
        return;
    }
    for (const Member& each : plan.members)
        if (std::find(names_.begin(), names_.end(), each.name) == names_.end()) return;
    const JobId id = plan.id;
    begin(std::make_shared<const JobPlan>(std::move(plan)), self, actions);
    Session& session = sessions_.at(id);
    for (Rank rank = 0; rank < session.parts.size(); ++rank) {
        Part& part = session.parts[rank];
        part.ended = rank != self && part.peer != from;
        if (part.ended) apply_hello(session, rank);
    }
}

/// The engine of a job that runs elsewhere is open here.
void Membership::join(Sessions::iterator at, const Opened& opened, Actions& actions) {
    Session& session = at->second;
    const JobPlan& plan = *session.plan;
    const auto differs = [&](const char* what, const std::string& here, const std::string& there, std::string_view way) {
        give_up(at,
                fail(Code::conflict, "it cannot join job {}: {} is {} here, {} at the other nodes: {}", job_id_text(plan.id), what,
                     here.empty() ? "none" : here, there.empty() ? "none" : there, way),
                actions);
    };
    constexpr char files[] = "give it the files of the others";
    const ComputesWith &here = opened.with, &there = plan.with;
    const std::string libraries = inventory_libraries(here.inventory, there.inventory);
    if (here.data_digest != there.data_digest) return differs("the digest of the data", here.data_digest, there.data_digest, files);
    if (here.start_digest != there.start_digest) {
        const std::string item = inventory_difference({"this node", here.inventory}, {"the job", there.inventory});
        return differs(item.empty() ? "the digest of net.start" : "the digest of the program", here.start_digest, there.start_digest,
                       item.empty() ? files : fmt::format("{}; {}", item, files));
    }
    if (here.kernel_set != there.kernel_set)
        return differs("the kernel set", here.kernel_set, there.kernel_set,
                       libraries.empty()
                           ? fmt::format("set {} as at the others, and start it again", config_.isa_setting)
                           : fmt::format("other versions of libraries here and there: {}; install those of the others, and set "
                                         "{} as there",
                                         libraries, config_.isa_setting));
    session.parts[session.self].with = here;
    start(
        at, plan.deadline_us,
        libraries.empty() ? "" : fmt::format("other versions of libraries here than at the other nodes, and the same bits: {}", libraries));
    notice_if_ended_elsewhere(session);
}

}   // namespace gradcast
