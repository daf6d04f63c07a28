// gelu, silu, sigmoid and tanh: functions of each element (nn/curves.h).
#include "nn/graph/curves.h"

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

using Step = OnnxOperator::Step;
constexpr Step x_sigmoid[] = {{"Sigmoid", Step::input}, {"Mul", Step::input, 0}};
// x (1 + erf(x / sqrt(2))) / 2
constexpr Step x_share[] = {{"Mul", Step::input, Step::constant, 0x1.6a09e6p-1f},
                            {"Erf", 0},
                            {"Add", 1, Step::constant, 1},
                            {"Mul", Step::input, 2},
                            {"Mul", 3, Step::constant, 0.5f}};
constexpr float root = curves::root_2_by_pi;
constexpr Step x_tanh[] = {{"Mul", Step::input, Step::input},
                           {"Mul", 0, Step::constant, root * 0.044715f},
                           {"Add", 1, Step::constant, root},
                           {"Mul", Step::input, 2},
                           {"Tanh", 3},
                           {"Add", 4, Step::constant, 1},
                           {"Mul", Step::input, 5},
                           {"Mul", 6, Step::constant, 0.5f}};
std::span<const Step> silu_steps(const Layer&) { return x_sigmoid; }
std::span<const Step> gelu_steps(const Layer& layer) {
    if (curve_of(layer) == Curve::gelu_tanh) return x_tanh;
    return x_share;
}

}   // namespace

const LayerKind gelu_kind{.name = "gelu", .short_name = "gelu", .keys = gelu_keys, .shape = same_shape, .onnx = {.steps = gelu_steps}};
const LayerKind silu_kind{.name = "silu", .short_name = "silu", .shape = same_shape, .onnx = {.steps = silu_steps}};
const LayerKind sigmoid_kind{.name = "sigmoid", .short_name = "sigmoid", .shape = same_shape, .onnx = {.type = "Sigmoid"}};
const LayerKind tanh_kind{.name = "tanh", .short_name = "tanh", .shape = same_shape, .onnx = {.type = "Tanh"}};

Curve curve_of(const Layer& layer) {
    if (layer.is(gelu_kind)) return layer.value(approximate.name) != 0 ? Curve::gelu_tanh : Curve::gelu;
    return layer.is(silu_kind) ? Curve::silu : layer.is(sigmoid_kind) ? Curve::sigmoid : Curve::tanh;
}

}   // namespace gradcast
