#include "nn/graph/slices.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>

#include "runtime/core/nearest.h"

namespace gradcast {
namespace {

/// What is cut: outputs, or rows of the weights.
uint32_t rows_of(const Layer& layer) { return static_cast<uint32_t>(layer.weight_shape[0]); }

bool fits(const Layer& layer, uint32_t slices) {
    const uint32_t unit = layer.kind->slice_unit, rows = rows_of(layer);
    if (layer.groups > 1) return false;   // a slice would read some channels of the input alone
    return unit == 1 ? slices <= rows : unit > 1 && rows % (uint64_t{unit} * slices) == 0;
}

/// "2, 4 or 8"; empty: none.
std::string possible(const Layer& layer) {
    std::vector<uint32_t> all;
    for (uint32_t slices = 2; slices <= slices_key.max; slices *= 2)
        if (fits(layer, slices)) all.push_back(slices);
    if (all.size() < 2) return all.empty() ? "" : fmt::format("{}", all[0]);
    return fmt::format("{} or {}", fmt::join(std::span(all).first(all.size() - 1), ", "), all.back());
}

Status check(const Layer& layer, uint32_t slices) {
    if (layer.groups > 1)
        return fail(Code::invalid, "layer {}: a convolution in {} groups cannot be sliced", layer.spec.name, layer.groups);
    if (fits(layer, slices)) return {};
    const std::string others = possible(layer), unit = fmt::format(" of a multiple of {}", layer.kind->slice_unit);
    return fail(Code::invalid, "layer {}: {} {} do not make {} slices{}: {}", layer.spec.name, rows_of(layer),
                layer.kind->selects ? "rows" : "outputs", slices, layer.kind->slice_unit > 1 ? unit : "",
                others.empty() ? "it cannot be sliced" : "take " + others);
}

bool can_be_sliced(const Layer& layer) { return layer.kind->slice_unit > 0 && !possible(layer).empty(); }
bool is_tied(const Layer& layer) { return layer.uses > 1 || layer.tied != Layer::none; }

/// That layer, and all others that take the same weights.
std::vector<const Layer*> with_same_weights(std::span<const Layer> layers, const Layer& layer) {
    const uint32_t owner = layer.tied == Layer::none ? layer.number : layer.tied;
    std::vector<const Layer*> all;
    for (const Layer& each : layers)
        if (each.number == owner || each.tied == owner) all.push_back(&each);
    return all;
}

}   // namespace

Status slices_make(Layer& layer) {
    if (layer.kind->slice_unit == 0) return {};
    const auto slices = static_cast<uint32_t>(layer.value(slices_key.name));
    if (slices == 1) return {};
    if (!std::has_single_bit(slices)) return fail(Code::invalid, "layer {}: {} slices are not a power of two", layer.spec.name, slices);
    GC_TRY(check(layer, slices));
    const uint32_t K = rows_of(layer);
    const uint64_t weights = layer.weights / K;   // of a row
    for (uint32_t t = 0; t < slices; ++t) {
        const uint32_t first = slice_begin(t, K, slices), count = slice_begin(t + 1, K, slices) - first;
        Layer slice = layer;
        slice.slices.clear();
        slice.spec.name = fmt::format("{} slice {} of {}", layer.spec.name, t + 1, slices);
        if (!layer.kind->selects) slice.out.C = count;
        slice.weight_shape[0] = count;
        slice.weights = weights * count;
        slice.biases = layer.biases > 0 ? count : 0;
        slice.offset = layer.offset + weights * first;
        slice.bias_offset = layer.bias_offset + first;
        layer.slices.push_back(std::move(slice));
    }
    return {};
}

std::vector<std::string> sliced_layers(std::span<const Layer> layers) {
    std::vector<std::string> names;
    for (const Layer& layer : layers)
        if (!layer.slices.empty()) names.push_back(layer.spec.name);
    return names;
}

Status slices_choose(uint32_t slices, std::span<const std::string> names, NetSpec* spec, std::string* about) {
    *about = "parallel.slices";
    if (!std::has_single_bit(slices))
        return fail(Code::invalid, "{} is not a power of two: take {} or {}", slices, std::bit_floor(slices), std::bit_ceil(slices));
    if (slices == 1) return {};
    std::vector<Layer> layers;
    GC_TRY(layers_check(*spec, &layers));
    std::vector<std::string> able;
    std::vector<const Layer*> chosen;
    for (const Layer& layer : layers)
        if (std::ranges::all_of(with_same_weights(layers, layer), [](const Layer* each) { return can_be_sliced(*each); }))
            able.push_back(layer.spec.name);
    const auto choose = [&](std::initializer_list<const LayerKind*> kinds, bool tied) {
        for (const Layer& layer : layers)
            if (std::ranges::find(kinds, layer.kind) != kinds.end() && layer.weights >= sliced_weights && is_tied(layer) == tied &&
                std::ranges::find(able, layer.spec.name) != able.end())
                chosen.push_back(&layer);
    };
    if (names.empty()) choose({&inner_product_kind}, false);
    for (const bool tied : {false, true})
        if (names.empty() && chosen.empty()) choose({&linear_kind, &embedding_kind}, tied);
    // The layers that take the same weights are sliced alike.
    for (const Layer* layer : std::vector(chosen))
        for (const Layer* with : with_same_weights(layers, *layer))
            if (std::ranges::find(chosen, with) == chosen.end()) chosen.push_back(with);
    if (names.empty() && chosen.empty())
        return fail(Code::invalid, "no inner product, linear layer or embedding has {} weights: name layers in `sliced`; possible are {}",
                    sliced_weights, fmt::join(able, ", "));
    if (!names.empty()) *about = "parallel.sliced";
    for (const std::string& name : names) {
        if (std::ranges::count(names, name) > 1) return fail(Code::invalid, "\"{}\" is named twice", name);
        const auto at = std::ranges::find(layers, name, [](const Layer& each) { return each.spec.name; });
        if (at == layers.end()) {
            const std::string near = nearest(name, able);
            return fail(Code::invalid, "\"{}\" is no layer of the net: {}possible are {}", name,
                        near.empty() ? "" : fmt::format("did you mean {}? ", near), fmt::join(able, ", "));
        }
        if (at->kind->slice_unit == 0)
            return fail(Code::invalid, "{} ({}) has no outputs of its own to slice: possible are {}", name, at->kind->name,
                        fmt::join(able, ", "));
        for (const Layer* with : with_same_weights(layers, *at)) {
            if (with->kind->slice_unit == 0)
                return fail(Code::invalid, "{} has the weights of {} (weights_of), which is no layer with slices: possible are {}", name,
                            with->spec.name, fmt::join(able, ", "));
            if (std::ranges::find(names, with->spec.name) == names.end())
                return fail(Code::invalid, "{} and {} have the same weights (weights_of): name both, or neither", name, with->spec.name);
        }
        chosen.push_back(&*at);
    }
    for (const Layer* layer : chosen) {
        GC_TRY(check(*layer, slices));
        spec->layers[layer->number].values.set(slices_key.name, slices);
    }
    return {};
}

}   // namespace gradcast
