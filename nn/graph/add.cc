#include "nn/graph/layers.h"

namespace gradcast {

const LayerKind add_kind{.name = "add", .short_name = "add", .shape = same_shape, .two_inputs = true, .onnx = {.type = "Add"}};

}   // namespace gradcast
