// ViewChange: the step that a new view goes on from.  Steps 8 to 11 of runtime/view/VIEWS.md.
#include <algorithm>

#include "runtime/view/change.h"

namespace gradcast {

ViewMessage ViewChange::state_message() const {
    ViewMessage said = message(ViewMessage::Kind::state);
    said.stage = stage_;
    if (rank_) {
        said.state = peers_[*rank_].state;
        said.ready_digest = peers_[*rank_].ready_digest;
    }
    return said;
}

void ViewChange::returned(const ViewState& state, uint64_t now_us) {
    if (ended_ || stage_ != ViewStage::installing) return;
    GC_ASSERT(state.known == has_state_);
    stage_ = ViewStage::reported;
    peers_[*rank_].stage = stage_;
    peers_[*rank_].state = state;
    send_members(state_message());
    recover(now_us);
}

void ViewChange::caught_up(uint64_t digest, uint64_t now_us) {
    if (ended_ || stage_ != ViewStage::reported || !met_) return;
    stage_ = ViewStage::ready;
    peers_[*rank_].stage = stage_;
    peers_[*rank_].ready_digest = digest;
    send_members(state_message());
    recover(now_us);
}

void ViewChange::state_said(const ViewMessage& said, uint64_t now_us) {
    if (!rank_) return;
    Peer& peer = peers_[*rank_of(said.from)];
    if (said.stage != ViewStage::frozen && said.stage > peer.stage) {
        peer.stage = said.stage;
        if (said.stage >= ViewStage::reported) peer.state = said.state;
        if (said.stage >= ViewStage::ready) peer.ready_digest = said.ready_digest;
    }
    if (stage_ == ViewStage::going && said.stage < ViewStage::going) send({said.from}, state_message());
    recover(now_us);
}

void ViewChange::recover(uint64_t now_us) {
    if (stage_ == ViewStage::reported && !met_) meet(now_us);
    if (!ended_ && stage_ == ViewStage::ready) go_if_all_ready();
}

/// Step 9.
void ViewChange::meet(uint64_t now_us) {
    std::vector<ViewState> states;
    for (const Peer& peer : peers_) {
        if (peer.stage < ViewStage::reported) return;
        states.push_back(peer.state);
    }
    meeting_ = view_meet(states, config_.mutant);
    met_ = true;
    met_us_ = now_us;
    if (!meeting_.found || meeting_.tied) return end(ViewNotice::Kind::tied, meeting_.step);
    if (meeting_.wrong[*rank_]) return end(ViewNotice::Kind::wrong, meeting_.step);
    bool others = false;
    for (uint32_t rank = 0; rank < view_.n(); ++rank)
        if (meeting_.wrong[rank]) {
            node(view_.members[rank].node).suspicion = Suspicion::expelled;
            others = true;
        }
    if (others) return;   // the next view is without them
    const ViewState& own = states[*rank_];
    if (own.known && own.applied >= meeting_.step) {
        ViewNotice met{.kind = ViewNotice::Kind::met, .step = meeting_.step, .digest = meeting_.digest};
        met.source = view_.members[meeting_.source].node;
        for (uint32_t rank = 0; rank < view_.n(); ++rank)
            if (!states[rank].known || states[rank].applied < meeting_.step) met.behind.push_back(view_.members[rank].node);
        notices_.push_back(std::move(met));
        return caught_up(own.digest, now_us);
    }
    notices_.push_back({.kind = ViewNotice::Kind::catch_up,
                        .step = meeting_.step,
                        .digest = meeting_.digest,
                        .source = view_.members[meeting_.source].node,
                        .sums = own.known && own.applied + 1 == meeting_.step});
}

/// Step 11.
void ViewChange::go_if_all_ready() {
    std::vector<ViewState> states;
    ViewNotice go{.kind = ViewNotice::Kind::go, .step = meeting_.step, .digest = meeting_.digest};
    for (const Peer& peer : peers_) {
        if (peer.stage < ViewStage::ready) return;
        // Who was one step behind has computed the state too, and may have found another.
        const bool computed = peer.state.known && peer.state.applied + 1 >= meeting_.step;
        states.push_back({computed, meeting_.step, peer.ready_digest});
        if (peer.state.evaluation_step > go.evaluation_step) {
            go.evaluation_step = peer.state.evaluation_step;
            go.evaluation = peer.state.evaluation;
        }
    }
    const ViewMeeting found = view_meet(states);
    if (found.tied) return end(ViewNotice::Kind::tied, meeting_.step);
    if (found.wrong[*rank_]) return end(ViewNotice::Kind::wrong, found.step);
    bool others = false;
    for (uint32_t rank = 0; rank < view_.n(); ++rank)
        if (found.wrong[rank]) {
            node(view_.members[rank].node).suspicion = Suspicion::expelled;
            others = true;
        }
    if (others) return;
    stage_ = ViewStage::going;
    peers_[*rank_].stage = stage_;
    has_state_ = true;
    notices_.push_back(go);
    send_members(state_message());
}

}   // namespace gradcast
