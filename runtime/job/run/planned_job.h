// A job at one node with all its memory planned and none of it taken: what PREPARE, `gradcastctl check` and `gradcastctl plan` have in
// common.
#pragma once
#include "runtime/job/run/exchange_choice.h"
#include "runtime/job/run/session.h"

namespace gradcast {

struct PlannedJob {
    JobParts parts;
    ExchangeChoice choice;
    std::unique_ptr<Algorithm> algorithm;
    std::unique_ptr<Session> session;   // the first one; its exchange is the one that the job begins with

    /// After parts.examine().  `config` and `report` outlive this.  device: as of JobParts::plan_examined().  nodes_known false: the roster
    /// says nothing, and what depends on the number of nodes is not planned: there is no session, and memory() is less.  Errors: as of
    /// JobParts::plan_examined(); the exchange or the algorithm does not go with so many nodes.
    Status plan(const EngineConfig& config, const std::string& device, Report& report, bool nodes_known = true);
    /// By place: of the job, its GPUs, decoders of pictures, snapshots of its state, the model that is written of stages, the view.
    std::vector<MemoryUse> memory();

private:
    const EngineConfig* config_ = nullptr;
};

}   // namespace gradcast
