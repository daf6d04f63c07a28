// What is ordered of a job that runs here: that it ends, that this node leaves it, that a node is dead.  An order that comes while no
// session is open is kept for the next one.
#pragma once
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/protocol.h"
#include "runtime/job/run/job_protocol.h"

namespace gradcast {

class Orders {
public:
    explicit Orders(NodeId self) : self_(self) {}

    // Trainer thread.
    /// run() begins: nodes that were said to be dead before are told to the views.
    void begin(Host& host);
    /// A session is open, which takes the order that is kept.  may_leave: the others can go on without this node.
    void open(Host& host, bool may_leave);
    /// No session is open until the next open().
    void close();
    void stop();   // run() ends
    /// Why this node leaves; empty: it does not.
    std::string leaves() const;

    // Any thread.
    /// The job ends, or this node ends alone if the others can go on without it.  The first order counts.
    void abort(const std::string& why);
    void leave_alone(const std::string& why);
    /// This node leaves once the others can go on without it.
    void leave(const std::string& why);
    /// If they cannot at the next open(), the job ends.
    void leave_in_any_case();
    void force_dead(NodeId node);

private:
    void end(const JobCommand& command);

    const NodeId self_;
    mutable std::mutex mutex_;
    Host* session_ = nullptr;   // while a session is open
    Host* run_ = nullptr;       // between begin() and stop()
    std::optional<JobCommand> end_;
    std::string leaves_;
    std::vector<NodeId> dead_;   // named before begin()
    bool in_any_case_ = false;
};

}   // namespace gradcast
