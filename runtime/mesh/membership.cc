#include "runtime/mesh/membership.h"

#include <algorithm>

#include "runtime/core/overloads.h"
#include "runtime/mesh/membership_messages.h"
#include "transport/wire/packet.h"

namespace gradcast {
namespace {

constexpr uint64_t tick_us = 1'000'000;
constexpr ptrdiff_t finds_max = 64;   // searches that the daemon has not taken yet

}   // namespace

Membership::Membership(const MembershipConfig& config)
    : config_(config),
      names_(config.names),
      peers_(config.names.size()),
      departed_jobs_(config.identity.incarnation, config.past_jobs_max),
      done_(config.done.end() - static_cast<ptrdiff_t>(std::min(config.done.size(), config.past_jobs_max)), config.done.end()) {
    GC_ASSERT(config_.self < peers_.size());
    for (Rank peer = 0; peer < peers_.size(); ++peer) {
        peers_[peer].member.name = names_[peer];
        peers_[peer].why = "not reached yet";
    }
    Peer& self = peers_[config_.self];
    self.alive = true, self.why.clear(), self.version = config_.version, self.isa = config_.isa,
    self.datagram_bytes = config_.datagram_bytes;
    self.rdma_bytes = config_.rdma_bytes;
    self.rdma_devices = config_.rdma_devices;
    self.memory = config_.memory;
    self.rate = config_.rate;
    self.rails = config_.rails;
    self.member = {config_.identity.name, config_.identity.uuid, config_.identity.incarnation};
}

void Membership::start(Host& host, uint16_t channel) {
    host_ = &host;
    channel_ = channel;
    wake();   // the first event sets the timer
}

void Membership::wake() { host_->post(channel_, command_event(Wake{})); }

void Membership::command(Command command) {
    {
        std::lock_guard lock(mutex_);
        commands_.push_back(std::move(command));
    }
    wake();
}

Status Membership::submit(std::shared_ptr<const JobPlan> plan) {
    {
        std::lock_guard lock(mutex_);
        GC_TRY(refusal(*plan));
    }
    const JobId id = plan->id;
    command({id, Submit{std::move(plan)}});
    return {};
}
void Membership::opened(const JobId& id, Status status, ComputesWith with, uint64_t deadline_us) {
    command({id, Opened{status, std::move(with), deadline_us}});
}
void Membership::ended(const JobId& id, const JobEnd& end) { command({id, Ended{end}}); }

void Membership::find(const JobId& id, uint64_t request) { command({id, FindAll{request}}); }
void Membership::found(const JobId& id, Rank peer, uint64_t request, Found found) {
    command({id, FoundHere{peer, request, std::move(found)}});
}

void Membership::drain(Rank peer, bool on, bool cancel) { command({{}, DrainPeer{peer, on, cancel}}); }
void Membership::add(const JobId& id, const std::string& node) { command({id, Add{node}}); }
void Membership::trains(const JobId& id) {
    std::lock_guard lock(mutex_);
    if (const auto at = sessions_.find(id); at != sessions_.end()) at->second.trains = true;
}
void Membership::draining(bool on, std::string hinders) {
    std::lock_guard lock(mutex_);
    peers_[config_.self].draining = on;
    peers_[config_.self].hinders = std::move(hinders);
}

std::vector<Notice> Membership::notices() {
    std::lock_guard lock(mutex_);
    return std::exchange(notices_, {});
}

std::vector<PeerState> Membership::peers() const {
    std::lock_guard lock(mutex_);
    return {peers_.begin(), peers_.end()};
}

uint64_t Membership::ticks() const {
    std::lock_guard lock(mutex_);
    return ticks_;
}

void Membership::on(std::span<const Event> events, Actions& actions) {
    std::lock_guard lock(mutex_);
    size_t before = notices_.size();
    for (const Event& event : events)
        std::visit(
            Overloads{[&](const Event::Received& it) { packet(*it.packet, actions); },
                      [&](const Event::Sent& it) { flights_.erase(it.ticket); }, [&](const Event::TimerExpired&) { tick(actions); },
                      [&](const Event::PeerUp& it) { peers_[it.rank].hello_ticket = peers_[it.rank].done_ticket = 0; },
                      [&](const Event::PeerLost& it) {
                          if (it.rank == peers_.size()) take_peer();
                          lost(it.rank, it.status.what, actions);
                      },
                      [&](const Event::Command&) { run_commands(actions); }, [](const OneOf<Event::Computed, Event::Ready> auto&) {}},
            event.what);
    peers_[config_.self].jobs = static_cast<uint32_t>(sessions_.size());
    if (notices_.size() > before) actions.completions.push_back({});
}

void Membership::run_commands(Actions& actions) {
    while (!commands_.empty()) {
        std::visit([&](auto& order) { run(commands_.front().id, order, actions); }, commands_.front().what);
        commands_.pop_front();
    }
    if (ticks_ == 0) tick(actions);
}

void Membership::tick(Actions& actions) {
    ++ticks_;
    actions.timers.push_back({1, actions.now_us + std::min(tick_us, config_.hello_us)});
    const Peer& own = peers_[config_.self];
    const std::vector<std::byte> hello = hello_write({.member = own.member,
                                                      .version = config_.version,
                                                      .isa = config_.isa,
                                                      .datagram_bytes = config_.datagram_bytes,
                                                      .rdma_bytes = config_.rdma_bytes,
                                                      .rdma_devices = config_.rdma_devices,
                                                      .rails = config_.rails,
                                                      .jobs = static_cast<uint32_t>(sessions_.size()),
                                                      .draining = own.draining,
                                                      .hinders = own.hinders,
                                                      .rejoin_requests = rejoin_requests(actions.now_us),
                                                      .runs = runs(),
                                                      .memory = config_.memory,
                                                      .rate = config_.rate,
                                                      .wall_us = config_.wall_us ? config_.wall_us() : 0});
    for (Rank peer = 0; peer < peers_.size(); ++peer) {
        if (peer == config_.self) continue;
        Peer& state = peers_[peer];
        if (state.alive && actions.now_us > state.last_hello_us + config_.silence_us)
            lost(peer, fmt::format("silent for {} s", config_.silence_us / 1'000'000).c_str(), actions);
        if (!flights_.contains(state.hello_ticket)) state.hello_ticket = send(peer, Kind::hello, hello, actions);
    }
    for (auto& [id, session] : sessions_) invite(session, actions);
    end_overdue(actions);
}

void Membership::run(const JobId& id, Ended& order, Actions& actions) {
    const auto at = sessions_.find(id);
    if (at == sessions_.end() || at->second.state != State::running) return;
    Session& session = at->second;
    session.state = State::ended;
    session.deadline_us = actions.now_us + (order.end.leaves ? tick_us : session.plan->deadline_us);
    if (session.plan->survive) departed(session, order.end, actions.now_us);
    if (session.plan->survive && order.end.done) done_.push_back(id);
    if (done_.size() > config_.past_jobs_max) done_.pop_front();
    session.parts[session.self].ended = true;
    send_all(session, Kind::ended, id_write(id), actions);
    close_if_ended(at);
}

void Membership::run(const JobId& id, FindAll& order, Actions& actions) {
    MessageWriter writer;
    writer.id(id);
    writer.number(order.request);
    for (Rank peer = 0; peer < peers_.size(); ++peer) {
        if (peer == config_.self) look(peer, id, order.request);
        else if (peers_[peer].alive) {
            ++peers_[peer].finds;
            send(peer, Kind::find, writer.bytes, actions);
        }
    }
}

void Membership::run(const JobId& id, FoundHere& order, Actions& actions) {
    if (order.asker == config_.self) notice(id, Notice::Answer{order.asker, order.request, std::move(order.found)});
    else send(order.asker, Kind::found, found_write(id, order.request, order.found), actions);
}

void Membership::run(const JobId&, DrainPeer& order, Actions& actions) {
    if (order.peer == config_.self) drain_here(order.on, order.cancel);
    else send(order.peer, Kind::drain, drain_write({order.on, order.cancel}), actions);
}

void Membership::run(const JobId& id, Add& order, Actions& actions) {
    const auto at = sessions_.find(id);
    if (at == sessions_.end()) return;
    add_here(at->second, order.node);
    send_all(at->second, Kind::add, id_write(id, {order.node}), actions);
}

void Membership::drain_here(bool on, bool cancel) {
    // The last order counts, however many come before the daemon looks.
    std::erase_if(notices_, [](const Notice& each) { return each.is<Notice::Drain>() != nullptr; });
    notice({}, Notice::Drain{on, cancel});
}

/// The daemon is to look what it has of the job.
void Membership::look(Rank peer, const JobId& id, uint64_t request) {
    const auto finds =
        std::count_if(notices_.begin(), notices_.end(), [](const Notice& each) { return each.is<Notice::Find>() != nullptr; });
    if (finds >= finds_max) return;   // whoever asks gives up in time
    notice(id, Notice::Find{peer, request});
}

void Membership::hello(Rank from, std::span<const std::byte> bytes, Actions& actions) {
    NodeHello said;
    if (!hello_parse(bytes, &said) || said.member.name != names_[from]) return;
    Peer& peer = peers_[from];
    if (peer.alive && peer.member.incarnation != said.member.incarnation)
        lost(from, peer.member.uuid == said.member.uuid ? "it was restarted" : "another daemon calls itself that", actions);
    peer.member = std::move(said.member);
    peer.version = std::move(said.version);
    peer.jobs = said.jobs;
    peer.isa = said.isa;
    peer.datagram_bytes = said.datagram_bytes;
    peer.rdma_bytes = said.rdma_bytes;
    peer.rdma_devices = said.rdma_devices;
    peer.memory = said.memory;
    peer.rate = said.rate;
    peer.rails = std::move(said.rails);
    peer.draining = said.draining;
    peer.hinders = std::move(said.hinders);
    peer.rejoin_requests = std::move(said.rejoin_requests);
    peer.runs = std::move(said.runs);
    if (said.wall_us > 0 && config_.wall_us) peer.ahead_us = static_cast<int64_t>(said.wall_us - config_.wall_us());
    for (const JobId& id : peer.runs) std::erase(done_, id);   // it resumes
    peer.last_hello_us = actions.now_us;
    for (Rank other = 0; other < peers_.size(); ++other) {
        if (other == from || peers_[other].member.uuid != peer.member.uuid || !peers_[other].alive) continue;
        lost(from,
             fmt::format("it has the same identity as node {} (a copied state folder?): stop one, and remove its state/identity",
                         names_[other])
                 .c_str(),
             actions);
        return;
    }
    peer.alive = true;
    peer.why.clear();
    for (auto& [id, session] : sessions_)
        if (const Rank rank = rank_of(session, from); rank < session.parts.size()) apply_hello(session, rank);
    answer_rejoin_requests(from, actions);
}

/// A peer is not alive: silent, its stream gone, or another incarnation of it speaks.
void Membership::lost(Rank lost_peer, const char* why, Actions& actions) {
    Peer& peer = peers_[lost_peer];
    peer.alive = false;
    peer.why = why;
    peer.hello_ticket = peer.done_ticket = 0;
    peer.jobs = 0;
    peer.finds = 0;
    peer.draining = false;
    peer.hinders.clear();
    peer.rejoin_requests.clear();
    peer.runs.clear();
    for (auto at = sessions_.begin(); at != sessions_.end();) {
        Session& session = at->second;
        Rank rank = rank_of(session, lost_peer);
        bool runs = session.state == State::running || session.state == State::ended || session.plan->joins;
        if (rank < session.parts.size() && runs) {
            session.parts[rank].ended = true;
            at = close_if_ended(at);
        } else if (rank < session.plan->first_nodes() && (session.self == 0 || rank == 0)) {
            at = give_up(at,
                         fail(Code::peer_lost, "node {} was lost while the job was prepared: {}; look at its gradcastd and submit again",
                              names_[lost_peer], why),
                         actions);
        } else {
            ++at;   // not in it, or not needed to begin it, or the coordinator decides
        }
    }
}

Membership::Sessions::iterator Membership::close_if_ended(Sessions::iterator at) {
    const Session& session = at->second;
    bool ended = session.state == State::ended &&
                 std::all_of(session.parts.begin(), session.parts.end(), [](const Part& each) { return each.ended; });
    if (!ended) return std::next(at);
    notice(at->first, Notice::Close{});
    return sessions_.erase(at);
}

Rank Membership::rank_of(const Session& session, Rank peer) const {
    auto part = std::find_if(session.parts.begin(), session.parts.end(), [&](const Part& each) { return each.peer == peer; });
    return static_cast<Rank>(part - session.parts.begin());
}

}   // namespace gradcast
