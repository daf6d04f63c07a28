#include "nn/graph/layers.h"

namespace gradcast {
namespace {

Status shape(const NetSpec&, Layer& layer) {
    const uint64_t C = uint64_t{layer.in.C} + layer.other_in.C;
    if (C > layer_elements_max) return fail(Code::invalid, "layer {}: its {} channels are too many", layer.spec.name, C);
    layer.out = {static_cast<uint32_t>(C), layer.in.H, layer.in.W};
    return {};
}

constexpr OnnxOperator::Attribute channels[] = {{"axis", false, 1}};

}   // namespace

const LayerKind concat_kind{.name = "concat",
                            .short_name = "concat",
                            .shape = shape,
                            .second_input = "appends",
                            .joins = true,
                            .causal = by_position,
                            .onnx = {.type = "Concat", .form = OnnxOperator::Form::planes, .attributes = channels}};

}   // namespace gradcast
