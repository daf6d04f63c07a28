// What follows from a job file and its data without a cluster: whether the job can be trained, its net, its steps, and its memory.
// `gradcastctl check` prints all of it; `run` and `submit` look for mistakes before a daemon gets the job.
#pragma once
#include <string>
#include <vector>

#include "nn/graph/layers.h"
#include "nn/net.h"
#include "runtime/core/memory_use.h"
#include "runtime/job/file/job_file.h"

namespace gradcast {

struct JobCheckOptions {
    uint32_t nodes = 0;          // of the job; 0: not known, and checks that depend on it are skipped
    uint32_t lanes = 1;          // of a node, for the memory
    uint64_t memory = 0;         // bytes that the job may take of a node; 0: any
    bool verify = true;          // compares the data with their digests
    std::string verified = {};   // EngineConfig::verified
    bool resumes = false;        // the job goes on from a checkpoint
    bool here = true;            // the job runs on this machine, so files that it cannot read are mistakes; false: they may be on the nodes
};

struct JobCheck {
    bool complete = false;          // false: data.train is not on this machine, and nothing below is known
    uint64_t train = 0, test = 0;   // samples
    Shape sample;
    uint32_t classes = 0;        // 0: a regression
    std::vector<Layer> layers;   // empty: the program of net.command, which is not started here, knows
    uint64_t parameters = 0, steps = 0, epochs = 0;
    MemoryUse memory;   // of a node with JobCheckOptions::lanes; empty if it depends on the node, as with GPUs or bf16, or on a program
    std::vector<std::string> warnings;
};

/// Blocks while the data are read.  `path` is the job file's, for the error, which is that of job_mistake().
Status job_check(const JobConfig& job, const std::string& path, const JobCheckOptions& options, JobCheck* check);

}   // namespace gradcast
