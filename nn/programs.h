// Shared by the nets of all devices: kernels are made for a few sizes of blocks, and each size builds its layers (nn/graph/planner.h).
#pragma once
#include <algorithm>
#include <set>

#include "nn/net.h"

namespace gradcast {

/// Made for blocks of one size; each device adds its own fields.
struct ProgramSize {
    uint32_t samples = 0;
    bool training = false;   // false: evaluation only
};
/// Ascending.
inline std::vector<ProgramSize> program_sizes(const NetConfig& config) {
    std::set<uint32_t> training(config.block_sizes.begin(), config.block_sizes.end());
    if (training.empty()) training = {config.samples_max, std::max(config.samples_max, 2u) - 1};
    std::set<uint32_t> sizes = training;
    sizes.insert(config.samples_max);
    GC_ASSERT(*sizes.begin() >= 1);
    std::vector<ProgramSize> all;
    for (uint32_t size : sizes) all.push_back({size, training.contains(size)});
    return all;
}

/// For a block the program of its size; for an evaluation the smallest that holds it.
template <typename Program>
Status program_find(std::vector<Program>& programs, uint32_t samples, bool training, Program** found) {
    const auto at = std::find_if(programs.begin(), programs.end(), [&](const Program& each) {
        return training ? each.training && each.samples == samples : each.samples >= samples;
    });
    if (at != programs.end()) {
        *found = &*at;
        return {};
    }
    if (!training) return fail(Code::invalid, "a batch of {} samples, but the net was planned for {}", samples, programs.back().samples);
    std::string sizes;
    for (const Program& each : programs)
        if (each.training) sizes += fmt::format("{}{}", sizes.empty() ? "" : ", ", each.samples);
    return fail(Code::invalid, "a block of {} samples, but the net was planned for blocks of {}", samples, sizes);
}

}   // namespace gradcast
