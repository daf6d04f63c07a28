// The kernel set of a net that processes compute: what its blocks' bits depend on beside parameters and samples.
#pragma once
#include <atomic>
#include <string>
#include <vector>

#include "nn/graph/layers.h"
#include "nn/net.h"

namespace gradcast {

struct KernelSetConfig {
    const NetSpec& spec;
    const std::vector<Layer>& layers;   // of it
    const std::vector<float>&mean, &std;
    bool own_samples = false;      // as of AttachConfig
    Net& net;                      // ready
    uint32_t lanes = 1;            // of it
    std::vector<uint32_t> sizes;   // of blocks
    std::string command;           // for messages
    std::string libraries;         // likewise: how the lanes' versions of libraries differ; empty: they do not
    const std::atomic<bool>* stop = nullptr;
};
/// Lets lane 0 compute a block of the largest size and, where evaluation_samples is above 0, a batch of an evaluation, of generated
/// samples: its process then has had the memory that it needs for them.  The parameters are as before.
Status lane_try(const KernelSetConfig& config, uint32_t evaluation_samples);
/// As NetProcesses::measure().  All lanes side by side, each on a thread.
Status kernel_set_measure(const KernelSetConfig& config, uint64_t* digest, uint64_t* block_us);

}   // namespace gradcast
