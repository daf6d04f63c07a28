// Which daemons are there, and how a job comes to run on several of them at once: a state machine on the daemons' mesh.
//
//     coordinator (it got the submission and is rank 0)        each other member
//     PREPARE(plan) to all; opens its own engine          ->   notice open; opens its engine
//                                                         <-   READY(kernel set, data digest, the D that it needs) or REFUSED(why)
//     all ready and alike: START(D) to all, else ABORT(why) -> notice start or abort
//     ENDED to all when its run() has returned           <->   likewise, from every rank to every rank
//     notice close when all have ended or are lost, or after the job's deadline: only then may its link go
//
// A member of a job with `returns` that was started anew, or without which the others went on and which says so in HELLO, gets the job from
// the lowest one that runs it: INVITE(plan, what it must compute with).  It opens its engine and begins at once, or gives up by itself.
//
// Words: a *peer* is a daemon's number on the mesh, a *rank* its number in a job.  Timer: one tick a second; it says HELLO and looks at
// deadlines. States of a session (a job being made or run here): opening (our engine is), ready (waiting for START), running, ended
// (waiting for the others).
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/fd.h"
#include "runtime/core/isa.h"
#include "runtime/core/protocol.h"
#include "transport/link/link.h"

namespace gradcast {

constexpr uint32_t job_text_max = 1 << 20;   // bytes of a job file

/// What every member must know of a job before it opens its engine.
struct JobPlan {
    JobId id{};
    std::string name, text, path, base;   // of the job file: see Submission
    uint64_t deadline_us = 0;             // D: of the job file; once it runs, the longest that a member needs
    uint64_t submitted_unix = 0;
    std::vector<Member> members;                   // by rank; 0 coordinates.  From `first` on: who may join while it runs
    uint32_t first = 0;                            // so many begin it; 0: all
    bool elastic = false;                          // those that may join are invited by themselves, else by add() alone
    uint32_t datagram_bytes = 0;                   // payload of one datagram that every member's interface can carry; 0: streams alone
    bool rdma = false;                             // streams and datagrams go by RDMA at every member that has it
    uint32_t rails = 1;                            // LinkConfig's
    std::vector<std::string> addresses;            // by rank, with more than one rail: as PeerState's; else empty
    bool resumes = false;                          // a run of the job before this one has left a checkpoint:
    uint64_t resume_steps = 0, resume_state = 0;   // see Resume
    Rank resume_holder = 0;
    std::string notes;      // of the coordinator about this run, a line each, which the job tells
    bool returns = false;   // a member that is started anew becomes a member again while the job runs (job.survive)
    bool joins = false;     // the receiver does: the job runs, and what it computes with must be these
    std::string kernel_set, data_digest, start_digest;   // as Membership::opened() takes them
    std::string server;             // of a benchmark: where its ranks meet, and `text` is its command line, a word a line; empty: a job
    std::shared_ptr<Fd> listener;   // of that address; at the coordinator alone
    uint32_t first_nodes() const { return first > 0 ? first : static_cast<uint32_t>(members.size()); }
    bool grows() const { return returns && !rdma; }   // nodes that it did not begin with may join it
    /// Of these nodes those that are not in it go behind the others, in this order, so that all number them alike.  Where it grows.
    void extend(std::span<const std::string> names);
    /// How long a member may take to open its engine: like the first step, 10 D (spec/views.md).
    uint64_t prepare_us() const { return 10 * deadline_us; }
};
/// The wire form of a plan (of PREPARE); parse returns false where bytes are not one.
std::vector<std::byte> plan_write(const JobPlan& plan);
bool plan_parse(std::span<const std::byte> bytes, JobPlan* plan);

/// What a node has of a job that has run.
struct Found {
    bool active = false;             // it runs, or is being prepared
    uint64_t steps = 0, state = 0;   // of its newest checkpoint that is whole; steps 0: there is none
    bool agreed = false;             // see Model
    std::string name, text, base;    // of the job file
    std::string notes;               // newer checkpoints that are not whole, a line each
};

struct MembershipConfig {
    Rank self = 0;                    // peer number of this daemon
    std::vector<std::string> names;   // by peer
    Identity identity;
    std::string version;
    Isa isa = Isa::portable;       // that this node computes with
    uint32_t datagram_bytes = 0;   // largest payload of a datagram on this node's interface; 0: it has none
    uint32_t rdma_bytes = 0;       // the same over RDMA
    std::string rails = {};        // "10.1.0.1:4700,10.2.0.1:4700": where it listens on each of its interfaces
    uint32_t rdma_devices = 0;
    uint32_t jobs_max = 16;                                  // sessions at one time
    size_t left_max = 1024;                                  // jobs of before that are known one by one
    uint64_t hello_us = 1'000'000, silence_us = 6'000'000;   // between HELLOs; after that much silence a peer is not alive
};

/// A job that goes on without a node, and the incarnation as which the node would be a member of it again.
struct JobReturn {
    JobId id{};
    uint64_t incarnation = 0;
};

/// A copy of what is known of a peer.
struct PeerState {
    bool alive = false;
    Member member;   // as it last said; uuid all zero: never heard of
    std::string version;
    Isa isa = Isa::portable;
    uint32_t datagram_bytes = 0;   // 0: it has no `interface`
    uint32_t rdma_bytes = 0;       // 0: it has no `rdma`
    std::string rails;             // as MembershipConfig's
    uint32_t rdma_devices = 0;
    uint32_t jobs = 0;
    std::string why;         // not alive: the last error
    bool draining = false;   // it takes no new jobs, and leaves those that go on without it
    std::string hinders;     // draining: its jobs that cannot, and why
    std::vector<JobReturn> returns;
    std::vector<JobId> runs;   // jobs with `returns` that it is a member of
};

/// What the daemon has to do.  Each find is followed by found(), each open is followed by exactly one start or abort, each start by exactly
/// one close.
struct Notice {
    /// over: the others that are heard have ended a job that this node was still to join.
    enum class Kind : uint8_t { open, start, abort, close, submitted, find, found, drain, told, over } kind;
    JobId id{};
    std::shared_ptr<const JobPlan> plan;   // of open
    Rank self = 0;                         // of open: our rank
    Status status;                         // of abort: why; of submitted: the outcome; of told: what people should know about a running job
    Rank peer = 0;                         // of find: who asks, by found(); of found: who has answered
    uint64_t request = 0;                  // of find, found: number of the search at the one who asks
    Found found = {};
    bool on = false, cancel = false;   // of drain: this node; cancel: also the jobs that cannot go on without it
    uint64_t deadline_us = 0;          // of start: D, which is the same at all members
};

/// on() runs on the mesh's network thread; the other methods on any.  A Completion on its channel says that notices() has something.
class Membership final : public Protocol {
public:
    explicit Membership(const MembershipConfig& config);
    void start(Host& host, uint16_t channel);   // once, when attached; host outlives it

    /// Answered by the notice `submitted`.  Error: this daemon cannot take part, as things are; then no notice comes.
    Status submit(std::shared_ptr<const JobPlan> plan);
    /// The answer to the notice open; an error (also: cancelled meanwhile) is told to the coordinator and comes back as the notice abort.
    /// `deadline_us`: D, as this node needs it; 0: as the plan has it.
    void opened(const JobId& id, Status status, std::string kernel_set, std::string data_digest, std::string start_digest,
                uint64_t deadline_us = 0);
    /// run() has returned here.  leaves: the others may go on, so the link is closed soon, whether they have ended or not.  returns: this
    /// node would be a member again.
    void ended(const JobId& id, bool leaves = false, bool returns = false);
    /// Asks all peers that are alive, this one too, what they have of a job: a notice `found` comes from each that answers.
    void find(const JobId& id, uint64_t request);
    /// The answer to the notice find.
    void found(const JobId& id, Rank peer, uint64_t request, Found found);
    /// Orders a node to be drained, or not any more: a notice there.  PeerState tells what becomes of it.
    void drain(Rank peer, bool on, bool cancel);
    /// A node that may join a job that runs here is invited, also if it has refused before.
    void add(const JobId& id, const std::string& node);
    /// This node, which joins, has become a member of the job: from here on it may invite others.
    void trains(const JobId& id);
    /// This node does not ask to be a member of that job again, but comes where an operator adds it.
    void stays_out(const JobId& id);
    /// One more peer, behind the others, before the driver has it.  Jobs that grow may take it in.
    void add_peer(const std::string& name);
    /// What this node tells of itself.
    void draining(bool on, std::string hinders);
    std::vector<Notice> notices();
    std::vector<PeerState> peers() const;   // by peer; our own is alive and counts our sessions
    uint64_t ticks() const;                 // grows by one a second as long as the network thread lives

    void on(std::span<const Event> events, Actions& actions) override;

private:
    enum class Kind : uint32_t { hello = 1, prepare, ready, refused, start, abort, ended, find, found, drain, invite, add };
    enum class State : uint8_t { opening, ready, running, ended };
    struct Part {   // of a job, by rank
        Rank peer = 0;
        bool ready = false;
        bool ended = false;         // or lost, or no member yet: HELLO says otherwise
        bool said_ended = false;    // it has told its end
        bool wanted = false;        // an operator wants it in
        uint64_t incarnation = 0;   // the last one that is known here; 0: it was never in the job, nor invited
        uint64_t invited_us = 0;
        uint64_t deadline_us = 0;   // that it needs
        std::string kernel_set, data_digest, start_digest;
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
        uint64_t heard_us = 0;
        uint64_t hello_ticket = 0;   // at most one HELLO is on its way
        uint32_t finds = 0;          // that it has not answered yet
        Kind kind{};                 // of the message that is arriving
        std::vector<std::byte> message;
    };
    struct Command {
        enum class Kind : uint8_t { submit, opened, ended, find, found, drain, add } kind;
        JobId id{};
        std::shared_ptr<const JobPlan> plan;
        Status status;
        std::string kernel_set, data_digest, start_digest;
        bool leaves = false, returns = false;
        Rank peer = 0;
        uint64_t request = 0;
        Found found = {};
        bool on = false, cancel = false;
        std::string node = {};
        uint64_t deadline_us = 0;
    };
    void wake();
    void command(Command command);
    void run(Command& command, Actions& actions);
    void packet(const Packet& packet, Actions& actions);
    void message(Rank from, Kind kind, std::span<const std::byte> bytes, Actions& actions);
    void look(Rank peer, const JobId& id, uint64_t request);
    void drain_here(bool on, bool cancel);
    void found_here(Rank peer, const JobId& id, uint64_t request, Found found);
    void hello(Rank from, std::span<const std::byte> bytes, Actions& actions);
    void prepare(Rank from, std::span<const std::byte> bytes, Actions& actions);
    struct Left {                        // a job that may go on without this node
        uint64_t incarnation = 0;        // the least that this node may be a member as
        uint64_t asks_us = UINT64_MAX;   // from when on it asks for that; UINT64_MAX: never
        uint64_t left_us = 0;
        uint32_t tries = 0;           // to be in again
        bool by_invitation = false;   // it does not ask, but comes when it is asked
        uint64_t submitted_unix = 0;
    };
    void left(const Session& session, bool leaves, bool returns, uint64_t now_us);
    void not_joined(const Session& session, const Status& why, uint64_t now_us);
    void ask(Left* left, uint64_t deadline_us, uint64_t now_us) const;
    void forget_oldest();
    static bool member(const Session& session);   // this node is, or is about to begin the job with the others
    std::vector<JobId> runs() const;
    std::vector<JobReturn> returns(uint64_t now_us) const;
    void told_over(const Session& session);
    void heard(Session& session, Rank rank);
    void invite(Session& session, Actions& actions);
    void add_here(Session& session, const std::string& node);
    void invited(Rank from, std::span<const std::byte> bytes, Actions& actions);
    void join(Sessions::iterator at, const Command& command, Actions& actions);
    void tick(Actions& actions);
    void lost(Rank peer, const char* why, Actions& actions);
    void begin(const std::shared_ptr<const JobPlan>& plan, Rank self, Actions& actions);
    void extend(Session& session);
    void take_peer();
    void ready(Sessions::iterator at, Rank rank, std::string kernel_set, std::string data_digest, std::string start_digest,
               uint64_t deadline_us, Actions& actions);
    void start(Sessions::iterator at, uint64_t deadline_us);
    void finish_preparing(Sessions::iterator at, Actions& actions);
    Sessions::iterator give_up(Sessions::iterator at, Status why, Actions& actions);
    Sessions::iterator close_if_over(Sessions::iterator at);
    Status why_not(const JobPlan& plan) const;
    Status refusal(const JobPlan& plan) const;   // the same as told to the client
    uint64_t send(Rank peer, Kind kind, std::vector<std::byte> bytes, Actions& actions);
    void send_all(const Session& session, Kind kind, const std::vector<std::byte>& bytes, Actions& actions);
    Rank rank_of(const Session& session, Rank peer) const;   // its size: not in it
    void notice(Notice notice) { notices_.push_back(std::move(notice)); }

    const MembershipConfig config_;
    Host* host_ = nullptr;
    uint16_t channel_ = 0;
    mutable std::mutex mutex_;         // all below: network thread and callers, briefly
    std::vector<std::string> names_;   // by peer
    std::vector<Peer> peers_;
    std::deque<std::string> coming_;   // the next ones, of which the driver has not told yet
    Sessions sessions_;
    std::map<JobId, Left> left_;
    uint64_t forgotten_unix_ = 0;   // when the latest job was submitted that left_ had to forget; 0: none
    std::deque<Command> commands_;
    std::vector<Notice> notices_;
    std::map<uint64_t, std::shared_ptr<const std::vector<std::byte>>> flights_;   // bytes that belong to the link, by ticket
    uint64_t ticket_ = 0, ticks_ = 0;
};

}   // namespace gradcast
