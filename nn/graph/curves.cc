// gelu, silu, sigmoid and tanh: functions of each element (nn/curves.h).
#include "nn/graph/curves.h"

#include "nn/graph/layers.h"
#include "nn/graph/onnx_nodes.h"

namespace gradcast {
namespace {

constexpr LayerKey approximate{.name = "approximate",
                               .type = LayerKey::Type::word,
                               .value = 0,
                               .min = 0,
                               .max = 1,
                               .help = "none: by the normal distribution; tanh: by the approximation that GPT-2 takes",
                               .words = [] {
                                   return std::vector<std::string>{"none", "tanh"};
                               }};
constexpr const LayerKey* gelu_keys[] = {&approximate};

std::string silu_onnx(OnnxNodes& nodes, const Layer&, const std::string& x) { return nodes.node("Mul", {x, nodes.node("Sigmoid", {x})}); }

std::string gelu_onnx(OnnxNodes& nodes, const Layer& layer, const std::string& x) {
    auto times = [&](const std::string& a, const std::string& b) { return nodes.node("Mul", {a, b}); };
    auto plus = [&](const std::string& a, float b) { return nodes.node("Add", {a, nodes.real(b)}); };
    std::string curve;
    if (curve_of(layer) == Curve::gelu_tanh) {
        constexpr float root = curves::root_2_by_pi;   // tanh(root (x + 0.044715 x^3))
        const std::string slope = plus(times(times(x, x), nodes.real(root * 0.044715f)), root);
        curve = nodes.node("Tanh", {times(x, slope)});
    } else {
        curve = nodes.node("Erf", {times(x, nodes.real(0x1.6a09e6p-1f))});   // 1 / sqrt(2)
    }
    return times(times(x, plus(curve, 1)), nodes.real(0.5f));
}

}   // namespace

const LayerKind gelu_kind{
    .name = "gelu", .short_name = "gelu", .keys = gelu_keys, .shape = same_shape, .causal = by_position, .onnx = {.make = gelu_onnx}};
const LayerKind silu_kind{.name = "silu", .short_name = "silu", .shape = same_shape, .causal = by_position, .onnx = {.make = silu_onnx}};
const LayerKind sigmoid_kind{
    .name = "sigmoid", .short_name = "sigmoid", .shape = same_shape, .causal = by_position, .onnx = {.type = "Sigmoid"}};
const LayerKind tanh_kind{.name = "tanh", .short_name = "tanh", .shape = same_shape, .causal = by_position, .onnx = {.type = "Tanh"}};

Curve curve_of(const Layer& layer) {
    if (layer.is(gelu_kind)) return layer.value(approximate.name) != 0 ? Curve::gelu_tanh : Curve::gelu;
    return layer.is(silu_kind) ? Curve::silu : layer.is(sigmoid_kind) ? Curve::sigmoid : Curve::tanh;
}

}   // namespace gradcast
