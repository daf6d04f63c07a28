// Hands the completions of one view to the trainer: those of job_channel are kept here, the rest goes to the consumer of its channel.
#pragma once
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "algos/progress.h"
#include "runtime/core/channel.h"
#include "runtime/core/protocol.h"

namespace gradcast {

/// A command on job_channel: the rank computes wrongly, as `verdict` says.
struct WrongRank {
    Rank rank = 0;
    Status verdict = {};
};
/// Completion::id on job_channel after WrongRank or any other loss: Completion::rank is lost, for the reason in `status`, and the job goes
/// on without it.
constexpr uint32_t job_rank_lost = 4;

/// Takes what is completed on one channel, from within Dispatch::collect() and on its thread.
struct Consumer {
    virtual ~Consumer() = default;
    virtual Status take(const Completion& completion) = 0;   // an error ends the batch, and is the wait's
    /// The whole batch has been taken, with this result, which may become another.  It may collect() anew.
    virtual Status taken(Status so_far) { return so_far; }
    /// The job goes on without this rank, which computes wrongly, but the link keeps it until cut_expelled().
    virtual void expelled(Rank rank) { (void)rank; }
};

class Dispatch {
public:
    /// lost: by rank, before the view.  why_lost gets a line for people for each rank that is lost in it.
    Dispatch(Host& host, Progress& progress, std::vector<bool> lost, std::vector<std::string>& why_lost, uint64_t deadline_us)
        : host_(host), progress_(progress), deadline_us_(deadline_us), lost_(std::move(lost)), why_lost_(why_lost) {}
    Dispatch(const Dispatch&) = delete;
    Dispatch& operator=(const Dispatch&) = delete;

    /// One a channel; what comes on others is dropped.
    void add(uint16_t channel, Consumer* consumer);
    /// Blocks until something is completed or the time has come (Code::deadline), and hands it on.  Thread: as of Host::wait().  Errors:
    /// what the job has been ended with elsewhere, or what a consumer says.
    Status collect(uint64_t until_us);
    /// Blocks until job_channel says that `id` is done.  The job protocol keeps the deadlines and always
    /// answers; this one, of 20 times the job's, is for a network thread that has died.
    Status wait_job(uint64_t id);

    /// Once the job has ended: hands on what else comes on that channel until there() is true or the time has come.  Errors count no more.
    void take_rest(uint16_t channel, uint64_t until_us, const std::function<bool()>& there);

    const Status& ended() const { return ended_; }   // the status that all ranks have agreed to end the job with; ok while it goes on
    bool lost(Rank rank) const { return lost_[rank]; }
    bool any_lost() const { return std::find(lost_.begin(), lost_.end(), true) != lost_.end(); }
    bool expelling() const { return !expelled_.empty(); }
    /// At the end of a round: the link gives up the ranks that compute wrongly.
    void cut_expelled();

private:
    void rank_lost(const Completion& completion);

    Host& host_;
    Progress& progress_;
    const uint64_t deadline_us_;
    std::vector<std::pair<uint16_t, Consumer*>> consumers_;
    std::vector<Completion> completions_;
    std::vector<bool> lost_;
    std::vector<std::string>& why_lost_;
    std::vector<Rank> expelled_;   // lost, but not yet to the link
    uint64_t completed_ = 0;       // bits of ids on job_channel
    Status ended_;
};

}   // namespace gradcast
