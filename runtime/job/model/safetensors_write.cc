// safetensors_write(): the state of a net as a file of tensors, written piece by piece.
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/core/le.h"
#include "runtime/job/model/constants.h"
#include "runtime/job/model/new_file.h"
#include "runtime/job/model/safetensors.h"
#include "runtime/job/model/tensors.h"

namespace gradcast {
namespace {

/// Bytes that are not UTF-8 become replacement characters.
std::string dump(const nlohmann::ordered_json& json) { return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace); }

std::string layers_json(const std::vector<Layer>& layers) {
    auto all = nlohmann::ordered_json::array();
    for (const Layer& layer : layers) {
        const LayerSpec& spec = layer.spec;
        nlohmann::ordered_json each = {{"name", spec.name}, {"kind", spec.kind}, {"from", spec.from}};
        if (!spec.weights_of.empty()) each["weights_of"] = spec.weights_of;
        for (const LayerKey* key : layer.kind->keys) {
            const double value = layer.value(key->name);
            if (key->type == LayerKey::Type::flag) each[key->name] = value != 0;
            else if (key->type == LayerKey::Type::integer) each[key->name] = static_cast<uint64_t>(value);
            else if (key->type == LayerKey::Type::word) each[key->name] = layer_value_text(*key, value);
            else each[key->name] = value;
        }
        all.push_back(std::move(each));
    }
    return dump(all);
}

/// What one name of the file stands for.
struct TensorEntry {
    std::string name, dtype;
    std::vector<uint64_t> shape;
    const NetTensor* tensor = nullptr;   // or
    size_t constant = 0;                 // its number, or
    bool batches = false;

    uint64_t bytes() const { return Constant{.name = name, .shape = shape, .dtype = dtype, .sha256 = {}}.bytes(); }
};

/// All names, wide values first, so that every tensor begins at a multiple of its values' width.
std::vector<TensorEntry> entries_of(const NetSpec& net, const std::vector<Layer>& layers, const std::vector<NetTensor>& tensors,
                                    bool constants) {
    std::vector<TensorEntry> entries;
    for (const NetTensor& each : tensors) entries.push_back({each.name, "F32", each.shape, &each});
    const std::vector<Constant> all = constants_of(net);
    for (const NetExtra& extra : net_extras(layers)) {
        if (extra.kind == NetExtra::Kind::batches) entries.push_back({extra.name, "I64", {}, nullptr, 0, true});
        if (extra.kind == NetExtra::Kind::constant && constants)
            entries.push_back({extra.name, all[extra.constant].dtype, all[extra.constant].shape, nullptr, extra.constant});
        if (extra.kind != NetExtra::Kind::alias) continue;
        const auto of = std::ranges::find(entries, extra.of, &TensorEntry::name);
        if (of == entries.end()) continue;   // of a constant that is left out
        TensorEntry alias = *of;
        alias.name = extra.name;
        entries.push_back(std::move(alias));
    }
    std::ranges::stable_sort(entries, std::ranges::greater{}, [](const TensorEntry& each) { return dtype_bytes(each.dtype); });
    return entries;
}

}   // namespace

Status safetensors_write(const std::string& path, const Model& model, std::span<const float> parameters, const std::string& folder) {
    std::vector<Layer> layers;
    GC_TRY(layers_check(model.net, &layers));
    const NetSpec& net = model.net;
    const std::vector<NetTensor> tensors = net_tensors(layers);
    const std::vector<TensorEntry> entries = entries_of(net, layers, tensors, !folder.empty());
    ConstantsReader constants;
    if (!folder.empty() && !constants_of(net).empty())
        if (const Status status = constants.open(folder, net); !status.ok())
            return fail(status.code, "the model has frozen parameters or buffers, which lie beside it in the job's folder: {}",
                        status.what);
    nlohmann::ordered_json header;
    header["__metadata__"] = {{"format", "pt"},
                              {"net", layers_json(layers)},
                              {"sample", fmt::format("[{},{},{}]", net.C, net.H, net.W)},
                              {"pad", fmt::format("{}", net.pad)},
                              {"classes", fmt::format("{}", net.classes)},
                              {"mean", fmt::format("[{}]", fmt::join(model.mean, ","))},
                              {"std", fmt::format("[{}]", fmt::join(model.std, ","))},
                              {"digest", model.digest},
                              {"step", fmt::format("{}", model.step)},
                              {"accuracy", model.accuracy < 0 ? "null" : fmt::format("{}", model.accuracy)},
                              {"class_names", dump(nlohmann::ordered_json(class_names_split(model.class_names)))},
                              {"kernel_set", model.kernel_set},
                              {"target_scale", fmt::format("{}", net.target_scale)}};
    if (typed(net)) {
        auto& metadata = header["__metadata__"];
        metadata["element"] = dump(nlohmann::ordered_json(element_name(net.element)));
        metadata["vocabulary"] = fmt::format("{}", net.vocabulary);
        if (net.ignore >= 0) metadata["ignore"] = fmt::format("{}", net.ignore);
        if (!model.alphabet.empty()) metadata["alphabet"] = dump(nlohmann::ordered_json(model.alphabet));
        metadata["targets"] = fmt::format("{}", net.targets);
        metadata["target_element"] = dump(nlohmann::ordered_json(element_name(net.target_element)));
    }
    if (model.pictures_side > 0) header["__metadata__"]["pictures_side"] = fmt::format("{}", model.pictures_side);
    uint64_t end = 0;
    for (const TensorEntry& entry : entries) {
        const uint64_t begin = end;
        end += entry.bytes();
        header[entry.name] = {{"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {begin, end}}};
    }
    std::string text = dump(header);
    text.append((8 - text.size() % 8) % 8, ' ');   // the data begin at a multiple of 8
    Le64 length;
    length.set(text.size());
    NewFile file(path);
    GC_TRY(file.open());
    GC_TRY(file.add(std::as_bytes(std::span(length.bytes))));
    GC_TRY(file.add(std::as_bytes(std::span(text))));
    for (const TensorEntry& entry : entries) {
        if (entry.tensor) {
            const std::vector<float> values = entry.tensor->values(parameters);
            GC_TRY(file.add(std::as_bytes(std::span(values))));
        } else if (entry.batches) {
            Le64 steps;
            steps.set(model.step);
            GC_TRY(file.add(std::as_bytes(std::span(steps.bytes))));
        } else {
            GC_TRY(constants.read(entry.constant, [&file](std::span<const std::byte> bytes) { return file.add(bytes); }));
        }
    }
    return file.close();
}

}   // namespace gradcast
