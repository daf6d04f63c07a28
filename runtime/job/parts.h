// What a job has at one node in every view: its data, the net with optimiser and codec, loader, lanes; and what must be alike at all nodes.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "algos/context.h"
#include "runtime/job/cuda_module.h"
#include "runtime/job/evaluate.h"
#include "runtime/job/report.h"

namespace gradcast {

/// What a lane's thread does first: it yields to the network thread, and is pinned where cpus are given.
void lane_start(uint32_t lane, const std::vector<uint32_t>& cpus);

struct JobParts {
    JobParts() = default;
    JobParts(const JobParts&) = delete;
    JobParts& operator=(const JobParts&) = delete;

    /// Opens and checks the data, plans the net and all that does not depend on the view.
    Status plan(const EngineConfig& config, Report& report);
    /// When everybody has planned: takes the memory, fills in the parameters, starts loader and lanes, computes the probe block.
    Status ready(const EngineConfig& config, Report& report);
    /// Of the state before the first step (Context::digest()).
    uint64_t model_digest() const { return compute.net->digest() + compute.optimiser->digest(compute.net->layout().elements); }

    // In the order in which they are made; each may use those before it.
    Arena arena;
    std::unique_ptr<Profile> profile;   // null where the job wants none
    std::unique_ptr<DataSet> train, test;
    std::unique_ptr<Sampler> sampler;
    Computer compute;
    std::unique_ptr<ResidentImages> resident;   // null: each block's samples are read
    std::unique_ptr<Loader> loader;
    std::unique_ptr<Evaluator> evaluator;   // null without test data
    Progress progress;
    Lanes lanes;

    uint64_t steps = 0;
    std::vector<uint32_t> block_sizes;   // samples
    uint64_t deadline_us = 0;            // the job's, or what ready() raised it to
    std::string kernel_set;              // digest of the probe block's gradient
    std::string data_digest;
    std::string start_digest;   // of the file that parameters begin from; empty: the seed's

private:
    Status open_data(const EngineConfig& config);
    Status start(const JobConfig& job, const Log& log);
    Status probe(const EngineConfig& config, Report& report);
};

}   // namespace gradcast
