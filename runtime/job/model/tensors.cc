#include "runtime/job/model/tensors.h"

#include "runtime/core/nearest.h"

namespace gradcast {

std::vector<NetTensor> net_tensors(const std::vector<Layer>& layers) {
    std::vector<NetTensor> tensors;
    for (const Layer& layer : layers) {
        const std::string& name = layer.spec.name;
        const uint64_t K = layer.out.C;
        if (layer.weights) tensors.push_back({name + ".weight", layer.weight_shape, layer.offset, layer.weights});
        if (layer.biases) tensors.push_back({name + ".bias", {K}, layer.offset + layer.weights, layer.biases});
        if (!layer.statistics) continue;
        tensors.push_back({name + ".running_mean", {K}, layer.statistics_offset, K});
        tensors.push_back({name + ".running_var", {K}, layer.statistics_offset + K, K, true});
    }
    return tensors;
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
