// The kernel sets that net_measure() has found in this process, for tests of many jobs with the same net.
#pragma once
#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace gradcast {

/// Any thread.
class KernelsMemo {
public:
    struct Known {
        uint64_t digest = 0;   // NetMeasure::digest
        uint64_t block_us = 0;
    };
    /// net: names the net, the sizes of blocks, the precision and the kernels.
    std::optional<Known> find(const std::string& net) {
        std::scoped_lock lock(mutex_);
        const auto at = nets_.find(net);
        return at == nets_.end() ? std::nullopt : std::optional(at->second);
    }
    void keep(const std::string& net, const Known& known) {
        std::scoped_lock lock(mutex_);
        nets_[net] = known;
    }

private:
    std::mutex mutex_;
    std::map<std::string, Known> nets_;
};

}   // namespace gradcast
