#include "runtime/view/change.h"

#include <algorithm>
#include <utility>

#include "runtime/core/bits.h"
#include "runtime/core/overloads.h"

namespace gradcast {

using Why = ViewNotice::Ended::Why;

ViewChange::ViewChange(const ViewConfig& config) : config_(config), nodes_(config.nodes), ranks_(config.nodes) {
    GC_ASSERT(config.nodes <= nodes_max && index_of(config.self) < config.nodes && config.incarnation > 0);
    node(config.self).newest = config.incarnation;
}

void ViewChange::grow(uint32_t nodes) {
    if (nodes <= config_.nodes || nodes > nodes_max) return;
    config_.nodes = nodes;
    nodes_.resize(nodes);
    ranks_.resize(nodes);
    if (proposal_) proposal_->grow(nodes);
}

void ViewChange::begin(const AgreedView& first, uint64_t now_us) {
    has_state_ = true;
    learn(first, first.number, now_us);
    notices_.clear();
    GC_ASSERT(rank_);
    stage_ = ViewStage::going;
    wake(now_us);
}

void ViewChange::join(uint64_t now_us) {
    if (ended_ || rank_) return;
    joining_ = true;
    wake(now_us);
}

// ---- what goes out -----------------------------------------------------------------------------------------------------------------

ViewMessage ViewChange::message(ViewMessage::What what) const {
    return {.from = config_.self, .incarnation = config_.incarnation, .view = view_.number, .what = std::move(what)};
}

void ViewChange::send(std::vector<NodeId> to, ViewMessage message) {
    std::erase(to, config_.self);
    if (!to.empty()) sends_.push_back({std::move(to), std::move(message)});
}

void ViewChange::send_members(const ViewMessage& message) {
    std::vector<NodeId> to;
    for (const ViewMember& member : view_.members) to.push_back(member.node);
    send(std::move(to), message);
}

void ViewChange::send_everybody(const ViewMessage& message) {
    std::vector<NodeId> to;
    for (uint32_t each = 0; each < config_.nodes; ++each) to.push_back(NodeId{each});
    send(std::move(to), message);
}

void ViewChange::send_view(std::vector<NodeId> to) { send(std::move(to), message(ViewMessage::View{chosen_, view_})); }

void ViewChange::end(ViewNotice::Ended how) {
    notices_.push_back({how});
    ended_ = true;
    proposal_.reset();
    next_us_ = 0;
}

// ---- what is known of others -------------------------------------------------------------------------------------------------------

std::optional<uint32_t> ViewChange::rank_of(NodeId which) const { return ranks_[index_of(which)]; }

bool ViewChange::suspected(const ViewMember& member) const {
    const ViewNode& its = nodes_[index_of(member.node)];
    return its.suspicion != Suspicion::none || its.newest > member.incarnation || its.dead >= member.incarnation;
}

uint32_t ViewChange::suspected_count() const {
    return static_cast<uint32_t>(
        std::count_if(view_.members.begin(), view_.members.end(), [this](const ViewMember& each) { return suspected(each); }));
}

std::vector<bool> ViewChange::unsuspected() const {
    std::vector<bool> ranks;
    for (const ViewMember& each : view_.members) ranks.push_back(each.node == config_.self || !suspected(each));
    return ranks;
}

void ViewChange::traffic_received(NodeId which, uint64_t incarnation, uint64_t now_us) {
    if (index_of(which) >= config_.nodes || which == config_.self) return;
    ViewNode& its = node(which);
    if (incarnation < its.newest || incarnation <= its.dead) return;
    if (incarnation > its.newest) {
        its.newest = incarnation;
        its.suspicion = Suspicion::none;
        its.ready_us = its.retry_us = its.covered_loss_us = 0;
        its.times_omitted = 0;
    }
    if (joining_ && !rank_ &&
        (its.received_us == 0 || now_us - its.received_us >= part(4)))   // the first traffic for long: the joiner announces itself at once
        join_us_ = next_us_ = now_us;
    its.alive_us = its.received_us = now_us;
    if (its.suspicion == Suspicion::silent) its.suspicion = Suspicion::none;
    if (const auto rank = rank_of(which); rank && suspected(view_.members[*rank])) wake(now_us);
}

void ViewChange::suspect(NodeId which, Suspicion why, uint64_t now_us) {
    if (index_of(which) >= config_.nodes || which == config_.self) return;
    Suspicion& suspicion = node(which).suspicion;
    if (suspicion == Suspicion::expelled || suspicion == why) return;
    suspicion = why;
    wake(now_us);
}

void ViewChange::prove(NodeId which, uint64_t incarnation, uint64_t now_us) {
    if (index_of(which) >= config_.nodes || which == config_.self) return;
    uint64_t& dead = node(which).dead;
    dead = std::max(dead, incarnation);
    wake(now_us);
}

void ViewChange::patience(NodeId which, uint32_t factor) {
    if (index_of(which) < config_.nodes) node(which).patience = std::max(factor, 1u);
}

uint64_t ViewChange::patience_us(NodeId which, uint32_t divisor) const {
    // A member that a joiner misses is missed by the others too, and they know its patience.
    const uint32_t own = has_state_ ? nodes_[index_of(config_.self)].patience : patience_max;
    return part(divisor) * std::max(nodes_[index_of(which)].patience, own);
}

bool ViewChange::force_dead(NodeId which, uint64_t now_us) {
    if (index_of(which) >= config_.nodes || which == config_.self) return false;
    ViewNode& its = node(which);
    const auto rank = rank_of(which);
    if (its.suspicion == Suspicion::none && (rank ? !suspected(view_.members[*rank]) : now_us - its.alive_us < part(4) && its.newest > 0))
        return false;
    prove(which, std::max({its.newest, rank ? view_.members[*rank].incarnation : 0, uint64_t{1}}), now_us);
    return true;
}

void ViewChange::ask(const ViewAction& action, uint64_t now_us) {
    if (ended_) return;
    if (!possible(action)) return drop(action);
    action_ = action;
    wake(now_us);
}

bool ViewChange::possible(const ViewAction& action) const {
    if (action.kind != ViewAction::Kind::drain) return true;
    if (index_of(action.node) >= config_.nodes || !rank_of(action.node)) return false;
    std::vector<ViewMember> others = view_.members;
    std::erase_if(others, [&](const ViewMember& each) { return each.node == action.node; });
    return enough(others);
}

bool ViewChange::enough(std::span<const ViewMember> members) const {
    if (members.size() < std::max(config_.members_min, 1u)) return false;
    if (!config_.goes_on_with) return true;
    std::vector<NodeId> nodes;
    for (const ViewMember& each : members) nodes.push_back(each.node);
    return config_.goes_on_with(nodes);
}

void ViewChange::drop(const ViewAction& action) {
    if (action.kind == ViewAction::Kind::drain && action.node == config_.self && rank_) notices_.push_back({ViewNotice::Stays{}});
}

// ---- what comes in -----------------------------------------------------------------------------------------------------------------

void ViewChange::receive(const ViewMessage& said, uint64_t now_us) {
    if (index_of(said.from) >= config_.nodes || said.from == config_.self) return;
    const ViewNode& its = node(said.from);
    if (said.incarnation < its.newest || said.incarnation <= its.dead) return;   // an old incarnation never votes
    traffic_received(said.from, said.incarnation, now_us);
    const auto* view = std::get_if<ViewMessage::View>(&said.what);
    if (view && view->value.number >= view_.number && !ended_) return learn(view->value, view->chosen, now_us);
    // A node that is behind is answered with the view.  A node that is ahead answers a NACK with its view.
    if (said.view < view_.number) {
        if (const auto* join = std::get_if<ViewMessage::Join>(&said.what); join && reaches_members(said.from, join->reach)) {
            node(said.from).ready_us = now_us;
            wake(now_us);
        }
        return send_view({said.from});
    }
    if (ended_) return;
    if (said.view > view_.number) {
        if (said.is<ViewMessage::State>()) early_.insert_or_assign(said.from, said);
        return refuse(said.from);
    }
    const auto rank = rank_of(said.from);
    const bool from_member = rank && view_.members[*rank].incarnation == said.incarnation;
    std::visit(Overloads{[&](const ViewMessage::Suspect& it) {
                             if (from_member) suspect_received(said.from, it, now_us);
                         },
                         [&](const ViewMessage::Prepare& it) {
                             if (from_member) prepare(said.from, it.ballot, now_us);
                         },
                         [&](const ViewMessage::Accept& it) {
                             if (from_member) accept(said.from, it, now_us);
                         },
                         [&](const ViewMessage::Promise& it) {
                             if (!proposal_ || it.ballot != proposal_->ballot()) return;
                             proposal_->promised(said.from, said.incarnation, it);
                             advance(now_us);
                         },
                         [&](const ViewMessage::Accepted& it) {
                             if (!proposal_ || it.ballot != proposal_->ballot()) return;
                             proposal_->accepted(said.from, said.incarnation);
                             advance(now_us);
                         },
                         [&](const ViewMessage::Nack& it) { nack(it.promised, now_us); },
                         [&](const ViewMessage::State& it) {
                             if (from_member) state_received(said.from, it, now_us);
                         },
                         [&](const ViewMessage::Join& it) {
                             if (!from_member && reaches_members(said.from, it.reach)) node(said.from).ready_us = now_us;
                             wake(now_us);
                             send({said.from}, state_message());   // so that the joiner knows whom it reaches
                         },
                         [](const ViewMessage::View&) {}},
               said.what);
}

// ---- the acceptor ------------------------------------------------------------------------------------------------------------------

void ViewChange::freeze(uint64_t now_us) {
    if (!rank_ || stage_ == ViewStage::frozen) return;
    if (config_.mutant != ViewMutant::no_freeze) notices_.push_back({ViewNotice::Freeze{}});
    // From now on watch() suspects silent members.
    if (stage_ == ViewStage::going)
        for (ViewNode& each : nodes_) each.alive_us = now_us;
    stage_ = ViewStage::frozen;
    frozen_us_ = now_us;
    wake(now_us);
}

/// Bits of the nodes whose traffic this node receives.
std::vector<uint64_t> ViewChange::reach(uint64_t now_us) const {
    std::vector<uint64_t> bits(bit_words(config_.nodes));
    for (uint32_t each = 0; each < config_.nodes; ++each) {
        const ViewNode& its = nodes_[each];
        const bool own = each == index_of(config_.self);
        if (!rank_ && !own) {   // that a VIEW names a member does not show that this joiner receives from it
            if (its.suspicion == Suspicion::none && its.received_us > 0 && now_us - its.received_us < part(4)) set_bit(bits.data(), each);
            continue;
        }
        const bool present = ranks_[each] ? its.newest == 0 || its.newest <= view_.members[*ranks_[each]].incarnation : false;
        if (own ||
            (its.suspicion == Suspicion::none && !its.proven_dead() && (present || (its.newest > 0 && now_us - its.alive_us < part(4)))))
            set_bit(bits.data(), each);
    }
    return bits;
}

/// A joiner that does not reach all members would be omitted, and all would have stopped in vain.
bool ViewChange::reaches_members(NodeId joiner, std::span<const uint64_t> reach) const {
    return std::all_of(view_.members.begin(), view_.members.end(), [&](const ViewMember& member) {
        const uint32_t at = index_of(member.node);
        return member.node == joiner || (member.node != config_.self && suspected(member)) ||
               (at / 64 < reach.size() && bit(reach.data(), at));
    });
}

ViewMessage::Promise ViewChange::promise(Ballot ballot, uint64_t now_us) const {
    ViewMessage::Promise said{.ballot = ballot, .has_state = has_state_, .ready = joining_ && !rank_, .reach = reach(now_us)};
    if (accepted_ > 0 && accepted_ < ballot && config_.mutant != ViewMutant::no_ballots) {
        said.accepted = accepted_;
        said.value = accepted_value_;
    }
    return said;
}

/// Names the ballot that this node has promised.
void ViewChange::refuse(NodeId proposer) { send({proposer}, message(ViewMessage::Nack{promised_})); }

void ViewChange::prepare(NodeId proposer, Ballot ballot, uint64_t now_us) {
    if (proposer_of(ballot) != proposer) return;
    if (config_.mutant != ViewMutant::no_ballots && (ballot < promised_ || ballot == accepted_)) return refuse(proposer);
    if (ballot != promised_) {
        // A proposer that was refused goes on unless one of a lower rank has come meanwhile.
        if (repropose_us_ > 0 && rank_ && *rank_of(proposer) < *rank_) repropose_us_ = 0;
        promised_ = ballot;
        promised_us_ = now_us;
        if (config_.mutant != ViewMutant::no_ballots) proposal_.reset();
    }
    freeze(now_us);
    send({proposer}, message(promise(ballot, now_us)));
}

bool ViewChange::acceptable(const AgreedView& value, Ballot ballot) const {
    const bool numbered = round_of(value.number) > round_of(view_.number) && value.number <= ballot;
    return value.parent == view_.number && (numbered || config_.mutant == ViewMutant::number_reused) &&
           std::all_of(value.members.begin(), value.members.end(),
                       [this](const ViewMember& each) { return index_of(each.node) < config_.nodes; });
}

void ViewChange::accept(NodeId proposer, const ViewMessage::Accept& said, uint64_t now_us) {
    if (proposer_of(said.ballot) != proposer || !acceptable(said.value, said.ballot)) return;
    if (config_.mutant != ViewMutant::no_ballots && said.ballot < promised_) return refuse(proposer);
    if (proposal_ && said.ballot != proposal_->ballot()) proposal_.reset();
    promised_ = accepted_ = said.ballot;
    promised_us_ = now_us;
    accepted_value_ = said.value;
    no_quorum_us_ = 0;
    freeze(now_us);
    send({proposer}, message(ViewMessage::Accepted{said.ballot}));
}

void ViewChange::learn(const AgreedView& next, Ballot chosen, uint64_t now_us) {
    const bool reused = config_.mutant == ViewMutant::number_reused && next != view_;
    if (next.number <= view_.number && !reused) return;
    if (!std::all_of(next.members.begin(), next.members.end(),
                     [this](const ViewMember& each) { return index_of(each.node) < config_.nodes; }))
        return;
    // What this node has accepted in a later ballot may have been chosen by those who had proof that all who chose `next` are dead: such a
    // message is an old one.
    if (next.parent == view_.number && chosen < accepted_ && next != accepted_value_ && config_.mutant != ViewMutant::no_ballots) return;
    const auto own = std::find_if(next.members.begin(), next.members.end(), [this](const ViewMember& each) {
        return each.node == config_.self && each.incarnation == config_.incarnation;
    });
    const bool in = own != next.members.end();
    // A node becomes a member only by its own promise in the view before.
    if (in && next.parent != view_.number) return;
    const bool was_in = rank_.has_value();
    std::vector<std::pair<NodeId, Suspicion>> departed;
    for (const ViewMember& member : view_.members) {
        const ViewNode& its = nodes_[index_of(member.node)];
        const bool stays =
            std::any_of(next.members.begin(), next.members.end(), [&](const ViewMember& each) { return each.node == member.node; });
        const bool restarted = its.newest > member.incarnation || its.dead >= member.incarnation;
        if (!stays) departed.emplace_back(member.node, restarted ? Suspicion::restarted : its.suspicion);
    }
    view_ = next;
    chosen_ = chosen;
    promised_ = accepted_ = 0;
    proposal_.reset();
    round_least_ = 0;
    repropose_us_ = 0;
    asked_.reset();
    learnt_us_ = now_us;
    no_quorum_us_ = 0;
    agreed_ = false;
    ranks_.assign(config_.nodes, {});
    for (uint32_t rank = 0; rank < view_.n(); ++rank) ranks_[index_of(view_.members[rank].node)] = rank;
    peers_.assign(view_.n(), {});
    const bool acted = action_ == view_.action || (action_.kind == ViewAction::Kind::drain && !ranks_[index_of(action_.node)]) ||
                       (action_.kind == ViewAction::Kind::exchange && action_.exchange == view_.exchange);
    const ViewAction dropped = !acted && !possible(action_) ? action_ : ViewAction{};
    if (acted || dropped.kind != ViewAction::Kind::none) action_ = {};
    for (uint32_t each = 0; each < config_.nodes; ++each) {
        ViewNode& its = nodes_[each];
        its.covered_loss_us = 0;
        if (ranks_[each]) {
            its.newest = std::max(its.newest, view_.members[*ranks_[each]].incarnation);
            if (its.suspicion != Suspicion::expelled) its.suspicion = Suspicion::none;
            its.alive_us = now_us;
            its.ready_us = 0;
            its.times_omitted = 0;
        } else if (its.ready_us > 0) {
            its.retry_us = now_us + part(1) * ((1u << std::min(its.times_omitted++, 6u)) - 1);
        }
    }
    if (was_in && !in) {
        rank_.reset();
        stage_ = ViewStage::outside;
        return end({.why = Why::excluded});
    }
    if (!in) return wake(now_us);
    rank_ = static_cast<uint32_t>(own - next.members.begin());
    stage_ = ViewStage::installing;
    joining_ = ending_ = false;
    notices_.push_back({ViewNotice::View{std::move(departed)}});
    drop(dropped);
    wake(now_us);
    count_early(now_us);
}

/// A STATE that came before the VIEW counts now.  Its repetition may be held back behind packets of the view, which opens here only once
/// all states are known.
void ViewChange::count_early(uint64_t now_us) {
    std::erase_if(early_, [this](const auto& each) { return each.second.view < view_.number; });
    for (const auto& [from, said] : std::exchange(early_, {}))
        if (said.view == view_.number) receive(said, now_us);
        else early_.emplace(from, said);
}

// ---- time --------------------------------------------------------------------------------------------------------------------------

/// Makes tick() due if nothing was due before.
void ViewChange::wake(uint64_t now_us) {
    if (next_us_ == 0 && !ended_) next_us_ = now_us;
}

void ViewChange::tick(uint64_t now_us) {
    next_us_ = 0;
    if (ended_) return;
    if (rank_) watch(now_us);
    if (ended_) return;
    if (changing()) {
        if (now_us >= beat_us_) {
            beat_us_ = now_us + part(40);
            send_members(state_message());
        }
        recover(now_us);
    }
    if (joining_ && !rank_ && now_us >= join_us_) {
        join_us_ = now_us + part(16);
        send_everybody(message(ViewMessage::Join{reach(now_us)}));
    }
    if (rank_ && !ended_) {
        ask_for_change(now_us);
        advance(now_us);
        propose_again(now_us);
    }
    const bool busy = changing() || joining_ || proposal_ || no_quorum_us_ > 0 || asked_ || reason(now_us).why != Suspicion::none;
    if (!ended_ && busy) next_us_ = now_us + part(64);
    else if (!ended_ && rank_) {
        // A joiner that was omitted asks again later.
        for (const ViewNode& each : nodes_)
            if (each.ready_us > 0 && now_us - each.ready_us < part(4)) next_us_ = now_us + part(16);
    }
}

/// Suspects members that are silent or stuck while a change runs, and ends this node if it finds no quorum.
void ViewChange::watch(uint64_t now_us) {
    uint64_t alive_us = 0;
    for (uint32_t rank = 0; rank < view_.n(); ++rank) {
        const ViewMember& member = view_.members[rank];
        ViewNode& its = node(member.node);
        if (rank != *rank_ && changing() && its.suspicion == Suspicion::none) {
            const ViewStage stage = peers_[rank].stage;
            const bool late =
                stage_ != ViewStage::frozen && ((stage < ViewStage::reported && now_us - learnt_us_ > patience_us(member.node, 4)) ||
                                                (agreed_ && stage < ViewStage::ready && now_us - agreed_us_ > patience_us(member.node, 2)));
            if (now_us - its.alive_us > patience_us(member.node, 4)) its.suspicion = Suspicion::silent;
            else if (late) its.suspicion = Suspicion::stuck;
        }
        if (rank != *rank_) alive_us = std::max(alive_us, its.alive_us);
    }
    std::vector<bool> living = unsuspected();
    uint32_t count = view_.n() - suspected_count();
    if (changing() && !(view_quorum(living, config_.voters) &&
                        count >= config_.members_min)) {   // without a quorum all wait for members that are only slow
        for (const ViewMember& member : view_.members)
            if (node(member.node).suspicion == Suspicion::stuck) node(member.node).suspicion = Suspicion::none;
        living = unsuspected();
        count = view_.n() - suspected_count();
    }
    if (!has_state_ && now_us - std::max(alive_us, learnt_us_) > part(2)) return end({.why = Why::forgotten});
    if (view_quorum(living, config_.voters) && count >= config_.members_min) no_quorum_us_ = 0;
    else if (no_quorum_us_ == 0) no_quorum_us_ = now_us;
    const bool too_long = changing() && now_us - std::max(learnt_us_, frozen_us_) > 4 * part(1);
    if ((no_quorum_us_ == 0 || now_us - no_quorum_us_ < part(1)) && !too_long) return;
    const bool few = view_quorum(living, config_.voters) && count < config_.members_min;
    end({.why = has_state_ ? Why::minority : Why::forgotten, .living = few ? count : 0});
}

}   // namespace gradcast
