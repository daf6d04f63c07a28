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
    const std::atomic<bool>* stop = nullptr;
};
/// As NetProcesses::measure().  All lanes side by side, each on a thread.
Status kernel_set_measure(const KernelSetConfig& config, uint64_t* digest, uint64_t* block_us);

}   // namespace gradcast
