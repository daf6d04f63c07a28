// What builders need of attention: the angles of rotary positions (Su et al. 2021, "RoFormer"), and the numbers of draws of its dropout.
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

/// The draws of random4() by which attention drops probabilities.  A draw has 8 numbers of 16 bits, for keys 8 i to 8 i + 7 of a query; the
/// key of the draws is that of a dropout layer, (seed, layer, step) and (block, sample in the block).
struct AttentionDraws {
    static constexpr uint64_t most = UINT32_MAX;   // of a sample
    static constexpr uint64_t of_query(uint64_t positions) { return (positions + 7) / 8; }
    /// The number of the first draw of a query.
    static constexpr uint32_t first(uint32_t head, uint32_t query, uint32_t positions) {
        return static_cast<uint32_t>((uint64_t{head} * positions + query) * of_query(positions));
    }
};

}   // namespace gradcast
