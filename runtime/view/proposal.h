// One proposal of the next view: its votes, and what follows from them.  Steps 4 to 6 of runtime/view/VIEWS.md.
#pragma once
#include "runtime/view/rules.h"

namespace gradcast {

constexpr uint32_t patience_max = 8;

/// What one node knows of another of the job, whatever its incarnation.
struct ViewNode {
    uint64_t newest = 0;                     // incarnation heard of
    uint64_t dead = 0;                       // this incarnation and all before it are proven dead
    uint64_t heard_us = 0;                   // at last; or when a view began that has it
    uint64_t said_us = 0;                    // at last, of itself
    Suspicion suspicion = Suspicion::none;   // of the newest
    uint64_t ready_us = 0;                   // its last JOIN, 0: none
    uint64_t retry_us = 0;                   // a joiner that a view has left out is no reason for another one before
    uint32_t left_out = 0;                   // how often
    uint16_t weight = 1;
    uint32_t patience = 1;   // so many times as long as another one it is waited for
    NodeId told{};           // its last SUSPECT of a loss that the exchange covers: who is lost
    uint64_t told_us = 0;    // and when; 0: none

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

    void promised(const ViewMessage& message);
    void accepted(const ViewMessage& message);
    bool answered(NodeId node) const;   // in this phase

    /// True once: a quorum has promised, and whoever else may is here or was waited for.  value() is then to be accepted.
    bool propose(std::span<const ViewNode> nodes, const ViewAction& action, uint32_t members_min, uint64_t now_us);
    /// A quorum has accepted value().
    bool chosen() const;

private:
    /// Every member that is not proven dead votes, and so does every other node of the job: it knows no later view.  One that only an
    /// operator takes in is asked if it was ever heard of here: members of a view have heard each other.
    bool all_living_promised(std::span<const ViewNode> nodes) const;
    bool quorum(bool ViewVote::*vote) const;
    /// The next view by the votes so far.
    AgreedView composed(std::span<const ViewNode> nodes, const ViewAction& action);
    /// Somebody has not promised yet who is still waited for: D/16 after the quorum, times its patience or the proposer's.
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
