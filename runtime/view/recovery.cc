// ViewChange: the common step, from which a new view goes on.  Steps 8 to 11 of runtime/view/VIEWS.md.
#include <algorithm>

#include "runtime/view/change.h"

namespace gradcast {

using Why = ViewNotice::Ended::Why;

ViewMessage ViewChange::state_message() const {
    const Peer own = rank_ ? peers_[*rank_] : Peer{};
    return message(ViewMessage::State{stage_, own.state, own.ready_digest});
}

void ViewChange::trainer_stopped(const ViewState& state, uint64_t now_us) {
    if (ended_ || stage_ != ViewStage::installing) return;
    GC_ASSERT((has_state_ || !(state.known || state.initial)) && !(state.known && state.initial));
    stage_ = ViewStage::reported;
    peers_[*rank_].stage = stage_;
    peers_[*rank_].state = state;
    send_members(state_message());
    recover(now_us);
}

void ViewChange::caught_up(uint64_t digest, uint64_t now_us) {
    if (ended_ || stage_ != ViewStage::reported || !agreed_) return;
    stage_ = ViewStage::ready;
    peers_[*rank_].stage = stage_;
    peers_[*rank_].ready_digest = digest;
    send_members(state_message());
    recover(now_us);
}

void ViewChange::state_received(NodeId from, const ViewMessage::State& said, uint64_t now_us) {
    if (!rank_) return;
    Peer& peer = peers_[*rank_of(from)];
    if (said.stage != ViewStage::frozen && said.stage > peer.stage) {
        peer.stage = said.stage;
        if (said.stage >= ViewStage::reported) peer.state = said.state;
        if (said.stage >= ViewStage::ready) peer.ready_digest = said.ready_digest;
    }
    if (stage_ == ViewStage::going && said.stage < ViewStage::going) send({from}, state_message());
    recover(now_us);
}

void ViewChange::recover(uint64_t now_us) {
    if (stage_ == ViewStage::reported && !agreed_) agree_on_step(now_us);
    if (!ended_ && stage_ == ViewStage::ready) go_if_all_ready();
}

/// Step 9.
void ViewChange::agree_on_step(uint64_t now_us) {
    std::vector<ViewState> states;
    for (const Peer& peer : peers_) {
        if (peer.stage < ViewStage::reported) return;
        states.push_back(peer.state);
    }
    common_ = view_common_step(states, config_.mutant);
    agreed_ = true;
    agreed_us_ = now_us;
    if (!common_.found || common_.tied) return end({.why = Why::tied, .step = common_.step});
    if (common_.wrong[*rank_]) return end({.why = Why::wrong, .step = common_.step});
    bool others = false;
    for (uint32_t rank = 0; rank < view_.n(); ++rank)
        if (common_.wrong[rank]) {
            node(view_.members[rank].node).suspicion = Suspicion::expelled;
            others = true;
        }
    if (others) return;   // the next view is without them
    const auto has = [&](uint32_t rank) {
        return states[rank].known ? states[rank].applied >= common_.step : states[rank].initial && rank == common_.source;
    };
    const ViewState& own = states[*rank_];
    ViewNotice::Step step{.step = common_.step,
                          .digest = common_.digest,
                          .source = view_.members[common_.source].node,
                          .has = has(*rank_),
                          .sums = own.known && own.applied + 1 == common_.step};
    for (uint32_t rank = 0; rank < view_.n() && step.has; ++rank)
        if (!has(rank)) step.behind.push_back(view_.members[rank].node);
    const bool ready = step.has;
    notices_.push_back({std::move(step)});
    if (ready) caught_up(own.digest, now_us);
}

/// Step 11.
void ViewChange::go_if_all_ready() {
    std::vector<ViewState> states;
    ViewNotice::Go go{.step = common_.step, .digest = common_.digest};
    for (const Peer& peer : peers_) {
        if (peer.stage < ViewStage::ready) return;
        // A member that was one step behind has computed the state too, perhaps with another digest.
        const bool computed = peer.state.known && peer.state.applied + 1 >= common_.step;
        states.push_back({computed, common_.step, peer.ready_digest});
        if (peer.state.evaluation_step > go.evaluation_step) {
            go.evaluation_step = peer.state.evaluation_step;
            go.evaluation = peer.state.evaluation;
        }
    }
    const CommonStep found = view_common_step(states);
    if (found.tied) return end({.why = Why::tied, .step = common_.step});
    if (found.wrong[*rank_]) return end({.why = Why::wrong, .step = found.step});
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
    notices_.push_back({go});
    send_members(state_message());
}

}   // namespace gradcast
