// A benchmark at this daemon: the program gradcast-bench, with the key, the interface and the addresses of gradcastd.toml.  At the
// coordinator it is the server and rank 0, whose table goes to the job's log; at the others it connects to that.
#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "runtime/daemon/config.h"
#include "runtime/job/membership.h"

namespace gradcast {

class BenchRun {
public:
    /// Finds the program; the coordinator's also looks at the command line.  `folder` holds log (what it prints) and stderr.
    static Status open(const DaemonConfig& config, const JobPlan& plan, Rank self, const std::string& folder,
                       std::unique_ptr<BenchRun>* run);
    /// Until the program has ended.  Error: its last words.
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
