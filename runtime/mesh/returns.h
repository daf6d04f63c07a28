// Jobs that may go on without this node: as which incarnation it would be a member again, and from when on it asks for that.  What was a
// member has forgotten its promises (runtime/view/VIEWS.md, "Joining"), so it asks as a later incarnation.  A state machine of Membership,
// under its lock.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "runtime/core/identity.h"

namespace gradcast {

/// A job that goes on without a node, and the incarnation as which the node would be a member of it again.
struct JobReturn {
    JobId id{};
    uint64_t incarnation = 0;
};

/// A run of a job that has ended here alone.
struct JobLeft {
    JobId id{};
    uint64_t incarnation = 0;   // the least that this node may be a member as from now on
    uint64_t submitted_unix = 0;
    uint64_t deadline_us = 0;   // D of the job
    uint64_t member_us = 0;     // how long this node was a member in that run
};

class Returns {
public:
    /// asks: it would be a member again; by_invitation: it comes where it is invited, and asks from then on; stays: neither.
    enum class Wish : uint8_t { asks, by_invitation, stays };

    /// `incarnation`: that this daemon was started as.  So many jobs are known one by one (`jobs_max`).
    Returns(uint64_t incarnation, size_t jobs_max) : incarnation_(incarnation), jobs_max_(jobs_max) {}

    /// It asks at once the first time, then after D, 2 D, 4 D, … at most 10 minutes; from the first time on after that long as a member.
    void left(const JobLeft& job, Wish wish, uint64_t now_us);
    /// It asks no more, but comes where it is invited.
    void stay_out(const JobId& id);
    /// Another node has done the last step.  This one asks after 10 minutes again: the job may be resumed.  True: it was asking.
    bool over(const JobId& id, uint64_t now_us);
    /// The incarnation as which it can be invited to this job; 0: it cannot, because it may have been a member and does not know as what.
    uint64_t invited_as(const JobId& id, uint64_t submitted_unix) const;
    /// It was invited as another incarnation: it tells its own.
    void invited_as_another(const JobId& id, uint64_t deadline_us, uint64_t now_us);
    /// What it asks for now, the jobs that it left last first.
    std::vector<JobReturn> asked(const std::function<bool(const JobId&)>& runs_here, uint64_t now_us) const;

private:
    struct Left {
        uint64_t incarnation = 0;
        uint64_t asks_us = UINT64_MAX;   // from when on; UINT64_MAX: never
        uint64_t left_us = 0;
        uint32_t tries = 0;   // to be in again
        bool by_invitation = false;
        uint64_t submitted_unix = 0;
    };
    void ask(Left* left, uint64_t deadline_us, uint64_t now_us) const;
    void forget_oldest();

    const uint64_t incarnation_;
    const size_t jobs_max_;
    std::map<JobId, Left> left_;
    uint64_t forgotten_unix_ = 0;   // when the latest job was submitted that left_ had to forget; 0: none
};

}   // namespace gradcast
