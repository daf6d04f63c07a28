#include "nn/graph/layers.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "nn/graph/slices.h"
#include "runtime/core/nearest.h"
#include "runtime/core/rng.h"

namespace gradcast {
namespace {

/// The values that were given are of keys of the kind, and in their range.
Status keys_check(const LayerKind& kind, const LayerSpec& spec, const std::string& name) {
    std::string known;
    for (const LayerKey* key : kind.keys)
        if (key->of_job_files) known += (known.empty() ? "" : " ") + std::string(key->name);
    for (const auto& [given, value] : spec.values) {
        const LayerKey* any = layer_key_find(given);
        const auto key =
            std::find_if(kind.keys.begin(), kind.keys.end(), [&given = given](const LayerKey* each) { return given == each->name; });
        if (key == kind.keys.end()) {
            if (any && value == any->value) continue;
            return fail(Code::invalid, "layer {}: {} has no {}{}{}", name, kind.name, given, known.empty() ? "" : ", but ", known);
        }
        if ((*key)->in_range(value)) continue;
        return fail(Code::invalid, "layer {}: its {} {} must be at least {} and {} {}", name, given, value, (*key)->min,
                    (*key)->below ? "below" : "at most", (*key)->max);
    }
    return {};
}

}   // namespace

const std::string& layer_name(const Layer& layer) { return layer.spec.name; }
std::string shape_text(const Shape& shape) { return fmt::format("{}x{}x{}", shape.C, shape.H, shape.W); }
std::string weight_shape_text(const Layer& layer) {
    return layer.weight_shape.empty() ? "none" : fmt::format("{}", fmt::join(layer.weight_shape, "x"));
}

Status same_shape(const NetSpec&, Layer& layer) {
    layer.out = layer.in;
    return {};
}

namespace {

/// The number of the earlier layer that a key names; none: the name is empty.
Status earlier(const std::vector<Layer>& before, const Layer& layer, const char* key, const std::string& name, uint32_t* number) {
    *number = Layer::none;
    if (name.empty()) return {};
    for (const Layer& each : before)
        if (each.spec.name == name) return *number = each.number, Status{};
    std::vector<std::string> known;
    for (const Layer& each : before) known.push_back(each.spec.name);
    const std::string near = nearest(name, known);
    return fail(Code::invalid, "layer {}: {} \"{}\" is no layer before it{}", layer.spec.name, key, name,
                near.empty() ? "" : fmt::format(": did you mean {}?", near));
}

/// Finds the layer's inputs and their shape.
Status inputs(const NetSpec& spec, std::vector<Layer>& before, Layer& layer) {
    uint32_t named = Layer::none;
    GC_TRY(earlier(before, layer, "from", layer.spec.from, &named));
    layer.input = before.empty() ? Layer::none : static_cast<uint32_t>(before.size() - 1);
    if (layer.kind->second_input) {
        if (named == Layer::none)
            return fail(Code::invalid, "layer {}: it needs `from`, the earlier layer whose output it {}", layer.spec.name,
                        layer.kind->second_input);
        layer.other = named;
    } else if (named != Layer::none) {
        layer.input = named;
    }
    layer.in = layer.input == Layer::none ? Shape{spec.C, spec.H + 2 * spec.pad, spec.W + 2 * spec.pad} : before[layer.input].out;
    if (layer.input != Layer::none) ++before[layer.input].takers;
    if (layer.other == Layer::none) return {};
    ++before[layer.other].takers;
    layer.other_in = before[layer.other].out;
    Shape alike = layer.other_in;
    if (layer.kind->joins) alike.C = layer.in.C;
    if (alike == layer.in) return {};
    return fail(Code::invalid, "layer {}: its inputs {} {} and {} {} must be alike{}", layer.spec.name, before[layer.input].spec.name,
                shape_text(layer.in), layer.spec.from, shape_text(layer.other_in), layer.kind->joins ? " in height and width" : "");
}

/// Gives the layer the weights of the one that weights_of names, or of the one whose weights that has.
Status tie(std::vector<Layer>& before, Layer& layer) {
    uint32_t named = Layer::none;
    GC_TRY(earlier(before, layer, "weights_of", layer.spec.weights_of, &named));
    if (named == Layer::none) return {};
    const std::string& name = layer.spec.name;
    if (!layer.kind->ties) {
        std::string kinds;
        for (const LayerKind* kind : layer_kinds())
            if (kind->ties) kinds += (kinds.empty() ? "" : ", ") + std::string(kind->name);
        return fail(Code::invalid, "layer {}: {} has no weights_of, which goes with {}", name, layer.kind->name, kinds);
    }
    if (before[named].tied != Layer::none) named = before[named].tied;
    Layer& of = before[named];
    for (const Layer* each : {&of, &layer})
        if (each->biases > 0)
            return fail(Code::invalid, "layer {}: weights that {} and {} share (weights_of) go without a bias: set bias = false",
                        each->spec.name, of.spec.name, name);
    if (of.uses == layer_uses_max)
        return fail(Code::invalid, "layer {}: {} layers have the weights of {} already, the most that can", name, of.uses, of.spec.name);
    const auto slices = std::max<size_t>(of.slices.size(), 1), own = static_cast<size_t>(layer.value(slices_key.name));
    if (slices != own)
        return fail(Code::invalid, "layer {}: {} and {} have the same weights (weights_of), and not as many slices: {} and {}", name,
                    of.spec.name, name, slices, own);
    if (of.weight_shape != layer.weight_shape)
        return fail(Code::invalid, "layer {}: its weights are {}, and those of {} (weights_of) {}", name, weight_shape_text(layer),
                    of.spec.name, weight_shape_text(of));
    layer.tied = named;
    layer.offset = of.offset;
    ++of.uses;
    return {};
}

}   // namespace

Status layers_check(const NetSpec& spec, std::vector<Layer>* layers, size_t* wrong) {
    if (spec.C == 0 || spec.H == 0 || spec.W == 0 || spec.C > 65536 || spec.H > 65536 || spec.W > 65536 || spec.pad > 65536)
        return fail(Code::invalid, "samples of {}x{}x{}, padded by {}: C, H and W must be 1 to 65536, the padding at most 65536", spec.C,
                    spec.H, spec.W, spec.pad);
    if (spec.classes < 2 && spec.targets == 0 && spec.vocabulary == 0)
        return fail(Code::invalid, "a net needs at least 2 classes, not {}", spec.classes);
    const bool whole_numbers = spec.element == Element::u16 || spec.element == Element::u32;
    if (spec.vocabulary > 0 &&
        (spec.C != 1 || spec.H != 1 || spec.W < 2 || spec.pad > 0 || spec.targets > 0 || spec.target_scale > 0 || !whole_numbers))
        return fail(Code::invalid, "a text has samples of 1x1x2 or more tokens of u16 or u32 without targets, not {}x{}x{} of {}", spec.C,
                    spec.H, spec.W, element_name(spec.element));
    if (spec.vocabulary == 0 && spec.by_position() && spec.targets != uint64_t{spec.H} * spec.W)
        return fail(Code::invalid, "masks of {} labels do not fit samples of {}x{}", spec.targets, spec.H, spec.W);
    size_t none, &at = wrong ? *wrong : none;
    const LayerKind* last = spec.layers.empty() ? nullptr : layer_kind_find(spec.layers.back().kind);
    if (!last || !last->loss) {
        std::string losses;
        for (const LayerKind* kind : layer_kinds())
            if (kind->loss) losses += (losses.empty() ? "" : " or ") + std::string(kind->name);
        return fail(Code::invalid, "the last layer of a net must be a loss: {}", losses);
    }
    std::vector<Layer> result;
    std::map<const LayerKind*, uint32_t> numbers;
    uint64_t offset = 0;
    for (const LayerSpec& each : spec.layers) {
        at = result.size();
        const LayerKind* kind = layer_kind_find(each.kind);
        if (!kind) {
            const std::vector<std::string> names = layer_kind_names();
            const std::string near = nearest(each.kind, names);
            return fail(Code::invalid, "layer {} has the unknown kind \"{}\": {}one of {}", result.size() + 1, each.kind,
                        near.empty() ? "" : fmt::format("did you mean {}? ", near), fmt::join(names, ", "));
        }
        Layer layer{.spec = each, .kind = kind, .number = static_cast<uint32_t>(result.size())};
        const uint32_t number = ++numbers[kind];
        if (each.name.empty()) layer.spec.name = fmt::format("{}{}", kind->short_name, number);
        for (const Layer& other : result)
            if (other.spec.name == layer.spec.name)
                return fail(Code::invalid, "two layers have the name {}: layers without one are named by kind and number", layer.spec.name);
        GC_TRY(keys_check(*kind, each, layer.spec.name));
        GC_TRY(inputs(spec, result, layer));
        if (kind->computed && spec.vocabulary > 0 && layer.input == Layer::none && !kind->selects)
            return fail(Code::invalid, "layer {}: the data are a text, so the first layer must be an embedding", layer.spec.name);
        if (layer.in.elements() > layer_elements_max)
            return fail(Code::invalid, "layer {}: its input {} is too large", layer.spec.name, shape_text(layer.in));
        if (kind->loss && &each != &spec.layers.back())
            return fail(Code::invalid, "layer {}: {} must be the last layer", layer.spec.name, each.kind);
        GC_TRY(kind->shape(spec, layer));
        layer.offset = offset;
        GC_TRY(tie(result, layer));
        layer.bias_offset = offset + layer.weights;
        offset += layer.parameters();
        if (layer.weights > layer_elements_max || offset > layer_elements_max)
            return fail(Code::invalid, "layer {}: {} to {} makes a net of more than {} parameters", layer.spec.name, shape_text(layer.in),
                        shape_text(layer.out), layer_elements_max);
        GC_TRY(slices_make(layer));
        result.push_back(std::move(layer));
    }
    at = spec.layers.size();
    if (offset == 0) return fail(Code::invalid, "the net has no layer with weights, so there is nothing to train");
    for (Layer& layer : result) {
        if (layer.takers == 0 && &layer != &result.back()) {
            at = static_cast<size_t>(&layer - result.data());
            return fail(Code::invalid, "layer {}: no layer takes its output {}", layer.spec.name, shape_text(layer.out));
        }
        layer.statistics_offset = offset;
        offset += layer.statistics;
    }
    *layers = std::move(result);
    return {};
}

Status computed_check(const std::vector<Layer>& layers) {
    if (layers.back().kind->computed) return {};
    return fail(Code::unsupported,
                "this net is computed by a process of its own (net.command): gradcastctl export writes its parameters for that program, as "
                "safetensors");
}

Status blocks_check(const std::vector<Layer>& layers, uint32_t samples) {
    for (const Layer& layer : layers)
        if (layer.kind->block) GC_TRY(layer.kind->block(layer, samples));
    return {};
}

Status images_check(const NetSpec& spec, const Samples& samples) {
    if (samples.element != spec.element)
        return fail(Code::invalid, "samples of {} do not fit the net's input of {}", element_name(samples.element),
                    element_name(spec.element));
    if (samples.C != spec.C || samples.H != spec.H || samples.W != spec.W)
        return fail(Code::invalid, "samples of {}x{}x{} do not fit the net's input {}x{}x{}", samples.C, samples.H, samples.W, spec.C,
                    spec.H, spec.W);
    for (uint64_t i = 0; spec.vocabulary > 0 && i < uint64_t{samples.count} * spec.W; ++i)
        if (const uint32_t token = element_number(spec.element, reinterpret_cast<const std::byte*>(samples.images), i);
            token >= spec.vocabulary)
            return fail(Code::data, "sample {} of a block has the token {}, but the vocabulary ends with {}", i / spec.W, token,
                        spec.vocabulary - 1);
    return {};
}

Status labels_check(const NetSpec& spec, const Samples& samples) {
    if ((spec.targets > 0) != (samples.targets != nullptr))
        return fail(Code::data, "samples with {}, but the net takes {}", samples.targets ? "targets" : "labels",
                    spec.targets > 0 ? "targets" : "labels");
    if (spec.vocabulary > 0) return {};   // images_check() has seen the tokens
    if (const PositionLabels labels(spec); spec.by_position())
        for (uint32_t n = 0; n < samples.count; ++n)
            for (uint32_t at = 0; at < labels.positions(); ++at)
                if (const uint32_t label = labels.of(samples, n, at); label >= spec.classes && labels.counts(label))
                    return fail(Code::data, "sample {} of a block has the label {} at position {}, but the net has {} classes", n, label,
                                at, spec.classes);
    if (spec.targets > 0) return {};
    for (uint32_t n = 0; n < samples.count; ++n)
        if (samples.labels[n] < 0 || static_cast<uint32_t>(samples.labels[n]) >= spec.classes)
            return fail(Code::data, "sample {} of a block has the label {}, but the net has {} classes", n, samples.labels[n],
                        spec.classes);
    return {};
}

Status samples_check(const NetSpec& spec, const Samples& samples) {
    GC_TRY(images_check(spec, samples));
    return labels_check(spec, samples);
}

uint64_t dropout_mixed(uint64_t seed, uint64_t with) {   // ~0: a number that no element's draw has
    const Philox bits = random4(Purpose::dropout, seed, with, ~0u);
    return uint64_t{bits[1]} << 32 | bits[0];
}
DropoutShare dropout_share(double rate) {
    const uint32_t drop = std::min(static_cast<uint32_t>(std::lround(rate * 65536)), 65535u);
    return {drop, static_cast<float>(65536.0 / (65536.0 - drop))};
}

}   // namespace gradcast
