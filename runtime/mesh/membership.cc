#include "runtime/mesh/membership.h"

#include <algorithm>

#include "runtime/core/overloads.h"
#include "runtime/mesh/membership_messages.h"
#include "transport/wire/packet.h"

namespace gradcast {
namespace {

constexpr uint32_t message_max = 2 << 20;   // a plan: the job file, and at most 700 bytes a member
constexpr uint32_t fragment_bytes = lease_bytes_max;
constexpr uint64_t tick_us = 1'000'000;
constexpr uint64_t verdict_us =
    5'000'000;                        // how much longer than the coordinator a member waits, so that the verdict is the coordinator's
constexpr ptrdiff_t finds_max = 64;   // searches that the daemon has not taken yet

}   // namespace

Membership::Membership(const MembershipConfig& config)
    : config_(config),
      names_(config.names),
      peers_(config.names.size()),
      returns_(config.identity.incarnation, config.left_max),
      over_(config.over.end() - static_cast<ptrdiff_t>(std::min(config.over.size(), config.left_max)), config.over.end()) {
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
void Membership::opened(const JobId& id, Status status, std::string kernel_set, std::string data_digest, std::string start_digest,
                        uint64_t deadline_us) {
    command({id, Opened{status, std::move(kernel_set), std::move(data_digest), std::move(start_digest), deadline_us}});
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
                      [&](const Event::PeerUp& it) { peers_[it.rank].hello_ticket = peers_[it.rank].over_ticket = 0; },
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
                                                      .returns = asked(actions.now_us),
                                                      .runs = runs(),
                                                      .wall_us = config_.wall_us ? config_.wall_us() : 0});
    for (Rank peer = 0; peer < peers_.size(); ++peer) {
        if (peer == config_.self) continue;
        Peer& state = peers_[peer];
        if (state.alive && actions.now_us > state.heard_us + config_.silence_us)
            lost(peer, fmt::format("silent for {} s", config_.silence_us / 1'000'000).c_str(), actions);
        if (!flights_.contains(state.hello_ticket)) state.hello_ticket = send(peer, Kind::hello, hello, actions);
    }
    for (auto& [id, session] : sessions_) invite(session, actions);
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
    else
        ready(at, session.self, std::move(order.kernel_set), std::move(order.data_digest), std::move(order.start_digest), order.deadline_us,
              actions);
}

void Membership::run(const JobId& id, Ended& order, Actions& actions) {
    const auto at = sessions_.find(id);
    if (at == sessions_.end() || at->second.state != State::running) return;
    Session& session = at->second;
    session.state = State::ended;
    session.deadline_us = actions.now_us + (order.end.leaves ? tick_us : session.plan->deadline_us);
    if (session.plan->returns) left(session, order.end, actions.now_us);
    if (session.plan->returns && order.end.done) over_.push_back(id);
    if (over_.size() > config_.left_max) over_.pop_front();
    session.parts[session.self].ended = true;
    send_all(session, Kind::ended, id_write(id), actions);
    close_if_over(at);
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
    std::erase(over_, plan->id);
    sessions_.emplace(plan->id, std::move(session));
}

void Membership::packet(const Packet& packet, Actions& actions) {
    if (packet.type != PacketType::job || packet.sender >= peers_.size() || packet.sender == config_.self) return;
    JobBody body = body_of<JobBody>(packet);
    Kind kind = static_cast<Kind>(body.kind.get());
    uint64_t offset = body.value.get() >> 32, total = body.value.get() & UINT32_MAX, bytes = packet.payload.bytes;
    Peer& peer = peers_[packet.sender];
    if (offset == 0) {   // also when the one before was cut off by a restart
        peer.kind = kind;
        peer.message.clear();
    }
    if (total > message_max || offset != peer.message.size() || kind != peer.kind || offset + bytes > total || (bytes == 0 && total != 0)) {
        peer.message.clear();
        return;
    }
    peer.message.insert(peer.message.end(), packet.payload.host, packet.payload.host + bytes);
    if (peer.message.size() != total) return;
    std::vector<std::byte> whole = std::exchange(peer.message, {});
    message(packet.sender, kind, whole, actions);
}

void Membership::message(Rank from, Kind kind, std::span<const std::byte> bytes, Actions& actions) {
    if (kind == Kind::hello) return hello(from, bytes, actions);
    if (kind == Kind::prepare) return prepare(from, bytes, actions);
    if (kind == Kind::invite) return invited(from, bytes, actions);
    if (kind == Kind::drain) {
        if (Drain order; drain_parse(bytes, &order)) drain_here(order.on, order.cancel);
        return;
    }
    MessageReader reader{bytes};
    const JobId id = reader.id();
    if (kind == Kind::find) {
        const uint64_t request = reader.number();
        if (reader.whole()) look(from, id, request);
        return;
    }
    if (kind == Kind::found) {
        if (peers_[from].finds == 0) return;   // nobody has asked
        --peers_[from].finds;
        uint64_t request = 0;
        Found found;
        if (found_parse(reader, &request, &found)) notice(id, Notice::Answer{from, request, std::move(found)});
        return;
    }
    if (kind == Kind::over) {
        if (reader.whole()) over_here(id, actions.now_us);
        return;
    }
    auto at = sessions_.find(id);
    if (!reader.good || at == sessions_.end()) return;
    Session& session = at->second;
    Rank rank = rank_of(session, from);
    if (rank == session.parts.size()) return;
    const std::string& name = session.plan->members[rank].name;
    bool preparing = session.state == State::opening || session.state == State::ready;
    const bool prepares = preparing && !session.plan->joins;   // with the others: who joins opens its engine alone
    if (kind == Kind::ready && session.self == 0 && prepares) {
        std::string kernel_set = reader.text(reason_max), data_digest = reader.text(reason_max), start_digest = reader.text(reason_max);
        const uint64_t deadline_us = reader.number();
        if (reader.whole() && deadline_us <= deadline_us_max)
            ready(at, rank, std::move(kernel_set), std::move(data_digest), std::move(start_digest), deadline_us, actions);
    } else if (kind == Kind::refused && session.self == 0 && prepares) {
        std::string why = reader.text(reason_max), code = reader.text(reason_max);
        // What is wrong with the job itself is so at every node, whoever says it first.
        if (reader.whole())
            give_up(at,
                    fail(code == code_name(Code::invalid)     ? Code::invalid
                         : code == code_name(Code::cancelled) ? Code::cancelled
                                                              : Code::peer_refused,
                         "node {}: {}", name, why),
                    actions);
    } else if (kind == Kind::start && rank == 0 && session.state == State::ready) {
        const uint64_t deadline_us = reader.number();
        if (reader.whole() && deadline_us >= session.plan->deadline_us && deadline_us <= deadline_us_max) start(at, deadline_us);
    } else if (kind == Kind::abort && rank == 0 && prepares) {
        std::string why = reader.text(reason_max);
        if (!reader.whole()) return;
        notice(at->first, Notice::Abort{fail(Code::cancelled, "{}", why)});
        sessions_.erase(at);
    } else if (kind == Kind::refused && session.state == State::running) {
        const std::string why = reader.text(reason_max), code = reader.text(reason_max);
        if (reader.whole()) notice(id, Notice::Warning{fail(Code::peer_refused, "node {} does not join: {}", name, why)});
    } else if (kind == Kind::add && session.state == State::running) {
        const std::string node = reader.text(64);
        if (reader.whole()) add_here(session, node);
    } else if (kind == Kind::ended) {
        session.parts[rank].ended = session.parts[rank].said_ended = true;
        told_over(session);
        close_if_over(at);
    }
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
    peer.rails = std::move(said.rails);
    peer.draining = said.draining;
    peer.hinders = std::move(said.hinders);
    peer.returns = std::move(said.returns);
    peer.runs = std::move(said.runs);
    if (said.wall_us > 0 && config_.wall_us) peer.ahead_us = static_cast<int64_t>(said.wall_us - config_.wall_us());
    for (const JobId& id : peer.runs) std::erase(over_, id);   // it resumes
    peer.heard_us = actions.now_us;
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
        if (const Rank rank = rank_of(session, from); rank < session.parts.size()) heard(session, rank);
    answer_returns(from, actions);
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
void Membership::start(Sessions::iterator at, uint64_t deadline_us) {
    Session& session = at->second;
    auto plan = std::make_shared<JobPlan>(*session.plan);
    plan->deadline_us = deadline_us;
    session.plan = std::move(plan);
    session.state = State::running;
    session.deadline_us = 0;
    notice(at->first, Notice::Start{deadline_us});
}

/// A rank's engine is open; here or, at the coordinator, anywhere.
void Membership::ready(Sessions::iterator at, Rank rank, std::string kernel_set, std::string data_digest, std::string start_digest,
                       uint64_t deadline_us, Actions& actions) {
    Session& session = at->second;
    if (rank == session.self) session.state = State::ready;
    if (session.self != 0) {
        Part& own = session.parts[rank];
        own.kernel_set = kernel_set;
        own.data_digest = data_digest;
        own.start_digest = start_digest;
        MessageWriter writer{id_write(at->first, {kernel_set, data_digest, start_digest})};
        writer.number(deadline_us);
        send(session.parts[0].peer, Kind::ready, std::move(writer.bytes), actions);
        return;
    }
    Part& part = session.parts[rank];
    part.ready = true;
    part.kernel_set = std::move(kernel_set);
    part.data_digest = std::move(data_digest);
    part.start_digest = std::move(start_digest);
    part.deadline_us = deadline_us;
    if (std::all_of(session.parts.begin(), session.parts.end(), [](const Part& each) { return each.ready; })) finish_preparing(at, actions);
}

void Membership::finish_preparing(Sessions::iterator at, Actions& actions) {
    Session& session = at->second;
    const Part& first = session.parts[0];
    const std::vector<Member>& members = session.plan->members;
    for (Rank rank = 1; rank < session.plan->first_nodes(); ++rank) {
        const Part& part = session.parts[rank];
        if (part.data_digest != first.data_digest) {
            give_up(
                at,
                fail(Code::conflict, "node {} has other data than node {} under the same names (digest {} and {}): copy the shards again",
                     members[rank].name, members[0].name, part.data_digest, first.data_digest),
                actions);
            return;
        }
        if (part.start_digest != first.start_digest) {
            give_up(at,
                    fail(Code::conflict, "node {} starts from another file than node {} (net.start, digest {} and {}): copy it again",
                         members[rank].name, members[0].name, part.start_digest, first.start_digest),
                    actions);
            return;
        }
        if (part.kernel_set != first.kernel_set) {
            give_up(at,
                    fail(Code::conflict,
                         "node {} computes other bits than node {} (kernel sets {} and {}): set the same {} at both, or leave it out; GPUs "
                         "and their libraries must be alike, too",
                         members[rank].name, members[0].name, part.kernel_set, first.kernel_set, config_.isa_setting),
                    actions);
            return;
        }
    }
    uint64_t deadline_us = session.plan->deadline_us;
    for (const Part& part : session.parts) deadline_us = std::max(deadline_us, part.deadline_us);
    MessageWriter writer{id_write(at->first)};
    writer.number(deadline_us);
    send_all(session, Kind::start, writer.bytes, actions);
    start(at, deadline_us);
    notice(at->first, Notice::Submitted{});
}

/// Ends a session that is not running yet: everywhere if we coordinate it, else the coordinator is told why.
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

/// A peer is not alive: silent, its stream gone, or another incarnation of it speaks.
void Membership::lost(Rank lost_peer, const char* why, Actions& actions) {
    Peer& peer = peers_[lost_peer];
    peer.alive = false;
    peer.why = why;
    peer.hello_ticket = peer.over_ticket = 0;
    peer.jobs = 0;
    peer.finds = 0;
    peer.draining = false;
    peer.hinders.clear();
    peer.returns.clear();
    peer.runs.clear();
    for (auto at = sessions_.begin(); at != sessions_.end();) {
        Session& session = at->second;
        Rank rank = rank_of(session, lost_peer);
        bool runs = session.state == State::running || session.state == State::ended || session.plan->joins;
        if (rank < session.parts.size() && runs) {
            session.parts[rank].ended = true;
            at = close_if_over(at);
        } else if (rank < session.plan->first_nodes() && (session.self == 0 || rank == 0)) {
            at = give_up(at,
                         fail(Code::peer_lost, "node {} was lost while the job was prepared: {}; look at its gradcastd and submit again",
                              names_[lost_peer], why),
                         actions);
        } else {
            ++at;   // not in it, or not needed to begin it, or the coordinator will tell
        }
    }
}

Membership::Sessions::iterator Membership::close_if_over(Sessions::iterator at) {
    const Session& session = at->second;
    bool over = session.state == State::ended &&
                std::all_of(session.parts.begin(), session.parts.end(), [](const Part& each) { return each.ended; });
    if (!over) return std::next(at);
    notice(at->first, Notice::Close{});
    return sessions_.erase(at);
}

Rank Membership::rank_of(const Session& session, Rank peer) const {
    auto part = std::find_if(session.parts.begin(), session.parts.end(), [&](const Part& each) { return each.peer == peer; });
    return static_cast<Rank>(part - session.parts.begin());
}

uint64_t Membership::send(Rank peer, Kind kind, std::vector<std::byte> bytes, Actions& actions) {
    GC_ASSERT(bytes.size() <= message_max && !bytes.empty());
    auto shared = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
    for (uint64_t offset = 0; offset < shared->size(); offset += fragment_bytes) {
        JobBody body{};
        body.kind.set(static_cast<uint32_t>(kind));
        body.value.set(offset << 32 | shared->size());
        // The link only reads what it sends.
        Buffer payload{const_cast<std::byte*>(shared->data()) + offset, nullptr,
                       std::min<uint64_t>(fragment_bytes, shared->size() - offset)};
        flights_[++ticket_] = shared;
        actions.sends.push_back({.to = {peer}, .type = PacketType::job, .body = body_bytes(body), .payload = payload, .ticket = ticket_});
    }
    return ticket_;
}

/// Also to nodes that another one may have invited.
void Membership::send_all(const Session& session, Kind kind, const std::vector<std::byte>& bytes, Actions& actions) {
    for (const Part& part : session.parts)
        if (part.peer != config_.self && (part.incarnation > 0 || peers_[part.peer].alive)) send(part.peer, kind, bytes, actions);
}

}   // namespace gradcast
