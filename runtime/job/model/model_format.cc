#include "runtime/job/model/model_format.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "nn/graph/layers.h"
#include "runtime/core/digest.h"

namespace gradcast {
namespace {

constexpr uint64_t key_value_version = 4;   // of layers

/// A line of a model of a version before key_value_version; in the oldest it ends with pad.
bool layer_parse_old(const std::string& line, LayerSpec* layer) {
    char kind[65], name[65], from[65] = "-";
    unsigned outputs, kernel, stride, pad, ceil = 0, bias = 1;
    double rate = 0;
    const int found = std::sscanf(line.c_str(), "%64s %64s %u %u %u %u %u %u %lf %64s", kind, name, &outputs, &kernel, &stride, &pad, &ceil,
                                  &bias, &rate, from);
    if (found != 6 && found != 10) return false;
    layer->kind = kind;
    if (std::string_view(from) != "-") layer->from = from;
    if (std::string_view(name) != "-") layer->name = name;
    const std::pair<const char*, double> values[] = {{"outputs", outputs}, {"kernel", kernel}, {"stride", stride}, {"pad", pad},
                                                     {"ceil", ceil},       {"bias", bias},     {"rate", rate}};
    for (const auto& [key, value] : values)
        if (value != layer_key_find(key)->value && !layer_set(*layer, key, value)) return false;
    return true;
}

std::string digest_of(auto values) { return sha256_hex(std::as_bytes(values)); }

}   // namespace

hid_t stored_type(StateVector which) {
    switch (which) {
        case StateVector::parameters:
        case StateVector::optimiser: return H5T_IEEE_F32LE;
        case StateVector::exponents: return H5T_STD_I32LE;
        case StateVector::algorithm: return H5T_STD_U8LE;
    }
    return H5I_INVALID_HID;
}

std::string layers_text(const NetSpec& net, uint64_t version) {
    auto value = [](const LayerSpec& layer, const char* key) {
        const double* given = layer.values.find(key);
        return given ? *given : layer_key_find(key)->value;
    };
    auto named = [](const std::string& name) { return name.empty() ? "-" : name; };
    std::string text;
    for (const LayerSpec& layer : net.layers)
        text += version >= key_value_version
                    ? layer_text(layer) + "\n"
                    : fmt::format("{} {} {} {} {} {} {} {} {} {}\n", layer.kind, named(layer.name), value(layer, "outputs"),
                                  value(layer, "kernel"), value(layer, "stride"), value(layer, "pad"), value(layer, "ceil"),
                                  value(layer, "bias"), value(layer, "rate"), named(layer.from));
    return text;
}

bool layers_parse(const std::string& text, uint64_t version, NetSpec* net) {
    for (size_t begin = 0, end; begin < text.size(); begin = end + 1) {
        end = std::min(text.find('\n', begin), text.size());
        const std::string line = text.substr(begin, end - begin);
        LayerSpec layer;
        if (!(version >= key_value_version ? layer_parse(line, &layer) : layer_parse_old(line, &layer))) return false;
        net->layers.push_back(std::move(layer));
    }
    return !net->layers.empty();
}

std::string model_content(const Model& model, const PerVector<std::string>& digests, uint64_t version, const StateSizes& sizes,
                          const StateRuns& runs) {
    const NetSpec& net = model.net;
    std::string text = fmt::format(
        "sample {} {} {} pad {} classes {} target_scale {}\nmean {}\nstd {}\nstep {} state {:016x} agreed {:d}\naccuracy {} test_loss {} "
        "evaluated {}\n"
        "kernel_set {}\ndata_digest {}\nid {}\nbase {}\njob {}\nlayers {}\nparameters {}\noptimiser {}\nexponents {}\nalgorithm {}\n",
        net.C, net.H, net.W, net.pad, net.classes, net.target_scale, fmt::join(model.mean, " "), fmt::join(model.std, " "), model.step,
        model.state, model.agreed, model.accuracy, model.test_loss, model.evaluated, model.kernel_set, model.data_digest, model.id,
        model.base, digest_of(std::span(model.job)), digest_of(std::span<const char>(layers_text(net, version))),
        digests[StateVector::parameters], digests[StateVector::optimiser], digests[StateVector::exponents],
        digests[StateVector::algorithm]);
    if (!model.class_names.empty()) text += fmt::format("class_names {}\n", digest_of(std::span(model.class_names)));
    if (!model.alphabet.empty()) text += fmt::format("alphabet {}\n", digest_of(std::span(model.alphabet)));
    if (typed(net))
        text += fmt::format("element {} targets {} {} vocabulary {}\n", element_name(net.element), net.targets,
                            element_name(net.target_element), net.vocabulary);
    if (net.ignore >= 0) text += fmt::format("ignore {}\n", net.ignore);
    if (model.pictures_side > 0) text += fmt::format("pictures_side {}\n", model.pictures_side);
    if (version >= model_part_version)
        text += fmt::format("whole {}\nranges {}\n", fmt::join(sizes, " "), fmt::join(ranges_values(runs), " "));
    return digest_of(std::span(text));
}

}   // namespace gradcast
