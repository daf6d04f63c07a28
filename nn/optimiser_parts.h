// Which elements of a node's vector an optimiser treats in which way, and the numbers of its steps; for the optimisers of all devices.
#pragma once
#include <vector>

#include "nn/optimiser.h"

namespace gradcast {

enum class Treatment : uint8_t { plain, exempt, frozen };   // exempt: weight_decay is 0; frozen: neither it nor its state changes

/// Elements of this node's vector.
struct OptimiserPart {
    uint64_t offset, count;
    Treatment how;
    uint64_t end() const { return offset + count; }
};
/// All elements of the layout, ascending.  by_range: each range is a part of its own, and no part has elements of two groups.
std::vector<OptimiserPart> optimiser_parts(const std::vector<OptimiserRange>& ranges, const Layout& layout, bool by_range);
/// Returns the configuration for elements that do not decay: weight_decay is 0.
OptimiserConfig optimiser_without_decay(OptimiserConfig config);
/// The share of a step's new weights in the averaged ones.  Averages begin with the weights after the first step.
inline float averaged_share(const OptimiserConfig& config, StepId step) { return step == 0 ? 1 : static_cast<float>(1 - config.ema); }

}   // namespace gradcast
