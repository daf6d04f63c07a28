// How the trainer of a job gets from one view to the next when nodes are lost (ViewChange): it stops, its session is closed with whatever
// is under way, and the next session begins with the step that the members have agreed on.
#pragma once
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/job/report/view_records.h"
#include "runtime/job/run/exchange_choice.h"
#include "runtime/job/run/orders.h"
#include "runtime/job/run/resume.h"
#include "runtime/view/protocol.h"

namespace gradcast {

/// Where the engine keeps its session.
struct SessionPlace {
    std::unique_ptr<Session>& session;
    std::function<void()> opens, closes;   // opens it; is about to close it
};

/// Members without which the job does not go on, of a first view of so many.
uint32_t view_members_min(const JobConfig& job, uint32_t nodes);
/// First ranks of a view that vote, see ViewConfig.
uint32_t view_voters(const JobConfig& job);

class ViewSwitch final : public Consumer {
public:
    ViewSwitch(const EngineConfig& config, JobParts& parts, ExchangeChoice& choice, Algorithm& algorithm, Report& report, Orders& orders)
        : config_(config), parts_(parts), choice_(choice), algorithm_(algorithm), report_(report), orders_(orders) {}

    /// The job begins in this session, which is planned; where this node joins, that session has no other nodes and never opens.  `parts`
    /// are ready.
    Status open(const Session& session);
    void deadline(uint64_t deadline_us) { protocol_->deadline(deadline_us); }   // of the first view; before it is attached
    /// To be attached on ViewProtocol::channel.
    Protocol* protocol() { return protocol_.get(); }

    // Trainer thread.
    /// In each session.  Its waits return view_changed once this node has promised another view.
    void join(Dispatch& dispatch) { dispatch.add(ViewProtocol::channel, this); }
    /// This node has the state that the job begins with.
    void has_state() {
        has_state_ = true;
        initial_ = awaits_ = kept_.on = false;
    }
    /// This node has initial values of its own, and is to get those of another node in their place.  Keeps them: where the loss of a node
    /// comes between, and no member of the next view has those of the other node, the job begins with the lowest rank's own.
    void has_initial(const Context& context) {
        initial_ = true;
        keep(context, {});
    }
    /// This node is a member of a resumed job's first view, and is to get the state from another node.  Where the loss of a node comes
    /// between, it gets the state in the next view.  `holder`: the node whose file has the state; without it, and without a node that has
    /// got the state, the job ends.
    void awaits_state(NodeId holder) {
        awaits_ = true;
        holder_ = holder;
    }
    /// The job has begun: from now on lost nodes are suspected.
    void watch(Host& host);
    /// After each step.  Nodes that were evicted and have rejoined are waited for longer, less so the more steps have passed since.
    void stepped(Host& host, StepId step) {
        const bool some = std::any_of(patience_.begin(), patience_.end(), [](uint32_t factor) { return factor > 1; });
        if (some && step % patience_steps == 0) be_patient(host, step);   // allocates
    }
    /// view_changed once this node has promised another view.
    Status pending() const;
    /// True if a round that ended with `status` is repeated in another view.
    bool repeats(const Status& status) const;
    /// After repeats(): blocks until all members of the next view have the same state.  The place then holds its session, which has begun,
    /// and the context is at the agreed step.  `why`: what the round ended with.  Errors: what the job ends with at this node; the place's
    /// session may be closed.
    /// Where this node joins, once in the beginning: until it is a member and has the state.
    Status next(Context& context, Status why, const SessionPlace& place, Standing* standing);
    /// The others go on without this node because it was drained.
    bool drained() const { return drained_; }
    /// The others go on without this node.
    bool excluded() const { return end_ && end_->why == ViewNotice::Ended::Why::excluded; }
    /// This node was evicted or cut off: the others may go on, and it may rejoin.
    bool may_rejoin() const;
    /// The job has ended at this node.
    void stop(Host& host);

    Status take(const Completion& completion) override;

private:
    /// This node's own state, while another node's is in its place.
    struct Kept {
        Buffer parameters, optimiser, exponents;
        std::vector<std::byte> algorithm;
        Standing standing;
        StepId step = 0;
        uint64_t state = 0;
        bool on = false;
    };
    void keep(const Context& context, const Standing& standing);
    Status restore(Context& context, Standing* standing);
    bool read_news();   // false: there was none
    std::function<bool(std::span<const NodeId>)> stages_kept_by() const;
    Status ended() const;
    /// Until something has come, which read_news() has seen.
    Status wait(Host& host, Session& session, uint64_t until_us);
    Status pass(Host& host, const Session& session, uint32_t number);
    Status install(Context& context, Status why, const SessionPlace& place, Standing* standing);
    Status catch_up(Context& context, Session& session, const ViewNotice::Step& step, Standing* standing);
    /// The same of a net in stages: each rank gets the part that it is to compute with from one that has it.
    Status catch_up_parts(Context& context, Session& session, const ViewNotice::Step& step, Standing* standing);
    Status lost(const Cell& cell);
    ViewRecord record(const Context& context, const SessionConfig& now) const;
    void report(Context& context);
    void be_patient(Host& host, StepId step);

    const EngineConfig& config_;
    JobParts& parts_;
    ExchangeChoice& choice_;
    Algorithm& algorithm_;
    Report& report_;
    Orders& orders_;
    std::unique_ptr<ViewProtocol> protocol_;
    uint32_t members_min_ = 1;
    bool joins() const { return !has_state_ && !initial_ && !awaits_; }
    bool has_state_ = false, watching_ = false, gave_up_ = false, drained_ = false;
    bool initial_ = false, awaits_ = false;   // has_initial(), awaits_state(), until it has the state
    NodeId holder_{};                         // of awaits_state()

    bool frozen_ = false;
    std::optional<AgreedView> view_;   // to be installed
    std::optional<ViewNotice::Step> step_;
    std::optional<ViewNotice::Ended> end_;
    Status lost_;   // a part of the net that no node has any more
    bool go_ = false;
    uint64_t stands_us_ = 0;                   // since when the job stands
    uint32_t taken_ = 0, passed_ = 0;          // numbers of views: the last one to be installed; that the link has passed over
    std::vector<uint64_t> behind_;             // bits of ranks
    std::map<NodeId, std::string> departed_;   // since the last view that has trained, with the reason
    std::vector<uint32_t> patience_;           // by node, as set in the protocol
    Arena arena_;                              // of kept_
    Kept kept_;
};

}   // namespace gradcast
