// A net's parameters as named tensors, the form in which other programs take and give them: LAYER.weight, LAYER.bias and of batch norm
// LAYER.running_mean and LAYER.running_var, as PyTorch's modules name theirs.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "nn/graph/layers.h"
#include "nn/net.h"

namespace gradcast {

struct NetTensor {
    std::string name;
    std::vector<uint64_t> shape;
    uint64_t offset = 0, count = 0;   // in the flat vector
    bool variance = false;            // the flat vector holds the second moment there, and the means just before it

    float value(std::span<const float> parameters, uint64_t i) const {
        const double held = parameters[offset + i], mean = variance ? parameters[offset + i - count] : 0;
        return static_cast<float>(variance ? std::max(held - mean * mean, 0.0) : held);
    }
    std::vector<float> values(std::span<const float> parameters) const {
        std::vector<float> all(count);
        for (uint64_t i = 0; i < count; ++i) all[i] = value(parameters, i);
        return all;
    }
};
/// What the state of a net has beside its tensors: of a net that a process computes.
struct NetExtra {
    enum class Kind : uint8_t { constant, alias, batches };   // alias: `of` under another name; batches: PyTorch's count, a number
    Kind kind;
    std::string name;
    std::string of = {};   // an alias: the name of a tensor, a constant or a count
    size_t constant = 0;   // its number among the net's (constants_of())
};
/// All of them, in the order of the layers.
std::vector<NetExtra> net_extras(const std::vector<Layer>& layers);

/// The names in a text that DataInfo::class_names has.
std::vector<std::string> class_names_split(const std::string& names);
/// All of them, layer after layer; only what `layers` have (a bias may be missing).
std::vector<NetTensor> net_tensors(const std::vector<Layer>& layers);

}   // namespace gradcast
