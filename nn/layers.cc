#include "nn/layers.h"

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/core/nearest.h"
#include "runtime/core/rng.h"

namespace gradcast {
namespace {

// The most parameters, and the most elements of one sample between two layers: no product below overflows.
constexpr uint64_t elements_max = uint64_t{1} << 31;

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
    auto windows = [&](uint64_t padded, uint32_t side) {
        uint64_t count = (padded - spec.kernel + (spec.ceil ? spec.stride - 1 : 0)) / spec.stride + 1;
        // Rounded up, the last window must still begin inside, else it has padding alone.
        return static_cast<uint32_t>((count - 1) * spec.stride >= uint64_t{side} + spec.pad ? count - 1 : count);
    };
    *out = {layer.in.C, windows(H, layer.in.H), windows(W, layer.in.W)};
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
    layer.out.C = layer.spec.outputs;
    layer.biases = layer.spec.bias ? layer.spec.outputs : 0;
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
    layer.biases = layer.spec.bias ? layer.spec.outputs : 0;
    layer.weights = layer.in.elements() * layer.spec.outputs;
    return {};
}

Status pool_shape(const NetSpec&, Layer& layer) {
    if (layer.spec.stride == 0) layer.spec.stride = layer.spec.kernel;
    return window(layer, &layer.out);
}

Status global_average_pool_shape(const NetSpec&, Layer& layer) {
    layer.spec.kernel = layer.spec.stride = std::max(layer.in.H, layer.in.W);   // one window
    layer.spec.pad = 0;
    layer.out = {layer.in.C, 1, 1};
    return {};
}

Status same_shape(const NetSpec&, Layer& layer) {
    layer.out = layer.in;
    return {};
}

Status dropout_shape(const NetSpec&, Layer& layer) {
    layer.out = layer.in;
    if (layer.spec.rate >= 0 && layer.spec.rate < 1) return {};
    return fail(Code::invalid, "layer {}: its rate {} must be at least 0 and below 1", layer.spec.name, layer.spec.rate);
}

Status batch_norm_shape(const NetSpec&, Layer& layer) {
    layer.out = layer.in;
    layer.weights = layer.biases = layer.in.C;
    layer.statistics = uint64_t{2} * layer.in.C;
    return {};
}

Status loss_shape(const NetSpec& spec, Layer& layer) {
    const bool regression = spec.target_scale > 0;
    if (regression && layer.kind != Kind::squared_loss)
        return fail(Code::invalid, "layer {}: {} is for classes, but the data are a regression (target_scale): take squared_loss",
                    layer.spec.name, layer.spec.kind);
    layer.out = {regression ? 1 : spec.classes, 1, 1};
    const uint32_t zero = spec.classes / 2;
    layer.target_scale = spec.target_scale;
    layer.target_zero = static_cast<float>(zero);
    if (layer.in == layer.out) return {};
    if (regression)
        return fail(Code::invalid, "layer {}: its input {} does not fit a regression, which has one output ({})", layer.spec.name,
                    text(layer.in), text(layer.out));
    return fail(Code::invalid, "layer {}: its input {} does not fit {} classes ({})", layer.spec.name, text(layer.in), spec.classes,
                text(layer.out));
}

struct Row {
    Kind kind;
    const char* name;
    const char* short_name;   // with a number: the name of a layer that has none
    const char* keys;         // of LayerSpec that this kind has
    Status (*shape)(const NetSpec& spec, Layer& layer);
};
constexpr std::array rows = {
    Row{Kind::conv, "conv", "conv", "outputs kernel stride pad bias", conv_shape},
    Row{Kind::inner_product, "inner_product", "fc", "outputs bias", inner_product_shape},
    Row{Kind::max_pool, "max_pool", "pool", "kernel stride pad ceil", pool_shape},
    Row{Kind::average_pool, "average_pool", "average", "kernel stride pad ceil", pool_shape},
    Row{Kind::global_average_pool, "global_average_pool", "global", "", global_average_pool_shape},
    Row{Kind::relu, "relu", "relu", "", same_shape},
    Row{Kind::dropout, "dropout", "dropout", "rate", dropout_shape},
    Row{Kind::batch_norm, "batch_norm", "norm", "", batch_norm_shape},
    Row{Kind::add, "add", "add", "", same_shape},
    Row{Kind::softmax_cross_entropy, "softmax_cross_entropy", "loss", "", loss_shape},
    Row{Kind::squared_loss, "squared_loss", "loss", "", loss_shape},
};
static_assert(rows.size() == kind_count);
constexpr auto names = [] {
    std::array<const char*, kind_count> result{};
    for (const Row& row : rows) result[static_cast<size_t>(row.kind)] = row.name;
    return result;
}();

Status keys_check(const Row& row, const LayerSpec& spec, const std::string& name) {
    const LayerSpec none;
    const std::pair<const char*, bool> given[] = {{"outputs", spec.outputs != none.outputs}, {"kernel", spec.kernel != none.kernel},
                                                  {"stride", spec.stride != none.stride},    {"pad", spec.pad != none.pad},
                                                  {"ceil", spec.ceil != none.ceil},          {"bias", spec.bias != none.bias},
                                                  {"rate", spec.rate != none.rate}};
    for (auto [key, is] : given)
        if (is && std::string_view(row.keys).find(key) == std::string_view::npos)
            return fail(Code::invalid, "layer {}: {} has no {}{}{}", name, row.name, key, *row.keys ? ", but " : "", row.keys);
    return {};
}

std::string joined(std::span<const char* const> words) {
    std::string all;
    for (const char* word : words) all += (all.empty() ? "" : ", ") + std::string(word);
    return all;
}

}   // namespace

std::span<const char* const> precision_names() {
    static constexpr std::array names = {"f32", "bf16", "tf32"};
    return names;
}

Precision precision_of(std::string_view name) {
    const auto names = precision_names();
    const auto at = std::find(names.begin(), names.end(), name);
    GC_ASSERT(at != names.end());
    return static_cast<Precision>(at - names.begin());
}

std::span<const char* const> layer_kinds() { return names; }
const std::string& layer_name(const Layer& layer) { return layer.spec.name; }

namespace {

/// Finds the layer's inputs and their shape.
Status inputs(const NetSpec& spec, std::vector<Layer>& before, Layer& layer) {
    uint32_t named = Layer::none;
    std::vector<std::string> known;
    for (const Layer& each : before) {
        if (each.spec.name == layer.spec.from) named = static_cast<uint32_t>(known.size());
        known.push_back(each.spec.name);
    }
    if (!layer.spec.from.empty() && named == Layer::none) {
        std::string near = nearest(layer.spec.from, known);
        return fail(Code::invalid, "layer {}: from \"{}\" is no layer before it{}", layer.spec.name, layer.spec.from,
                    near.empty() ? "" : fmt::format(": did you mean {}?", near));
    }
    layer.input = before.empty() ? Layer::none : static_cast<uint32_t>(before.size() - 1);
    if (layer.kind == Kind::add) {
        if (named == Layer::none)
            return fail(Code::invalid, "layer {}: it needs `from`, the earlier layer whose output it adds", layer.spec.name);
        layer.other = named;
    } else if (named != Layer::none) {
        layer.input = named;
    }
    layer.in = layer.input == Layer::none ? Shape{spec.C, spec.H + 2 * spec.pad, spec.W + 2 * spec.pad} : before[layer.input].out;
    if (layer.input != Layer::none) ++before[layer.input].takers;
    if (layer.other == Layer::none) return {};
    ++before[layer.other].takers;
    if (before[layer.other].out == layer.in) return {};
    return fail(Code::invalid, "layer {}: its inputs {} {} and {} {} must be alike", layer.spec.name, before[layer.input].spec.name,
                text(layer.in), layer.spec.from, text(before[layer.other].out));
}

}   // namespace

Status layers_check(const NetSpec& spec, std::vector<Layer>* layers, size_t* wrong) {
    if (spec.C == 0 || spec.H == 0 || spec.W == 0 || spec.C > 65536 || spec.H > 65536 || spec.W > 65536 || spec.pad > 65536)
        return fail(Code::invalid, "samples of {}x{}x{}, padded by {}: C, H and W must be 1 to 65536, the padding at most 65536", spec.C,
                    spec.H, spec.W, spec.pad);
    if (spec.classes < 2) return fail(Code::invalid, "a net needs at least 2 classes, not {}", spec.classes);
    size_t none, &at = wrong ? *wrong : none;
    auto is_loss = [](const LayerSpec& layer) { return layer.kind == "softmax_cross_entropy" || layer.kind == "squared_loss"; };
    if (spec.layers.empty() || !is_loss(spec.layers.back()))
        return fail(Code::invalid, "the last layer of a net must be a loss: softmax_cross_entropy or squared_loss");
    std::vector<Layer> result;
    std::array<uint32_t, kind_count> numbers{};
    uint64_t offset = 0;
    for (const LayerSpec& each : spec.layers) {
        at = result.size();
        auto row = std::find_if(rows.begin(), rows.end(), [&](const Row& candidate) { return each.kind == candidate.name; });
        if (row == rows.end()) {
            std::string near = nearest(each.kind, std::vector<std::string>(names.begin(), names.end()));
            return fail(Code::invalid, "layer {} has the unknown kind \"{}\": {}one of {}", result.size() + 1, each.kind,
                        near.empty() ? "" : fmt::format("did you mean {}? ", near), joined(layer_kinds()));
        }
        Layer layer{.spec = each, .kind = row->kind};
        uint32_t number = ++numbers[static_cast<size_t>(row->kind)];
        if (each.name.empty()) layer.spec.name = fmt::format("{}{}", row->short_name, number);
        for (const Layer& other : result)
            if (other.spec.name == layer.spec.name)
                return fail(Code::invalid, "two layers have the name {}: layers without one are named by kind and number", layer.spec.name);
        GC_TRY(keys_check(*row, each, layer.spec.name));
        GC_TRY(inputs(spec, result, layer));
        if (layer.in.elements() > elements_max)
            return fail(Code::invalid, "layer {}: its input {} is too large", layer.spec.name, text(layer.in));
        if (is_loss(each) && &each != &spec.layers.back())
            return fail(Code::invalid, "layer {}: {} must be the last layer", layer.spec.name, each.kind);
        GC_TRY(row->shape(spec, layer));
        layer.offset = offset;
        offset += layer.parameters();
        if (layer.weights > elements_max || offset > elements_max)
            return fail(Code::invalid, "layer {}: {} to {} makes a net of more than {} parameters", layer.spec.name, text(layer.in),
                        text(layer.out), elements_max);
        result.push_back(std::move(layer));
    }
    at = spec.layers.size();
    if (offset == 0) return fail(Code::invalid, "the net has no layer with weights, so there is nothing to train");
    for (Layer& layer : result) {
        if (layer.takers == 0 && &layer != &result.back()) {
            at = static_cast<size_t>(&layer - result.data());
            return fail(Code::invalid, "layer {}: no layer takes its output {}", layer.spec.name, text(layer.out));
        }
        layer.statistics_offset = offset;
        offset += layer.statistics;
    }
    *layers = std::move(result);
    return {};
}

Status blocks_check(const std::vector<Layer>& layers, uint32_t samples) {
    for (const Layer& layer : layers)
        if (layer.kind == Kind::batch_norm && uint64_t{samples} * layer.in.H * layer.in.W == 1)
            return fail(Code::invalid,
                        "layer {}: in a block of 1 sample each channel has one value, and nothing to normalise it by: take a larger batch, "
                        "or fewer blocks",
                        layer.spec.name);
    return {};
}

Layout layers_layout(const std::vector<Layer>& layers, uint64_t bucket_bytes) {
    Layout layout;
    for (const Layer& layer : layers) {
        if (layer.parameters() == 0) continue;
        layout.groups.push_back({layer.offset, layer.parameters(), layer.spec.name});
        layout.elements += layer.parameters();
    }
    size_t learnt = layout.groups.size();
    for (const Layer& layer : layers) {
        if (layer.statistics == 0) continue;
        layout.groups.push_back({layer.statistics_offset, layer.statistics, layer.spec.name + " statistics", true});
        layout.elements += layer.statistics;
    }
    Bucket bucket{layout.elements, 0, static_cast<uint32_t>(layout.groups.size()), 0};
    while (bucket.group > 0) {
        const Group& group = layout.groups[--bucket.group];
        bucket.offset = group.offset;
        bucket.count += group.count;
        ++bucket.group_count;
        bool enough = bucket.group < learnt && bucket.count * sizeof(float) >= bucket_bytes;
        if (!enough && bucket.group != 0 && bucket.group != learnt) continue;
        layout.buckets.push_back(bucket);
        bucket.count = 0;
        bucket.group_count = 0;
    }
    return layout;
}

void layers_pool_first(std::vector<Layer>& layers) {
    for (uint32_t i = 0; i + 1 < layers.size(); ++i) {
        Layer &first = layers[i], &second = layers[i + 1];
        if (first.kind != Kind::relu || second.kind != Kind::max_pool || first.takers != 1 || second.input != i) continue;
        std::swap(first, second);
        first.input = second.input;
        second.input = i;
        second.takers = std::exchange(first.takers, 1);
        second.in = second.out = first.out;
    }
}

std::vector<uint32_t> buckets_of_layers(const std::vector<Layer>& layers, const Layout& layout) {
    std::vector<uint32_t> result(layers.size(), ~0u);
    for (size_t i = 0; i < layers.size(); ++i)
        for (size_t bucket = 0; bucket < layout.buckets.size(); ++bucket)
            if (layers[i].parameters() && layers[i].offset == layout.buckets[bucket].offset) result[i] = static_cast<uint32_t>(bucket);
    return result;
}

Status samples_check(const NetSpec& spec, const Samples& samples) {
    if (samples.C != spec.C || samples.H != spec.H || samples.W != spec.W)
        return fail(Code::invalid, "samples of {}x{}x{} do not fit the net's input {}x{}x{}", samples.C, samples.H, samples.W, spec.C,
                    spec.H, spec.W);
    for (uint32_t n = 0; n < samples.count; ++n)
        if (samples.labels[n] < 0 || static_cast<uint32_t>(samples.labels[n]) >= spec.classes)
            return fail(Code::data, "sample {} of a block has the label {}, but the net has {} classes", n, samples.labels[n],
                        spec.classes);
    return {};
}

uint64_t dropout_mixed(uint64_t seed, uint64_t with) {   // ~0: a number that no element's draw has
    const Philox bits = random4(Purpose::dropout, seed, with, ~0u);
    return uint64_t{bits[1]} << 32 | bits[0];
}

}   // namespace gradcast
