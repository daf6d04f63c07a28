// Runs a net on the CPU unit by unit: which kernel set it has, and how long each unit takes.  A unit is the shortest run of layers that
// can be a stage: the layers from one of Net::stage_begins() to the next.
#pragma once
#include <atomic>
#include <vector>

#include "nn/net.h"
#include "nn/optimiser.h"

namespace gradcast {

struct UnitTimes {
    uint32_t first, end;             // layers first .. end - 1
    double forward, data, weights;   // Seconds of one block: the fastest of all passes.  Time in the gradient sink is not counted.
    double apply;                    // seconds for a step's sums, on one lane; 0: not measured
};

struct NetMeasure {
    /// The identity of the kernel set: the sum of the digests of all gradients, values and losses that leave the units, by their places in
    /// the whole net.
    uint64_t digest = 0;
    std::vector<UnitTimes> units;   // ascending
    uint64_t bytes = 0;             // memory of the largest unit
};

/// Computes a block of the largest size of `config` in each unit, `passes` times and on the calling thread.  Samples, parameters and what
/// crosses cuts are generated, so the digest depends on the kernels, the net, the sizes of blocks and the precision alone; stage, lanes,
/// slots and seed of `config` are not read.  Each unit has memory of its own, which is free again before the next one.  Costs about
/// `passes` blocks of the whole net.  optimiser: it also applies sums to each unit's parameters; null: that is not measured.  Errors: as of
/// net_cpu_plan() and Arena::seal(); Code::cancelled once *stop is true.
Status net_measure(const NetSpec& spec, const NetConfig& config, uint32_t passes, const std::atomic<bool>* stop, NetMeasure* measured,
                   const OptimiserConfig* optimiser = nullptr);

}   // namespace gradcast
