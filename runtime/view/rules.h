// What follows from votes and reports, apart from messages and time: when there is a quorum, which view is proposed, which step the members
// go on from (the common step).
#pragma once
#include <span>
#include <vector>

#include "runtime/view/messages.h"

namespace gradcast {

/// Faults that tests put in, to see them found.
enum class ViewMutant : uint8_t { none, no_ballots, no_freeze, lowest_step, any_half, number_reused, own_initial };

/// More than half of the members that vote; or exactly half of them with rank 0.  The first `voters` ranks vote, all where that is 0.
bool view_quorum(const std::vector<bool>& ranks, uint32_t voters, ViewMutant mutant = ViewMutant::none);

/// The answers of a node in a proposal.
struct ViewVote {
    bool promised = false, accepted = false;
    bool member = false;   // of the view that chooses, with this incarnation
    bool has_state = false;
    bool ready = false;      // no member and wants to be
    bool excluded = false;   // it may vote, but not go on
    uint64_t incarnation = 0;
    std::vector<uint64_t> reach;   // bits of nodes
};

/// The next view's members: of those that have promised the most that reach one another, then as many READY joiners as there are members
/// with a state, at most.  `votes` by node, `weights` by node.  Empty: nobody among them has a state.
std::vector<ViewMember> view_compose(const AgreedView& view, std::span<const ViewVote> votes, std::span<const uint16_t> weights);

/// The step T that a new view goes on from, by the states that its members have reported.  Where no member knows a state and some have
/// initial values, T is 0, and the state is that of the lowest of these ranks.
struct CommonStep {
    bool found = false;   // a member has a state, or initial values
    StepId step = 0;      // T
    uint64_t digest = 0;
    bool tied = false;         // two digests for T have the most members
    uint32_t source = 0;       // the lowest rank with the digest
    std::vector<bool> wrong;   // by rank: has another digest for T
};
CommonStep view_common_step(std::span<const ViewState> states, ViewMutant mutant = ViewMutant::none);

}   // namespace gradcast
