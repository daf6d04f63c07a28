#include "runtime/job/model/tensors.h"

#include <algorithm>

#include "nn/graph/process.h"
#include "runtime/core/nearest.h"

namespace gradcast {

std::vector<NetTensor> net_tensors(const std::vector<Layer>& layers) {
    std::vector<NetTensor> tensors;
    for (const Layer& layer : layers) {
        const std::string& name = layer.spec.name;
        if (layer.kind->tensor) {
            tensors.push_back({name, layer.weight_shape, layer.offset, layer.weight_elements()});
            continue;
        }
        if (layer.weights > 0 && layer.tied == Layer::none)
            tensors.push_back({name + ".weight", layer.weight_shape, layer.offset, layer.weights});
        if (layer.biases) tensors.push_back({name + ".bias", {layer.biases}, layer.offset + layer.weights, layer.biases});
        if (!layer.statistics) continue;
        const uint64_t K = layer.statistics / 2;
        tensors.push_back({name + ".running_mean", {K}, layer.statistics_offset, K});
        tensors.push_back({name + ".running_var", {K}, layer.statistics_offset + K, K, true});
    }
    return tensors;
}

std::vector<NetExtra> net_extras(const std::vector<Layer>& layers) {
    using Kind = NetExtra::Kind;
    std::vector<NetExtra> extras;
    size_t constants = 0;
    for (const Layer& layer : layers) {
        const std::string& name = layer.spec.name;
        const auto counts = [](const Layer& of) { return of.is(running_kind) && of.value("batches") != 0; };
        if (counts(layer)) extras.push_back({Kind::batches, name + ".num_batches_tracked"});
        if (layer.is(constant_kind)) extras.push_back({Kind::constant, name, "", constants++});
        if (layer.tied != Layer::none) extras.push_back({Kind::alias, name + ".weight", layers[layer.tied].spec.name + ".weight"});
        if (!layer.is(alias_kind)) continue;
        const Layer& of = layers[layer.other];
        if (!of.is(running_kind)) {
            extras.push_back({Kind::alias, name, of.spec.name});
            continue;
        }
        for (const char* part : {".running_mean", ".running_var"}) extras.push_back({Kind::alias, name + part, of.spec.name + part});
        if (counts(of)) extras.push_back({Kind::alias, name + ".num_batches_tracked", of.spec.name + ".num_batches_tracked"});
    }
    return extras;
}

std::vector<std::string> class_names_split(const std::string& names) {
    std::vector<std::string> split;
    for (size_t at = 0; at <= names.size() && !names.empty();) {
        const size_t end = std::min(names.find(',', at), names.size());
        split.push_back(one_line(names.substr(at, end - at)));
        at = end + 1;
    }
    return split;
}

}   // namespace gradcast
