// layer_norm and group_norm (Ba, Kiros, Hinton 2016; Wu, He 2018): of each sample alone, so that evaluations need no statistics.
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

Status group_shape(const NetSpec& spec, Layer& layer) {
    const auto count = static_cast<uint32_t>(layer.value(groups_key.name));
    if (layer.in.C % count != 0)
        return fail(Code::invalid, "layer {}: {} groups do not divide the {} channels of its input", layer.spec.name, count, layer.in.C);
    if (layer.in.C / count * uint64_t{layer.in.H} * layer.in.W == 1)
        return fail(Code::invalid, "layer {}: a group of one value has nothing to normalise it by: take fewer groups", layer.spec.name);
    return shape(spec, layer);
}

}   // namespace

const LayerKind layer_norm_kind{
    .name = "layer_norm", .short_name = "layer_norm", .keys = layer_norm_keys, .shape = shape, .initial_weight = 1};
const LayerKind group_norm_kind{
    .name = "group_norm", .short_name = "group_norm", .keys = group_norm_keys, .shape = group_shape, .initial_weight = 1};

}   // namespace gradcast
