// How a job comes to run: from its submission, by PREPARE and READY, to START at all members or to ABORT.
#include <algorithm>

#include "runtime/core/inventory.h"
#include "runtime/mesh/membership.h"
#include "runtime/mesh/membership_messages.h"

namespace gradcast {
namespace {

/// How much longer than the coordinator a member waits, so that the verdict is the coordinator's.
constexpr uint64_t verdict_us = 5'000'000;

}   // namespace

void Membership::run(const JobId& id, Submit& order, Actions& actions) {
    if (Status why = refusal(*order.plan); !why.ok()) return notice(id, Notice::Submitted{why});   // things have changed since submit()
    begin(order.plan, 0, actions);
    send_all(sessions_.at(id), Kind::prepare, plan_write(*order.plan), actions);
}

void Membership::run(const JobId& id, Opened& order, Actions& actions) {
    const auto at = sessions_.find(id);
    if (at == sessions_.end()) return;   // aborted meanwhile
    Session& session = at->second;
    // Somebody may think better of it while others still prepare; at a member START may be on its way by then, and the job is cancelled
    // after it.
    const bool coordinates = session.self == 0;
    if (session.state != State::opening && !(session.state == State::ready && coordinates && !order.status.ok())) return;
    if (!order.status.ok() && coordinates)
        give_up(at, fail(order.status.code, "node {}: {}", config_.identity.name, order.status.what), actions);
    else if (!order.status.ok()) give_up(at, order.status, actions);
    else if (session.plan->joins) join(at, order, actions);
    else ready(at, session.self, std::move(order.with), order.deadline_us, actions);
}

/// Whether this daemon can take part, as things are.
Status Membership::why_not(const JobPlan& plan) const {
    if (sessions_.size() >= config_.jobs_max) return fail(Code::conflict, "it has {} jobs already: wait for one to end", sessions_.size());
    // Neither may disturb what the other measures or trains.
    if (!sessions_.empty() && !plan.server.empty())
        return fail(Code::conflict, "it has {} job{}: a benchmark runs between jobs", sessions_.size(), sessions_.size() == 1 ? "" : "s");
    if (std::any_of(sessions_.begin(), sessions_.end(), [](const auto& each) { return !each.second.plan->server.empty(); }))
        return fail(Code::conflict, "a benchmark runs there: wait for its end, or cancel it");
    if (peers_[config_.self].draining)
        return fail(Code::conflict, "it is drained: `gradcastctl undrain {}` lets it take jobs again", config_.identity.name);
    if (sessions_.contains(plan.id)) return fail(Code::invalid, "job {} is here already", job_id_text(plan.id));
    for (Rank rank = 0; rank < plan.members.size(); ++rank) {
        const Member& member = plan.members[rank];
        auto name = std::find(names_.begin(), names_.end(), member.name);
        if (name == names_.end())
            return fail(Code::invalid, "there is no node {} in its gradcastd.toml: `members` must be the same everywhere", member.name);
        if (rank >= plan.first_nodes()) continue;
        const Peer& peer = peers_[static_cast<size_t>(name - names_.begin())];
        bool same = peer.member.uuid == member.uuid && peer.member.incarnation == member.incarnation;
        if (&peer == &peers_[config_.self] && !same) return fail(Code::peer_lost, "it was restarted while the job was prepared");
        // What we know of third parties may be older than what the coordinator knows.
        if (plan.members[0].name != config_.identity.name) continue;
        if (!peer.alive)
            return fail(Code::peer_lost, "node {} is not alive: {}; start gradcastd there, or leave it out", member.name, peer.why);
        if (!same) return fail(Code::peer_lost, "node {} was restarted", member.name);
    }
    return {};
}

Status Membership::refusal(const JobPlan& plan) const {
    Status why = why_not(plan);
    return why.ok() ? why : fail(why.code, "node {}: {}", config_.identity.name, why.what);
}

void Membership::begin(const std::shared_ptr<const JobPlan>& plan, Rank self, Actions& actions) {
    Session session;
    session.self = self;
    session.began_us = actions.now_us;
    session.deadline_us = actions.now_us + plan->prepare_us() + (self == 0 ? 0 : verdict_us);
    session.plan = plan;
    extend(session);
    notice(plan->id, Notice::Open{session.plan, self});
    std::erase(done_, plan->id);
    sessions_.emplace(plan->id, std::move(session));
}

void Membership::prepare(Rank from, std::span<const std::byte> bytes, Actions& actions) {
    JobPlan plan;
    if (!plan_parse(bytes, &plan)) return;
    auto self =
        std::find_if(plan.members.begin(), plan.members.end(), [&](const Member& each) { return each.name == config_.identity.name; });
    if (self == plan.members.end() || plan.members[0].name != names_[from] || self == plan.members.begin() ||
        self - plan.members.begin() >= plan.first_nodes())
        return;
    if (Status why = why_not(plan); !why.ok()) {
        send(from, Kind::refused, id_write(plan.id, {why.what, code_name(why.code)}), actions);
        return;
    }
    Rank rank = static_cast<Rank>(self - plan.members.begin());
    begin(std::make_shared<const JobPlan>(std::move(plan)), rank, actions);
}

/// The engine is open here, and the job runs from here on.
void Membership::start(Sessions::iterator at, uint64_t deadline_us, std::string note) {
    Session& session = at->second;
    auto plan = std::make_shared<JobPlan>(*session.plan);
    plan->deadline_us = deadline_us;
    session.plan = std::move(plan);
    session.state = State::running;
    session.deadline_us = 0;
    notice(at->first, Notice::Start{deadline_us, std::move(note)});
}

/// A rank's engine is open; here or, at the coordinator, anywhere.
void Membership::ready(Sessions::iterator at, Rank rank, ComputesWith with, uint64_t deadline_us, Actions& actions) {
    Session& session = at->second;
    if (rank == session.self) session.state = State::ready;
    Part& part = session.parts[rank];
    part.with = std::move(with);
    if (session.self != 0) {
        MessageWriter writer{id_write(at->first)};
        computes_with_write(part.with, writer);
        writer.number(deadline_us);
        send(session.parts[0].peer, Kind::ready, std::move(writer.bytes), actions);
        return;
    }
    part.ready = true;
    part.deadline_us = deadline_us;
    if (std::all_of(session.parts.begin(), session.parts.end(), [](const Part& each) { return each.ready; })) finish_preparing(at, actions);
}

void Membership::finish_preparing(Sessions::iterator at, Actions& actions) {
    Session& session = at->second;
    const ComputesWith& first = session.parts[0].with;
    const std::vector<Member>& members = session.plan->members;
    const std::string first_name = fmt::format("node {}", members[0].name);
    std::string note;
    for (Rank rank = 1; rank < session.plan->first_nodes(); ++rank) {
        const ComputesWith& with = session.parts[rank].with;
        const std::string name = fmt::format("node {}", members[rank].name);
        const auto conflict = [&](const std::string& what) { give_up(at, fail(Code::conflict, "{}", what), actions); };
        if (with.data_digest != first.data_digest)
            return conflict(fmt::format("{} has other data than {} under the same names (digest {} and {}): copy the shards again", name,
                                        first_name, with.data_digest, first.data_digest));
        if (with.start_digest != first.start_digest) {
            const std::string item = inventory_difference({name, with.inventory}, {first_name, first.inventory});
            return conflict(item.empty()
                                ? fmt::format("{} starts from another file than {} (net.start, or the sources of net.command; digest "
                                              "{} and {}): copy it again",
                                              name, first_name, with.start_digest, first.start_digest)
                                : fmt::format("{} runs another program than {}: {}: copy it again", name, first_name, item));
        }
        const std::string libraries = inventory_libraries(with.inventory, first.inventory);
        if (with.kernel_set != first.kernel_set)
            return conflict(
                fmt::format("{} computes other bits than {} (kernel sets {} and {}): set the same {} at both, or leave it out; GPUs and "
                            "their libraries must be alike, too, and libjpeg where data are pictures{}",
                            name, first_name, with.kernel_set, first.kernel_set, config_.isa_setting,
                            libraries.empty() ? "" : fmt::format("; other versions of libraries: {}", libraries)));
        if (!libraries.empty() && note.size() < reason_max)
            note += fmt::format("{}{} has other versions of libraries than {}, and computes the same bits: {}", note.empty() ? "" : "; ",
                                name, first_name, libraries);
    }
    uint64_t deadline_us = session.plan->deadline_us;
    for (Part& part : session.parts) {
        deadline_us = std::max(deadline_us, part.deadline_us);
        if (&part != &session.parts[0]) part.with.inventory = {};   // who joins gets this node's
    }
    MessageWriter writer{id_write(at->first)};
    writer.number(deadline_us);
    send_all(session, Kind::start, writer.bytes, actions);
    start(at, deadline_us, std::move(note));
    notice(at->first, Notice::Submitted{});
}

/// Sessions whose state has lasted too long.
void Membership::end_overdue(Actions& actions) {
    for (auto at = sessions_.begin(); at != sessions_.end();) {
        Session& session = at->second;
        if (session.deadline_us == 0 || actions.now_us < session.deadline_us) {
            ++at;
            continue;
        }
        if (session.state == State::ended) {   // somebody never said that it ended: our part is done all the same
            notice(at->first, Notice::Close{});
            at = sessions_.erase(at);
        } else if (session.self == 0) {
            std::string late;
            for (Rank rank = 0; rank < session.parts.size(); ++rank)
                if (!session.parts[rank].ready) late += (late.empty() ? "" : ", ") + session.plan->members[rank].name;
            at = give_up(at,
                         fail(Code::deadline, "not ready within {} s (10 times the job's deadline): {}",
                              session.plan->prepare_us() / 1'000'000, late),
                         actions);
        } else {
            at = give_up(at,
                         fail(Code::deadline, "node {} did not start the job within {} s", session.plan->members[0].name,
                              session.plan->prepare_us() / 1'000'000),
                         actions);
        }
    }
}

/// Ends a session that is not running yet: everywhere if we coordinate it, else the coordinator learns why.
Membership::Sessions::iterator Membership::give_up(Sessions::iterator at, Status why, Actions& actions) {
    const Session& session = at->second;
    if (session.plan->joins) {   // the job runs on
        not_joined(session, why, actions.now_us);
        send_all(session, Kind::refused, id_write(at->first, {why.what, code_name(why.code)}), actions);
    } else if (session.self == 0) {
        send_all(session, Kind::abort, id_write(at->first, {why.what}), actions);
        notice(at->first, Notice::Submitted{why});
    } else {
        send(session.parts[0].peer, Kind::refused, id_write(at->first, {why.what, code_name(why.code)}), actions);
    }
    notice(at->first, Notice::Abort{why});
    return sessions_.erase(at);
}

}   // namespace gradcast
