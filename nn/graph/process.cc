// The kinds of layers of a net that a process computes: its tensors and its running statistics, in a list that passes the sample's shape
// on.
#include "nn/graph/layers.h"

namespace gradcast {
namespace {

constexpr double size_max = static_cast<double>(layer_elements_max);

constexpr LayerKey key(const char* name, double min, double max, const char* help) {
    return {.name = name, .type = LayerKey::Type::integer, .value = 1, .min = min, .max = max, .help = help, .of_job_files = false};
}
constexpr LayerKey size_key(const char* name) { return key(name, 1, size_max, "elements along an axis of a tensor"); }
constexpr LayerKey axes = key("axes", 0, tensor_axes_max, "axes of a tensor");
constexpr LayerKey sizes[tensor_axes_max] = {size_key("size0"), size_key("size1"), size_key("size2"), size_key("size3"),
                                             size_key("size4"), size_key("size5"), size_key("size6"), size_key("size7")};
constexpr const LayerKey* tensor_keys[] = {&axes, &sizes[0], &sizes[1], &sizes[2], &sizes[3], &sizes[4], &sizes[5], &sizes[6], &sizes[7]};

Status tensor_shape(const NetSpec&, Layer& layer) {
    layer.out = layer.in;
    uint64_t elements = 1;
    for (auto axis = static_cast<uint32_t>(layer.value(axes.name)), i = 0u; i < axis; ++i) {
        layer.weight_shape.push_back(static_cast<uint64_t>(layer.value(sizes[i].name)));
        elements *= layer.weight_shape.back();
        if (elements > layer_elements_max)
            return fail(Code::invalid, "tensor {}: it has more than {} elements", layer.spec.name, layer_elements_max);
    }
    layer.weights = (elements + tensor_alignment - 1) / tensor_alignment * tensor_alignment;
    return {};
}

constexpr LayerKey channels = key("channels", 1, 1 << 20, "of running statistics");
constexpr const LayerKey* running_keys[] = {&channels};

Status running_shape(const NetSpec&, Layer& layer) {
    layer.out = layer.in;
    layer.statistics = 2 * static_cast<uint64_t>(layer.value(channels.name));
    return {};
}

Status process_shape(const NetSpec& spec, Layer& layer) {
    layer.out = layer.in;
    layer.targets = spec.targets;
    layer.target_scale = spec.target_scale;
    layer.target_zero = static_cast<float>(spec.classes / 2);
    return {};
}

}   // namespace

const LayerKind tensor_kind{
    .name = "tensor", .short_name = "tensor", .keys = tensor_keys, .shape = tensor_shape, .computed = false, .tensor = true};
const LayerKind running_kind{.name = "running", .short_name = "running", .keys = running_keys, .shape = running_shape, .computed = false};
const LayerKind process_kind{
    .name = "process", .short_name = "process", .shape = process_shape, .loss = true, .regression = true, .computed = false};

LayerSpec tensor_layer(const std::string& name, std::span<const uint64_t> shape) {
    LayerSpec spec{.kind = tensor_kind.name, .name = name};
    spec.values.set(axes.name, static_cast<double>(shape.size()));
    for (size_t i = 0; i < shape.size(); ++i) spec.values.set(sizes[i].name, static_cast<double>(shape[i]));
    return spec;
}

}   // namespace gradcast
