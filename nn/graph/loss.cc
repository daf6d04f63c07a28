// softmax_cross_entropy and squared_loss.
#include "nn/graph/layers.h"

namespace gradcast {
namespace {

/// Of masks and texts: an output for each class at each position.
Status position_shape(const NetSpec& spec, Layer& layer) {
    const bool text = spec.vocabulary > 0;
    if (layer.kind->regression)
        return fail(Code::invalid, "layer {}: {} has one target a sample, but {}: take softmax_cross_entropy", layer.spec.name,
                    layer.spec.kind, text ? "the data are a text" : "the samples have masks");
    layer.by_position = true;
    layer.out = {spec.label_classes(), text ? spec.positions() : spec.H, text ? 1 : spec.W};
    if (layer.in == layer.out) return {};
    return fail(Code::invalid, "layer {}: its input {} does not fit {}: {} is needed", layer.spec.name, shape_text(layer.in),
                text ? fmt::format("a vocabulary of {} at each of {} positions", spec.vocabulary, spec.positions())
                     : fmt::format("masks of {} classes for {}x{} pixels", spec.classes, spec.H, spec.W),
                shape_text(layer.out));
}

Status shape(const NetSpec& spec, Layer& layer) {
    const bool regression = spec.regression();
    if (regression && !layer.kind->regression)
        return fail(Code::invalid, "layer {}: {} is for classes, but the data are a regression ({}): take squared_loss", layer.spec.name,
                    layer.spec.kind, spec.targets > 0 ? "targets are floats" : "target_scale");
    if (spec.by_position()) return position_shape(spec, layer);
    if (!layer.kind->regression && layer.value("mean_over") > 0)
        return fail(Code::invalid,
                    "layer {}: mean_over = \"valid\" is of masks and texts, but the data have one label a sample: leave it out",
                    layer.spec.name);
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
    .help = "share of a sample's target that goes to all classes alike, in place of its label (not of slices that several nodes have)"};
constexpr LayerKey mean_over{
    .name = "mean_over",
    .type = LayerKey::Type::word,
    .value = 0,
    .min = 0,
    .max = 1,
    .help =
        "of masks and texts.  positions: a sample's loss is its sum divided by all positions of the sample; valid: the loss of a "
        "mini-batch is its sum divided by the positions of all its samples whose label is not the ignored one (ssgd)",
    .words = [] {
        return std::vector<std::string>{"positions", "valid"};
    }};
constexpr const LayerKey* softmax_keys[] = {&label_smoothing, &mean_over};

}   // namespace

const LayerKind softmax_cross_entropy_kind{.name = "softmax_cross_entropy",
                                           .short_name = "loss",
                                           .keys = softmax_keys,
                                           .shape = shape,
                                           .loss = true,
                                           .causal = by_position,
                                           .onnx = {.passes = true}};
const LayerKind squared_loss_kind{
    .name = "squared_loss", .short_name = "loss", .shape = shape, .loss = true, .regression = true, .onnx = {.passes = true}};

bool mean_over_valid(const NetSpec& spec) {
    if (spec.layers.empty() || spec.layers.back().kind != softmax_cross_entropy_kind.name) return false;
    return layer_value(spec.layers.back(), mean_over.name) > 0;
}

}   // namespace gradcast
