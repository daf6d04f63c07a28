#include "tests/view/world.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>

#include "runtime/core/digest.h"
#include "runtime/core/overloads.h"
#include "runtime/job/report/view_records.h"

namespace gradcast {

namespace {
constexpr uint64_t beat_us = D / 40;
const bool traced = std::getenv("GC_TRACE");   // all notices and what changes views
constexpr StepId behind_most = 2;              // a member that is further behind in a session fetches the state
constexpr uint64_t job_initial = 42;           // digest of the initial values of node 0; of another node: that plus its number
}   // namespace

uint64_t World::next(uint64_t digest) { return splitmix64(digest); }
uint64_t World::state(StepId step, uint64_t initial) {
    static std::map<uint64_t, std::vector<uint64_t>> all;
    std::vector<uint64_t>& states = all[initial];
    if (states.empty()) states.push_back(initial);
    while (states.size() <= step) states.push_back(next(states.back()));
    return states[step];
}
uint64_t World::initial_of(uint64_t digest) const {
    const auto at = initial_of_.find(digest);
    return at == initial_of_.end() ? digest : at->second;
}

World::World(const WorldConfig& config) : config_(config), random_(config.seed), nodes_(config.members + config.others) {
    cut_.resize(nodes_.size() * nodes_.size());
    held_us_.resize(cut_.size());
    AgreedView first{
        .number = 1, .parent = 0, .deadline_us = D, .exchange = {"coded-rs", 2, config.m, config.s}, .action = {}, .members = {}};
    for (uint32_t each = 0; each < config.members; ++each) first.members.push_back({NodeId{each}, 1, 1});
    views_[1] = first;
    went_[1] = 0;
    for (uint32_t each = 0; each < n(); ++each) start(each, 1);
    for (uint32_t each = 0; each < config.members; ++each) {
        Node& node = nodes_[each];
        node.initial = config.initial_us > 0 && each > 0;
        node.has_state = !node.initial;
        node.digest = job_initial + (node.initial ? each : 0);
        node.installed = 1;
        node.machine->begin(first, now_us_);
        stepped(each, 1);
        after(each);
        if (node.initial) plan(random(config.initial_us), each, [this, each] { get_initial(each); });
    }
}

/// The initial values of node 0 have come, if the first session lasts.
void World::get_initial(uint32_t which) {
    Node& node = nodes_[which];
    if (!node.initial || node.session != 1 || node.frozen || !nodes_[0].up || nodes_[0].incarnation > 1) return;
    if (cut_[which]) return plan(now_us_ + beat_us, which, [this, which] { get_initial(which); });
    node.initial = false;
    node.has_state = true;
    node.digest = job_initial;
    stepped(which, 1);
}

void World::start(uint32_t which, uint64_t incarnation) {
    Node& node = nodes_[which];
    const uint64_t epoch = node.epoch + 1;
    const double slow = node.slow;
    const uint64_t stalled_us = node.stalled_us;
    node = {};
    node.up = true;
    node.incarnation = incarnation;
    node.epoch = epoch;
    node.slow = slow;
    node.stalled_us = stalled_us;
    node.peers.resize(n());
    node.machine = std::make_unique<ViewChange>(ViewConfig{.self = NodeId{which},
                                                           .incarnation = incarnation,
                                                           .nodes = n(),
                                                           .deadline_us = D,
                                                           .members_min = config_.members_min,
                                                           .voters = config_.voters,
                                                           .mutant = config_.mutant,
                                                           .goes_on_with = config_.goes_on_with});
    plan(now_us_ + random(beat_us), which, [this, which] { engine(which); });
    after(which);
}

void World::crash(uint32_t node) {
    nodes_[node].up = false;
    ++nodes_[node].epoch;
}
void World::restart(uint32_t node, bool joins) {
    if (nodes_[node].up && !nodes_[node].machine->ended()) return;
    start(node, nodes_[node].incarnation + 1);
    if (joins) plan(now_us_ + random(D / 4), node, [this, node] { join(node); });
}
void World::join(uint32_t node) {
    if (!nodes_[node].up) return;
    nodes_[node].machine->join(now_us_);
    after(node);
}
void World::stall(uint32_t node, uint64_t us) { nodes_[node].stalled_us = std::max(nodes_[node].stalled_us, now_us_ + us); }
void World::split(const std::vector<uint32_t>& some, bool is) {
    auto within = [&](uint32_t node) { return std::find(some.begin(), some.end(), node) != some.end(); };
    for (uint32_t a = 0; a < n(); ++a)
        for (uint32_t b = 0; b < n(); ++b)
            if (within(a) != within(b)) cut(a, b, is);
}
void World::suspect(uint32_t node, uint32_t of) {
    if (node == of || !nodes_[node].up) return;
    nodes_[node].machine->suspect(NodeId{of}, Suspicion::silent, now_us_);
    after(node);
}
void World::prove(uint32_t dead) {
    if (nodes_[dead].up) return;
    for (uint32_t each = 0; each < n(); ++each)
        if (each != dead && nodes_[each].up) nodes_[each].machine->prove(NodeId{dead}, nodes_[dead].incarnation, now_us_), after(each);
}

void World::at(uint64_t us, std::function<void()> what) { queue_.push({us, ++order_, std::move(what)}); }

/// Something that a node does: not in another life, and not while it is stalled.
void World::plan(uint64_t us, uint32_t node, std::function<void()> what) {
    at(us, [this, node, epoch = nodes_[node].epoch, what = std::move(what)]() mutable {
        Node& its = nodes_[node];
        if (!its.up || its.epoch != epoch) return;
        if (now_us_ < its.stalled_us) return plan(its.stalled_us, node, std::move(what));
        what();
    });
}

bool World::run(uint64_t until_us, const std::function<bool()>& until) {
    while (violation_.empty()) {
        if (until && until()) return true;
        if (queue_.empty() || queue_.top().us > until_us) break;
        Planned next = queue_.top();
        queue_.pop();
        now_us_ = next.us;
        next.what();
    }
    now_us_ = std::max(now_us_, until_us);
    return false;
}

// ---- the machine -------------------------------------------------------------------------------------------------------------------

/// What the machine wants done.
void World::after(uint32_t which) {
    Node& node = nodes_[which];
    const uint64_t epoch = node.epoch;
    for (ViewSend& send_it : std::exchange(node.machine->sends(), {})) {
        said(which, send_it.message);
        const std::vector<std::byte> bytes = view_message_write(send_it.message);
        for (const NodeId to : send_it.to) {
            if (passes && !passes(which, index_of(to), send_it.message)) continue;
            Packet packet;
            packet.kind = Packet::Kind::view;
            packet.from = which;
            packet.to = index_of(to);
            packet.incarnation = node.incarnation;
            packet.bytes = bytes;
            send(std::move(packet));
        }
    }
    for (const ViewNotice& each : std::exchange(node.machine->notices(), {})) {
        notice(which, each);
        if (node.epoch != epoch) return;
    }
    if (!node.machine->sends().empty() || !node.machine->notices().empty()) return after(which);
    if (const uint64_t next_us = node.machine->next_us(); next_us > 0 && (node.tick_us == 0 || next_us < node.tick_us)) {
        node.tick_us = next_us;
        plan(std::max(next_us, now_us_), which, [this, which, next_us] {
            Node& its = nodes_[which];
            if (its.tick_us != next_us) return;
            its.tick_us = 0;
            its.machine->tick(now_us_);
            after(which);
        });
    }
}

void World::notice(uint32_t which, const ViewNotice& notice) {
    Node& node = nodes_[which];
    if (traced) fmt::print("{:.3f} node {}.{} notice {}\n", static_cast<double>(now_us_) / D, which, node.incarnation, notice.what.index());
    std::visit(Overloads{[&](const ViewNotice::Freeze&) { node.frozen = true; }, [&](const ViewNotice::View&) { stop_trainer(which); },
                         [&](const ViewNotice::Step& it) {
                             if (it.has) return;
                             check_common_step(which, it.step);
                             ++(it.sums ? seen_.sums : seen_.states);
                             node.fetching = true;
                             node.wanted = it;
                             fetch(which);
                         },
                         [&](const ViewNotice::Go& it) { go(which, it); }, [&](const ViewNotice::Stays&) { ++seen_.stays; },
                         [&](const ViewNotice::Ended& it) { end(which, it.why); }},
               notice.what);
}

/// Of a new view.  The trainer stops when it has computed its present step.
void World::stop_trainer(uint32_t which) {
    Node& node = nodes_[which];
    node.frozen = true;
    node.session = 0;
    node.fetching = false;
    node.view = node.machine->view();
    check_line(which);
    const uint64_t us = std::max(node.computing ? node.computing_us : 0, now_us_) + random(D / 100);
    plan(us, which, [this, which, number = node.view.number] {
        Node& its = nodes_[which];
        if (its.view.number != number || its.machine->stage() != ViewStage::installing) return;
        its.computing = false;
        if (its.has_state) reported_[number][which] = its.applied;
        its.machine->trainer_stopped({its.has_state, its.has_state ? its.applied : 0, its.digest, 0, 0, its.initial && !config_.resumed},
                                     now_us_);
        after(which);
    });
}

void World::go(uint32_t which, const ViewNotice::Go& go) {
    Node& node = nodes_[which];
    check_common_step(which, go.step);
    const auto [at, fresh] = went_.try_emplace(node.view.number, go.step);
    if (!fresh && at->second != go.step) violate(fmt::format("view {} goes on from two steps", node.view.number));
    if (node.applied != go.step || !node.has_state) {
        node.applied = go.step;
        node.digest = go.digest;
    }
    if (node.digest != state(node.applied, initial_of(node.digest)))
        violate(fmt::format("node {} goes on with another state of step {}", which, node.applied));
    seen_.own_initial += fresh && initial_of(node.digest) != job_initial;
    node.has_state = true;
    node.initial = false;
    check_initial(which);
    be_patient(which, fresh);
    stepped(which, node.view.number);
}

void World::end(uint32_t which, ViewNotice::Ended::Why why) {
    using Why = ViewNotice::Ended::Why;
    Node& node = nodes_[which];
    const bool differ = why == Why::wrong || why == Why::tied;
    if (differ && !wrong_expected_ && !(config_.resumed && node.initial))
        violate(fmt::format("node {} ends because digests differ", which));
    node.ended = why;
    seen_.excluded += why == Why::excluded;
    seen_.minority += why == Why::minority;
    seen_.forgotten += why == Why::forgotten;
    node.session = 0;
    node.frozen = true;
    node.fetching = false;
    if (chance(config_.rejoin_chance)) plan(now_us_ + random(D / 2), which, [this, which] { restart(which, true); });
}

/// As ViewSwitch: all members have the same records of the views.
void World::be_patient(uint32_t which, bool fresh) {
    const auto name = [](uint32_t each) { return fmt::format("n{}", each); };
    const AgreedView& view = nodes_[which].view;
    if (fresh) {
        ViewRecord next{.first_step = nodes_[which].applied + 1};
        for (const ViewMember& member : view.members) next.members.push_back(name(index_of(member.node)));
        for (const ViewMember& member : views_[view.parent].members)
            if (const std::string gone = name(index_of(member.node));
                std::find(next.members.begin(), next.members.end(), gone) == next.members.end())
                next.why += fmt::format("{}{} {}", next.why.empty() ? "" : ", ", gone, why_silent);
        records_ = view_records_with(std::move(records_), std::move(next));
    }
    for (uint32_t each = 0; config_.patient && each < n(); ++each)
        nodes_[which].machine->patience(NodeId{each}, view_records_patience(records_, name(each), nodes_[which].applied));
}

/// What a machine says binds it.
void World::said(uint32_t which, const ViewMessage& message) {
    Node& node = nodes_[which];
    if (message.incarnation != node.incarnation) violate(fmt::format("node {} speaks for another incarnation", which));
    if (traced && !message.is<ViewMessage::State>() && !message.is<ViewMessage::Join>())
        fmt::print("{:.3f} node {}.{} says {} in view {:#x}\n", static_cast<double>(now_us_) / D, which, node.incarnation,
                   message.what.index(), message.view);
    const auto accepts = [&](Ballot ballot) { accepted_[{message.view, ballot}].insert({which, node.incarnation}); };
    const auto promises = [&] {
        if (node.machine->member()) node.promised = std::max(node.promised, message.view);
    };
    std::visit(Overloads{[&](const OneOf<ViewMessage::Prepare, ViewMessage::Promise> auto&) { promises(); },
                         [&](const ViewMessage::Accept& it) { accepts(it.ballot); },
                         [&](const ViewMessage::Accepted& it) {
                             promises();
                             accepts(it.ballot);
                         },
                         [&](const ViewMessage::Nack& it) { seen_.refused += it.promised > 0; },
                         [&](const ViewMessage::View& it) { check_chosen(which, it); },
                         [](const OneOf<ViewMessage::Suspect, ViewMessage::State, ViewMessage::Join> auto&) {}},
               message.what);
}

// ---- the network -------------------------------------------------------------------------------------------------------------------

void World::send(Packet packet) {
    if (chance(config_.loss)) return;
    for (int copies = chance(config_.duplicate) ? 2 : 1; copies > 0; --copies) {
        uint64_t us = now_us_ + config_.delay_us + random(config_.jitter_us);
        if (chance(config_.late)) us += random(config_.late_us);
        us = std::max(us, held_us_[packet.from * n() + packet.to]);
        at(us, [this, packet] {
            const Node& to = nodes_[packet.to];
            if (!to.up || cut_[packet.from * n() + packet.to]) return;
            if (now_us_ < to.stalled_us) plan(to.stalled_us, packet.to, [this, packet] { deliver(packet); });
            else deliver(packet);
        });
    }
}

void World::deliver(const Packet& packet) {
    Node& node = nodes_[packet.to];
    if (!node.up) return;
    ViewChange& machine = *node.machine;
    // A later incarnation at the node's address is the proof that all before it are dead.
    if (packet.incarnation > 1) machine.prove(NodeId{packet.from}, packet.incarnation - 1, now_us_);
    if (packet.kind == Packet::Kind::view) {
        ViewMessage message;
        if (!view_message_parse(packet.bytes, &message)) return violate("a message is refused");
        machine.receive(message, now_us_);
        return after(packet.to);
    }
    machine.traffic_received(NodeId{packet.from}, packet.incarnation, now_us_);
    const bool ours = node.session != 0 && packet.view == node.session && !node.frozen;
    Peer& peer = node.peers[packet.from];
    switch (packet.kind) {
        case Packet::Kind::beat: {
            if (!ours) break;
            peer.received_us = now_us_;
            if (packet.waiting || packet.step != peer.step) peer.moved_us = now_us_;
            peer.step = packet.step;
            peer.waiting = packet.waiting;
            if (packet.step < node.applied) {
                // What it lacks was lost.
                for (StepId step = packet.step; step < std::min(node.applied + 1, packet.step + behind_most); ++step)
                    if (step < node.applied || node.computed)
                        send({.kind = Packet::Kind::record,
                              .from = packet.to,
                              .to = packet.from,
                              .incarnation = node.incarnation,
                              .view = node.session,
                              .step = step,
                              .digest = state(step, initial_of(node.digest)),
                              .waiting = false,
                              .bytes = {}});
            } else if (packet.step == node.applied && node.computed) {
                send({.kind = Packet::Kind::record,
                      .from = packet.to,
                      .to = packet.from,
                      .incarnation = node.incarnation,
                      .view = node.session,
                      .step = node.applied,
                      .digest = node.digest,
                      .waiting = false,
                      .bytes = {}});
            } else if (packet.step > node.applied + behind_most) {
                send({.kind = Packet::Kind::fetch,
                      .from = packet.to,
                      .to = packet.from,
                      .incarnation = node.incarnation,
                      .view = node.session,
                      .step = packet.step,
                      .digest = 0,
                      .waiting = false,
                      .bytes = {}});
            }
            break;
        }
        case Packet::Kind::record:
            if (!ours || packet.step < node.applied) break;
            peer.received_us = peer.moved_us = now_us_;
            node.records[packet.step][packet.from] = packet.digest;
            apply(packet.to);
            break;
        case Packet::Kind::fetch:
            if ((node.has_state || (node.initial && !config_.resumed)) && node.applied == packet.step)
                send({.kind = Packet::Kind::give,
                      .from = packet.to,
                      .to = packet.from,
                      .incarnation = node.incarnation,
                      .view = packet.view,
                      .step = packet.step,
                      .digest = node.digest,
                      .waiting = false,
                      .bytes = {}});
            break;
        case Packet::Kind::give:
            if (ours && packet.step > node.applied) {
                node.applied = packet.step;
                node.digest = packet.digest;
                node.has_state = true;
                node.initial = false;
                stepped(packet.to, node.session);
            } else if (node.fetching && packet.view == node.view.number && packet.step == node.wanted.step &&
                       packet.digest == node.wanted.digest) {
                node.fetching = false;
                plan(now_us_ + random(D / 16), packet.to, [this, which = packet.to, number = packet.view] {
                    Node& its = nodes_[which];
                    if (its.view.number != number || its.machine->stage() != ViewStage::reported) return;
                    uint64_t digest = its.wanted.digest;
                    if (its.wanted.sums) {
                        if (its.promised == number) violate(fmt::format("node {} applies sums after its promise", which));
                        ++its.applied;
                        digest = its.digest = next(its.digest);
                    }
                    its.machine->caught_up(digest, now_us_);
                    after(which);
                });
            }
            break;
        case Packet::Kind::view: break;
    }
    after(packet.to);
}

// ---- the engine --------------------------------------------------------------------------------------------------------------------

/// Heartbeats, and who is silent or stuck in a session.
void World::engine(uint32_t which) {
    Node& node = nodes_[which];
    plan(now_us_ + beat_us, which, [this, which] { engine(which); });
    if (node.fetching) fetch(which);
    if (node.session == 0 || node.frozen) return;
    for (const ViewMember& member : node.view.members) {
        const uint32_t other = index_of(member.node);
        if (other == which) continue;
        Peer& peer = node.peers[other];
        if (now_us_ - peer.received_us > D / 4) {
            if (now_us_ - peer.received_us > node.machine->patience_us(member.node, 4))
                node.machine->suspect(member.node, Suspicion::silent, now_us_);
        } else if (now_us_ - peer.moved_us > D / 4) {
            node.machine->suspect(member.node, Suspicion::stuck, now_us_);
        }
        send({.kind = Packet::Kind::beat,
              .from = which,
              .to = other,
              .incarnation = node.incarnation,
              .view = node.session,
              .step = node.applied,
              .digest = 0,
              .waiting = node.computed || node.initial,
              .bytes = {}});
    }
    after(which);
}

/// A session begins, or a step.
void World::stepped(uint32_t which, uint32_t view) {
    Node& node = nodes_[which];
    if (node.session != view) {
        node.view = node.machine->view();
        node.session = view;
        node.frozen = false;
        node.records.clear();
        for (Peer& peer : node.peers) peer = {.received_us = now_us_, .moved_us = now_us_};
    }
    node.computed = false;
    node.records.erase(node.records.begin(), node.records.lower_bound(node.applied));
    compute(which);
}

void World::compute(uint32_t which) {
    Node& node = nodes_[which];
    if (!node.has_state) return;
    node.computing = true;
    node.computing_us = now_us_ + static_cast<uint64_t>(static_cast<double>(config_.step_us / 2 + random(config_.step_us)) * node.slow);
    plan(node.computing_us, which, [this, which, session = node.session, step = node.applied] {
        Node& its = nodes_[which];
        if (its.session != session || its.applied != step || its.frozen) return;
        its.computing = false;
        its.computed = true;
        its.records[step][which] = its.digest;
        for (const ViewMember& member : its.view.members)
            if (index_of(member.node) != which)
                send({.kind = Packet::Kind::record,
                      .from = which,
                      .to = index_of(member.node),
                      .incarnation = its.incarnation,
                      .view = session,
                      .step = step,
                      .digest = its.digest,
                      .waiting = false,
                      .bytes = {}});
        apply(which);
    });
}

void World::apply(uint32_t which) {
    Node& node = nodes_[which];
    if (node.session == 0 || node.frozen || !node.has_state) return;
    const auto& records = node.records[node.applied];
    const ViewExchange exchange = node.view.fitted();
    auto has = [&](const ViewMember& member) {
        const auto at = records.find(index_of(member.node));
        return at != records.end() && at->second == node.digest;
    };
    const auto count = std::count_if(node.view.members.begin(), node.view.members.end(), has);
    if (count + exchange.s < node.view.n() || !quorum(node.view, has)) return;
    if (node.promised == node.session) return violate(fmt::format("node {} applies step {} between promise and view", which, node.applied));
    const uint64_t initial = initial_of(node.digest);
    ++node.applied;
    node.digest = next(node.digest);
    initial_of_.try_emplace(node.digest, initial);
    if (node.digest != state(node.applied, initial))
        return violate(fmt::format("node {} has another state of step {}", which, node.applied));
    check_initial(which);
    stepped(which, node.session);
    apply(which);
}

void World::fetch(uint32_t which) {
    const Node& node = nodes_[which];
    if (index_of(node.wanted.source) == which) return violate("a node shall fetch from itself");
    send({.kind = Packet::Kind::fetch,
          .from = which,
          .to = index_of(node.wanted.source),
          .incarnation = node.incarnation,
          .view = node.view.number,
          .step = node.wanted.step,
          .digest = 0,
          .waiting = false,
          .bytes = {}});
}

// ---- what must hold ----------------------------------------------------------------------------------------------------------------

void World::violate(const std::string& what) {
    if (violation_.empty()) violation_ = fmt::format("at {:.3f} D: {}\n{}", static_cast<double>(now_us_) / D, what, describe());
}

bool World::quorum(const AgreedView& view, const std::function<bool(const ViewMember&)>& has) const {
    const uint32_t voters = config_.voters > 0 ? std::min(config_.voters, view.n()) : view.n();
    const auto count = static_cast<uint32_t>(std::count_if(view.members.begin(), view.members.begin() + voters, has));
    return 2 * count > voters || (2 * count == voters && has(view.members[0]));
}

/// All members that live and have applied a step began with the same initial values.
void World::check_initial(uint32_t which) {
    const Node& node = nodes_[which];
    for (uint32_t each = 0; each < n(); ++each)
        if (const Node& other = nodes_[each]; node.applied > 0 && other.applied > 0 && in(each) && other.has_state && !wrong_expected_ &&
                                              initial_of(other.digest) != initial_of(node.digest))
            violate(fmt::format("nodes {} and {} began with other initial values", which, each));
}

/// Of all views with a living member each is an ancestor of the next.
void World::check_line(uint32_t which) {
    Node& node = nodes_[which];
    const AgreedView& view = node.view;
    if (view.number <= node.installed) violate(fmt::format("node {} installs view {:#x} after {:#x}", which, view.number, node.installed));
    node.installed = view.number;
    const auto [at, fresh] = views_.try_emplace(view.number, view);
    if (!fresh && at->second != view) violate(fmt::format("there are two views {:#x}", view.number));
    std::set<uint32_t> living;
    for (uint32_t each = 0; each < n(); ++each)
        if (in(each)) living.insert(nodes_[each].view.number);
    for (auto later = living.begin(); later != living.end(); ++later) {
        if (later == living.begin()) continue;
        uint32_t ancestor = *later;
        while (ancestor > *std::prev(later)) ancestor = views_.contains(ancestor) ? views_[ancestor].parent : 0;
        if (ancestor != *std::prev(later)) violate(fmt::format("views {:#x} and {:#x} are two lines", *std::prev(later), *later));
    }
}

/// Whoever says that a view was chosen has the votes for it, of the right incarnations, or all others are really dead.
void World::check_chosen(uint32_t which, const ViewMessage::View& said) {
    const uint32_t parent = said.value.parent;
    if (parent == 0 || !chosen_.insert({parent, said.chosen}).second) return;
    if (!views_.contains(parent)) return violate(fmt::format("node {} tells of a view of nobody's", which));
    auto& voters = accepted_[{parent, said.chosen}];
    if (index_of(proposer_of(said.chosen)) == which) voters.insert({which, nodes_[which].incarnation});   // alone it sends nothing
    auto voted = [&](const ViewMember& member) { return voters.contains({index_of(member.node), member.incarnation}); };
    const AgreedView& view = views_[parent];
    ++seen_.views;
    seen_.adopted += said.chosen != said.value.number;
    for (const ViewMember& member : said.value.members)
        seen_.joiners += std::none_of(view.members.begin(), view.members.end(), [&](const ViewMember& old) {
            return old.node == member.node && old.incarnation == member.incarnation;
        });
    if (quorum(view, voted)) {
        const auto [at, first] = by_quorum_.try_emplace(parent, said.value.number);
        if (!first && at->second != said.value.number)
            violate(fmt::format("view {:#x} has chosen {:#x} and {:#x}", parent, at->second, said.value.number));
        return;
    }
    ++seen_.by_proof;
    for (const ViewMember& member : view.members) {
        const Node& node = nodes_[index_of(member.node)];
        const bool lives = node.up && node.incarnation == member.incarnation && !node.machine->ended();
        if (lives && !voted(member)) violate(fmt::format("view {:#x} is chosen without a quorum", said.value.number));
    }
}

void World::check_common_step(uint32_t which, StepId step) {
    for (const auto& [member, applied] : reported_[nodes_[which].view.number])
        if (applied > step)
            violate(
                fmt::format("view {:#x} goes on from step {}, node {} has applied {}", nodes_[which].view.number, step, member, applied));
}

bool World::settled(const std::vector<uint32_t>& members) const {
    for (uint32_t each = 0; each < n(); ++each) {
        const bool wanted = std::find(members.begin(), members.end(), each) != members.end();
        if (wanted != in(each) && (wanted || nodes_[each].up)) return false;
        if (wanted && (!going(each) || nodes_[each].view.n() != members.size() || nodes_[each].view != nodes_[members[0]].view))
            return false;
    }
    return true;
}

AgreedView World::newest() const {
    AgreedView newest;
    for (uint32_t each = 0; each < n(); ++each)
        if (in(each) && nodes_[each].machine->view().number > newest.number) newest = nodes_[each].machine->view();
    return newest;
}

bool World::quorum_lives() const {
    const AgreedView view = newest();
    return view.number > 0 && quorum(view, [&](const ViewMember& member) {
               const Node& node = nodes_[index_of(member.node)];
               return node.up && node.incarnation == member.incarnation && !node.machine->ended();
           });
}

StepId World::highest() const {
    StepId highest = 0;
    for (const ViewMember& member : newest().members) {
        const Node& node = nodes_[index_of(member.node)];
        if (node.up && node.incarnation == member.incarnation && node.has_state) highest = std::max(highest, node.applied);
    }
    return highest;
}

std::string World::describe() const {
    std::string text;
    for (uint32_t each = 0; each < n(); ++each) {
        const Node& node = nodes_[each];
        text += fmt::format("  node {} incarnation {}", each, node.incarnation);
        if (!node.up) {
            text += " is down\n";
            continue;
        }
        const AgreedView& view = node.machine->view();
        text += fmt::format(" view {:#x} of", view.number);
        for (const ViewMember& member : view.members) text += fmt::format(" {}.{}", index_of(member.node), member.incarnation);
        text += fmt::format(", stage {}, {}step {}{}\n", static_cast<int>(node.machine->stage()), node.machine->ended() ? "ended, " : "",
                            node.applied, node.stalled_us > now_us_ ? ", stalled" : "");
    }
    return text;
}

}   // namespace gradcast
