#include "runtime/view/proposal.h"

#include <algorithm>

namespace gradcast {

ViewProposal::ViewProposal(const AgreedView& view, Ballot ballot, uint32_t nodes, uint32_t asked, uint32_t voters, ViewMutant mutant)
    : view_(view), ballot_(ballot), asked_(asked), voters_(voters), mutant_(mutant), votes_(nodes) {}

bool ViewProposal::is_member(NodeId node, uint64_t incarnation) const {
    return std::any_of(view_.members.begin(), view_.members.end(),
                       [&](const ViewMember& member) { return member.node == node && member.incarnation == incarnation; });
}

void ViewProposal::promised(NodeId from, uint64_t incarnation, const ViewMessage::Promise& promise) {
    ViewVote& vote = votes_[index_of(from)];
    if (accepting_ || incarnation < vote.incarnation) return;
    vote = {};
    vote.promised = true;
    vote.incarnation = incarnation;
    vote.has_state = promise.has_state;
    vote.ready = promise.ready;
    vote.reach = promise.reach;
    vote.member = is_member(from, incarnation);
    if (promise.accepted <= highest_) return;
    highest_ = promise.accepted;
    accepted_ = promise.value;
}

void ViewProposal::accepted(NodeId from, uint64_t incarnation) {
    ViewVote& vote = votes_[index_of(from)];
    if (!accepting_) return;
    // A node that has accepted has promised, even if its PROMISE was lost.
    if (vote.incarnation == 0) {
        vote.incarnation = incarnation;
        vote.member = is_member(from, incarnation);
    }
    if (vote.incarnation == incarnation) vote.accepted = true;
}

bool ViewProposal::answered(NodeId node) const {
    const ViewVote& vote = votes_[index_of(node)];
    return accepting_ ? vote.accepted : vote.promised;
}

bool ViewProposal::quorum(bool ViewVote::*vote) const {
    std::vector<bool> ranks(view_.n());
    for (uint32_t rank = 0; rank < view_.n(); ++rank) {
        const ViewVote& its = votes_[index_of(view_.members[rank].node)];
        ranks[rank] = its.*vote && its.member;
    }
    return view_quorum(ranks, voters_, mutant_);
}

bool ViewProposal::all_living_promised(std::span<const ViewNode> nodes) const {
    for (const ViewMember& member : view_.members) {
        const ViewVote& vote = votes_[index_of(member.node)];
        const bool votes = vote.promised && vote.incarnation == member.incarnation;
        if (!votes && nodes[index_of(member.node)].dead < member.incarnation) return false;
    }
    for (size_t node = 0; node < nodes.size(); ++node) {
        if (asked_ > 0 && node >= asked_ && nodes[node].newest == 0) continue;
        const bool votes = votes_[node].promised && votes_[node].incarnation >= nodes[node].newest;
        if (!votes && !nodes[node].proven_dead()) return false;
    }
    return true;
}

bool ViewProposal::others_missing(std::span<const ViewNode> nodes, uint64_t now_us) const {
    const uint64_t waited_us = now_us - quorum_us_, part_us = view_.deadline_us / 16;
    const uint32_t own = nodes[index_of(proposer_of(ballot_))].patience;
    for (const ViewMember& member : view_.members) {
        const ViewNode& node = nodes[index_of(member.node)];
        if (!votes_[index_of(member.node)].promised && node.suspicion == Suspicion::none && node.dead < member.incarnation &&
            waited_us < part_us * std::max(own, node.patience))
            return true;
    }
    for (size_t node = 0; node < nodes.size() && waited_us < part_us; ++node)
        if (nodes[node].ready_us > 0 && now_us - nodes[node].ready_us < view_.deadline_us / 4 && !votes_[node].promised) return true;
    return false;
}

AgreedView ViewProposal::composed(std::span<const ViewNode> nodes, const ViewAction& action) {
    std::vector<uint16_t> weights;
    for (const ViewNode& node : nodes) weights.push_back(node.weight);
    for (size_t node = 0; node < nodes.size(); ++node) {
        const bool leaves = action.kind == ViewAction::Kind::drain && index_of(action.node) == node;
        const bool gone = nodes[node].newest > votes_[node].incarnation || nodes[node].proven_dead();
        votes_[node].excluded = leaves || gone || nodes[node].suspicion == Suspicion::expelled;
    }
    return {.number = ballot_,
            .parent = view_.number,
            .deadline_us = view_.deadline_us,
            .exchange = action.kind == ViewAction::Kind::exchange ? action.exchange : view_.exchange,
            .action = action,
            .members = view_compose(view_, votes_, weights)};
}

bool ViewProposal::propose(std::span<const ViewNode> nodes, const ViewAction& action, uint32_t members_min, uint64_t now_us,
                           const std::function<bool(std::span<const ViewMember>)>& enough) {
    if (accepting_) return false;
    by_proof_ = all_living_promised(nodes);
    if (!by_proof_ && !quorum(&ViewVote::promised)) return false;
    if (quorum_us_ == 0) quorum_us_ = now_us;
    if (others_missing(nodes, now_us)) return false;
    if (highest_ > 0) {
        value_ = accepted_;
    } else {
        value_ = composed(nodes, action);
        if (action.kind == ViewAction::Kind::drain && (value_.n() < std::max(members_min, 1u) || (enough && !enough(value_.members))))
            value_ = composed(nodes, {});
        if (value_.members.empty() || value_.n() < members_min) return false;
    }
    needed_.assign(nodes.size(), false);
    for (size_t node = 0; node < nodes.size(); ++node) needed_[node] = votes_[node].promised && !nodes[node].proven_dead();
    accepting_ = true;
    accepting_us_ = now_us;
    return true;
}

bool ViewProposal::chosen() const {
    if (!accepting_) return false;
    if (quorum(&ViewVote::accepted)) return true;
    if (!by_proof_) return false;
    for (size_t node = 0; node < needed_.size(); ++node)
        if (needed_[node] && !votes_[node].accepted) return false;
    return true;
}

}   // namespace gradcast
