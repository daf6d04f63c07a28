// Requests to one daemon, over its control socket or TCP.  Every call has a deadline; none throws.
#pragma once
#include <functional>

#include "runtime/control/routes.h"
#include "tools/gradcastctl/ctl.h"
#include "tools/gradcastctl/target.h"

namespace gradcast {

// NOLINTNEXTLINE(bugprone-exception-escape): moving a Json does not throw, whatever its members declare
struct Reply {
    Exit exit = exit_done;
    std::string error;   // of anything but exit_done: whole lines, not printed yet
    Json json;           // of a JSON answer
    std::string text;    // of any other
    uint64_t next = 0;   // of a piece of a file: where the next piece starts
};
/// Prints the error of a reply, if it has one.  The exit code.
int complain_of(const Reply& reply);

class Client {
public:
    /// answer_seconds: how long a daemon may take for an answer, or between two lines of a watched job.
    explicit Client(Target target, uint32_t answer_seconds = 60) : target_(std::move(target)), answer_seconds_(answer_seconds) {}
    /// Asks by a route that is no order.  query: "?offset=0".
    Reply get(const Route& route, const std::string& which, const std::string& query) const { return request(route, which, query, {}); }
    /// Gives an order.  which: the job or the node.  *answer: as in the JSON of the reply; may be null.
    template <typename Q, typename A>
    Reply ask(const Order<Q, A>& order, const std::string& which, const Q& asked, A* answer = nullptr) const {
        Reply reply = request(order, which, {}, json_text(Json(asked)));
        try {
            if (reply.exit == exit_done && answer) reply.json.get_to(*answer);
        } catch (const Json::exception& error) {
            return unreachable(error.what());
        }
        return reply;
    }
    /// Submits and waits until the job has started or has failed, which is the error; the daemons allow 10 deadlines.  `wait` is called at
    /// least once a second and returns false to stop waiting (exit_failed, no error).  *job is the last status.
    /// `resumes`: the job that is to go on; empty: a new one.
    Reply submit(const Submission& submission, JobDetail* job, const std::function<bool(const std::string& id)>& wait,
                 const std::string& resumes = {}) const;
    Reply job(const std::string& which, JobDetail* detail) const { return ask(routes::job, which, {}, detail); }
    /// Calls `seen` with every status until the job has ended, and at least once a second while nothing changes; ends early (exit_failed,
    /// no error) when `seen` returns false.  *detail is the last status.
    Reply follow(const std::string& which, JobDetail* detail, const std::function<bool(const JobDetail&)>& seen) const;

private:
    Reply request(const Route& route, const std::string& which, const std::string& query, const std::string& body) const;
    Reply unreachable(const std::string& why) const;
    Target target_;
    uint32_t answer_seconds_;
};

bool job_ended(JobState state);

}   // namespace gradcast
