#include "nn/graph/weights.h"

#include <algorithm>

namespace gradcast {

Status outputs_shape(Layer& layer, bool biased) {
    layer.out.C = static_cast<uint32_t>(layer.value(outputs_key.name));
    if (layer.out.C == 0)
        return fail(Code::invalid, "layer {}: outputs must be at least 1 for its input {}", layer.spec.name, shape_text(layer.in));
    layer.biases = biased && layer.value(bias_key.name) != 0 ? layer.out.C : 0;
    return {};
}

void weights_shape(Layer& layer, std::vector<uint64_t> shape) {
    layer.weights = 1;   // of a shape that is too large some number above layer_elements_max
    for (const uint64_t side : shape) layer.weights = std::min(layer.weights, layer_elements_max + 1) * side;
    layer.weight_shape = std::move(shape);
}

}   // namespace gradcast
