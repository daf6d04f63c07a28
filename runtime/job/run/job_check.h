// What a job file and its data tell without a cluster: whether the job can be trained, its net, its steps, and the memory that it takes.
// `gradcastctl check` shows it; `run` and `submit` ask for the mistakes before a daemon has the job.
#pragma once
#include <string>
#include <vector>

#include "nn/graph/layers.h"
#include "nn/net.h"
#include "runtime/core/memory_use.h"
#include "runtime/job/file/job_file.h"

namespace gradcast {

struct JobCheckOptions {
    uint32_t nodes = 0;   // of the job; 0: not known, and what depends on it is not checked
    uint32_t lanes = 1;   // of a node, which its memory depends on
    bool verify = true;   // all bytes of the data are compared with their digests
    bool here = true;     // false: files that this machine does not have, or does not allow to read, may be those of the nodes
};

struct JobCheck {
    bool complete = false;   // false: data.train is not here, and nothing below is known
    uint64_t train = 0, test = 0;
    Shape sample;
    uint32_t classes = 0;   // 0: a regression
    std::vector<Layer> layers;
    uint64_t parameters = 0, steps = 0, epochs = 0;
    MemoryUse memory;   // of a node with that many lanes; empty where it depends on the node: GPUs, kernels for bf16
    std::vector<std::string> warnings;
};

/// Blocks as long as the data are read.  path: of the job file, for the error, which is one of job_mistake().
Status job_check(const JobConfig& job, const std::string& path, const JobCheckOptions& options, JobCheck* check);

}   // namespace gradcast
