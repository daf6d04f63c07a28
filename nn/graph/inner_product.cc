// inner_product, over all of a sample, and linear, at each position.
#include "nn/graph/onnx_nodes.h"
#include "nn/graph/slices.h"
#include "nn/graph/weights.h"

namespace gradcast {
namespace {

Status shape(const NetSpec&, Layer& layer) {
    GC_TRY(outputs_shape(layer));
    layer.out.H = layer.out.W = 1;
    weights_shape(layer, {layer.out.C, layer.in.elements()});
    return {};
}

Status linear_shape(const NetSpec&, Layer& layer) {
    GC_TRY(outputs_shape(layer));
    layer.out = {layer.out.C, layer.in.H, layer.in.W};
    weights_shape(layer, {layer.out.C, layer.in.C});
    return {};
}

constexpr LayerKey spread = initial_std_key(0);
constexpr const LayerKey* linear_keys[] = {&outputs_key, &bias_key, &spread, &slices_key};
constexpr const LayerKey* keys[] = {&outputs_key, &bias_key, &slices_key};
std::string linear_onnx(OnnxNodes& nodes, const Layer& layer, const std::string& x) {
    const std::string turned = nodes.node("Transpose", {nodes.weight()}, {{"perm", std::vector<int64_t>{1, 0}}});
    const std::string product = nodes.node("MatMul", {x, turned});
    return layer.biases > 0 ? nodes.node("Add", {product, nodes.bias()}) : product;
}

constexpr OnnxOperator::Attribute attributes[] = {{"transB", false, 1}};

}   // namespace

const LayerKind inner_product_kind{.name = "inner_product",
                                   .short_name = "fc",
                                   .keys = keys,
                                   .shape = shape,
                                   .multiplies = true,
                                   .slice_unit = 1,
                                   .onnx = {.type = "Gemm", .form = OnnxOperator::Form::flat, .attributes = attributes}};

const LayerKind linear_kind{.name = "linear",
                            .short_name = "linear",
                            .keys = linear_keys,
                            .shape = linear_shape,
                            .multiplies = true,
                            .ties = true,
                            .causal = by_position,
                            .slice_unit = 1,
                            .initial_std = &spread,
                            .onnx = {.form = OnnxOperator::Form::rows, .make = linear_onnx}};

}   // namespace gradcast
