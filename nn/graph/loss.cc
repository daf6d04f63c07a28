// softmax_cross_entropy and squared_loss.
#include "nn/graph/layers.h"

namespace gradcast {
namespace {

Status shape(const NetSpec& spec, Layer& layer) {
    const bool regression = spec.regression();
    if (regression && !layer.kind->regression)
        return fail(Code::invalid, "layer {}: {} is for classes, but the data are a regression ({}): take squared_loss", layer.spec.name,
                    layer.spec.kind, spec.targets > 0 ? "targets are floats" : "target_scale");
    layer.targets = spec.targets;
    layer.out = {spec.targets > 0 ? spec.targets : regression ? 1 : spec.classes, 1, 1};
    layer.target_scale = spec.target_scale;
    layer.target_zero = static_cast<float>(spec.classes / 2);
    if (layer.in == layer.out) return {};
    if (regression)
        return fail(Code::invalid, "layer {}: its input {} does not fit a regression, which has {} ({})", layer.spec.name,
                    shape_text(layer.in), spec.targets > 1 ? fmt::format("{} outputs", spec.targets) : "one output", shape_text(layer.out));
    return fail(Code::invalid, "layer {}: its input {} does not fit {} classes ({})", layer.spec.name, shape_text(layer.in), spec.classes,
                shape_text(layer.out));
}

constexpr LayerKey label_smoothing{
    .name = "label_smoothing",
    .type = LayerKey::Type::number,
    .value = 0,
    .min = 0,
    .max = 1,
    .below = true,
    .help =
        "share of a sample's target that goes to all classes alike, in place of its label (CPUs; not of slices that several nodes have)"};
constexpr const LayerKey* softmax_keys[] = {&label_smoothing};

}   // namespace

const LayerKind softmax_cross_entropy_kind{
    .name = "softmax_cross_entropy", .short_name = "loss", .keys = softmax_keys, .shape = shape, .loss = true, .onnx = {.passes = true}};
const LayerKind squared_loss_kind{
    .name = "squared_loss", .short_name = "loss", .shape = shape, .loss = true, .regression = true, .onnx = {.passes = true}};

}   // namespace gradcast
