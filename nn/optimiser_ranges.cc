// What the lists of names in [optimiser] mean in a net: ranges of its vector.
#include <fmt/ranges.h>

#include <algorithm>

#include "nn/frozen.h"
#include "runtime/core/nearest.h"

namespace gradcast {
namespace {

struct Tensor {
    std::string name;
    uint64_t place, count;
    size_t axes;
    bool exempt = false, frozen = false;
    /// `given` is its name, or that of its layer, or of what holds the layer.
    bool in(std::string_view given) const { return name == given || (name.starts_with(given) && name[given.size()] == '.'); }
};

/// All that learn, ascending.
std::vector<Tensor> learning_tensors(const std::vector<Layer>& layers) {
    std::vector<Tensor> all;
    for (const Layer& layer : layers) {
        const std::string& name = layer.spec.name;
        if (layer.weights > 0 && layer.tied == Layer::none)
            all.push_back({layer.kind->tensor ? name : name + ".weight", layer.offset, layer.weights, layer.weight_shape.size()});
        if (layer.biases) all.push_back({name + ".bias", layer.offset + layer.weights, layer.biases, 1});
    }
    return all;
}

std::vector<std::string> names_of(const std::vector<Layer>& layers) {
    std::vector<std::string> names;
    for (const Layer& layer : layers)
        if (layer.parameters() > 0) names.push_back(layer.spec.name);
    return names;
}

Status mark(const char* key, const std::vector<std::string>& given, const std::vector<Layer>& layers, bool Tensor::*as,
            std::vector<Tensor>* tensors) {
    for (const std::string& name : given) {
        bool found = false;
        for (Tensor& tensor : *tensors)
            if (tensor.in(name)) found = tensor.*as = true;
        if (found) continue;
        const std::vector<std::string> names = names_of(layers);
        const std::string near = nearest(name, names);
        return fail(Code::invalid, "optimiser.{}: \"{}\" names no layer with weights{}: one of {}, or one of their tensors, as {}", key,
                    name, near.empty() ? "" : fmt::format(" (did you mean {}?)", near), fmt::join(names, ", "),
                    tensors->empty() ? "" : tensors->front().name);
    }
    return {};
}

}   // namespace

Status optimiser_ranges(const std::vector<Layer>& layers, OptimiserConfig* config) {
    config->ranges.clear();
    std::vector<Tensor> tensors = learning_tensors(layers);
    GC_TRY(mark("decay_exempt", config->decay_exempt_names, layers, &Tensor::exempt, &tensors));
    GC_TRY(mark("freeze", config->freeze, layers, &Tensor::frozen, &tensors));
    if (!config->freeze.empty() && std::ranges::all_of(tensors, &Tensor::frozen))
        return fail(Code::invalid, "optimiser.freeze: it names all of the net, and nothing would learn");
    const bool all = optimiser_find(config->kind)->look != nullptr;   // each tensor has norms of its own
    for (const Tensor& tensor : tensors) {
        const bool exempt = tensor.exempt || (config->decay_exempt && tensor.axes < 2);
        if (exempt || tensor.frozen || all) config->ranges.push_back({tensor.place, tensor.count, !exempt, !tensor.frozen});
    }
    return {};
}

uint32_t layers_frozen(const std::vector<Layer>& layers, const OptimiserConfig& config) {
    uint32_t count = 0;
    for (const Layer& layer : layers) {
        uint64_t learning = layer.parameters();
        for (const OptimiserRange& range : config.ranges)
            if (!range.learns && range.place >= layer.offset && range.place - layer.offset < layer.parameters()) learning -= range.count;
        if (learning > 0) break;
        ++count;
    }
    return count;
}

}   // namespace gradcast
