// The control plane's interface to a daemon, implemented by runtime/daemon.  Answers are copies, so requests never disturb a step.  All
// methods: any thread, bounded by a deadline.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/control/keys.h"
#include "runtime/core/log.h"
#include "runtime/core/status.h"
#include "runtime/core/types.h"
#include "runtime/job/report/job_status.h"

namespace gradcast {

struct Submission {
    std::string text;                 // of the job file; of a benchmark: the command line of gradcast-bench, a word a line
    std::string path, base;           // path for messages; base: absolute folder that its relative paths are against
    std::vector<std::string> nodes;   // by name, or
    uint32_t count = 0;               // how many (0 and no names: all that are alive), this node among them
    bool bench = false;
    bool force = false;           // resume: also where nodes that cannot be asked may run it
    bool allow_command = false;   // resume: net.command of the job file in the checkpoint may be started
    /// resume: `text` is the job file of the checkpoint, so programs are started from the copies of their sources in the job's folder,
    /// where a node has some.  Without text it is so, too.
    bool copies = false;
    Role role = Role::none;   // of who submits, as the server knows it; no client says it
};
struct JobSummary {
    std::string id, name;   // id: 32 hex digits
    JobStatus status;
    uint64_t submitted_unix = 0;
    std::vector<std::string> nodes;   // by NodeId
    /// How many are in its newest view.
    size_t nodes_now() const { return status.views.empty() ? nodes.size() : status.views.back().members.size(); }
};
struct JobDetail {
    JobSummary summary;
    NodeId self{0};
    bool started = false;   // all members were ready
    std::string folder;     // holds job.toml, log, steps.jsonl, final.h5 (of the lowest rank that lives); empty: there is none
    std::string exchange, quantiser, algorithm, protect;
    uint32_t batch = 0, blocks = 0;
};
struct NodeInfo {
    std::string name, address = {}, uuid = {}, version = {};
    bool self = false, alive = false;
    uint32_t jobs = 0;          // running
    std::string why = {};       // not alive: the last error ("refused: keys differ")
    std::string isa = {};       // instruction set that it computes with; "": not known
    bool draining = false;      // it takes no new jobs, and leaves those that go on without it
    std::string hinders = "";   // draining: its jobs that cannot, and why
};

/// A check of `gradcastctl doctor`.
struct Finding {
    enum class Verdict : uint8_t { ok, warning, error };
    std::string check;   // "memlock"
    Verdict verdict = Verdict::ok;
    std::string text;   // what is, and what to do
};
const char* verdict_name(Finding::Verdict verdict);

struct Backend {
    virtual ~Backend() = default;
    /// Checks the job and begins to prepare it at all members: it is listed from then on, and fails with the reason where a member
    /// refuses.  Error: one line a mistake, or the node that is not alive and why.
    virtual Status submit(const Submission& submission, std::string* id) = 0;
    /// Lets a job that has ended go on from its newest checkpoint, in its folder and under its id.  The submission's text may be empty:
    /// that of the job.  Listed as preparing while the nodes are asked what they have.  Error: as submit()'s, or the job runs or is done.
    virtual Status resume(const std::string& which, const Submission& submission, std::string* id) = 0;
    virtual std::vector<JobSummary> jobs() = 0;
    /// `which`: an id, its unique prefix of at least 4 digits, or the name of a job (the newest of that name).
    virtual Status job(const std::string& which, JobDetail* detail) = 0;
    /// Of jobs with one name, the active one.  *id: whole.
    virtual Status cancel(const std::string& which, std::string* id) = 0;
    /// Removes a job that has ended from this node's list, with its folder.  *id: whole.
    virtual Status remove(const std::string& which, std::string* id) = 0;
    virtual std::vector<NodeInfo> nodes() = 0;
    /// Orders a node to take no new jobs and to leave those that go on without it; cancel: the others are cancelled.  on = false: it takes
    /// jobs again.  nodes() shows how far it is.
    virtual Status drain(const std::string& node, bool on, bool cancel) = 0;
    /// Invites a node to a job that runs here.  The job's views show whether it has joined, a warning why it has not.  *id: whole.
    virtual Status add_node(const std::string& which, const std::string& node, std::string* id) = 0;
    /// `dead` does not live any more, as an operator has seen: the others may go on without it where the rule of quorums needs that proof.
    /// Refused while it answers.  *id: whole.
    virtual Status force_view(const std::string& which, const std::string& dead, std::string* id) = 0;
    /// Looks at this node and, over the mesh, at the others.
    virtual std::vector<Finding> doctor() = 0;
};

struct ControlConfig {
    std::string socket;   // path of the Unix socket
    unsigned mode = 0660;
    uint32_t watchers_max = 256;
    std::string tcp = {};                // "host:port" that answers what reads alone: page, metrics, jobs, nodes; "": none
    std::string remote = {};             // "host:port" of TLS for all that the role of the client's key allows; "": none
    std::vector<ControlKey> keys = {};   // of `remote`
};
/// HTTP/JSON under /v1 on a Unix socket, in threads of its own.
class ControlServer {
public:
    virtual ~ControlServer() = default;   // closes the sockets, ends watchers
    /// Where `remote` listens, with the port that was picked.
    virtual std::string address() const = 0;
    /// In place of those of `remote`: whoever is connected with another key is cut off.
    virtual void keys(std::vector<ControlKey> keys) = 0;
};
Status control_open(const ControlConfig& config, Backend& backend, const Log& log, std::unique_ptr<ControlServer>* server);

}   // namespace gradcast
