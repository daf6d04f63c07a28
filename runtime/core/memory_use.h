// Memory by purpose, for errors, logs and the control plane.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace gradcast {

/// Bytes by purpose, in the order of planning.
struct MemoryUse {
    std::string place;   // "job", "view", "gpu 0"; "" if there is only one
    std::vector<std::pair<std::string, uint64_t>> bytes;
    bool on_gpu = false;   // memory of a GPU: the host has none of it
    void add(const char* purpose, uint64_t more);
    uint64_t total() const;
    bool operator==(const MemoryUse&) const = default;
};
/// "job: parameters 0.2 MiB, gradients 0.5 MiB, 0.7 MiB in all; view: …"
std::string memory_text(const std::vector<MemoryUse>& places);

}   // namespace gradcast
