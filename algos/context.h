// What an algorithm may use on the trainer's thread: the services that a job has in every view, the step it is at, and the ways of the
// present view to the other ranks.  No sockets, no threads but lanes.
#pragma once
#include "algos/mailbox.h"
#include "algos/progress.h"
#include "datasets/reader.h"
#include "nn/net.h"
#include "nn/optimiser.h"
#include "runtime/core/lanes.h"
#include "runtime/core/profile.h"
#include "runtime/core/protocol.h"
#include "transport/code/codec.h"

namespace gradcast {

class SynchronousStep;

/// What one applied step leaves behind: a line of steps.jsonl.
struct StepRecord {
    StepId step = 0;
    double loss = 0;       // mean over the mini-batch, the same at every rank
    uint64_t digest = 0;   // of parameters, optimiser state and scales after the step
    uint64_t clipped = 0;
    uint64_t compute_us = 0, wait_us = 0, apply_us = 0;   // this rank's
};

struct Context {
    Host& host;
    Lanes& lanes;
    Loader& loader;
    const DataSet& data;
    const Sampler& sampler;
    Net& net;
    Optimiser& optimiser;
    Codec& codec;
    Progress& progress;
    uint32_t batch, blocks;
    uint64_t deadline_us;         // longest tolerable stall; ten times that in the first step
    uint64_t spend_us = 0;        // what the backward pass of one bucket costs (the simulator)
    Profile* profile = nullptr;   // of one step; its round turns it on and off

    StepId first = 0;         // that this run of the job computes
    StepId step = 0;          // the next one to compute
    uint64_t state = 0;       // digest of the state that step is computed from
    StepRecord record = {};   // of the last step applied

    std::vector<std::string> why_lost = {};   // ranks that the job goes on without, for people

    // Of the present view.
    SynchronousStep* synchronous = nullptr;
    Mailbox* mail = nullptr;

    /// Digest of all that step `next` is computed from: `model`, that of parameters and optimiser state, and the scales.
    uint64_t digest(StepId next, uint64_t model) const;
};

}   // namespace gradcast
