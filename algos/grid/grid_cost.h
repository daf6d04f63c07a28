// What a step costs on each grid that a job could have, and which grid is best.  Pure functions of times, bytes and rates.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "algos/grid/schedule.h"

namespace gradcast {

/// The numbers of stages that `nodes` nodes can have without spares, at most `most`: the divisors of `nodes`, ascending.
std::vector<uint32_t> stage_counts(uint32_t nodes, uint32_t most);

/// The numbers of slice groups that can share `slices` slices: the powers of two that divide `slices`, ascending.
std::vector<uint32_t> slice_group_counts(uint32_t slices);

/// How many of `own` rows of a table of `all` rows are named by `tokens` tokens, on average, where each token names any row alike.  A text
/// that repeats its tokens names fewer.  O(log tokens).
double rows_named(uint64_t all, uint64_t own, uint64_t tokens);

/// The load of a step on a node with one of the stages.
struct StageLoad {
    StageTimes block;   // seconds of a block's passes, on one lane
    // Bytes of a block that cross to other stages and from them.
    double values_sent = 0, gradients_sent = 0, edges_received = 0;
    double slices_sent = 0;   // bytes of a block to the other slice groups, of which as many come; `block` has their time
    // The exchange of a step's gradients; 0 with one replica.
    double words_sent = 0, words_received = 0, words_rounds = 0;   // bytes over the link; latencies that nothing hides
    double apply = 0;                                              // seconds of a step, to apply its sums
    uint64_t memory = 0;                                           // bytes
};

struct GridLoad {
    Schedule schedule = Schedule::one_forward_one_backward;
    uint32_t lanes = 1;         // of a node
    uint32_t micro_batch = 1;   // blocks that pass the stages together
    uint32_t blocks = 1;        // that a replica computes in a step, the most
    std::vector<StageLoad> stages;
};

struct GridWire {
    double bits_per_s = 1e9;    // of a node's link, in each direction
    double latency_s = 50e-6;   // of a message
};

struct GridCost {
    double step = 0;               // seconds
    double idle = 0;               // the share of their passes' time in which stages wait for others, on average
    double edges = 0, words = 0;   // bytes that the node sends that sends most
    uint64_t memory = 0;           // of the fullest node
    uint32_t fullest = 0;          // its stage
    uint32_t replicas = 1;         // of the grid; grid_cost() leaves it
};

/// Passes run in the order of the schedule (pipeline_cost()), and edges are hidden by computing as far as the schedule allows.  A stage's
/// exchange begins when its last pass has ended.  Where there are several stages, all wait twice for a message of the others.  A step is
/// never shorter than what its bytes take on the busiest link.  Then its sums are applied.  Not included: what
/// sending and computing take from each other.
GridCost grid_cost(const GridLoad& load, const GridWire& wire);

/// The grid that `auto` takes: of those whose memory is at most `memory` bytes (0: any is) the one with the shortest step.  Of equal ones
/// the first.  survive: any grid of at least two replicas comes before those of one, because with one replica the loss of any node ends the
/// job.  costs.size(): none fits.
size_t grid_choose(std::span<const GridCost> costs, uint64_t memory, bool survive = false);

}   // namespace gradcast
