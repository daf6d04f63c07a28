// What becomes of a submission: which nodes it is for, what they have in common, and the plan that they prepare.
#include <fmt/ranges.h>

#include <algorithm>
#include <ctime>

#include "runtime/core/crypto.h"
#include "runtime/core/net/interface.h"
#include "runtime/core/net/socket.h"
#include "runtime/core/short_texts.h"
#include "runtime/daemon/daemon.h"
#include "runtime/job/file/cells.h"
#include "runtime/job/run/part_holders.h"
#include "transport/exchange/auto.h"

namespace gradcast {
namespace {

constexpr uint64_t bench_deadline_us = 3'000'000;   // of a benchmark

}   // namespace

/// The members of a job: this node, then the others in the order of gradcastd.toml.
Status Daemon::choose(const Submission& submission, std::vector<Member>* members) const {
    std::vector<PeerState> peers = membership_->peers();
    std::vector<std::string> names, dead;
    for (const PeerState& peer : peers) names.push_back(peer.member.name);
    std::vector<Member> result = {peers[config_.self()].member};
    if (peers[config_.self()].draining)
        return fail(Code::conflict, "node {0} is drained: submit at another node, or `gradcastctl undrain {0}`", config_.name);
    if (!submission.nodes.empty()) {
        bool self = false;
        for (const std::string& name : submission.nodes) {
            auto at = std::find(names.begin(), names.end(), name);
            if (at == names.end()) return fail(Code::invalid, "there is no node {}: the nodes are {}", name, fmt::join(names, ", "));
            const PeerState& peer = peers[static_cast<size_t>(at - names.begin())];
            if (name == config_.name) {
                if (std::exchange(self, true)) return fail(Code::invalid, "node {} is named twice", name);
                continue;
            }
            if (std::any_of(result.begin(), result.end(), [&](const Member& each) { return each.name == name; }))
                return fail(Code::invalid, "node {} is named twice", name);
            if (!peer.alive)
                return fail(Code::peer_lost, "node {} is not alive: {}; start gradcastd there, or leave it out", name, peer.why);
            if (peer.draining) return fail(Code::conflict, "node {0} is drained: leave it out, or `gradcastctl undrain {0}`", name);
            result.push_back(peer.member);
        }
        if (!self)
            return fail(Code::invalid, "node {} coordinates the job and must be one of its nodes: add it, or submit at one of {}",
                        config_.name, fmt::join(submission.nodes, ", "));
        if (submission.count && submission.count != result.size())
            return fail(Code::invalid, "{} nodes are named, but {} asked for", result.size(), submission.count);
        *members = std::move(result);
        return {};
    }
    for (size_t peer = 0; peer < peers.size(); ++peer) {
        if (peer == config_.self()) continue;
        if (!peers[peer].alive) dead.push_back(fmt::format("{} ({})", names[peer], peers[peer].why));
        else if (peers[peer].draining) dead.push_back(fmt::format("{} (drained)", names[peer]));
        else if (submission.count == 0 || result.size() < submission.count) result.push_back(peers[peer].member);
    }
    if (result.size() < submission.count)
        return fail(Code::peer_lost, "{} nodes are asked for, {} {} available{}{}", submission.count, result.size(),
                    result.size() == 1 ? "is" : "are",
                    dead.empty() ? ": there are no more members" : "; not available: ", fmt::join(dead, ", "));
    *members = std::move(result);
    return {};
}

/// Who may have a program started, and whether this node starts any.  The other nodes check themselves when they prepare.
Status Daemon::command_check(const JobConfig& job, const Submission& submission) const {
    if (!job.attached()) return {};
    if (submission.role < Role::admin)
        return fail(
            Code::peer_refused,
            "{}: net.command starts a program as the user of the daemons: this needs the role admin; submit at the control socket of "
            "a node, or with a key of that role",
            submission.path);
    return config_.command_check();
}

/// All of a plan but id and time.
Status Daemon::plan(const Submission& submission, JobPlan* plan) const {
    const ShortTexts for_the_client;
    if (submission.text.size() > job_text_max)
        return fail(Code::invalid, "{} has {} bytes: a job file has 1 MiB at most", submission.path, submission.text.size());
    const auto parsed = std::make_shared<JobConfig>();
    JobConfig& config = *parsed;
    if (submission.bench) {
        config.name = "bench";
        config.deadline_us = bench_deadline_us;
    } else {
        GC_TRY(job_parse(submission.text, submission.path, submission.base, &config));
        GC_TRY(command_check(config, submission));
    }
    GC_TRY(choose(submission, &plan->members));
    std::vector<std::string> notes;   // the job repeats them
    if (!submission.bench) {
        const uint32_t cells = cells_of(config);
        GC_TRY(tolerance_check(config.exchange, {.quantiser = config.quantiser, .m = config.m, .s = config.s, .cells = cells},
                               std::max(static_cast<uint32_t>(plan->members.size()) / cells, 1u), &notes));
        GC_TRY(isa_check(config, plan->members));
        GC_TRY(min_nodes_check(config, static_cast<uint32_t>(plan->members.size())));
    }
    plan->name = config.name;
    plan->text = submission.text;
    if (!submission.bench) plan->parsed = parsed;
    plan->path = submission.path;
    plan->base = submission.base;
    plan->deadline_us = config.deadline_us;
    plan->survive = config.survive;
    plan->elastic = config.survive && config.elastic;
    // A job that begins with one rank has no use for datagrams before others join it.
    const bool grows = config.survive && plan->members.size() <= cells_of(config);
    if (config.transport != "tcp") plan->datagram_bytes = datagrams_for(grows ? nullptr : &plan->members);
    if (config.transport == "auto" || config.transport == "rdma") rdma_for(config.transport == "rdma", plan);
    if (plan->rdma && std::exchange(plan->elastic, false))
        plan->notes += "elastic has no effect over RDMA: with transport.kind = \"ip\" other nodes join\n";
    plan->first = static_cast<uint32_t>(plan->members.size());
    std::vector<std::string> names;
    for (const NodeAddress& node : members()) names.push_back(node.name);
    plan->extend(names);
    rails_for(plan);
    return {};
}

Status Daemon::submit(const Submission& submission, std::string* id) {
    auto plan = std::make_shared<JobPlan>();
    GC_TRY(this->plan(submission, plan.get()));
    if (plan->parsed) GC_TRY(copies_check(*plan->parsed, plan->first_nodes()));
    random_bytes(plan->id);
    plan->submitted_unix = static_cast<uint64_t>(std::time(nullptr));
    if (submission.bench) {
        plan->listener = std::make_shared<Fd>();
        std::string address;
        GC_TRY(socket_listen(NodeAddress{"", config_.listen}.host() + ":0", plan->listener.get(), &address));
        plan->server = fmt::format("{}:{}", config_.members[config_.self()].host(), NodeAddress{"", address}.port());
    }

    Submitted submitted;
    JobSummary& summary = submitted.detail.summary;
    summary.id = *id = job_id_text(plan->id);
    summary.name = plan->name;
    summary.submitted_unix = plan->submitted_unix;
    for (Rank rank = 0; rank < plan->first_nodes(); ++rank) summary.nodes.push_back(plan->members[rank].name);
    std::lock_guard lock(mutex_);
    if (!leaving_.empty()) return fail(Code::cancelled, "{}", leaving_);
    GC_TRY(prepare(plan));
    submitted_.emplace(plan->id, std::move(submitted));
    return {};
}

/// The members prepare, once the job has a grid.
Status Daemon::prepare(const std::shared_ptr<JobPlan>& plan) {
    if (!GridChoice::wanted(*plan)) return membership_->submit(plan);
    GridPlanOptions options{.memory = UINT64_MAX};
    std::string least;
    uint64_t slowest = 0;
    const std::vector<PeerState> peers = membership_->peers();
    for (Rank rank = 0; rank < plan->first_nodes(); ++rank)
        for (const PeerState& peer : peers)
            if (peer.member.name == plan->members[rank].name) {
                if (peer.memory > 0 && peer.memory < options.memory) options.memory = peer.memory, least = peer.member.name;
                if (peer.rate > 0 && (slowest == 0 || peer.rate < slowest)) slowest = peer.rate;
            }
    if (least.empty()) options.memory = 0;
    if (slowest > 0) options.wire.bits_per_s = static_cast<double>(slowest);
    EngineConfig config;
    config.lanes = config_.lanes();
    config.confidential = true;
    auto choice = std::make_unique<GridChoice>(plan, config, options, least);
    GC_TRY(choice->start());
    log_.info("job {}: its layers are run to choose its stages and slice groups", job_id_text(plan->id));
    choices_[plan->id] = std::move(choice);
    return {};
}

/// Jobs whose grid is chosen are prepared.
void Daemon::grids() {
    std::vector<std::unique_ptr<GridChoice>> finished;   // their threads are joined outside the lock
    std::lock_guard lock(mutex_);
    for (auto at = choices_.begin(); at != choices_.end();) {
        const auto& [id, choice] = *at;
        const std::string& cancelled = submitted_.at(id).cancelled.empty() ? leaving_ : submitted_.at(id).cancelled;
        if (!cancelled.empty()) choice->stop();
        if (!choice->done()) {
            ++at;
            continue;
        }
        Status status = choice->status();
        if (!cancelled.empty()) status = fail(Code::cancelled, "{}", cancelled);
        else if (status.ok()) status = membership_->submit(choice->plan());
        else status = fail(status.code, "node {}: {}", config_.name, status.what);
        if (!status.ok()) {
            log_.info("job {}: not started: {}", job_id_text(id), status.what);
            give_up(id, status);
        }
        finished.push_back(std::move(at->second));
        at = choices_.erase(at);
    }
}

/// Instruction sets whose kernels round differently must not train together.
Status Daemon::isa_check(const JobConfig& job, const std::vector<Member>& members) const {
    if (job.device == "cuda") return {};
    auto level = [&](Isa isa) { return job.precision == Precision::f32 ? std::min(isa, Isa::avx512) : isa; };
    std::vector<PeerState> peers = membership_->peers();
    std::erase_if(peers, [&](const PeerState& peer) {
        return std::none_of(members.begin(), members.end(), [&](const Member& each) { return each.name == peer.member.name; });
    });
    const Isa least =
        std::min_element(peers.begin(), peers.end(), [](const PeerState& a, const PeerState& b) { return a.isa < b.isa; })->isa;
    std::vector<std::string> all, above;
    for (const PeerState& peer : peers) {
        all.push_back(fmt::format("{} {}", peer.member.name, isa_name(peer.isa)));
        if (level(peer.isa) != level(least)) above.push_back(peer.member.name);
    }
    if (above.empty()) return {};
    if (config_.launched())
        return fail(Code::invalid, "the nodes compute with different instruction sets ({}): start all with --isa {}", fmt::join(all, ", "),
                    isa_name(least));
    return fail(
        Code::invalid,
        "the nodes compute with different instruction sets ({}): set isa = \"{}\" in gradcastd.toml of {} and restart gradcastd there",
        fmt::join(all, ", "), isa_name(least), fmt::join(above, ", "));
}

/// The largest datagram that the interfaces of all these members carry, or where null those of all that this daemon knows; 0: some have
/// none.
uint32_t Daemon::datagrams_for(const std::vector<Member>* members) const {
    uint32_t bytes = UINT32_MAX;
    for (const PeerState& peer : membership_->peers()) {
        if (members && std::ranges::find(*members, peer.member.name, &Member::name) == members->end()) continue;
        if (peer.datagram_bytes == 0 && bytes != 0)
            log_.info("node {} has no {}: multicast exchanges go over TCP, a copy to each node", peer.member.name,
                      config_.launched() ? "--interface" : "`interface` in its gradcastd.toml");
        bytes = std::min(bytes, peer.datagram_bytes);
    }
    return bytes;
}

/// RDMA if all members have it; else IP, with a note of the job if RDMA was asked for or some members have it.
void Daemon::rdma_for(bool wanted, JobPlan* plan) const {
    uint32_t bytes = UINT32_MAX, with = 0;
    std::vector<std::string> without;
    for (const PeerState& peer : membership_->peers()) {
        if (std::none_of(plan->members.begin(), plan->members.end(), [&](const Member& each) { return each.name == peer.member.name; }))
            continue;
        if (peer.rdma_bytes == 0) without.push_back(peer.member.name);
        else {
            bytes = std::min(bytes, peer.rdma_bytes);
            ++with;
        }
    }
    if (without.empty()) {
        plan->rdma = true;
        if (plan->datagram_bytes > 0) plan->datagram_bytes = bytes;
    } else if (wanted || with > 0) {
        plan->notes += fmt::format("{} no `rdma` in gradcastd.toml ({}): the job goes over IP\n",
                                   without.size() == 1 ? "a node has" : "nodes have", fmt::join(without, ", "));
    }
}

/// As many connections between two nodes as every member that begins it has interfaces, or RDMA devices.  Others connect to those that they
/// reach.
void Daemon::rails_for(JobPlan* plan) const {
    const std::vector<PeerState> peers = membership_->peers();
    size_t rails = rails_max;
    std::vector<std::string> addresses;
    for (const Member& member : plan->members) {
        const auto peer = std::find_if(peers.begin(), peers.end(), [&](const PeerState& each) { return each.member.name == member.name; });
        const PeerState known = peer == peers.end() ? PeerState{} : *peer;
        if (addresses.size() < plan->first_nodes())
            rails = std::min(rails, plan->rdma ? known.rdma_devices : names_split(known.rails).size());
        addresses.push_back(known.rails);
    }
    plan->rails = static_cast<uint32_t>(std::max<size_t>(rails, 1));
    if (plan->rails > 1) plan->addresses = std::move(addresses);
}

}   // namespace gradcast
