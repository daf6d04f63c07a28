// One proposal of the next view: its votes, and what follows from them.  Steps 4 to 6 of runtime/view/VIEWS.md.
#pragma once
#include <functional>

#include "runtime/view/rules.h"

namespace gradcast {

constexpr uint32_t patience_max = 8;

/// The knowledge of one node about another node of the job, of any incarnation.
struct ViewNode {
    uint64_t newest = 0;                     // newest incarnation known
    uint64_t dead = 0;                       // this incarnation and all before it are proven dead
    uint64_t alive_us = 0;                   // its last traffic, or the begin of a view that has it if that is later
    uint64_t received_us = 0;                // its last traffic
    Suspicion suspicion = Suspicion::none;   // of the newest
    uint64_t ready_us = 0;                   // its last JOIN, 0: none
    uint64_t retry_us = 0;                   // an omitted joiner is no reason for another view before this time
    uint32_t times_omitted = 0;              // views that have omitted this joiner
    uint16_t weight = 1;
    uint32_t patience = 1;          // multiplies how long it is waited for
    NodeId covered_loss{};          // whom its last SUSPECT names, of a loss that the exchange covers
    uint64_t covered_loss_us = 0;   // when it came; 0: none

    bool proven_dead() const { return dead > 0 && dead >= newest; }
};

class ViewProposal {
public:
    ViewProposal(const AgreedView& view, Ballot ballot, uint32_t nodes, uint32_t asked, uint32_t voters, ViewMutant mutant);
    void grow(uint32_t nodes) { votes_.resize(nodes); }
    Ballot ballot() const { return ballot_; }
    bool accepting() const { return accepting_; }
    const AgreedView& value() const { return value_; }
    uint64_t accepting_us() const { return accepting_us_; }

    void promised(NodeId from, uint64_t incarnation, const ViewMessage::Promise& promise);
    void accepted(NodeId from, uint64_t incarnation);
    bool answered(NodeId node) const;   // in this phase

    /// True once: a quorum has promised, and whoever else may is here or was waited for.  value() is then to be accepted.
    /// A drain is dropped if the job does not go on with the members that would remain: `enough` is asked; null: members_min decides.
    bool propose(std::span<const ViewNode> nodes, const ViewAction& action, uint32_t members_min, uint64_t now_us,
                 const std::function<bool(std::span<const ViewMember>)>& enough = {});
    /// A quorum has accepted value().
    bool chosen() const;

private:
    bool is_member(NodeId node, uint64_t incarnation) const;
    /// Every member that is not proven dead has promised, and so has every other node of the job: no later view exists.  A node that only
    /// an operator can add counts once it is known here, because the members of a view know each other.
    bool all_living_promised(std::span<const ViewNode> nodes) const;
    bool quorum(bool ViewVote::*vote) const;
    /// The next view that follows from the votes so far.
    AgreedView composed(std::span<const ViewNode> nodes, const ViewAction& action);
    /// A node has not promised yet and is still waited for: until D/16 after the quorum, times its patience or the proposer's.
    bool others_missing(std::span<const ViewNode> nodes, uint64_t now_us) const;

    const AgreedView& view_;   // that chooses; outlives this
    const Ballot ballot_;
    const uint32_t asked_, voters_;
    const ViewMutant mutant_;
    std::vector<ViewVote> votes_;   // by node
    bool accepting_ = false, by_proof_ = false;
    std::vector<bool> needed_;   // by node: with proofs of death, who promised must accept
    uint64_t quorum_us_ = 0, accepting_us_ = 0;
    Ballot highest_ = 0;
    AgreedView accepted_, value_;
};

}   // namespace gradcast
