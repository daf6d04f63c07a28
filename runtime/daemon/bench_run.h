// A benchmark at this daemon: runs gradcast-bench with the key, interface and addresses of gradcastd.toml.  The program of the coordinator
// is the server and rank 0, and prints the table to the job's log.  Those of the other daemons connect to it.
#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "runtime/daemon/config.h"
#include "runtime/mesh/membership.h"

namespace gradcast {

class BenchRun {
public:
    /// Finds the program.  The coordinator also checks the command line.  The program writes to the files log and stderr in `folder`.
    static Status open(const DaemonConfig& config, const JobPlan& plan, Rank self, const std::string& folder,
                       std::unique_ptr<BenchRun>* run);
    /// Blocks until the program has ended.  Error: the last line of its stderr.
    Status run();
    void cancel() { cancelled_.store(true, std::memory_order_relaxed); }   // any thread

private:
    Status execute(const std::vector<std::string>& words, uint64_t limit_us);
    std::string folder_;
    std::vector<std::string> words_;
    std::shared_ptr<Fd> listener_;
    std::atomic<bool> cancelled_{false};
};

}   // namespace gradcast
