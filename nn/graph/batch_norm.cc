#include "nn/graph/layers.h"

namespace gradcast {
namespace {

Status shape(const NetSpec&, Layer& layer) {
    layer.out = layer.in;
    layer.weight_shape = {layer.in.C};
    layer.weights = layer.biases = layer.in.C;
    layer.statistics = uint64_t{2} * layer.in.C;
    return {};
}

// Of one value a channel the output is the bias, and the gradient is 0.
Status block(const Layer& layer, uint32_t samples) {
    if (uint64_t{samples} * layer.in.H * layer.in.W > 1) return {};
    return fail(
        Code::invalid,
        "layer {}: in a block of 1 sample each channel has one value, and nothing to normalise it by: take a larger batch, or fewer "
        "blocks",
        layer.spec.name);
}

constexpr OnnxOperator::Attribute attributes[] = {{"epsilon", true, static_cast<float>(norm_epsilon)}};

}   // namespace

const LayerKind batch_norm_kind{.name = "batch_norm",
                                .short_name = "norm",
                                .shape = shape,
                                .block = block,
                                .initial_weight = 1,
                                .onnx = {.type = "BatchNormalization", .form = OnnxOperator::Form::planes, .attributes = attributes}};

}   // namespace gradcast
