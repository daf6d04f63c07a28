#include "nn/graph/layers.h"

namespace gradcast {

const LayerKind multiply_kind{.name = "multiply",
                              .short_name = "multiply",
                              .shape = same_shape,
                              .second_input = "multiplies by",
                              .causal = by_position,
                              .onnx = {.type = "Mul"}};

}   // namespace gradcast
