#include "nn/graph/layers.h"

namespace gradcast {

const LayerKind relu_kind{
    .name = "relu", .short_name = "relu", .shape = same_shape, .kinks = true, .causal = by_position, .onnx = {.type = "Relu"}};

}   // namespace gradcast
