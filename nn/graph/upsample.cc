#include "nn/graph/layers.h"

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

}   // namespace

const LayerKind upsample_kind{.name = "upsample",
                              .short_name = "upsample",
                              .keys = keys,
                              .shape = shape,
                              .onnx = {.type = "Resize", .input = OnnxOperator::Input::spatial, .resizes = true}};

}   // namespace gradcast
