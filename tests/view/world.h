// A model of a job whose views change: nodes with an abstract trainer each, on virtual time, over a network that loses, doubles, delays and
// cuts.  The state that a trainer has is a function of the step; it applies a step when all members of its view, but those that s covers,
// have announced that they computed it.  Where each node has initial values of its own (WorldConfig::initial_us), the state is a function
// of these and the step, and all members must have begun with the same.  What must never happen is looked for at every turn: violation()
// is the first that was found.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "runtime/job/report/job_status.h"
#include "runtime/view/change.h"

namespace gradcast {

constexpr uint64_t D = 4'000'000;   // deadline of every world, in us

struct WorldConfig {
    uint64_t seed = 1;
    uint32_t members = 3, others = 0;   // of the first view; configured beside them
    uint32_t members_min = 1;
    uint32_t voters = 0;   // of a view; 0: all
    uint16_t m = 1, s = 0;
    double loss = 0, duplicate = 0;
    uint64_t delay_us = 2'000, jitter_us = 0, step_us = D / 40;   // step_us: of computing
    double late = 0;                                              // of messages, that come up to late_us later
    uint64_t late_us = D / 8;
    /// Within so long the members of the first view get the initial values of node 0, each at some time; 0: they have them at once.
    uint64_t initial_us = 0;
    bool resumed = false;       // until then they have no state, and no initial values of their own
    double rejoin_chance = 0;   // of a node that ended or was restarted
    bool patient = true;        // with those that were given up and came back
    ViewMutant mutant = ViewMutant::none;
    std::function<bool(std::span<const NodeId>)> goes_on_with = {};   // as ViewConfig
};

/// What has come to pass in a world.
struct Seen {
    uint64_t views = 0, by_proof = 0, adopted = 0, refused = 0, joiners = 0, sums = 0, states = 0;
    uint64_t excluded = 0, minority = 0, forgotten = 0, quorums = 0;
    uint64_t stays = 0;         // drains that were dropped
    uint64_t own_initial = 0;   // views that began with the initial values of another node than node 0
};

class World {
public:
    explicit World(const WorldConfig& config);

    // ---- what happens to it
    void crash(uint32_t node);
    /// As a later incarnation that knows nothing.
    void restart(uint32_t node, bool joins);
    void join(uint32_t node);
    void stall(uint32_t node, uint64_t us);
    void slow(uint32_t node, double factor) { nodes_[node].slow = factor; }
    void cut(uint32_t from, uint32_t to, bool is) { cut_[from * n() + to] = is; }
    /// What is sent meanwhile comes then, as on a stream that repeats a lost packet.
    void hold(uint32_t from, uint32_t to, uint64_t until_us) { held_us_[from * n() + to] = until_us; }
    void split(const std::vector<uint32_t>& some, bool is);   // apart from all others
    void prove(uint32_t node);                                // if it is down: to all, as the nodes of one machine learn it
    void suspect(uint32_t node, uint32_t of);                 // a false alarm
    void wake(uint32_t node) { after(node); }                 // after a call of its machine
    void at(uint64_t us, std::function<void()> what);
    /// A message that is about to be sent, at every node: false loses it.
    std::function<bool(uint32_t from, uint32_t to, const ViewMessage&)> passes;

    /// Until the time has come, something is violated, or `until` holds, which is then returned.
    bool run(uint64_t until_us, const std::function<bool()>& until = {});

    // ---- what is seen
    uint64_t now_us() const { return now_us_; }
    const std::string& violation() const { return violation_; }
    uint32_t n() const { return static_cast<uint32_t>(nodes_.size()); }
    bool up(uint32_t node) const { return nodes_[node].up; }
    ViewChange& machine(uint32_t node) { return *nodes_[node].machine; }
    StepId applied(uint32_t node) const { return nodes_[node].applied; }
    void digest(uint32_t node, uint64_t digest) { nodes_[node].digest = digest; }   // it has computed wrongly
    bool in(uint32_t node) const { return nodes_[node].up && nodes_[node].machine->member(); }
    bool going(uint32_t node) const { return in(node) && nodes_[node].machine->stage() == ViewStage::going; }
    /// All of these, and nobody else, are in one view that goes.
    bool settled(const std::vector<uint32_t>& members) const;
    /// Why it has ended, if it has.
    std::optional<ViewNotice::Ended::Why> ended(uint32_t node) const { return nodes_[node].ended; }
    /// The newest view that a member knows, and whether those of its members that live are a quorum; number 0: nobody is a member.
    AgreedView newest() const;
    bool quorum_lives() const;
    /// Of all: the highest applied step of a living member of the newest view.
    StepId highest() const;
    std::string describe() const;
    const Seen& seen() const { return seen_; }
    void expect_wrong() { wrong_expected_ = true; }   // a node was made to compute wrongly

private:
    struct Packet {
        enum class Kind : uint8_t { view, beat, record, fetch, give } kind{};
        uint32_t from = 0, to = 0;
        uint64_t incarnation = 0;
        uint32_t view = 0;
        StepId step = 0;
        uint64_t digest = 0;
        bool waiting = false;
        std::vector<std::byte> bytes;
    };
    struct Peer {
        uint64_t received_us = 0, moved_us = 0;
        StepId step = 0;
        bool waiting = false;
    };
    struct Node {
        bool up = false;
        uint64_t incarnation = 0, epoch = 0;   // epoch: what was planned for another one is dropped
        std::unique_ptr<ViewChange> machine;
        uint64_t stalled_us = 0, tick_us = 0;
        double slow = 1;
        std::optional<ViewNotice::Ended::Why> ended;
        uint32_t promised = 0;   // view in which it has promised
        uint32_t installed = 0;
        // the trainer
        bool has_state = false, frozen = false, computing = false, computed = false;
        bool initial = false;   // it has initial values, and not the job's; resumed: neither
        uint32_t session = 0;
        AgreedView view;
        StepId applied = 0;
        uint64_t digest = 0, computing_us = 0;                    // computing_us: until then
        std::map<StepId, std::map<uint32_t, uint64_t>> records;   // by step and node
        std::vector<Peer> peers;
        // catching up
        bool fetching = false;
        ViewNotice::Step wanted;
    };

    uint64_t random(uint64_t below) { return below == 0 ? 0 : random_() % below; }
    bool chance(double p) { return std::uniform_real_distribution<double>(0, 1)(random_) < p; }
    void plan(uint64_t us, uint32_t node, std::function<void()> what);
    void start(uint32_t node, uint64_t incarnation);
    void after(uint32_t node);
    void notice(uint32_t node, const ViewNotice& notice);
    void stop_trainer(uint32_t node);
    void go(uint32_t node, const ViewNotice::Go& go);
    void end(uint32_t node, ViewNotice::Ended::Why why);
    void said(uint32_t node, const ViewMessage& message);
    void send(Packet packet);
    void deliver(const Packet& packet);
    void engine(uint32_t node);
    void compute(uint32_t node);
    void apply(uint32_t node);
    void fetch(uint32_t node);
    void stepped(uint32_t node, uint32_t view);
    void be_patient(uint32_t node, bool fresh);
    void violate(const std::string& what);
    void check_line(uint32_t node);
    void check_chosen(uint32_t node, const ViewMessage::View& said);
    void check_common_step(uint32_t node, StepId step);
    void get_initial(uint32_t node);
    /// The state after `step`, from those initial values.
    static uint64_t state(StepId step, uint64_t initial);
    static uint64_t next(uint64_t digest);
    /// The initial values from which the state of that digest was computed; `digest`: none is known.
    uint64_t initial_of(uint64_t digest) const;
    void check_initial(uint32_t node);
    bool quorum(const AgreedView& view, const std::function<bool(const ViewMember&)>& has) const;

    struct Planned {
        uint64_t us, order;
        std::function<void()> what;
        bool operator<(const Planned& other) const { return std::tie(us, order) > std::tie(other.us, other.order); }
    };
    const WorldConfig config_;
    std::mt19937_64 random_;
    std::priority_queue<Planned> queue_;
    uint64_t now_us_ = 0, order_ = 0;
    std::vector<Node> nodes_;
    std::vector<bool> cut_;
    std::vector<uint64_t> held_us_;
    std::string violation_;
    Seen seen_;
    bool wrong_expected_ = false;
    std::map<uint32_t, AgreedView> views_;                                                      // by number: all that were ever installed
    std::map<std::pair<uint32_t, Ballot>, std::set<std::pair<uint32_t, uint64_t>>> accepted_;   // by view and ballot: who
    std::set<std::pair<uint32_t, Ballot>> chosen_;
    std::map<uint32_t, uint32_t> by_quorum_;                    // by view: the next one that a quorum without proofs has chosen
    std::map<uint32_t, StepId> went_;                           // by view: T
    std::vector<ViewRecord> records_;                           // of those views
    std::map<uint32_t, std::map<uint32_t, StepId>> reported_;   // by view and node
    std::map<uint64_t, uint64_t> initial_of_;                   // by digest
};

}   // namespace gradcast
