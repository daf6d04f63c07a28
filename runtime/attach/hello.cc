#include "runtime/attach/hello.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "nn/graph/layers.h"
#include "nn/graph/process.h"
#include "runtime/attach/wire.h"
#include "runtime/core/digest.h"
#include "runtime/core/inventory.h"
#include "runtime/core/json_bounds.h"
#include "runtime/core/nearest.h"
#include "runtime/core/version.h"

namespace gradcast {
namespace {

// Exceptions are off here: parse() returns a discarded value, and every type is asked before it is taken.
using Json = nlohmann::json;

constexpr size_t name_max = 256, modules_max = 4096, path_max = 4096, digest_max = 256;
constexpr size_t depth_max = 16, values_max = 1 << 20;                           // of the JSON
constexpr size_t libraries_max = 64, library_name_max = 64, version_max = 256;   // version_max: bytes of a version

template <typename... Args>
Status wrong(fmt::format_string<Args...> format, Args&&... args) {
    return fail(Code::invalid, "its HELLO is not as the border has it: {}", fmt::format(format, std::forward<Args>(args)...));
}

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

const Json& member(const Json& of, const char* key) {
    static const Json none;
    const auto at = of.find(key);
    return at == of.end() ? none : *at;
}

/// A name or path with the part "..", which leads out of a folder where somebody takes it for a file's.
bool climbs(std::string_view text) {
    for (size_t begin = 0, end; begin <= text.size(); begin = end + 1) {
        end = std::min(text.find('/', begin), text.size());
        if (text.substr(begin, end - begin) == "..") return true;
    }
    return false;
}

bool control(std::string_view text) {
    return std::ranges::any_of(text, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7f; });
}

bool hex_digits(std::string_view text, size_t count) {
    return text.size() == count && std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

Status libraries(const Json& given, std::vector<std::pair<std::string, std::string>>* all) {
    if (given.is_null()) return {};
    if (!given.is_object()) return wrong("`libraries` is no object");
    if (given.size() > libraries_max) return wrong("{} libraries are more than {}", given.size(), libraries_max);
    for (const auto& [name, version] : given.items()) {
        if (name.empty() || name.size() > library_name_max || control(name))
            return wrong("the name of a library {}: 1 to {} bytes without control characters are allowed", one_line(name),
                         library_name_max);
        const std::string text = version.is_string() ? version.get<std::string>() : std::string();
        if (text.empty() || text.size() > version_max || control(text))
            return wrong("library {}: its version is no text of 1 to {} bytes without control characters", name, version_max);
        all->emplace_back(name, text);
    }
    return {};
}

Status name_of(const Json& each, std::set<std::string>& names, std::string* name) {
    const Json& given = member(each, "name");
    if (!given.is_string()) return wrong("a tensor has no name");
    *name = given.get<std::string>();
    if (name->empty() || name->size() > name_max) return wrong("a name of {} bytes: 1 to {} are allowed", name->size(), name_max);
    for (const char c : *name)
        if (static_cast<unsigned char>(c) <= ' ' || c == 0x7f)
            return wrong("the name {} has a space or a control character", one_line(*name));
    if (climbs(*name)) return wrong("the name {} has the part \"..\"", one_line(*name));
    if (!names.insert(*name).second) return wrong("two tensors have the name {}", *name);
    return {};
}

/// what: "tensor" or "constant", for messages.
Status shape_of(const Json& each, const char* what, const std::string& name, uint64_t least, std::vector<uint64_t>* sizes) {
    const Json& shape = member(each, "shape");
    if (!shape.is_array() || shape.size() > tensor_axes_max)
        return wrong("{} {}: its shape is no list of at most {} sizes", what, name, tensor_axes_max);
    for (const Json& size : shape) {
        if (!size.is_number_unsigned() || size.get<uint64_t>() < least || size.get<uint64_t>() > layer_elements_max)
            return wrong("{} {}: a size of its shape is not {} to {}", what, name, least, layer_elements_max);
        sizes->push_back(size.get<uint64_t>());
    }
    return {};
}

Status tensor(const Json& each, std::set<std::string>& names, uint64_t* elements, LayerSpec* spec) {
    std::string name;
    std::vector<uint64_t> sizes;
    GC_TRY(name_of(each, names, &name));
    GC_TRY(shape_of(each, "tensor", name, 1, &sizes));
    uint64_t own = 1;
    for (const uint64_t size : sizes)
        if ((own *= size) > layer_elements_max) break;   // each product is below 2^62
    if ((*elements += own) > layer_elements_max)
        return wrong("tensor {}: with it the net has more than {} parameters", name, layer_elements_max);
    *spec = tensor_layer(name, sizes);
    return {};
}

Status constant(const Json& each, std::set<std::string>& names, uint64_t* bytes, LayerSpec* spec) {
    const auto text = [&](const char* key) { return member(each, key).is_string() ? member(each, key).get<std::string>() : std::string(); };
    Constant found;
    GC_TRY(name_of(each, names, &found.name));
    GC_TRY(shape_of(each, "constant", found.name, 0, &found.shape));
    found.dtype = text("dtype");
    found.sha256 = text("sha256");
    if (const Status status = constant_check(found); !status.ok()) return wrong("{}", status.what);
    if ((*bytes += found.bytes()) > GC_ATTACH_CONSTANTS_MAX)
        return wrong(
            "its frozen parameters and buffers have more than {} bytes: register those that need not be exported with persistent=False",
            GC_ATTACH_CONSTANTS_MAX);
    *spec = constant_layer(found);
    return {};
}

/// What running statistics are exported as.
constexpr const char* statistics[] = {".running_mean", ".running_var", ".num_batches_tracked"};

Status statistics_names(const std::string& module, std::set<std::string>& names) {
    for (const char* each : statistics)
        if (!names.insert(module + each).second) return wrong("two tensors have the name {}{}", module, each);
    return {};
}

Status alias(const Json& each, const std::vector<LayerSpec>& layers, std::set<std::string>& names, LayerSpec* spec) {
    std::string name;
    GC_TRY(name_of(each, names, &name));
    const Json& given = member(each, "of");
    const auto of = std::ranges::find(layers, given.is_string() ? given.get<std::string>() : std::string(), &LayerSpec::name);
    if (of == layers.end() || of->kind == alias_kind.name)
        return wrong("alias {}: it is of {}, which is no tensor", name, one_line(dump(given)));
    if (of->kind == running_kind.name) GC_TRY(statistics_names(name, names));
    *spec = alias_layer(name, of->name);
    return {};
}

Status module(const Json& each, std::pair<std::string, std::string>* found) {
    const Json &path = member(each, "path"), &sha = member(each, "sha256");
    if (!path.is_string() || !sha.is_string()) return wrong("a module has no path, or no sha256");
    *found = {path.get<std::string>(), sha.get<std::string>()};
    if (found->first.empty() || found->first.size() > path_max || control(found->first))
        return wrong("the path of module {}: 1 to {} bytes without control characters are allowed", one_line(found->first), path_max);
    if (climbs(found->first)) return wrong("the path of module {} has the part \"..\"", one_line(found->first));
    if (!hex_digits(found->second, 64)) return wrong("module {}: its sha256 is not 64 hex digits", one_line(found->first));
    return {};
}

Status running(const Json& each, std::set<std::string>& names, LayerSpec* spec) {
    GC_TRY(name_of(each, names, &spec->name));
    spec->kind = running_kind.name;
    const Json& channels = member(each, "channels");
    if (!channels.is_number_unsigned() || !layer_set(*spec, "channels", channels.get<double>()))
        return wrong("module {}: its channels are no number from 1 on", spec->name);
    if (const Json& batches = member(each, "batches"); batches.is_boolean() && batches.get<bool>()) spec->values.set("batches", 1);
    return statistics_names(spec->name, names);
}

}   // namespace

Status hello_parse(std::string_view text, ProcessHello* hello) {
    if (const Status bounds = json_bounds(text, depth_max, values_max); !bounds.ok()) return wrong("{}", bounds.what);
    const Json root = Json::parse(text, nullptr, false);
    if (!root.is_object()) return wrong("it is no JSON object");
    if (const Json& version = member(root, "version"); version.is_string() && version.get_ref<const std::string&>() != version_text)
        return fail(Code::invalid, "its package is of version {}, this daemon of {}: install both together",
                    one_line(version.get_ref<const std::string&>()), version_text);
    if (const Json& wire = member(root, "wire"); !wire.is_number_unsigned() || wire.get<uint64_t>() != GC_ATTACH_VERSION)
        return wrong("its package has border {}, this daemon {}: install both together", one_line(dump(wire)), GC_ATTACH_VERSION);
    const Json &tensors = member(root, "tensors"), &moving = member(root, "running"), &constants = member(root, "constants"),
               &aliases = member(root, "aliases");
    if (!tensors.is_array() || tensors.empty()) return wrong("it has no tensors, so there is nothing to train");
    size_t count = tensors.size();
    for (const auto& [key, list] : {std::pair{"running", &moving}, {"constants", &constants}, {"aliases", &aliases}}) {
        if (!list->is_null() && !list->is_array()) return wrong("`{}` is no list", key);
        count += list->size();   // of null 0
    }
    if (count > GC_ATTACH_TENSORS_MAX) return wrong("{} tensors are more than {}", count, GC_ATTACH_TENSORS_MAX);
    std::set<std::string> names;
    uint64_t elements = 0, bytes = 0;   // that are trained; of constants
    hello->layers.reserve(count + 1);
    for (const Json& each : tensors) GC_TRY(tensor(each, names, &elements, &hello->layers.emplace_back()));
    for (const Json& each : moving) GC_TRY(running(each, names, &hello->layers.emplace_back()));
    for (const Json& each : constants) GC_TRY(constant(each, names, &bytes, &hello->layers.emplace_back()));
    const std::vector<LayerSpec> named = hello->layers;
    for (const Json& each : aliases) GC_TRY(alias(each, named, names, &hello->layers.emplace_back()));
    if (const Json& digest = member(root, "data_digest"); !digest.is_null()) {
        if (digest.is_string()) hello->data_digest = digest.get<std::string>();
        if (hello->data_digest.empty() || hello->data_digest.size() > digest_max || control(hello->data_digest))
            return wrong("`data_digest` is no text of 1 to {} bytes without control characters", digest_max);
    }
    hello->layers.push_back({.kind = process_kind.name, .name = "(process)"});
    const Json& modules = member(root, "modules");
    if (modules.is_array() && modules.size() > modules_max) return wrong("{} modules are more than {}", modules.size(), modules_max);
    if (!modules.is_null() && !modules.is_array()) return wrong("`modules` is no list");
    for (const Json& each : modules) GC_TRY(module(each, &hello->modules.emplace_back()));
    return libraries(member(root, "libraries"), &hello->libraries);
}

std::string hello_digest(const ProcessHello& hello) {
    std::string all;
    for (const LayerSpec& layer : hello.layers) all += layer_text(layer) + "\n";
    for (const auto& [path, sha] : hello.modules) all += sha + "\n";   // not the path: it may be another at each node
    return sha256_hex(std::as_bytes(std::span(all)));
}

namespace {

std::string inventory_value(const LayerSpec& layer) {
    if (layer.kind == running_kind.name) return fmt::format("[{}]", layer_value(layer, "channels"));
    if (layer.kind == alias_kind.name) return layer.from;
    if (layer.kind == constant_kind.name) {
        const Constant constant = constant_of(layer);
        return fmt::format("{} [{}] {}", constant.dtype, fmt::join(constant.shape, ","), constant.sha256);
    }
    std::string sizes;
    for (uint32_t i = 0; i < layer_value(layer, "axes"); ++i)
        sizes += fmt::format("{}{}", i > 0 ? "," : "", layer_value(layer, fmt::format("size{}", i)));
    return fmt::format("[{}]", sizes);
}

}   // namespace

std::string hello_inventory(const ProcessHello& hello) {
    std::vector<InventoryItem> items;
    for (const auto& [name, version] : hello.libraries) items.push_back({library_item, name, version});
    for (const auto& [path, sha] : hello.modules) items.push_back({"source", path, sha});
    for (const LayerSpec& layer : hello.layers)
        if (layer.kind != process_kind.name) items.push_back({layer.kind, layer.name, inventory_value(layer)});
    return inventory_write(items);
}

}   // namespace gradcast
