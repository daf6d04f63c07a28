// A daemon: its listener, the mesh of all daemons, its jobs.  Threads: listener, network thread of the mesh, steward (carries out the
// notices of membership), two a job, and those of the control plane, which read copies.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include "runtime/control/backend.h"
#include "runtime/core/memory_budget.h"
#include "runtime/daemon/config.h"
#include "runtime/daemon/grid_choice.h"
#include "runtime/daemon/job_run.h"
#include "runtime/daemon/search.h"
#include "runtime/mesh/membership.h"
#include "transport/stream/handshake.h"

namespace gradcast {

/// The cluster's keys.  Error: says how to make one.
Status daemon_keys_read(const DaemonConfig& config, std::vector<ClusterKey>* keys);

/// Whether Daemon::open() could listen, or the daemon of this file does.  Takes the port for a moment.
Status listen_check(const DaemonConfig& config);

class Daemon final : public Backend {
public:
    /// Takes the state folder and the port and starts.  listen_fd: a listening socket to take over, or -1.
    /// Errors: one line each, with the way out.
    static Status open(const DaemonConfig& config, int listen_fd, const Log& log, std::unique_ptr<Daemon>* daemon);
    ~Daemon() override;   // when no job runs

    Status submit(const Submission& submission, std::string* id) override;
    Status resume(const std::string& which, const Submission& submission, std::string* id) override;
    std::vector<JobSummary> jobs() override;
    Status job(const std::string& which, JobDetail* detail) override;
    Status cancel(const std::string& which, std::string* id) override;
    Status remove(const std::string& which, std::string* id) override;
    std::vector<NodeInfo> nodes() override;
    Status drain(const std::string& node, bool on, bool cancel) override;
    Status add_node(const std::string& which, const std::string& node, std::string* id) override;
    Status force_view(const std::string& which, const std::string& dead, std::string* id) override;
    std::vector<Finding> doctor() override;

    /// For all that is said from now on; streams that are open stay.  Any thread.
    void keys(const std::vector<ClusterKey>& keys) { ring_->replace(keys); }
    /// Takes in the nodes of `all` that are behind the present ones, while jobs run.  Error: why it takes none.
    Status extend(const std::vector<NodeAddress>& all, size_t* added);
    /// No new jobs; leaves those that are here to the others, or cancels them.
    void leave(const std::string& why, bool cancels = false);
    bool last_ended(JobDetail* detail) const;   // the job that has ended last since open(); false: none has
    Status failed() const;                      // not ok: the mesh has ended, so no job can begin or end here
    size_t running() const;                     // jobs whose threads are here
    std::string summary() const;                // "2 jobs, 3 of 4 nodes alive"
    uint64_t ticks() const { return membership_->ticks(); }
    const std::string& address() const { return address_; }

private:
    Daemon(const DaemonConfig& config, const Log& log)
        : config_(config), log_(log), budget_(config.memory_most(), config.memory_setting()), members_(config.members) {}
    Status open(int listen_fd);
    void steward();
    void act(const Notice& notice);
    // Holding mutex_:
    void act(const JobId& id, const Notice::Open& open);
    void act(const JobId& id, const Notice::Start& start);
    void act(const JobId& id, const Notice::Abort& abort);
    void act(const JobId& id, const Notice::Close& close);
    void act(const JobId& id, const Notice::Submitted& submitted);
    void act(const JobId& id, const Notice::Find& find);
    void act(const JobId& id, const Notice::Answer& answer);
    void act(const JobId& id, const Notice::Drain& drain);
    void act(const JobId& id, const Notice::Warning& warning);
    void act(const JobId& id, const Notice::EndedElsewhere& ended);
    JobRun& run_of(const JobId& id);   // of one that is open
    void watch_peers(std::vector<PeerState>* before);
    std::vector<NodeAddress> members() const;
    uint32_t datagrams_for(const std::vector<Member>* members) const;
    void rdma_for(bool wanted, JobPlan* plan) const;
    void rails_for(JobPlan* plan) const;
    Status listen_on_interfaces(std::vector<std::string>* addresses);
    bool claims(const JobId& id, Rank peer) const;         // holding mutex_
    void give_up(const JobId& id, const Status& status);   // holding mutex_
    void search();
    void drain_jobs();   // holding mutex_
    Status resume_from(const JobId& id, const Search& search);
    Status plan(const Submission& submission, JobPlan* plan) const;
    Status prepare(const std::shared_ptr<JobPlan>& plan);   // holding mutex_
    void grids();
    Status choose(const Submission& submission, std::vector<Member>* members) const;
    Status command_check(const JobConfig& job, const Submission& submission) const;
    Status isa_check(const JobConfig& job, const std::vector<Member>& members) const;
    void each_job(const std::function<void(const JobDetail&)>& see) const;   // holding mutex_
    using Runs = std::map<JobId, std::unique_ptr<JobRun>>;
    Status find(const std::string& which, bool active, JobDetail* detail) const;        // holding mutex_
    Status running(const std::string& which, JobDetail* detail, Runs::iterator* run);   // likewise; error: it has no engine here
    void ended(JobDetail detail);                                                       // holding mutex_
    void end_elsewhere();

    const DaemonConfig config_;   // but its members are members_
    const Log log_;
    MemoryBudget budget_;
    Fd lock_;
    Identity identity_;
    std::shared_ptr<KeyRing> ring_;
    std::string address_;
    std::unique_ptr<Listener> listener_;
    std::vector<std::unique_ptr<Listener>> more_listeners_;   // on the interfaces that streams are spread over
    std::unique_ptr<Membership> membership_;
    std::unique_ptr<Driver> mesh_;   // after its protocol, so that it goes first
    std::unique_ptr<JobHost> job_host_;
    Thread network_, steward_;
    Lookers lookers_;                 // the steward's
    std::atomic<bool> stop_{false};   // read by the steward

    mutable std::mutex members_mutex_;
    std::vector<NodeAddress> members_;   // by peer; it grows, holding mutex_ too
    struct Submitted {                   // and not opened yet
        JobDetail detail;
        std::string cancelled;             // why; empty: not
        std::optional<JobDetail> before;   // where it resumes: as it stood
    };
    mutable std::mutex mutex_;   // all below
    Runs runs_;
    std::map<JobId, Submitted> submitted_;
    std::map<JobId, Search> searches_;                       // each with its place in submitted_
    std::map<JobId, std::unique_ptr<GridChoice>> choices_;   // likewise, behind the search
    uint64_t searches_made_ = 0;
    std::vector<std::pair<JobId, Notice::Find>> asked_;   // about jobs that are about to end here, or while there are other searches
    std::vector<JobDetail> ended_;                        // oldest first
    std::set<JobId> done_elsewhere_;                      // jobs that other nodes have done without this one
    std::optional<JobDetail> last_;
    std::string leaving_;     // why; empty: not
    bool draining_ = false;   // as the file `drained` in the state folder says, so also after a restart
    Status failed_;
};

}   // namespace gradcast
