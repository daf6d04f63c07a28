#include "runtime/view/rules.h"

#include <algorithm>
#include <map>

#include "runtime/core/bits.h"

namespace gradcast {
namespace {

constexpr uint32_t search_most = 1 << 15;   // sets that one search visits, of which there may be exponentially many

bool reaches(const ViewVote& vote, uint32_t node) { return node / 64 < vote.reach.size() && bit(vote.reach.data(), node); }

/// Nodes that reach one another: the most, and of equal many those of lower ranks.
class Clique {
public:
    Clique(std::span<const ViewVote> votes, std::vector<uint32_t> nodes) : votes_(votes), nodes_(std::move(nodes)) {}
    std::vector<uint32_t> find() {
        std::vector<uint32_t> chosen;
        search(0, chosen);
        // A search that gave up early keeps too few of very many nodes, so a greedy one tries too: it drops those that reach the fewest
        // first.
        if (searches_remaining_ == 0)
            if (std::vector<uint32_t> other = greedy(); other.size() > best_.size()) best_ = std::move(other);
        return best_;
    }

private:
    bool mutual(uint32_t a, uint32_t b) const { return reaches(votes_[a], b) && reaches(votes_[b], a); }
    void search(size_t at, std::vector<uint32_t>& chosen) {
        if (chosen.size() > best_.size()) best_ = chosen;
        if (at == nodes_.size() || chosen.size() + (nodes_.size() - at) <= best_.size() || searches_remaining_ == 0) return;
        --searches_remaining_;
        const uint32_t node = nodes_[at];
        if (std::all_of(chosen.begin(), chosen.end(), [&](uint32_t each) { return mutual(each, node); })) {
            chosen.push_back(node);
            search(at + 1, chosen);
            chosen.pop_back();
        }
        search(at + 1, chosen);
    }
    std::vector<uint32_t> greedy() const {
        std::vector<uint32_t> rest = nodes_;
        for (;;) {
            size_t worst = 0, fewest = rest.size();
            for (size_t i = 0; i < rest.size(); ++i) {
                const size_t links = static_cast<size_t>(
                    std::count_if(rest.begin(), rest.end(), [&](uint32_t each) { return each != rest[i] && mutual(each, rest[i]); }));
                if (links <= fewest) {
                    fewest = links;
                    worst = i;
                }
            }
            if (rest.empty() || fewest + 1 == rest.size()) return rest;
            rest.erase(rest.begin() + static_cast<ptrdiff_t>(worst));
        }
    }

    std::span<const ViewVote> votes_;
    std::vector<uint32_t> nodes_, best_;
    uint32_t searches_remaining_ = search_most;
};

}   // namespace

bool view_quorum(const std::vector<bool>& ranks, uint32_t voters, ViewMutant mutant) {
    const size_t n = voters > 0 ? std::min(size_t{voters}, ranks.size()) : ranks.size();
    const size_t count = static_cast<size_t>(std::count(ranks.begin(), ranks.begin() + static_cast<ptrdiff_t>(n), true));
    if (2 * count != n) return 2 * count > n;
    return mutant == ViewMutant::any_half || (count > 0 && ranks[0]);
}

std::vector<ViewMember> view_compose(const AgreedView& view, std::span<const ViewVote> votes, std::span<const uint16_t> weights) {
    std::vector<uint32_t> kept, stateful;
    for (const ViewMember& member : view.members) {
        const uint32_t node = index_of(member.node);
        if (!votes[node].promised || !votes[node].member || votes[node].excluded) continue;
        kept.push_back(node);
        if (votes[node].has_state) stateful.push_back(node);
    }
    kept = Clique(votes, kept).find();
    auto has_state = [&](uint32_t node) { return votes[node].has_state; };
    if (std::none_of(kept.begin(), kept.end(), has_state)) kept = Clique(votes, stateful).find();
    const size_t most = static_cast<size_t>(std::count_if(kept.begin(), kept.end(), has_state));
    // A quorum of the new view always holds somebody with a state.
    size_t without = 0;
    std::erase_if(kept, [&](uint32_t node) { return !votes[node].has_state && ++without > most; });
    without = std::min(without, most);
    std::vector<ViewMember> members;
    for (const uint32_t node : kept) members.push_back({NodeId{node}, votes[node].incarnation, weights[node]});
    std::stable_partition(members.begin(), members.end(), [&](const ViewMember& each) { return has_state(index_of(each.node)); });
    for (uint32_t node = 0; node < votes.size() && without < most; ++node) {
        const ViewVote& vote = votes[node];
        if (!vote.promised || !vote.ready || vote.member || vote.excluded) continue;
        if (!std::all_of(members.begin(), members.end(), [&](const ViewMember& each) {
                return reaches(vote, index_of(each.node)) && reaches(votes[index_of(each.node)], node);
            }))
            continue;
        members.push_back({NodeId{node}, vote.incarnation, weights[node]});
        ++without;
    }
    return members;
}

CommonStep view_common_step(std::span<const ViewState> states, ViewMutant mutant) {
    CommonStep common;
    for (const ViewState& state : states) {
        if (!state.known) continue;
        const bool further = mutant == ViewMutant::lowest_step ? state.applied < common.step : state.applied > common.step;
        if (!common.found || further) common.step = state.applied;
        common.found = true;
    }
    std::map<uint64_t, uint32_t> counts;
    for (const ViewState& state : states)
        if (state.known && state.applied == common.step) ++counts[state.digest];
    uint32_t most = 0;
    for (const auto& [digest, count] : counts) {
        common.tied = count == most || (common.tied && count < most);
        if (count > most) {
            most = count;
            common.digest = digest;
        }
    }
    common.wrong.resize(states.size());
    common.source = static_cast<uint32_t>(states.size());
    for (uint32_t rank = 0; rank < states.size(); ++rank) {
        const bool nobody_knows = !common.found || mutant == ViewMutant::own_initial;
        if (nobody_knows && states[rank].initial) {
            common = {.found = true, .digest = states[rank].digest, .source = rank, .wrong = std::move(common.wrong)};
            return common;
        }
        if (!states[rank].known || states[rank].applied != common.step) continue;
        common.wrong[rank] = states[rank].digest != common.digest;
        if (!common.wrong[rank]) common.source = std::min(common.source, rank);
    }
    return common;
}

}   // namespace gradcast
