// Where the nodes of a job stand whose net is cut into stages, for people: who computes what, how idle each one is, and what it waits for.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "algos/grid/schedule.h"
#include "runtime/job/report/stage_news.h"

namespace gradcast {

/// A node of the present view.
struct StageNode {
    std::string node;
    uint32_t stage = 1, replica = 0;   // from 1 on; replica 0: a spare
    StageNews news;                    // passes only of the replica that is drawn: this node's, at a spare the first one
    uint32_t slice_group = 1;          // from 1 on
};

struct PipelineStatus {
    std::string schedule;
    uint32_t micro_batch = 1;               // blocks
    uint32_t own_stage = 1;                 // of this node, from 1 on
    uint32_t slice_groups = 1;              // nodes that share the slices of a stage
    std::vector<std::string> layers = {};   // by stage: "conv1 .. pool1"
    std::vector<StageNode> nodes = {};      // by rank
    // Of the most micro-batches of a node; without steps 0, -1 and empty.
    uint32_t micro_batches = 0;
    uint32_t step_us = 0;                      // of the slowest node, until all sums are reported
    double idle_formula = -1;                  // idle_share()
    std::vector<double> idle_simulated = {};   // by stage: pipeline_cost() of the stages' mean times and no time for edges

    bool known() const { return micro_batches > 0; }
};

/// Fills in what follows from the nodes' news.
void pipeline_status_derive(PipelineStatus* status);

/// A pass of a node as it is drawn.
struct DrawnPass {
    StagePass pass;
    uint32_t micro_batch;   // from 1 on
    PassTime time;
};
/// Those in the node's news.
std::vector<DrawnPass> drawn_passes(const PipelineStatus& status, const StageNode& node);

/// "gradients of stage 2", "reports of the other stages"; of stage `stage` of `stages`, both from 1 on.
std::string stage_wait_name(StageTime what, uint32_t stage, uint32_t stages);
struct StageWait {
    StageTime what;
    uint32_t us;   // of a step
};
/// The longest first, without those below a hundredth of a step.
std::vector<StageWait> stage_waits(const StageNews& news);
/// "gradients of stage 2 1.20 ms, …", three at most.  Empty: nothing is known.
std::string stage_waits_text(const StageNode& node, uint32_t stages);
/// Of a line: the longest wait of each stage of the drawn replica: "1: gradients of stage 2 (20% idle), 2: …".  Empty: nothing is known.
std::string pipeline_line(const PipelineStatus& status);

}   // namespace gradcast
