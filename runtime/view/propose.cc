// ViewChange: who proposes the next view, and when.
#include <algorithm>

#include "runtime/view/change.h"

namespace gradcast {

/// The reason for which this node asks for another view.
ViewChange::Reason ViewChange::reason(uint64_t now_us) const {
    if (action_.kind != ViewAction::Kind::none && stage_ == ViewStage::going) return {config_.self, Suspicion::command};
    // Catching up needs all members.
    const bool covered = stage_ == ViewStage::going && suspected_count() <= view_.fitted().s;
    Reason lost;
    for (const ViewMember& member : view_.members) {
        if (member.node == config_.self || !suspected(member)) continue;
        const ViewNode& its = nodes_[index_of(member.node)];
        const bool restarted = its.newest > member.incarnation || its.dead >= member.incarnation;
        lost = {member.node, restarted ? Suspicion::restarted : its.suspicion, covered};
        break;
    }
    if (stage_ != ViewStage::going || (lost.why != Suspicion::none && !covered)) return lost;
    // A loss that waits for a quorum holds up no joiner.
    for (uint32_t each = 0; each < config_.nodes && !ending_; ++each) {
        const ViewNode& its = nodes_[each];
        const bool fresh = its.ready_us > 0 && now_us - its.ready_us < part(4) && now_us >= its.retry_us;
        if (fresh && !ranks_[each] && its.suspicion == Suspicion::none) return {NodeId{each}, Suspicion::joiner};
    }
    return lost;
}

/// The first member after `after` that is not suspected, from the lowest on again.
std::optional<uint32_t> ViewChange::next_proposer(std::optional<uint32_t> after) const {
    const uint32_t n = view_.n(), first = after ? *after + 1 : 0;
    for (uint32_t i = 0; i < n; ++i) {
        const uint32_t rank = (first + i) % n;
        if (rank == *rank_ || !suspected(view_.members[rank])) return rank;
    }
    return *rank_;
}

/// Among the members that are not suspected.
uint32_t ViewChange::position() const {
    uint32_t before = 0;
    for (uint32_t rank = 0; rank < *rank_; ++rank) before += !suspected(view_.members[rank]);
    return before;
}

/// Step 1.
void ViewChange::ask_for_change(uint64_t now_us) {
    if (stage_ == ViewStage::frozen || proposal_) return asked_.reset();
    const Reason why = reason(now_us);
    if (why.why == Suspicion::none) return asked_.reset();
    const bool first = !asked_;
    if (first || now_us - asked_us_ >= part(8)) {
        asked_ = next_proposer(asked_);
        asked_us_ = now_us;
        resend_us_ = now_us;
    }
    if (why.covered) {
        node(config_.self).covered_loss = why.node;
        node(config_.self).covered_loss_us = now_us;
    }
    if (*asked_ == *rank_) {
        if (!why.covered || confirmed(why.node, now_us)) propose(now_us);
        return;
    }
    if (now_us < resend_us_) return;
    resend_us_ = now_us + part(32);
    send({view_.members[*asked_].node},
         message(ViewMessage::Suspect{
             .node = why.node, .why = why.why, .covered = why.covered, .action = why.why == Suspicion::command ? action_ : ViewAction{}}));
}

/// A quorum has named this node as lost.
bool ViewChange::confirmed(NodeId lost, uint64_t now_us) const {
    std::vector<bool> ranks(view_.n());
    for (uint32_t rank = 0; rank < view_.n(); ++rank) {
        const ViewNode& its = nodes_[index_of(view_.members[rank].node)];
        ranks[rank] = its.covered_loss_us > 0 && its.covered_loss == lost && now_us - its.covered_loss_us < part(4);
    }
    return view_quorum(ranks, config_.voters);
}

void ViewChange::suspect_received(NodeId from, const ViewMessage::Suspect& said, uint64_t now_us) {
    if (!rank_) return;
    if (said.why == Suspicion::command && !possible(said.action)) return;
    if (said.why == Suspicion::command && action_.kind == ViewAction::Kind::none) action_ = said.action;
    if (said.covered) {
        node(from).covered_loss = said.node;
        node(from).covered_loss_us = now_us;
    }
    if (stage_ == ViewStage::frozen || proposal_ || (ending_ && said.why == Suspicion::joiner)) return;
    if (!said.covered || confirmed(said.node, now_us)) propose(now_us);
}

/// Step 2.
void ViewChange::propose(uint64_t now_us) {
    const uint32_t least = config_.mutant == ViewMutant::number_reused ? 0 : round_of(view_.number);
    const uint32_t round = std::max({round_of(promised_), least, round_least_}) + 1;
    repropose_us_ = 0;
    if (round > round_max) return;
    promised_ = ballot_of(round, config_.self);
    promised_us_ = now_us;
    freeze(now_us);
    proposal_.emplace(view_, promised_, config_.nodes, config_.asked, config_.voters, config_.mutant);
    resend_us_ = now_us;
    advance(now_us);
}

void ViewChange::nack(Ballot promised, uint64_t now_us) {
    if (!proposal_ || promised <= proposal_->ballot()) return;
    round_least_ = std::max(round_least_, round_of(promised));
    proposal_.reset();
    repropose_us_ = now_us + std::min(position(), 8u) * part(32);
    wake(now_us);
}

/// Steps 4 to 6; repeats messages that were lost.
void ViewChange::advance(uint64_t now_us) {
    if (!proposal_) return;
    proposal_->promised(config_.self, config_.incarnation, promise(promised_, now_us));   // with its present reach
    const auto enough_go_on = [this](std::span<const ViewMember> members) { return enough(members); };
    if (proposal_->propose(nodes_, action_, config_.members_min, now_us, enough_go_on)) {
        promised_ = accepted_ = proposal_->ballot();
        promised_us_ = now_us;
        accepted_value_ = proposal_->value();
        no_quorum_us_ = 0;
        proposal_->accepted(config_.self, config_.incarnation);
        resend_us_ = now_us;
    }
    if (proposal_->chosen()) {
        const AgreedView next = proposal_->value();
        const Ballot ballot = proposal_->ballot();
        std::vector<NodeId> to;
        for (const AgreedView* view : std::initializer_list<const AgreedView*>{&view_, &next})
            for (const ViewMember& member : view->members)
                if (std::find(to.begin(), to.end(), member.node) == to.end()) to.push_back(member.node);
        learn(next, ballot, now_us);
        return send_view(std::move(to));
    }
    if (now_us < resend_us_) return;
    resend_us_ = now_us + part(32);
    ViewMessage::What said = ViewMessage::Prepare{proposal_->ballot()};
    if (proposal_->accepting()) said = ViewMessage::Accept{proposal_->ballot(), proposal_->value()};
    std::vector<NodeId> to;
    for (uint32_t each = 0; each < config_.nodes; ++each)
        if (!proposal_->answered(NodeId{each})) to.push_back(NodeId{each});
    send(std::move(to), message(std::move(said)));
}

/// A member that has promised and sees no view proposes itself.
void ViewChange::propose_again(uint64_t now_us) {
    if (stage_ != ViewStage::frozen) return;
    // The proposer may be waiting for a member with patience.
    uint64_t late_us = part(8);
    for (const ViewMember& member : view_.members) late_us = std::max(late_us, patience_us(member.node, 8));
    if (repropose_us_ > 0 ? now_us >= repropose_us_ : !proposal_ && now_us - promised_us_ >= late_us) propose(now_us);
    else if (proposal_ && proposal_->accepting() && now_us - proposal_->accepting_us() >= late_us) propose(now_us);
}

}   // namespace gradcast
