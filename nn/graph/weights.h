// What kinds with weights and a number of outputs have in common.
#pragma once
#include "nn/graph/layers.h"

namespace gradcast {

inline constexpr LayerKey outputs_key{
    .name = "outputs", .type = LayerKey::Type::integer, .value = 0, .min = 0, .max = 1 << 24, .help = "channels or features"};
inline constexpr LayerKey bias_key{.name = "bias", .type = LayerKey::Type::flag, .value = 1, .min = 0, .max = 1, .help = "with a bias"};

/// Standard deviation of the initial weights.
constexpr LayerKey initial_std_key(double value) {
    return {.name = "initial_std",
            .type = LayerKey::Type::number,
            .value = value,
            .min = 0,
            .max = 1000,
            .help = "standard deviation of the initial weights; 0: by He's rule, as of convolutions"};
}

/// Sets out.C and, of kinds with bias_key, the biases from the layer's keys.  Error: no outputs.
Status outputs_shape(Layer& layer, bool biased = true);
/// Sets the layer's weights, of that shape.
void weights_shape(Layer& layer, std::vector<uint64_t> shape);

}   // namespace gradcast
