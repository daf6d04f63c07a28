// Jobs from which this node has departed and that may go on without it: under which incarnation it may rejoin each, and from when on it
// asks for that.  A former member has lost its promises (runtime/view/VIEWS.md, "Joining"), so it rejoins as a later incarnation.  A part
// of Membership, under Membership's lock.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "runtime/core/identity.h"

namespace gradcast {

/// A node's request to rejoin a job, and the incarnation under which it would be a member again.
struct RejoinRequest {
    JobId id{};
    uint64_t incarnation = 0;
};

/// A run of a job that has ended at this node alone.
struct DepartedJob {
    JobId id{};
    uint64_t incarnation = 0;   // the least under which this node may be a member from now on
    uint64_t submitted_unix = 0;
    uint64_t deadline_us = 0;   // D of the job
    uint64_t member_us = 0;     // how long this node was a member in that run
};

class DepartedJobs {
public:
    /// asks: the node asks to rejoin.  by_invitation: it rejoins when it is invited, and asks once an invitation has named another
    /// incarnation.  stays: it does neither.
    enum class Wish : uint8_t { asks, by_invitation, stays };

    /// `incarnation`: that of this daemon.  `jobs_max`: jobs that are remembered one by one.
    DepartedJobs(uint64_t incarnation, size_t jobs_max) : incarnation_(incarnation), jobs_max_(jobs_max) {}

    /// Adds a job.  The node asks at once the first time, later after a backoff of D, 2 D, 4 D, … and at most 10 minutes.  The backoff
    /// begins anew after the node was a member for more than 10 minutes.
    void add(const DepartedJob& job, Wish wish, uint64_t now_us);
    /// Stops asking.  The node still rejoins when it is invited.
    void stay_out(const JobId& id);
    /// Another node has done the job's last step.  This node asks again after 10 minutes, because the job may be resumed.  Returns true if
    /// it was asking.
    bool done(const JobId& id, uint64_t now_us);
    /// Returns the incarnation under which this node may rejoin the job.  Returns 0 if this node may once have been a member but has lost
    /// the record: under a reused incarnation it could vote twice.
    uint64_t incarnation_for(const JobId& id, uint64_t submitted_unix) const;
    /// An invitation named another incarnation than incarnation_for().  The node asks, so that the inviter learns the right one.
    void invited_as_another(const JobId& id, uint64_t deadline_us, uint64_t now_us);
    /// Returns the requests that are due, the job that the node departed from last first.
    std::vector<RejoinRequest> rejoin_requests(const std::function<bool(const JobId&)>& runs_here, uint64_t now_us) const;

private:
    struct Record {
        uint64_t incarnation = 0;
        uint64_t asks_us = UINT64_MAX;   // the node asks from this time on; UINT64_MAX: never
        uint64_t departed_us = 0;
        uint32_t requests = 0;   // for the backoff
        bool by_invitation = false;
        uint64_t submitted_unix = 0;
    };
    void ask(Record* job, uint64_t deadline_us, uint64_t now_us) const;
    void forget_oldest();

    const uint64_t incarnation_;
    const size_t jobs_max_;
    std::map<JobId, Record> jobs_;
    uint64_t forgotten_unix_ = 0;   // submission time of the youngest job that jobs_ had to forget; 0: none
};

}   // namespace gradcast
