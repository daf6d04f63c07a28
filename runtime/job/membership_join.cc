// Nodes that come while a job runs: who invites them, and what they must have.
#include <algorithm>

#include "runtime/job/membership.h"
#include "runtime/job/membership_messages.h"

namespace gradcast {
namespace {

constexpr uint64_t runs_max = 255;              // of a job at one start of a daemon: see node_identity
constexpr uint64_t wait_max_us = 600'000'000;   // until a node asks again
constexpr size_t left_max = 64;                 // jobs that are known to have gone on without this node
constexpr uint64_t never_us = UINT64_MAX;

}   // namespace

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

/// This node has ended its part of a job that may go on.  What was a member is none again, because it has forgotten its promises: it asks
/// as a later incarnation, after a time that doubles with each run.
void Membership::left(const Session& session, bool returns, uint64_t now_us) {
    const uint64_t was = session.plan->members[session.self].incarnation, runs = was - config_.identity.incarnation;
    const uint64_t wait_us = runs == 0 ? 0 : std::min(session.plan->deadline_us << std::min<uint64_t>(runs - 1, 20), wait_max_us);
    left_[session.plan->id] = {was + 1, returns && runs < runs_max ? now_us + wait_us : never_us};
    if (left_.size() > left_max)
        left_.erase(
            std::max_element(left_.begin(), left_.end(), [](const auto& a, const auto& b) { return a.second.asks_us < b.second.asks_us; }));
}

std::vector<JobReturn> Membership::returns(uint64_t now_us) const {
    std::vector<JobReturn> result;
    for (const auto& [id, left] : left_)
        if (left.asks_us <= now_us && !sessions_.contains(id) && result.size() < returns_max) result.push_back({id, left.incarnation});
    return result;
}

/// The other nodes have ended a job that this one has not joined yet.
void Membership::told_over(const Session& session) {
    if (!session.plan->joins || session.trains || session.state != State::running) return;
    for (Rank rank = 0; rank < session.parts.size(); ++rank)
        if (rank != session.self && !session.parts[rank].ended) return;
    notice({Notice::Kind::over, session.plan->id, nullptr, 0, {}});
}

/// Those nodes that were started anew, or that ask to be members again, where this daemon is the lowest that runs the job.
void Membership::invite(Session& session, Actions& actions) {
    // A node that is still to join does not know whether the job goes on.
    if (!session.plan->returns || session.state != State::running || (session.plan->joins && !session.trains)) return;
    for (Rank rank = 0; rank < session.self; ++rank)
        if (const Part& part = session.parts[rank]; !part.ended && peers_[part.peer].alive) return;
    for (Rank rank = 0; rank < session.parts.size(); ++rank) {
        Part& part = session.parts[rank];
        const Peer& peer = peers_[part.peer];
        if (rank == session.self || !part.ended || !peer.alive || peer.draining) continue;
        Member member = peer.member;
        for (const JobReturn& each : peer.returns)
            if (each.id == session.plan->id) member.incarnation = std::max(member.incarnation, each.incarnation);
        if (member.incarnation <= part.incarnation) continue;
        const bool comes = rank < session.plan->first_nodes() || session.plan->elastic || part.wanted || part.incarnation > 0;
        if (!comes) continue;
        JobPlan plan = *session.plan;
        plan.joins = true;
        plan.resumes = false;
        plan.resume_holder = 0;
        plan.notes.clear();
        const Part& own = session.parts[session.self];
        plan.kernel_set = own.kernel_set;
        plan.data_digest = own.data_digest;
        plan.start_digest = own.start_digest;
        part.incarnation = member.incarnation;
        plan.members[rank] = std::move(member);
        part.wanted = false;
        send(part.peer, Kind::invite, plan_write(plan), actions);
    }
}

void Membership::add_here(Session& session, const std::string& node) {
    for (Rank rank = 0; rank < session.parts.size(); ++rank)
        if (session.plan->members[rank].name == node && rank != session.self && session.parts[rank].ended) {
            session.parts[rank].wanted = true;
            session.parts[rank].incarnation = session.plan->members[rank].incarnation;
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
    const auto left = left_.find(plan.id);
    const uint64_t incarnation = left == left_.end() ? config_.identity.incarnation : left->second.incarnation;
    if (self == plan.members.size() || plan.members[self].incarnation != incarnation || member(names_[from]) == plan.members.size()) return;
    for (const Member& each : plan.members)
        if (std::find(names_.begin(), names_.end(), each.name) == names_.end()) return;
    const JobId id = plan.id;
    begin(std::make_shared<const JobPlan>(std::move(plan)), self, actions);
    for (Part& part : sessions_.at(id).parts) part.ended |= part.peer != config_.self && !peers_[part.peer].alive;
}

/// The engine of a job that runs elsewhere is open here.
void Membership::join(Sessions::iterator at, const Command& command, Actions& actions) {
    Session& session = at->second;
    const JobPlan& plan = *session.plan;
    const auto differs = [&](const char* what, const std::string& here, const std::string& there, const char* way) {
        give_up(at,
                fail(Code::conflict, "it cannot join job {}: {} is {} here, {} at the other nodes: {}", job_id_text(plan.id), what,
                     here.empty() ? "none" : here, there.empty() ? "none" : there, way),
                actions);
    };
    constexpr char files[] = "give it the files of the others";
    if (command.data_digest != plan.data_digest) return differs("the digest of the data", command.data_digest, plan.data_digest, files);
    if (command.start_digest != plan.start_digest)
        return differs("the digest of net.start", command.start_digest, plan.start_digest, files);
    if (command.kernel_set != plan.kernel_set)
        return differs("the kernel set", command.kernel_set, plan.kernel_set, "set isa in gradcastd.toml as at the others, and restart it");
    Part& own = session.parts[session.self];
    own.kernel_set = command.kernel_set;
    own.data_digest = command.data_digest;
    own.start_digest = command.start_digest;
    start(at, plan.deadline_us);
}

}   // namespace gradcast
