// layer_norm, rms_norm and group_norm (Ba, Kiros, Hinton 2016; Zhang, Sennrich 2019; Wu, He 2018): of each sample alone, so that
// evaluations need no statistics.
#include "nn/graph/onnx_nodes.h"
#include "nn/graph/window.h"

namespace gradcast {
namespace {

constexpr LayerKey epsilon{.name = "epsilon",
                           .type = LayerKey::Type::number,
                           .value = norm_epsilon,
                           .min = 1e-12,
                           .max = 1,
                           .help = "added to the variance that values are divided by the root of"};
constexpr const LayerKey *layer_norm_keys[] = {&epsilon}, *group_norm_keys[] = {&groups_key, &epsilon};

Status shape(const NetSpec&, Layer& layer) {
    layer.out = layer.in;
    layer.weight_shape = {layer.in.C};
    layer.weights = layer.biases = layer.in.C;
    return {};
}

Status rms_shape(const NetSpec& spec, Layer& layer) {
    GC_TRY(shape(spec, layer));
    layer.biases = 0;
    return {};
}

Status group_shape(const NetSpec& spec, Layer& layer) {
    const auto count = static_cast<uint32_t>(layer.value(groups_key.name));
    if (layer.in.C % count != 0)
        return fail(Code::invalid, "layer {}: {} groups do not divide the {} channels of its input", layer.spec.name, count, layer.in.C);
    if (layer.in.C / count * uint64_t{layer.in.H} * layer.in.W == 1)
        return fail(Code::invalid, "layer {}: a group of one value has nothing to normalise it by: take fewer groups", layer.spec.name);
    return shape(spec, layer);
}

OnnxNodes::Attribute epsilon_of(const Layer& layer) { return {"epsilon", static_cast<float>(layer.value(epsilon.name))}; }

std::string onnx(OnnxNodes& nodes, const Layer& layer, const std::string& x) {
    return nodes.node("LayerNormalization", {x, nodes.weight(), nodes.bias()}, {{"axis", -1}, epsilon_of(layer)});
}

// x / sqrt(mean of x^2 + epsilon) by the operators of which every reader has all.
std::string rms_onnx(OnnxNodes& nodes, const Layer& layer, const std::string& x) {
    const std::string square = nodes.node("ReduceMean", {nodes.node("Mul", {x, x})}, {{"axes", std::vector<int64_t>{-1}}});
    const auto small = static_cast<float>(layer.value(epsilon.name));
    const std::string root = nodes.node("Sqrt", {nodes.node("Add", {square, nodes.real(small)})});
    return nodes.node("Mul", {nodes.node("Div", {x, root}), nodes.weight()});
}

// InstanceNormalization of the groups, which has no weight for each channel of a group.
std::string group_onnx(OnnxNodes& nodes, const Layer& layer, const std::string& x) {
    const auto count = static_cast<uint64_t>(layer.value(groups_key.name));
    const uint64_t sides[] = {count};
    const std::string one = nodes.reals(sides, std::vector<float>(count, 1)), zero = nodes.reals(sides, std::vector<float>(count, 0));
    const std::string groups = nodes.node("Reshape", {x, nodes.integers({0, static_cast<int64_t>(count), -1})});
    const std::string normal = nodes.node("InstanceNormalization", {groups, one, zero}, {epsilon_of(layer)});
    const std::string planes = nodes.node("Reshape", {normal, nodes.integers({0, layer.in.C, layer.in.H, layer.in.W})});
    const std::string by_channel = nodes.integers({layer.in.C, 1, 1});
    const std::string scaled = nodes.node("Mul", {planes, nodes.node("Reshape", {nodes.weight(), by_channel})});
    return nodes.node("Add", {scaled, nodes.node("Reshape", {nodes.bias(), by_channel})});
}

}   // namespace

const LayerKind layer_norm_kind{.name = "layer_norm",
                                .short_name = "layer_norm",
                                .keys = layer_norm_keys,
                                .shape = shape,
                                .causal = by_position,
                                .initial_weight = 1,
                                .onnx = {.form = OnnxOperator::Form::rows, .make = onnx}};
const LayerKind rms_norm_kind{.name = "rms_norm",
                              .short_name = "rms_norm",
                              .keys = layer_norm_keys,
                              .shape = rms_shape,
                              .causal = by_position,
                              .initial_weight = 1,
                              .onnx = {.form = OnnxOperator::Form::rows, .make = rms_onnx}};
const LayerKind group_norm_kind{.name = "group_norm",
                                .short_name = "group_norm",
                                .keys = group_norm_keys,
                                .shape = group_shape,
                                .initial_weight = 1,
                                .onnx = {.form = OnnxOperator::Form::planes, .make = group_onnx}};

}   // namespace gradcast
