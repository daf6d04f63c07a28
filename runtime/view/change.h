// How the nodes of a job agree on its next view (runtime/view/VIEWS.md, "Change of view"): single-decree Paxos in memory among the members
// of the last one, then the step that the new one goes on from.  A state machine of one node in one incarnation: messages, facts and time
// in, messages and notices out.  No call blocks; one thread at a time.
//
//   outside ---VIEW with us---> installing --returned--> reported --caught_up--> ready --all ready--> going --promise--> frozen
//                                   ^                                                                                      |
//                                   +------------------------------------ VIEW --------------------------------------------+
//
// A promise freezes from any stage.  A member that a VIEW leaves out, or that finds no quorum, has ended.  The owner
//   * hands in each message of a peer of which link and configuration say that it is the node and the incarnation that it names;
//   * is a later incarnation of its node after a restart, and after this one has ended;
//   * tells heard() for what else it hears of a peer, suspect() while it suspects one, prove() for a death that is proven;
//   * calls tick() at next_us(), and after each call sends sends() and does notices();
//   * keeps one for every job that its node is asked about, member or not: nodes outside answer too (see ViewProposal).
//
// During a change a member is suspected that is silent for D/4, and where enough others remain one whose trainer has not returned D/4 after
// a VIEW, or that has not caught up D/2 after the step was known; all that times patience().  Without a quorum in reach for D, or without a
// view 4 D after a promise, or a first step 4 D after a view, the node ends as a minority.
#pragma once
#include <optional>

#include "runtime/core/status.h"
#include "runtime/view/proposal.h"

namespace gradcast {

struct ViewConfig {
    NodeId self{};
    uint64_t incarnation = 0;               // not 0
    uint32_t nodes = 0;                     // of the job: all that may be its members
    uint32_t asked = 0;                     // so many count for a quorum by proof (ViewProposal), the others once heard of; 0: all
    uint64_t deadline_us = 30'000'000;      // until a view tells D
    uint32_t members_min = 1;               // fewer do not go on
    uint32_t voters = 0;                    // so many first ranks of a view vote; 0: all
    ViewMutant mutant = ViewMutant::none;   // of tests alone
};

struct ViewSend {
    std::vector<NodeId> to;
    ViewMessage message;
};

struct ViewNotice {
    enum class Kind : uint8_t {
        freeze,      // nothing more may be applied: every wait and block of the trainer returns view_changed
        view,        // view() is to be installed; when the trainer has returned and the session is gone: returned().  Freezes too
        met,         // this node has the state of `step`, that all go on from; `source` is to send it to the nodes `behind`
        catch_up,    // get the state of `step`, whose digest is `digest`, from `source`, then caught_up(): by its sums where `sums`, else
                     // all of it, which is used from `go` on
        go,          // all have the state of `step`: the session begins
        excluded,    // ended: view() goes on without this node, which may join again as a later incarnation
        minority,    // ended: no quorum within the deadline
        wrong,       // ended: others have computed another digest for `step`
        tied,        // ended: members differ about `step`, and nobody can tell who is right
        forgotten,   // ended: a joiner that hears nothing of its view; it may join again as a later incarnation
    } kind{};
    StepId step = 0;
    uint64_t digest = 0;
    NodeId source{};
    bool sums = false;
    uint64_t evaluation_step = 0, evaluation = 0;          // go: the newest that a member knows
    std::vector<NodeId> behind = {};                       // met: who gets all of it
    uint32_t living = 0;                                   // minority: members that are heard; a quorum: fewer than members_min
    std::vector<std::pair<NodeId, Suspicion>> left = {};   // view: members of the one before that are not in it, and what is known here
};

class ViewChange {
public:
    explicit ViewChange(const ViewConfig& config);

    void deadline(uint64_t deadline_us) { config_.deadline_us = deadline_us; }   // before begin() or join()
    void grow(uint32_t nodes);                                                   // so many may be members from here on
    /// A member of the job's first view, with the state that it starts from.
    void begin(const AgreedView& first, uint64_t now_us);
    /// Its engine is open: it wants to be a member.
    void join(uint64_t now_us);

    void receive(const ViewMessage& message, uint64_t now_us);
    void tick(uint64_t now_us);
    uint64_t next_us() const { return next_us_; }   // 0: nothing to do until something comes

    void heard(NodeId node, uint64_t incarnation, uint64_t now_us);
    /// During a change this member, and others while this node is one that needs it, is waited for so many times as long before it is
    /// suspected, and so is its promise.  Until it is told anew; 1 at first.
    void patience(NodeId node, uint32_t factor);
    /// D over `divisor`, times the patience with this node.
    uint64_t patience_us(NodeId node, uint32_t divisor) const;
    /// silent or stuck.  silent ends when the node is heard, stuck by why none.
    void suspect(NodeId node, Suspicion why, uint64_t now_us);
    /// This incarnation and all before it are dead: an authenticated later one at the node's configured address, a pidfd, an operator.
    void prove(NodeId node, uint64_t incarnation, uint64_t now_us);
    /// The operator says so; false: the node answers.
    bool force_dead(NodeId node, uint64_t now_us);
    /// An action that would leave too few members is dropped.
    void ask(const ViewAction& action, uint64_t now_us);
    /// It has told the others of its view that it has the last step: they may be gone before another view is agreed on, so none is
    /// proposed for a joiner's sake.  Until the next view.
    void ending() { ending_ = true; }
    void weigh(NodeId node, uint16_t weight) { nodes_[index_of(node)].weight = weight; }   // its share of blocks in the next view
    /// After notice `view`, with nothing known where this node is a joiner.
    void returned(const ViewState& state, uint64_t now_us);
    /// After notice `catch_up`, with the digest that its sums gave.
    void caught_up(uint64_t digest, uint64_t now_us);

    const AgreedView& view() const { return view_; }   // the newest known; number 0: none
    bool member() const { return rank_.has_value() && !ended_; }
    bool ended() const { return ended_; }
    ViewStage stage() const { return stage_; }

    std::vector<ViewSend>& sends() { return sends_; }         // the owner empties it
    std::vector<ViewNotice>& notices() { return notices_; }   // likewise

private:
    struct Peer {   // of the view, by rank
        ViewStage stage{};
        ViewState state;
        uint64_t ready_digest = 0;
    };
    uint64_t part(uint32_t divisor) const { return (view_.number ? view_.deadline_us : config_.deadline_us) / divisor; }
    ViewNode& node(NodeId which) { return nodes_[index_of(which)]; }
    bool possible(const ViewAction& action) const;
    bool changing() const { return rank_ && stage_ != ViewStage::going; }
    bool suspected(const ViewMember& member) const;
    uint32_t suspected_count() const;
    std::vector<bool> unsuspected() const;   // by rank, with this one
    std::optional<uint32_t> rank_of(NodeId node) const;

    // change.cc: the acceptor, and what it knows
    ViewMessage message(ViewMessage::Kind kind) const;
    void send(std::vector<NodeId> to, ViewMessage message);
    void send_members(const ViewMessage& message);
    void send_everybody(const ViewMessage& message);
    void send_view(std::vector<NodeId> to);
    void notice(ViewNotice::Kind kind) { notices_.push_back({.kind = kind}); }
    void end(ViewNotice::Kind kind, StepId step = 0);
    void freeze(uint64_t now_us);
    void prepare(const ViewMessage& said, uint64_t now_us);
    void accept(const ViewMessage& said, uint64_t now_us);
    void learn(const AgreedView& view, Ballot chosen, uint64_t now_us);
    bool acceptable(const AgreedView& value, Ballot ballot) const;
    std::vector<uint64_t> reach(uint64_t now_us) const;
    bool hears_members(const ViewMessage& joiner) const;
    ViewMessage promise_message(Ballot ballot, uint64_t now_us) const;
    void wake(uint64_t now_us);
    void watch(uint64_t now_us);

    // propose.cc: who proposes, and when
    struct Reason {
        NodeId node{};
        Suspicion why = Suspicion::none;
        bool covered = false;
    };
    Reason reason(uint64_t now_us) const;
    void ask_for_change(uint64_t now_us);
    bool confirmed(NodeId lost, uint64_t now_us) const;
    std::optional<uint32_t> next_proposer(std::optional<uint32_t> after) const;
    uint32_t position() const;
    void suspect_said(const ViewMessage& said, uint64_t now_us);
    void propose(uint64_t now_us);
    void nack(const ViewMessage& said, uint64_t now_us);
    void advance(uint64_t now_us);
    void propose_again(uint64_t now_us);

    // recovery.cc: the step that the view goes on from
    ViewMessage state_message() const;
    void state_said(const ViewMessage& said, uint64_t now_us);
    void recover(uint64_t now_us);
    void meet(uint64_t now_us);
    void go_if_all_ready();

    ViewConfig config_;
    std::vector<ViewNode> nodes_;   // by NodeId; the own entry has the own incarnation
    std::vector<ViewSend> sends_;
    std::vector<ViewNotice> notices_;
    bool ended_ = false, ending_ = false, wants_in_ = false, has_state_ = false;

    AgreedView view_;
    Ballot chosen_ = 0;                            // in which view_ was
    std::optional<uint32_t> rank_;                 // in view_
    std::vector<std::optional<uint32_t>> ranks_;   // by NodeId
    ViewStage stage_ = ViewStage::outside;
    uint64_t learnt_us_ = 0, frozen_us_ = 0, met_us_ = 0, lonely_us_ = 0, next_us_ = 0, beat_us_ = 0, join_us_ = 0;

    Ballot promised_ = 0, accepted_ = 0;   // of view_'s next
    AgreedView accepted_value_;
    uint64_t promised_us_ = 0;

    std::optional<ViewProposal> proposal_;
    uint32_t round_least_ = 0;
    uint64_t again_us_ = 0, resend_us_ = 0;   // a proposal was refused: the next one then
    ViewAction action_;                       // asked for and not agreed on yet
    std::optional<uint32_t> asked_;           // rank that SUSPECT went to
    uint64_t asked_us_ = 0;

    std::vector<Peer> peers_;   // by rank; the own entry counts too
    ViewMeeting meeting_;
    bool met_ = false;
};

}   // namespace gradcast
