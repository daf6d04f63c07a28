// What an algorithm may use: the net, the exchange, mail, data, time.  No sockets, no threads but lanes.
#pragma once
#include <span>
#include <vector>

#include "datasets/reader.h"
#include "nn/net.h"
#include "nn/optimiser.h"
#include "runtime/core/lanes.h"
#include "runtime/core/protocol.h"
#include "transport/code/codec.h"
#include "transport/exchange/exchange.h"
#include "transport/mail.h"

namespace gradcast {

/// Channels of a job, the same at every rank.
enum class Channel : uint16_t { job = 0, gradient = 1, mail = 2 };

/// What one applied step leaves behind: a line of steps.jsonl.
struct StepRecord {
    StepId step = 0;
    double loss = 0;            // mean over the mini-batch, the same at every rank
    uint64_t digest = 0;        // of parameters, optimiser state and scales after the step
    uint64_t clipped = 0;
    uint64_t compute_us = 0, wait_us = 0, apply_us = 0;   // this rank's
};

struct Context {
    Host& host;
    Lanes& lanes;
    Loader& loader;
    Net& net;
    Optimiser& optimiser;
    Codec& codec;
    Exchange& exchange;
    Mail& mail;
    Rank self;
    uint32_t batch, blocks;
    uint64_t deadline_us;                 // longest tolerable stall
    StepId step = 0;                      // the next one to compute
    uint64_t state = 0;                   // digest of the state that step is computed from
    std::vector<uint32_t> own_blocks;     // of every step in this view
    StepRecord record;                    // of the last step applied

    /// Computes this rank's blocks of `step` on the lanes; every bucket is quantised and made `ready` as soon as its last block is done.
    Status compute();
    /// Blocks until all buckets of `step` are summed.  sums is indexed by bucket.  The only place where a round waits.
    Status wait(std::span<const Sum*> sums);
};

}   // namespace gradcast
