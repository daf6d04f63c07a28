// What kinds with windows have in common (convolutions, pooling).
#pragma once
#include "nn/graph/layers.h"

namespace gradcast {

inline constexpr LayerKey kernel_key{
    .name = "kernel", .type = LayerKey::Type::integer, .value = 0, .min = 0, .max = 1024, .help = "side of the window"};
inline constexpr LayerKey stride_key{.name = "stride",
                                     .type = LayerKey::Type::integer,
                                     .value = 1,
                                     .min = 0,
                                     .max = 1024,
                                     .help = "step of the window; 0 in pooling: its kernel"};
inline constexpr LayerKey pad_key{.name = "pad",
                                  .type = LayerKey::Type::integer,
                                  .value = 0,
                                  .min = 0,
                                  .max = 1024,
                                  .help = "zeros added on each side; of conv_transposed: what its output loses there"};

/// The key `groups` of convolutions and of group_norm.
inline constexpr LayerKey groups_key{.name = "groups",
                                     .type = LayerKey::Type::integer,
                                     .value = 1,
                                     .min = 1,
                                     .max = 1 << 20,
                                     .help =
                                         "the channels are in so many groups: an output of conv reads one of them, and "
                                         "group_norm normalises each with all of its pixels"};

/// Takes layer.window from the layer's keys.
void window_of_keys(Layer& layer);
/// Sets layer.out to the windows' numbers for layer.in's channels.  Error: a window that does not fit.
Status window_shape(Layer& layer);

}   // namespace gradcast
