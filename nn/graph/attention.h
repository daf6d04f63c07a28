// Rotary positions of attention (Su et al. 2021, "RoFormer").
#pragma once
#include "nn/graph/layers.h"

namespace gradcast {

/// By position and pair of a head's channels, [positions, width / 2].  Channel i and channel i + width / 2 are a pair (x, y), which
/// position t turns to (x cos - y sin, y cos + x sin) by the angle t base^(-2 i / width).
struct RotaryTurns {
    std::vector<float> cosines, sines;
};
/// Empty: the layer turns nothing.
RotaryTurns rotary_turns(const Layer& layer);

}   // namespace gradcast
