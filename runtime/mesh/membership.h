// Which daemons are there, and how a job comes to run on several of them at once: a state machine on the daemons' mesh.
//
//     coordinator (it got the submission and is rank 0)        each other member
//     PREPARE(plan) to all; opens its own engine          ->   notice open; opens its engine
//                                                         <-   READY(kernel set, digests, inventory, the D that it needs) or REFUSED(why)
//     all ready and alike: START(D) to all, else ABORT(why) -> notice start or abort
//     ENDED to all when its run() has returned           <->   likewise, from every rank to every rank
//     notice close when all have ended or are lost, or after the job's deadline: only then may its link go
//
// A member of a job with `survive` rejoins it after the member was started anew, or after the others went on without it; in the second case
// HELLO carries its request.  The lowest node that runs the job sends INVITE(plan, kernel set, digests, inventory).  The rejoining node
// opens its engine and begins at once, or gives up by itself.  Nodes that have done the job's last step answer a request with DONE.
//
// Words: a *peer* is a daemon's number on the mesh, a *rank* its number in a job.  Timer: one tick a second; it says HELLO and looks at
// deadlines. States of a session (a job being made or run here): opening (our engine is), ready (waiting for START), running, ended
// (waiting for the others).
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "runtime/core/identity.h"
#include "runtime/core/isa.h"
#include "runtime/core/protocol.h"
#include "runtime/mesh/departed_jobs.h"
#include "runtime/mesh/found.h"
#include "runtime/mesh/job_plan.h"

namespace gradcast {

struct MembershipConfig {
    Rank self = 0;                    // peer number of this daemon
    std::vector<std::string> names;   // by peer
    Identity identity;
    std::string version;
    Isa isa = Isa::portable;                         // that this node computes with
    std::string isa_setting = isa_setting_in_file;   // what messages call it
    uint32_t datagram_bytes = 0;                     // largest payload of a datagram on this node's interface; 0: it has none
    uint32_t rdma_bytes = 0;                         // the same over RDMA
    std::string rails = {};                          // "10.1.0.1:4700,10.2.0.1:4700": where it listens on each of its interfaces
    uint32_t rdma_devices = 0;
    uint64_t memory = 0, rate = 0;                           // as PeerState's
    std::vector<JobId> done = {};                            // jobs that an earlier daemon of this node knew to be done
    uint32_t jobs_max = 16;                                  // sessions at one time
    size_t past_jobs_max = 1024;                             // departed and done jobs that are remembered one by one, each
    std::function<uint64_t()> wall_us = {};                  // the clock that HELLO announces; null: none
    uint64_t hello_us = 1'000'000, silence_us = 6'000'000;   // between HELLOs; after that much silence a peer is not alive
};

/// How a job has ended at this node.
struct JobEnd {
    bool done = false;      // it has done the last step
    bool leaves = false;    // the others may go on, so the link is closed soon, whether they have ended or not
    bool rejoins = false;   // this node asks to rejoin
};

/// A copy of what is known of a peer.
struct PeerState {
    bool alive = false;
    Member member;   // of its last HELLO; uuid all zero: there was none
    std::string version;
    Isa isa = Isa::portable;
    uint32_t datagram_bytes = 0;   // 0: it has no `interface`
    uint32_t rdma_bytes = 0;       // 0: it has no `rdma`
    std::string rails;             // as MembershipConfig's
    uint32_t rdma_devices = 0;
    uint64_t memory = 0;   // bytes that its jobs may take; 0: not known
    uint64_t rate = 0;     // of its link, bit/s; 0: not known
    uint32_t jobs = 0;
    std::string why;         // not alive: the last error
    bool draining = false;   // it takes no new jobs, and leaves those that go on without it
    std::string hinders;     // draining: its jobs that cannot, and why
    std::vector<RejoinRequest> rejoin_requests;
    std::vector<JobId> runs;           // jobs with `survive` that it is a member of
    std::optional<int64_t> ahead_us;   // of its clock before ours, when its last HELLO came; less the time that HELLO took
};

/// What the daemon has to do.  Each find is followed by found(), each open is followed by exactly one start or abort, each start by exactly
/// one close.
struct Notice {
    struct Open {   // the job at this node, by opened()
        std::shared_ptr<const JobPlan> plan = nullptr;
        Rank self = 0;
    };
    struct Start {
        uint64_t deadline_us = 0;   // D, which is the same at all members
        std::string note = {};      // for the job's log: what the nodes have otherwise that does not matter; empty: nothing
    };
    struct Abort {
        Status why = {};
    };
    struct Close {};
    struct Submitted {
        Status outcome = {};
    };
    struct Find {   // what this node has of the job, by found()
        Rank asker = 0;
        uint64_t request = 0;   // number of the search at the asker
    };
    struct Answer {   // to a search of this node
        Rank peer = 0;
        uint64_t request = 0;
        Found found = {};
    };
    struct Drain {
        bool on = false, cancel = false;   // cancel: also the jobs that cannot go on without this node
    };
    struct Warning {   // for people, about a running job
        Status what = {};
    };
    /// The job is over: all living nodes have ended it before this node joined, or one node has done the last step of a job that this node
    /// asks to rejoin.
    struct EndedElsewhere {};

    JobId id{};   // all zero of Drain
    std::variant<Open, Start, Abort, Close, Submitted, Find, Answer, Drain, Warning, EndedElsewhere> what;
    template <typename What>
    const What* is() const {
        return std::get_if<What>(&what);
    }
};

/// on() runs on the mesh's network thread; the other methods on any.  A Completion on its channel says that notices() has something.
class Membership final : public Protocol {
public:
    explicit Membership(const MembershipConfig& config);
    void start(Host& host, uint16_t channel);   // once, when attached; host outlives it

    /// Answered by the notice `submitted`.  Error: this daemon cannot take part, as things are; then no notice comes.
    Status submit(std::shared_ptr<const JobPlan> plan);
    /// The answer to the notice open; an error (also: cancelled meanwhile) goes to the coordinator and comes back as the notice abort.
    /// `deadline_us`: D, as this node needs it; 0: as the plan has it.
    void opened(const JobId& id, Status status, ComputesWith with = {}, uint64_t deadline_us = 0);
    /// run() has returned here.
    void ended(const JobId& id, const JobEnd& end);
    /// Asks all peers that are alive, this one too, what they have of a job: a notice `found` comes from each that answers.
    void find(const JobId& id, uint64_t request);
    /// The answer to the notice find.
    void found(const JobId& id, Rank peer, uint64_t request, Found found);
    /// Orders a node to be drained, or not any more: a notice there.  PeerState shows the outcome.
    void drain(Rank peer, bool on, bool cancel);
    /// A node that may join a job that runs here is invited, also if it has refused before.
    void add(const JobId& id, const std::string& node);
    /// This node, which joins, has become a member of the job: from here on it may invite others.
    void trains(const JobId& id);
    /// This node does not ask to rejoin that job.  It still rejoins when an operator adds it.
    void stays_out(const JobId& id);
    /// One more peer, behind the others, before the driver has it.  Jobs that grow may take it in.
    void add_peer(const std::string& name);
    /// What HELLO announces of this node.
    void draining(bool on, std::string hinders);
    std::vector<Notice> notices();
    std::vector<PeerState> peers() const;   // by peer; our own is alive and counts our sessions
    uint64_t ticks() const;                 // grows by one a second as long as the network thread lives

    void on(std::span<const Event> events, Actions& actions) override;

private:
    enum class Kind : uint32_t { hello = 1, prepare, ready, refused, start, abort, ended, find, found, drain, invite, add, done };
    enum class State : uint8_t { opening, ready, running, ended };
    struct Part {   // of a job, by rank
        Rank peer = 0;
        bool ready = false;
        bool ended = false;         // or lost, or no member yet: HELLO says otherwise
        bool said_ended = false;    // it has sent ENDED
        bool wanted = false;        // an operator wants it in
        uint64_t incarnation = 0;   // the last one that is known here; 0: it was never in the job, nor invited
        uint64_t invited_us = 0;
        uint64_t deadline_us = 0;   // that it needs
        ComputesWith with;
    };
    struct Session {
        std::shared_ptr<const JobPlan> plan;
        Rank self = 0;
        State state = State::opening;
        uint64_t deadline_us = 0;   // of this state; none while running
        uint64_t began_us = 0;
        bool trains = false;   // this node is a member; one that joins is none at first
        std::vector<Part> parts;
    };
    using Sessions = std::map<JobId, Session>;
    struct Peer : PeerState {
        uint64_t last_hello_us = 0;   // time of its last HELLO
        uint64_t hello_ticket = 0;    // at most one HELLO is on its way
        uint64_t done_ticket = 0;     // likewise, of DONE
        uint32_t finds = 0;           // that it has not answered yet
        Kind kind{};                  // of the message that is arriving
        std::vector<std::byte> message;
    };
    // What callers order, by the method of that name; it runs on the network thread.
    struct Submit {
        std::shared_ptr<const JobPlan> plan;
    };
    struct Opened {
        Status status;
        ComputesWith with;
        uint64_t deadline_us = 0;
    };
    struct Ended {
        JobEnd end;
    };
    struct FindAll {
        uint64_t request = 0;
    };
    struct FoundHere {
        Rank asker = 0;
        uint64_t request = 0;
        Found found;
    };
    struct DrainPeer {
        Rank peer = 0;
        bool on = false, cancel = false;
    };
    struct Add {
        std::string node;
    };
    struct Command {
        JobId id{};
        std::variant<Submit, Opened, Ended, FindAll, FoundHere, DrainPeer, Add> what;
    };
    struct Wake {};   // commands_ has something
    void wake();
    void command(Command command);
    void run_commands(Actions& actions);
    void run(const JobId& id, Submit& order, Actions& actions);
    void run(const JobId& id, Opened& order, Actions& actions);
    void run(const JobId& id, Ended& order, Actions& actions);
    void run(const JobId& id, FindAll& order, Actions& actions);
    void run(const JobId& id, FoundHere& order, Actions& actions);
    void run(const JobId& id, DrainPeer& order, Actions& actions);
    void run(const JobId& id, Add& order, Actions& actions);
    void packet(const Packet& packet, Actions& actions);
    void message(Rank from, Kind kind, std::span<const std::byte> bytes, Actions& actions);
    void look(Rank peer, const JobId& id, uint64_t request);
    void drain_here(bool on, bool cancel);
    void hello(Rank from, std::span<const std::byte> bytes, Actions& actions);
    void prepare(Rank from, std::span<const std::byte> bytes, Actions& actions);
    void departed(const Session& session, const JobEnd& end, uint64_t now_us);
    void not_joined(const Session& session, const Status& why, uint64_t now_us);
    static bool member(const Session& session);   // this node is, or is about to begin the job with the others
    std::vector<JobId> runs() const;
    std::vector<RejoinRequest> rejoin_requests(uint64_t now_us) const;
    void notice_if_ended_elsewhere(const Session& session);
    void apply_hello(Session& session, Rank rank);
    void answer_rejoin_requests(Rank peer, Actions& actions);
    void done_elsewhere(const JobId& id, uint64_t now_us);
    void invite(Session& session, Actions& actions);
    void add_here(Session& session, const std::string& node);
    void invited(Rank from, std::span<const std::byte> bytes, Actions& actions);
    void join(Sessions::iterator at, const Opened& opened, Actions& actions);
    void tick(Actions& actions);
    void end_overdue(Actions& actions);
    void lost(Rank peer, const char* why, Actions& actions);
    void begin(const std::shared_ptr<const JobPlan>& plan, Rank self, Actions& actions);
    void extend(Session& session);
    void take_peer();
    void ready(Sessions::iterator at, Rank rank, ComputesWith with, uint64_t deadline_us, Actions& actions);
    void start(Sessions::iterator at, uint64_t deadline_us, std::string note = {});
    void finish_preparing(Sessions::iterator at, Actions& actions);
    Sessions::iterator give_up(Sessions::iterator at, Status why, Actions& actions);
    Sessions::iterator close_if_ended(Sessions::iterator at);
    Status why_not(const JobPlan& plan) const;
    Status refusal(const JobPlan& plan) const;   // the same for the client
    uint64_t send(Rank peer, Kind kind, std::vector<std::byte> bytes, Actions& actions);
    void send_all(const Session& session, Kind kind, const std::vector<std::byte>& bytes, Actions& actions);
    Rank rank_of(const Session& session, Rank peer) const;   // its size: not in it
    template <typename What>
    void notice(const JobId& id, What what) {
        notices_.emplace_back(id, std::move(what));
    }

    const MembershipConfig config_;
    Host* host_ = nullptr;
    uint16_t channel_ = 0;
    mutable std::mutex mutex_;         // all below: network thread and callers, briefly
    std::vector<std::string> names_;   // by peer
    std::vector<Peer> peers_;
    std::deque<std::string> coming_;   // the next ones, before the driver has reported them
    Sessions sessions_;
    DepartedJobs departed_jobs_;
    std::deque<JobId> done_;   // done jobs, the newest last
    std::deque<Command> commands_;
    std::vector<Notice> notices_;
    std::map<uint64_t, std::shared_ptr<const std::vector<std::byte>>> flights_;   // bytes that belong to the link, by ticket
    uint64_t ticket_ = 0, ticks_ = 0;
};

}   // namespace gradcast
