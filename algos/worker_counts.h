// What each logical worker has done at one node.  Trainer thread; a copy of the counts goes to observers.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/core/protocol.h"

namespace gradcast {

/// The work of one worker at one node in this run of the job.
struct WorkerCounts {
    uint32_t worker = 0;
    uint64_t rounds = 0;                           // in which it has computed there
    uint64_t last_round = 0;                       // of them, from 1 on
    uint64_t samples = 0;                          // that it has trained on, each as often as a step took it
    uint64_t gradients = 0;                        // of samples, also where no step took them, or the round was repeated
    uint64_t forwards = 0;                         // samples that were only evaluated
    uint64_t compute_us = 0;                       // time of all that
    uint64_t turns = 0;                            // parts of rounds, each with one vector for the exchange or the server
    uint64_t bytes_sent = 0, bytes_received = 0;   // its share of the node's bytes
    bool operator==(const WorkerCounts&) const = default;
};
constexpr size_t workers_reported_max = 256;   // of a node, to observers

class WorkerAccounts {
public:
    explicit WorkerAccounts(size_t workers) : now_(workers), before_(workers) {}

    /// By worker; rounds = 0: it has not computed here.
    std::span<const WorkerCounts> all() const { return now_; }
    /// A turn of that worker in a round: samples, gradients, forwards and compute_us of `work` are added.
    void turn(uint32_t worker, StepId round, const WorkerCounts& work);
    /// The round has failed, and will be repeated.  What was computed counts, but nobody has trained on it: *samples
    /// loses as many as the workers do.
    void take_back(StepId round, uint64_t* samples);
    /// Bytes of this node since the round before.  They are shared by the turns in this round: vectors of one node's workers travel as one
    /// sum, and headers, repeats and heartbeats belong to no vector.  The shares add up exactly; without a turn nobody gets them.
    void share_bytes(StepId round, uint64_t sent, uint64_t received);

private:
    uint64_t turns_in(size_t worker, StepId round) const;

    std::vector<WorkerCounts> now_;      // by worker
    std::vector<WorkerCounts> before_;   // the last round of each
};

}   // namespace gradcast
