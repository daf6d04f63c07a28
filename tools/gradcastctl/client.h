// Requests to one daemon over its control socket.  Every call has a deadline; none throws.
#pragma once
#include <functional>

#include "runtime/control/json.h"
#include "tools/gradcastctl/ctl.h"

namespace gradcast {

// NOLINTNEXTLINE(bugprone-exception-escape): moving a Json does not throw, whatever its members declare
struct Reply {
    Exit exit = exit_done;
    std::string error;   // of anything but exit_done: whole lines, not printed yet
    Json json;           // of a JSON answer
    std::string text;    // of any other
    uint64_t next = 0;   // of a piece of a file: where the next piece starts
};

class Client {
public:
    explicit Client(std::string socket) : socket_(std::move(socket)) {}
    Reply get(const std::string& route) const { return request(route, nullptr); }
    Reply post(const std::string& route, const std::string& body) const { return request(route, &body); }
    /// Answered when all members are ready, for which they have 10 deadlines (JobPlan::prepare_us).
    Reply submit(const Submission& submission, uint64_t deadline_us) const;
    Reply job(const std::string& which, JobDetail* detail) const;
    Reply nodes(std::vector<NodeInfo>* nodes) const;
    /// Calls `seen` with every status until the job has ended, and at least once a second while nothing changes; ends early (exit_failed,
    /// no error) when `seen` returns false.  *detail is the last status.
    Reply follow(const std::string& which, JobDetail* detail, const std::function<bool(const JobDetail&)>& seen) const;

private:
    Reply request(const std::string& route, const std::string* body, uint64_t extra_us = 0) const;
    Reply unreachable(const std::string& why) const;
    std::string socket_;
};

/// /run/gradcast/control.sock, or under XDG_RUNTIME_DIR where only that one exists.
std::string socket_default();
/// "/v1/jobs/<which><rest>" with all but plain letters escaped.
std::string job_route(const std::string& which, const std::string& rest = {});
bool job_ended(JobState state);

}   // namespace gradcast
