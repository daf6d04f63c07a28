#include "nn/layers.h"

#include <algorithm>
#include <array>

namespace gradcast {
namespace {

// Far above any net that a CPU trains, and low enough that no product below overflows.
constexpr uint64_t elements_max = uint64_t{1} << 31;   // of all parameters, and of one sample between two layers

std::string text(const Shape& shape) { return fmt::format("{}x{}x{}", shape.C, shape.H, shape.W); }

Status window(const Layer& layer, Shape* out) {
    const LayerSpec& spec = layer.spec;
    if (spec.kernel == 0 || spec.stride == 0) return fail(Code::invalid, "layer {}: kernel and stride must be at least 1", spec.name);
    if (spec.pad >= spec.kernel)
        return fail(Code::invalid, "layer {}: pad {} must be below its kernel {}x{}", spec.name, spec.pad, spec.kernel, spec.kernel);
    uint64_t H = uint64_t{layer.in.H} + 2 * uint64_t{spec.pad}, W = uint64_t{layer.in.W} + 2 * uint64_t{spec.pad};
    if (spec.kernel > H || spec.kernel > W)
        return fail(Code::invalid, "layer {}: kernel {}x{} does not fit its input {}{}", spec.name, spec.kernel, spec.kernel,
                    text(layer.in), spec.pad ? fmt::format(" with pad {}", spec.pad) : "");
    *out = {layer.in.C, static_cast<uint32_t>((H - spec.kernel) / spec.stride + 1),
            static_cast<uint32_t>((W - spec.kernel) / spec.stride + 1)};
    return {};
}

Status outputs(const Layer& layer) {
    if (layer.spec.outputs == 0)
        return fail(Code::invalid, "layer {}: outputs must be at least 1 for its input {}", layer.spec.name, text(layer.in));
    return {};
}

Status conv_shape(const NetSpec&, Layer& layer) {
    GC_TRY(outputs(layer));
    GC_TRY(window(layer, &layer.out));
    layer.out.C = layer.biases = layer.spec.outputs;
    if (uint64_t{layer.spec.kernel} * layer.spec.kernel > elements_max)
        return fail(Code::invalid, "layer {}: kernel {} is too large", layer.spec.name, layer.spec.kernel);
    layer.weights = layer.in.C;
    for (uint64_t factor : {uint64_t{layer.spec.kernel} * layer.spec.kernel, uint64_t{layer.spec.outputs}})
        layer.weights = std::min(layer.weights, elements_max) * factor;
    return {};
}

Status inner_product_shape(const NetSpec&, Layer& layer) {
    GC_TRY(outputs(layer));
    layer.out = {layer.spec.outputs, 1, 1};
    layer.biases = layer.spec.outputs;
    layer.weights = layer.in.elements() * layer.spec.outputs;
    return {};
}

Status max_pool_shape(const NetSpec&, Layer& layer) {
    if (layer.spec.stride == 0) layer.spec.stride = layer.spec.kernel;
    return window(layer, &layer.out);
}

Status relu_shape(const NetSpec&, Layer& layer) {
    layer.out = layer.in;
    return {};
}

Status softmax_cross_entropy_shape(const NetSpec& spec, Layer& layer) {
    layer.out = {spec.classes, 1, 1};
    if (layer.in == layer.out) return {};
    return fail(Code::invalid, "layer {}: its input {} does not fit {} classes ({})", layer.spec.name, text(layer.in), spec.classes,
                text(layer.out));
}

struct Row {
    Kind kind;
    const char* name;
    const char* short_name;   // of a layer without a name: short_name and number
    Status (*shape)(const NetSpec& spec, Layer& layer);
};
constexpr std::array rows = {
    Row{Kind::conv, "conv", "conv", conv_shape},
    Row{Kind::inner_product, "inner_product", "fc", inner_product_shape},
    Row{Kind::max_pool, "max_pool", "pool", max_pool_shape},
    Row{Kind::relu, "relu", "relu", relu_shape},
    Row{Kind::softmax_cross_entropy, "softmax_cross_entropy", "loss", softmax_cross_entropy_shape},
};
static_assert(rows.size() == kind_count);
constexpr auto names = [] {
    std::array<const char*, kind_count> result{};
    for (const Row& row : rows) result[static_cast<size_t>(row.kind)] = row.name;
    return result;
}();

std::string joined(std::span<const char* const> words) {
    std::string all;
    for (const char* word : words) all += (all.empty() ? "" : ", ") + std::string(word);
    return all;
}

}   // namespace

std::span<const char* const> layer_kinds() { return names; }

Status layers_check(const NetSpec& spec, std::vector<Layer>* layers) {
    if (spec.C == 0 || spec.H == 0 || spec.W == 0 || spec.C > 65536 || spec.H > 65536 || spec.W > 65536 || spec.pad > 65536)
        return fail(Code::invalid, "samples of {}x{}x{}, padded by {}: C, H and W must be 1 to 65536, the padding at most 65536", spec.C,
                    spec.H, spec.W, spec.pad);
    if (spec.classes < 2) return fail(Code::invalid, "a net needs at least 2 classes, not {}", spec.classes);
    if (spec.layers.empty() || spec.layers.back().kind != "softmax_cross_entropy")
        return fail(Code::invalid, "the last layer of a net must be softmax_cross_entropy");
    std::vector<Layer> result;
    std::array<uint32_t, kind_count> numbers{};
    uint64_t offset = 0;
    Shape shape = {spec.C, spec.H + 2 * spec.pad, spec.W + 2 * spec.pad};
    for (const LayerSpec& each : spec.layers) {
        auto row = std::find_if(rows.begin(), rows.end(), [&](const Row& candidate) { return each.kind == candidate.name; });
        if (row == rows.end())
            return fail(Code::invalid, "layer {} has the unknown kind \"{}\": one of {}", result.size() + 1, each.kind,
                        joined(layer_kinds()));
        Layer layer{.spec = each, .kind = row->kind, .in = shape};
        uint32_t number = ++numbers[static_cast<size_t>(row->kind)];
        if (each.name.empty()) layer.spec.name = fmt::format("{}{}", row->short_name, number);
        for (const Layer& other : result)
            if (other.spec.name == layer.spec.name) return fail(Code::invalid, "two layers have the name {}", layer.spec.name);
        if (shape.elements() > elements_max)
            return fail(Code::invalid, "layer {}: its input {} is too large", layer.spec.name, text(shape));
        if (row->kind == Kind::softmax_cross_entropy && &each != &spec.layers.back())
            return fail(Code::invalid, "layer {}: softmax_cross_entropy must be the last layer", layer.spec.name);
        GC_TRY(row->shape(spec, layer));
        layer.offset = offset;
        offset += layer.parameters();
        if (layer.weights > elements_max || offset > elements_max)
            return fail(Code::invalid, "layer {}: {} to {} makes a net of more than {} parameters", layer.spec.name, text(shape),
                        text(layer.out), elements_max);
        shape = layer.out;
        result.push_back(std::move(layer));
    }
    if (offset == 0) return fail(Code::invalid, "the net has no layer with weights, so there is nothing to train");
    *layers = std::move(result);
    return {};
}

Layout layers_layout(const std::vector<Layer>& layers, uint64_t bucket_bytes) {
    Layout layout;
    for (const Layer& layer : layers) {
        if (layer.parameters() == 0) continue;
        layout.groups.push_back({layer.offset, layer.parameters(), layer.spec.name});
        layout.elements += layer.parameters();
    }
    Bucket bucket{layout.elements, 0, static_cast<uint32_t>(layout.groups.size()), 0};
    while (bucket.group > 0) {
        const Group& group = layout.groups[--bucket.group];
        bucket.offset = group.offset, bucket.count += group.count, ++bucket.group_count;
        if (bucket.count * sizeof(float) < bucket_bytes && bucket.group > 0) continue;
        layout.buckets.push_back(bucket);
        bucket.count = 0, bucket.group_count = 0;
    }
    return layout;
}

}   // namespace gradcast
