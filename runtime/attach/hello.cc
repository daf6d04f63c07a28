#include "runtime/attach/hello.h"

#include <nlohmann/json.hpp>
#include <set>

#include "nn/graph/layers.h"
#include "runtime/attach/wire.h"
#include "runtime/core/digest.h"
#include "runtime/core/nearest.h"
#include "runtime/core/version.h"

namespace gradcast {
namespace {

// Exceptions are off here: parse() returns a discarded value, and every type is asked before it is taken.
using Json = nlohmann::json;

constexpr size_t name_max = 256, modules_max = 4096;

template <typename... Args>
Status wrong(fmt::format_string<Args...> format, Args&&... args) {
    return fail(Code::invalid, "its HELLO is not as the border has it: {}", fmt::format(format, std::forward<Args>(args)...));
}

const Json& member(const Json& of, const char* key) {
    static const Json none;
    const auto at = of.find(key);
    return at == of.end() ? none : *at;
}

Status name_of(const Json& each, std::set<std::string>& names, std::string* name) {
    const Json& given = member(each, "name");
    if (!given.is_string()) return wrong("a tensor has no name");
    *name = given.get<std::string>();
    if (name->empty() || name->size() > name_max) return wrong("a name of {} bytes: 1 to {} are allowed", name->size(), name_max);
    for (const char c : *name)
        if (static_cast<unsigned char>(c) <= ' ' || c == 0x7f)
            return wrong("the name {} has a space or a control character", one_line(*name));
    if (!names.insert(*name).second) return wrong("two tensors have the name {}", *name);
    return {};
}

Status tensor(const Json& each, std::set<std::string>& names, LayerSpec* spec) {
    std::string name;
    GC_TRY(name_of(each, names, &name));
    const Json& shape = member(each, "shape");
    if (!shape.is_array() || shape.size() > tensor_axes_max)
        return wrong("tensor {}: its shape is no list of at most {} sizes", name, tensor_axes_max);
    std::vector<uint64_t> sizes;
    for (const Json& size : shape) {
        if (!size.is_number_unsigned() || size.get<uint64_t>() < 1 || size.get<uint64_t>() > layer_elements_max)
            return wrong("tensor {}: a size of its shape is not 1 to {}", name, layer_elements_max);
        sizes.push_back(size.get<uint64_t>());
    }
    *spec = tensor_layer(name, sizes);
    return {};
}

Status running(const Json& each, std::set<std::string>& names, LayerSpec* spec) {
    GC_TRY(name_of(each, names, &spec->name));
    spec->kind = running_kind.name;
    const Json& channels = member(each, "channels");
    if (!channels.is_number_unsigned() || !layer_set(*spec, "channels", channels.get<double>()))
        return wrong("module {}: its channels are no number from 1 on", spec->name);
    return {};
}

}   // namespace

Status hello_parse(std::string_view text, ProcessHello* hello) {
    const Json root = Json::parse(text, nullptr, false);
    if (!root.is_object()) return wrong("it is no JSON object");
    if (const Json& version = member(root, "version"); version.is_string() && version.get_ref<const std::string&>() != version_text)
        return fail(Code::invalid, "its package is of version {}, this daemon of {}: install both together",
                    one_line(version.get_ref<const std::string&>()), version_text);
    if (const Json& wire = member(root, "wire"); !wire.is_number_unsigned() || wire.get<uint64_t>() != GC_ATTACH_VERSION)
        return wrong("its wire form is not {}", GC_ATTACH_VERSION);
    const Json &tensors = member(root, "tensors"), &moving = member(root, "running");
    if (!tensors.is_array() || tensors.empty()) return wrong("it has no tensors, so there is nothing to train");
    if (!moving.is_null() && !moving.is_array()) return wrong("`running` is no list");
    if (tensors.size() + moving.size() > GC_ATTACH_TENSORS_MAX)
        return wrong("{} tensors are more than {}", tensors.size() + moving.size(), GC_ATTACH_TENSORS_MAX);
    std::set<std::string> names;
    for (const Json& each : tensors) GC_TRY(tensor(each, names, &hello->layers.emplace_back()));
    for (size_t i = 0; moving.is_array() && i < moving.size(); ++i) GC_TRY(running(moving[i], names, &hello->layers.emplace_back()));
    if (const Json& digest = member(root, "data_digest"); digest.is_string()) hello->data_digest = one_line(digest.get<std::string>());
    hello->layers.push_back({.kind = process_kind.name, .name = "(process)"});
    const Json& modules = member(root, "modules");
    if (modules.is_array() && modules.size() > modules_max) return wrong("{} modules are more than {}", modules.size(), modules_max);
    for (size_t i = 0; modules.is_array() && i < modules.size(); ++i)
        if (const Json& path = member(modules[i], "path"), &sha = member(modules[i], "sha256"); path.is_string() && sha.is_string())
            hello->modules.emplace_back(path.get<std::string>(), sha.get<std::string>());
    return {};
}

std::string hello_digest(const ProcessHello& hello) {
    std::string all;
    for (const LayerSpec& layer : hello.layers) all += layer_text(layer) + "\n";
    for (const auto& [path, sha] : hello.modules) all += sha + "\n";   // not the path: it may be another at each node
    return sha256_hex(std::as_bytes(std::span(all)));
}

std::string hello_difference(const ProcessHello& a, const ProcessHello& b) {
    const auto text = [](const std::vector<LayerSpec>& layers, size_t i) {
        return i < layers.size() ? layer_text(layers[i]) : std::string("nothing");
    };
    for (size_t i = 0; i < std::max(a.layers.size(), b.layers.size()); ++i)
        if (const std::string one = text(a.layers, i), other = text(b.layers, i); one != other)
            return fmt::format("one has {} where the other has {}", one, other);
    if (a.modules != b.modules) return "they have loaded different sources";
    return {};
}

}   // namespace gradcast
