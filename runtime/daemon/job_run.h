// One job at this daemon, from PREPARE to its last packet: the engine, the job's own link, and their two threads.
//
//     worker    opens engine and driver, reports to membership, waits for start, trains (it is the engine's trainer thread), waits for
//     close network   made when the worker has opened engine and driver; the driver's loop, from start until close
//
// Where a thread cannot be made the job is refused, as by any other error of PREPARE.
//
// No wait is endless: membership answers each `open` by start or abort and each `ended` by close, within deadlines.
#pragma once
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>

#include "runtime/control/backend.h"
#include "runtime/core/thread.h"
#include "runtime/daemon/bench_run.h"
#include "runtime/daemon/config.h"
#include "runtime/job/run/engine.h"
#include "runtime/mesh/membership.h"

namespace gradcast {

/// What all jobs of a daemon share; outlives them.
struct JobHost {
    const DaemonConfig& config;
    const Identity& identity;
    std::shared_ptr<KeyRing> ring;
    Membership& membership;
    const Log& log;
    std::string folder;   // holds a folder a job
    MemoryBudget& budget;
};

class JobRun {
public:
    /// Starts the worker.  `nodes`: all that are configured.
    JobRun(const JobHost& host, std::shared_ptr<const JobPlan> plan, std::vector<NodeAddress> nodes, NodeId self);
    ~JobRun();   // joins it: only when finished()
    JobRun(const JobRun&) = delete;
    JobRun& operator=(const JobRun&) = delete;

    // Any thread; none waits for the worker.
    void start(uint64_t deadline_us, const std::string& note);   // D, as all members have it; a line for the job's log, or ""
    void abort(Status why);                                      // before start
    void close();                                                // after run() has returned
    void cancel(const std::string& why);
    void leave(const std::string& why);   // as cancel, but the others go on where they can
    /// The others have ended it.  Where this node is still to join it gives up.  False: it has ended here before.
    bool nobody_runs(const std::string& why);
    /// Leaves the job to the others, where it is running.  Error: it cannot go on without this node, and why.
    Status drain(const std::string& why);
    Status may_join(const std::string& node) const;       // error: it cannot become a member, and why
    void add(const NodeAddress& node);                    // one more is configured, at a numeric address
    void warn(const std::string& warning);                // a warning for people, shown with the job
    Status force_dead(const std::string& node);           // see Engine
    bool adopt(std::unique_ptr<AcceptedStream> stream);   // false: not running
    JobDetail detail() const;
    bool listed() const;   // not of a member that never started it
    bool finished() const;
    bool trains() const;   // this node was to join, and is a member now

private:
    enum class Phase : uint8_t { preparing, running, ended, finished };
    void end(const std::string& why, bool leaves);
    void work();
    Status prepare();
    Status take_copies(EngineConfig* config) const;
    void network();
    void finish();         // the folder of a job that has ended
    void record() const;   // job.json
    JobDetail detail_locked() const;
    void ended_with(Status status);   // holding mutex_
    void add_later();                 // likewise

    const JobHost& host_;
    const std::shared_ptr<const JobPlan> plan_;
    const NodeId self_;
    bool ran_before_ = false;           // here; set when it is made
    std::optional<JobDetail> before_;   // where the job has run here before: as it stood when this was made
    mutable std::mutex mutex_;          // all below, but the worker alone uses engine_ and driver_ without it where it does not change them
    std::condition_variable changed_;
    Phase phase_ = Phase::preparing;
    bool started_ = false, aborted_ = false, closed_ = false, ran_ = false;
    std::string cancelled_;   // why; empty: not
    std::string nobody_;      // likewise, of nobody_runs()
    bool leaves_ = false;
    std::atomic<bool> stop_{false};   // cancelled or aborted: read by the worker while it prepares
    JobDetail detail_;
    std::vector<std::string> warnings_;
    const std::vector<NodeAddress> nodes_;   // that were configured when it was made
    std::vector<NodeAddress> later_;         // that engine and driver are to know when they are open
    Roster roster_;                          // the engine's
    ClusterKey key_;                         // the newest at PREPARE, of the transcript
    std::unique_ptr<Engine> engine_;
    std::unique_ptr<BenchRun> bench_;   // of a benchmark, which has neither engine nor driver here
    std::unique_ptr<Driver> driver_;
    Status network_status_;   // the network thread's, then the worker's
    Thread worker_, network_;
};

/// What is kept of a job that has ended, in its folder's job.json.
Status job_record_write(const JobDetail& detail);
/// Error: names the file, and what in it is not of a record that this version writes.
Status job_record_read(const std::string& folder, JobDetail* detail);
/// A job that was to go on does not: its state is that of the attempt, with the reason.  Its folder, job.json too, stays as it is.
void not_resumed(const Status& why, JobDetail* before);
/// All that are kept below `folder`, oldest first.  A job that was running when the daemon died has failed: "daemon restarted".  Folders of
/// jobs that never started are removed.  A record that cannot be read is named in the log, and nothing in its folder changes.
std::vector<JobDetail> job_records_read(const std::string& folder, const Log& log);
/// Of jobs that have ended, oldest first: beyond `count`, or `bytes` in their folders (0: any), some go with their folders, those that
/// never ran a step first, then the oldest.  The last one stays.
void job_records_trim(std::vector<JobDetail>* jobs, size_t count, uint64_t bytes, const Log& log);

}   // namespace gradcast
