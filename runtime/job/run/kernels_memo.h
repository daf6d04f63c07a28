// The kernel sets that net_measure() has found in this process, for tests of many jobs with the same net.
#pragma once
#include <map>
#include <mutex>
#include <string>

namespace gradcast {

/// Any thread, under `mutex`.
struct KernelsMemo {
    struct Known {
        uint64_t digest = 0;   // NetMeasure::digest
        uint64_t block_us = 0;
    };
    std::mutex mutex;
    std::map<std::string, Known> nets;   // by net, sizes of blocks, precision and kernels
};

}   // namespace gradcast
