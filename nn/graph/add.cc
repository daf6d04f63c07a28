#include "nn/graph/layers.h"

namespace gradcast {

const LayerKind add_kind{
    .name = "add", .short_name = "add", .shape = same_shape, .second_input = "adds", .causal = by_position, .onnx = {.type = "Add"}};

}   // namespace gradcast
