#include "nn/graph/layers.h"

namespace gradcast {

static constexpr LayerKey rate{.name = "rate",
                               .type = LayerKey::Type::number,
                               .value = 0,
                               .min = 0,
                               .max = 1,
                               .below = true,
                               .help = "the share of elements that becomes 0, in units of 2^-16"};
static constexpr const LayerKey* keys[] = {&rate};

const LayerKind dropout_kind{.name = "dropout",
                             .short_name = "dropout",
                             .keys = keys,
                             .shape = same_shape,
                             .draws = [](const Layer&) { return true; },
                             .causal = by_position,
                             .onnx = {.passes = true}};

}   // namespace gradcast
