// How the nodes of a job agree on its next view (runtime/view/VIEWS.md, "Change of view"): single-decree Paxos in memory among the members
// of the last one, then the step that the new one goes on from.  A state machine of one node in one incarnation: messages, facts and time
// in, messages and notices out.  No call blocks; one thread at a time.
//
//   outside --VIEW with us--> installing --trainer_stopped--> reported --caught_up--> ready --all ready--> going --promise--> frozen
//                                 ^                                                                                            |
//                                 +------------------------------------ VIEW --------------------------------------------------+
//
// A promise freezes from any stage.  A member that a VIEW omits, or that finds no quorum, has ended.  The owner
//   * calls receive() for each message whose sender the link has authenticated as the node and the incarnation that the message names;
//   * is a later incarnation of its node after a restart, and after this one has ended;
//   * calls traffic_received() when any other bytes of a peer have come, suspect() while it suspects one, prove() for a proven death;
//   * calls tick() at next_us(), and after each call sends sends() and does notices();
//   * keeps one for every job that its node is asked about, member or not: nodes outside answer too (see ViewProposal).
//
// While a view change runs, a member that is silent for D/4 is suspected.  If a quorum remains without it, a member is also suspected when
// its trainer has not stopped D/4 after the VIEW, or when it has not caught up D/2 after the common step is known.  These times are
// multiplied by patience().  A node ends as a minority when it reaches no quorum for D, when no view follows a promise within 4 D, or when
// no first step follows a view within 4 D.
#pragma once
#include <functional>
#include <map>
#include <optional>

#include "runtime/core/status.h"
#include "runtime/view/proposal.h"

namespace gradcast {

struct ViewConfig {
    NodeId self{};
    uint64_t incarnation = 0;               // not 0
    uint32_t nodes = 0;                     // of the job: all that may be its members
    uint32_t asked = 0;                     // so many count for a quorum by proof (ViewProposal), the others once they are known; 0: all
    uint64_t deadline_us = 30'000'000;      // D, until a view has one
    uint32_t members_min = 1;               // with fewer the job does not go on
    uint32_t voters = 0;                    // so many first ranks of a view vote; 0: all
    ViewMutant mutant = ViewMutant::none;   // of tests alone
    /// Whether the job goes on with these nodes, which are members_min at least.  Null: it does.  No node leaves while it would not.
    std::function<bool(std::span<const NodeId>)> goes_on_with = {};
};

struct ViewSend {
    std::vector<NodeId> to;
    ViewMessage message;
};

struct ViewNotice {
    /// Nothing more may be applied: every wait and block of the trainer returns view_changed.
    struct Freeze {};
    /// view() is to be installed.  Freezes too.  trainer_stopped() follows once the trainer has stopped and the session is closed.
    struct View {
        std::vector<std::pair<NodeId, Suspicion>> departed = {};   // members of the view before that are not in this one, and why
    };
    /// The common step is known, from which the view goes on.
    struct Step {
        StepId step = 0;
        uint64_t digest = 0;   // ViewState::digest of its state
        NodeId source{};       // the member that sends the state to those that lack it
        bool has = false;      // this node has the state
        bool sums = false;     // if `has` is false.  true: this node computes the state from the step's sums and calls caught_up().
                               // false: it gets all of the state from `source`, and uses it after Go
        std::vector<NodeId> behind = {};   // where it has: the members that get all of the state
    };
    /// All members have the state of `step`: the session begins.
    struct Go {
        StepId step = 0;
        uint64_t digest = 0;
        uint64_t evaluation_step = 0, evaluation = 0;   // the newest that a member knows
    };
    /// This node has asked to be drained, and the job would not go on without it.  It remains a member, and may ask again.
    struct Stays {};
    /// This node takes no further part.
    struct Ended {
        enum class Why : uint8_t {
            excluded,    // view() goes on without this node, which may rejoin as a later incarnation
            minority,    // no quorum within the deadline
            wrong,       // others have computed another digest for `step`
            tied,        // members differ about `step`, and nobody can tell who is right
            forgotten,   // a joiner whose view is silent; it may join again as a later incarnation
        } why{};
        StepId step = 0;       // wrong, tied
        uint32_t living = 0;   // minority: members not suspected, if they are a quorum but fewer than members_min
    };
    std::variant<Freeze, View, Step, Go, Stays, Ended> what;
};

class ViewChange {
public:
    explicit ViewChange(const ViewConfig& config);

    void deadline(uint64_t deadline_us) { config_.deadline_us = deadline_us; }   // before begin() or join()
    void grow(uint32_t nodes);                                                   // so many may be members from here on
    /// A member of the job's first view, with the state that it starts from.
    void begin(const AgreedView& first, uint64_t now_us);
    /// The engine of this joiner is open.  The joiner announces itself from now on.
    void join(uint64_t now_us);

    void receive(const ViewMessage& message, uint64_t now_us);
    void tick(uint64_t now_us);
    uint64_t next_us() const { return next_us_; }   // 0: nothing to do until something comes

    /// Bytes of that incarnation have come on any channel.  Ends the suspicion `silent`.
    void traffic_received(NodeId node, uint64_t incarnation, uint64_t now_us);
    /// Multiplies by `factor` how long a change waits for this member and for its promise before it is suspected.  The factor of this node
    /// itself applies to all members.  It is 1 at first.
    void patience(NodeId node, uint32_t factor);
    /// D over `divisor`, times the patience with this node.
    uint64_t patience_us(NodeId node, uint32_t divisor) const;
    /// why: silent, stuck or none.  traffic_received() ends the suspicion silent; a call with none ends the suspicion stuck.
    void suspect(NodeId node, Suspicion why, uint64_t now_us);
    /// This incarnation and all before it are dead: an authenticated later one at the node's configured address, a pidfd, an operator.
    void prove(NodeId node, uint64_t incarnation, uint64_t now_us);
    /// As prove(), by an operator.  Returns false if the node answers.
    bool force_dead(NodeId node, uint64_t now_us);
    /// A drain is dropped, at once or later, if the job would not go on with the members that remain.  A node that has asked for its own
    /// gets the notice Stays then.
    void ask(const ViewAction& action, uint64_t now_us);
    /// This node is about to announce the last step to the others of its view.  They may end before another view is agreed on, so until the
    /// next view none is proposed for a joiner.
    void ending() { ending_ = true; }
    void weigh(NodeId node, uint16_t weight) { nodes_[index_of(node)].weight = weight; }   // its share of blocks in the next view
    /// After the notice View, with the state that the trainer has stopped with; a joiner knows none, nor may a member of the first view.
    void trainer_stopped(const ViewState& state, uint64_t now_us);
    /// After a Step that this node had not, with ViewState::digest of the state that this node now has.
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
    bool enough(std::span<const ViewMember> members) const;   // the job goes on with them
    void drop(const ViewAction& action);
    bool changing() const { return rank_ && stage_ != ViewStage::going; }
    bool suspected(const ViewMember& member) const;
    uint32_t suspected_count() const;
    std::vector<bool> unsuspected() const;   // by rank, with this one
    std::optional<uint32_t> rank_of(NodeId node) const;

    // change.cc: the acceptor, and what it knows
    ViewMessage message(ViewMessage::What what) const;
    void send(std::vector<NodeId> to, ViewMessage message);
    void send_members(const ViewMessage& message);
    void send_everybody(const ViewMessage& message);
    void send_view(std::vector<NodeId> to);
    void end(ViewNotice::Ended how);
    void freeze(uint64_t now_us);
    void refuse(NodeId proposer);
    void prepare(NodeId proposer, Ballot ballot, uint64_t now_us);
    void accept(NodeId proposer, const ViewMessage::Accept& said, uint64_t now_us);
    void learn(const AgreedView& view, Ballot chosen, uint64_t now_us);
    bool acceptable(const AgreedView& value, Ballot ballot) const;
    std::vector<uint64_t> reach(uint64_t now_us) const;
    bool reaches_members(NodeId joiner, std::span<const uint64_t> reach) const;
    ViewMessage::Promise promise(Ballot ballot, uint64_t now_us) const;
    void count_early(uint64_t now_us);
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
    void suspect_received(NodeId from, const ViewMessage::Suspect& said, uint64_t now_us);
    void propose(uint64_t now_us);
    void nack(Ballot promised, uint64_t now_us);
    void advance(uint64_t now_us);
    void propose_again(uint64_t now_us);

    // recovery.cc: the common step, from which the view goes on
    ViewMessage state_message() const;
    void state_received(NodeId from, const ViewMessage::State& said, uint64_t now_us);
    void recover(uint64_t now_us);
    void agree_on_step(uint64_t now_us);
    void go_if_all_ready();

    ViewConfig config_;
    std::vector<ViewNode> nodes_;   // by NodeId; the own entry has the own incarnation
    std::vector<ViewSend> sends_;
    std::vector<ViewNotice> notices_;
    bool ended_ = false, ending_ = false, joining_ = false, has_state_ = false;

    AgreedView view_;
    Ballot chosen_ = 0;                            // in which view_ was
    std::optional<uint32_t> rank_;                 // in view_
    std::vector<std::optional<uint32_t>> ranks_;   // by NodeId
    ViewStage stage_ = ViewStage::outside;
    uint64_t learnt_us_ = 0, frozen_us_ = 0, agreed_us_ = 0, no_quorum_us_ = 0, next_us_ = 0, beat_us_ = 0, join_us_ = 0;

    Ballot promised_ = 0, accepted_ = 0;   // of view_'s next
    AgreedView accepted_value_;
    uint64_t promised_us_ = 0;

    std::optional<ViewProposal> proposal_;
    uint32_t round_least_ = 0;
    uint64_t repropose_us_ = 0, resend_us_ = 0;   // repropose: when to propose again after a refusal
    ViewAction action_;                           // asked for and not agreed on yet
    std::optional<uint32_t> asked_;               // rank that SUSPECT went to
    uint64_t asked_us_ = 0;

    std::vector<Peer> peers_;               // by rank; the own entry counts too
    std::map<NodeId, ViewMessage> early_;   // the newest STATE of each node that knows a later view than view_
    CommonStep common_;
    bool agreed_ = false;
};

}   // namespace gradcast
