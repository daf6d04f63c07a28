// The grid of a job that leaves it open: parallel.stages = "auto", slice_groups = "auto", or stages without cuts.  The node of the
// submission chooses it, in a thread that runs the net's layers, before the members prepare.
#pragma once
#include <atomic>
#include <memory>
#include <string>

#include "runtime/core/thread.h"
#include "runtime/job/run/grid_plan.h"
#include "runtime/mesh/job_plan.h"

namespace gradcast {

class GridChoice {
public:
    /// The members of the job are to get a grid.
    static bool wanted(const JobPlan& plan);

    /// `config` without job and roster, which are those of the plan.  options.memory is that of `least`, the node with the least memory.
    GridChoice(std::shared_ptr<JobPlan> plan, const EngineConfig& config, const GridPlanOptions& options, std::string least);
    GridChoice(const GridChoice&) = delete;
    GridChoice& operator=(const GridChoice&) = delete;
    ~GridChoice();   // stops it, and waits for one layer at most
    Status start();
    void stop() { stop_.store(true, std::memory_order_relaxed); }
    bool done() const { return done_.load(std::memory_order_acquire); }
    /// Once it is done: the plan has a grid, or why there is none.
    const Status& status() const { return status_; }
    const std::shared_ptr<JobPlan>& plan() const { return plan_; }

private:
    Status choose();
    const std::shared_ptr<JobPlan> plan_;
    EngineConfig config_;
    GridPlanOptions options_;
    const std::string least_;
    std::atomic<bool> stop_{false}, done_{false};   // done_: status_ and *plan_ are written
    Status status_;
    Thread thread_;
};

}   // namespace gradcast
