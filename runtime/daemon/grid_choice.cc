#include "runtime/daemon/grid_choice.h"
#include "runtime/job/file/cells.h"

#include <fmt/format.h>

namespace gradcast {

bool GridChoice::wanted(const JobPlan& plan) {
    // What is measured are layers on CPUs: those of GPUs are cut by their counted work (stages_plan()).
    if (!plan.parsed || plan.parsed->device != "cpu") return false;
    return plan.parsed->stages == stages_auto || plan.parsed->slice_groups == slice_groups_auto ||
           (plan.parsed->stages > 1 && plan.parsed->cuts.empty());
}

GridChoice::GridChoice(std::shared_ptr<JobPlan> plan, const EngineConfig& config, const GridPlanOptions& options, std::string least)
    : plan_(std::move(plan)), config_(config), options_(options), least_(std::move(least)) {
    config_.job = *plan_->parsed;
    config_.roster = std::vector<Member>(plan_->members.begin(), plan_->members.begin() + plan_->first_nodes());
    config_.datagram_bytes = plan_->datagram_bytes;
    config_.stop = &stop_;
    options_.stages = config_.job.stages;
}

GridChoice::~GridChoice() {
    stop();
    if (thread_.joinable()) thread_.join();
}

Status GridChoice::start() {
    return thread_.start([this] {
        status_ = choose();
        done_.store(true, std::memory_order_release);
    });
}

Status GridChoice::choose() {
    GridPlan made;
    std::string about;
    GC_TRY(grid_plan(config_, options_, &made, &about));
    const PlannedGrid* grid = made.chosen();
    const bool any_groups = config_.job.slice_groups == slice_groups_auto;
    if (!grid && options_.stages > 0 && !any_groups) grid = &made.grids[0];   // each node says for itself whether it has the memory
    if (!grid)
        return fail(Code::node_memory, "parallel.{}: {} (node {} has least)", options_.stages > 0 ? "slice_groups" : "stages",
                    made.none_fits(options_), least_);
    plan_->stages = grid->stages;
    plan_->cuts = grid->cuts;
    plan_->slice_groups = grid->slice_groups;
    plan_->grid = made.reason(*grid, options_);
    return {};
}

}   // namespace gradcast
