#include <array>

#include "nn/graph/layers.h"
#include "nn/graph/onnx_nodes.h"

namespace gradcast {
namespace {

constexpr LayerKey scale{.name = "scale",
                         .type = LayerKey::Type::integer,
                         .value = 2,
                         .min = 2,
                         .max = 64,
                         .help = "height and width become so many times those of the input"};
constexpr LayerKey mode{
    .name = "mode",
    .type = LayerKey::Type::word,
    .value = 0,
    .min = 0,
    .max = 1,
    .help = "nearest: each pixel several times; bilinear: between the centres of pixels (PyTorch's align_corners=False)",
    .words = [] {
        return std::vector<std::string>{"nearest", "bilinear"};
    }};
constexpr const LayerKey* keys[] = {&scale, &mode};

Status shape(const NetSpec&, Layer& layer) {
    const auto times = static_cast<uint64_t>(layer.value(scale.name));
    const uint64_t H = layer.in.H * times, W = layer.in.W * times;
    if (H * W > layer_elements_max)
        return fail(Code::invalid, "layer {}: its output {}x{}x{} is too large", layer.spec.name, layer.in.C, H, W);
    layer.out = {layer.in.C, static_cast<uint32_t>(H), static_cast<uint32_t>(W)};
    return {};
}

std::string onnx(OnnxNodes& nodes, const Layer& layer, const std::string& x) {
    const auto times = static_cast<float>(layer.value(scale.name));
    const std::array scales = {1.0f, 1.0f, times, times};
    const uint64_t sides[] = {scales.size()};
    const std::vector<std::string> inputs = {x, "", nodes.reals(sides, scales)};   // no region of interest
    if (layer.value(mode.name) != 0)
        return nodes.node("Resize", inputs, {{"mode", "linear"}, {"coordinate_transformation_mode", "half_pixel"}});
    return nodes.node("Resize", inputs, {{"mode", "nearest"}, {"coordinate_transformation_mode", "asymmetric"}, {"nearest_mode", "floor"}});
}

}   // namespace

const LayerKind upsample_kind{
    .name = "upsample", .short_name = "upsample", .keys = keys, .shape = shape, .onnx = {.form = OnnxOperator::Form::planes, .make = onnx}};

}   // namespace gradcast
