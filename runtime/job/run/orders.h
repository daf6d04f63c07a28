// The orders of operators and of the daemon to a job that runs here: the job ends, this node leaves it, a node is dead.  An order that
// comes while no session is open is kept for the next session.
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
    /// run() begins.  Passes on the nodes that were declared dead before.
    void begin(Host& host);
    /// A session is open and gets the order that was kept.  may_leave: the others can go on without this node.
    void open(Host& host, bool may_leave);
    /// The view change has dropped this node's order to leave, because the others cannot go on without it.  The job ends if the node leaves
    /// in any case: at once, or with the next session where `now` is false, because the present one may have ended at other nodes.
    void stays(bool now);
    /// No session is open until the next open().
    void close();
    void stop();   // run() ends
    /// The reason for which this node leaves; empty: it does not leave.
    std::string leaves() const;

    // Any thread.
    /// Ends the job, or this node alone if the others can go on without it.  Only the first order counts.
    void abort(const std::string& why);
    void leave_alone(const std::string& why);
    /// This node leaves once the others can go on without it.  Later calls ask again, with the first reason.
    void leave(const std::string& why);
    /// As leave(), but the job ends if the others cannot go on without this node.
    void leave_in_any_case();
    void force_dead(NodeId node);   // see ViewProtocol::force_dead()

private:
    void end(const JobCommand& command);
    void end_in_any_case();   // holding mutex_

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
