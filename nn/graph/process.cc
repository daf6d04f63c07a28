// The kinds of layers of a net that a process computes: its tensors, running statistics, constants and aliases, in a list that passes the
// sample's shape on.
#include "nn/graph/process.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "nn/graph/layers.h"

namespace gradcast {
namespace {

constexpr double size_max = static_cast<double>(layer_elements_max);

constexpr LayerKey key(const char* name, double min, double max, const char* help) {
    return {.name = name, .type = LayerKey::Type::integer, .value = 1, .min = min, .max = max, .help = help, .of_job_files = false};
}
constexpr LayerKey size_key(const char* name) { return key(name, 0, size_max, "elements along an axis of a tensor"); }
constexpr LayerKey axes = key("axes", 0, tensor_axes_max, "axes of a tensor");
constexpr LayerKey sizes[tensor_axes_max] = {size_key("size0"), size_key("size1"), size_key("size2"), size_key("size3"),
                                             size_key("size4"), size_key("size5"), size_key("size6"), size_key("size7")};
constexpr const LayerKey* tensor_keys[] = {&axes, &sizes[0], &sizes[1], &sizes[2], &sizes[3], &sizes[4], &sizes[5], &sizes[6], &sizes[7]};

Status tensor_shape(const NetSpec&, Layer& layer) {
    layer.out = layer.in;
    uint64_t elements = 1;
    for (auto axis = static_cast<uint32_t>(layer.value(axes.name)), i = 0u; i < axis; ++i) {
        layer.weight_shape.push_back(static_cast<uint64_t>(layer.value(sizes[i].name)));
        elements *= layer.weight_shape.back();
        if (elements == 0) return fail(Code::invalid, "tensor {}: it has no elements", layer.spec.name);
        if (elements > layer_elements_max)
            return fail(Code::invalid, "tensor {}: it has more than {} elements", layer.spec.name, layer_elements_max);
    }
    layer.weights = (elements + tensor_alignment - 1) / tensor_alignment * tensor_alignment;
    return {};
}

constexpr LayerKey channels = key("channels", 1, 1 << 20, "of running statistics");
constexpr LayerKey batches{.name = "batches",
                           .type = LayerKey::Type::flag,
                           .value = 0,
                           .min = 0,
                           .max = 1,
                           .help = "beside running statistics there is a count of batches",
                           .of_job_files = false};
constexpr const LayerKey* running_keys[] = {&channels, &batches};

Status running_shape(const NetSpec&, Layer& layer) {
    layer.out = layer.in;
    layer.statistics = 2 * static_cast<uint64_t>(layer.value(channels.name));
    return {};
}

constexpr std::array<std::pair<std::string_view, uint32_t>, 11> dtypes = {
    {{"F32", 4}, {"F64", 8}, {"F16", 2}, {"BF16", 2}, {"C64", 8}, {"I64", 8}, {"I32", 4}, {"I16", 2}, {"I8", 1}, {"U8", 1}, {"BOOL", 1}}};
constexpr LayerKey dtype{.name = "dtype",
                         .type = LayerKey::Type::word,
                         .value = 0,
                         .min = 0,
                         .max = dtypes.size() - 1,
                         .help = "of a constant",
                         .of_job_files = false,
                         .words = constant_dtypes};
// Its SHA-256 in words of 32 bits: values of keys are numbers, and a double holds no more.
constexpr size_t sha_words = 8, sha_digits = 8;   // hex digits of a word
constexpr LayerKey sha_key(const char* name) {
    LayerKey word = key(name, 0, UINT32_MAX, "of the SHA-256 of a constant");
    word.value = 0;
    return word;
}
constexpr LayerKey sha[sha_words] = {sha_key("sha0"), sha_key("sha1"), sha_key("sha2"), sha_key("sha3"),
                                     sha_key("sha4"), sha_key("sha5"), sha_key("sha6"), sha_key("sha7")};
constexpr const LayerKey* constant_keys[] = {&axes,  &sizes[0], &sizes[1], &sizes[2], &sizes[3], &sizes[4], &sizes[5], &sizes[6], &sizes[7],
                                             &dtype, &sha[0],   &sha[1],   &sha[2],   &sha[3],   &sha[4],   &sha[5],   &sha[6],   &sha[7]};

Status constant_shape(const NetSpec&, Layer& layer) {
    layer.out = layer.in;
    return constant_check(constant_of(layer.spec));
}

Status alias_shape(const NetSpec& spec, Layer& layer) {
    layer.out = layer.in;
    const auto of = std::ranges::find(spec.layers, layer.spec.from, &LayerSpec::name);
    for (const LayerKind* kind : {&tensor_kind, &running_kind, &constant_kind})
        if (of->kind == kind->name) return {};
    return fail(Code::invalid, "alias {}: {} is no tensor", layer.spec.name, layer.spec.from);
}

Status process_shape(const NetSpec& spec, Layer& layer) {
    layer.out = layer.in;
    layer.targets = spec.targets;
    layer.target_scale = spec.target_scale;
    layer.target_zero = static_cast<float>(spec.classes / 2);
    return {};
}

}   // namespace

const LayerKind tensor_kind{
    .name = "tensor", .short_name = "tensor", .keys = tensor_keys, .shape = tensor_shape, .computed = false, .tensor = true};
const LayerKind running_kind{.name = "running", .short_name = "running", .keys = running_keys, .shape = running_shape, .computed = false};
const LayerKind constant_kind{
    .name = "constant", .short_name = "constant", .keys = constant_keys, .shape = constant_shape, .computed = false};
const LayerKind alias_kind{.name = "alias", .short_name = "alias", .shape = alias_shape, .second_input = "repeats", .computed = false};
const LayerKind process_kind{
    .name = "process", .short_name = "process", .shape = process_shape, .loss = true, .regression = true, .computed = false};

LayerSpec tensor_layer(const std::string& name, std::span<const uint64_t> shape) {
    LayerSpec spec{.kind = tensor_kind.name, .name = name};
    spec.values.set(axes.name, static_cast<double>(shape.size()));
    for (size_t i = 0; i < shape.size(); ++i) spec.values.set(sizes[i].name, static_cast<double>(shape[i]));
    return spec;
}

uint32_t dtype_bytes(std::string_view name) {
    const auto at = std::ranges::find(dtypes, name, [](const auto& each) { return each.first; });
    return at == dtypes.end() ? 0 : at->second;
}

std::vector<std::string> constant_dtypes() {
    std::vector<std::string> names;
    for (const auto& [name, bytes] : dtypes) names.emplace_back(name);
    return names;
}

uint64_t Constant::bytes() const {
    uint64_t product = dtype_bytes(dtype);
    for (const uint64_t size : shape) product *= size;
    return product;
}

Status constant_check(const Constant& constant) {
    const auto hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
    if (dtype_bytes(constant.dtype) == 0)
        return fail(Code::invalid, "constant {}: its dtype is none of {}", constant.name, fmt::join(constant_dtypes(), ", "));
    if (constant.sha256.size() != sha_words * sha_digits || !std::ranges::all_of(constant.sha256, hex))
        return fail(Code::invalid, "constant {}: its sha256 is not 64 hex digits", constant.name);
    if (constant.shape.size() > tensor_axes_max)
        return fail(Code::invalid, "constant {}: more than {} axes", constant.name, tensor_axes_max);
    uint64_t bytes = dtype_bytes(constant.dtype);
    for (const uint64_t size : constant.shape) {   // each product is below 2^32 * 2^31
        if (size > layer_elements_max || (bytes *= size) > constant_bytes_max)
            return fail(Code::invalid, "constant {}: it has more than {} bytes", constant.name, constant_bytes_max);
    }
    return {};
}

LayerSpec constant_layer(const Constant& constant) {
    LayerSpec spec{.kind = constant_kind.name, .name = constant.name};
    spec.values.set(axes.name, static_cast<double>(constant.shape.size()));
    for (size_t i = 0; i < constant.shape.size(); ++i) spec.values.set(sizes[i].name, static_cast<double>(constant.shape[i]));
    GC_ASSERT(layer_set(spec, dtype.name, std::string_view(constant.dtype)));
    for (size_t i = 0; i < sha_words; ++i) {
        const char* digits = constant.sha256.data() + i * sha_digits;
        uint32_t word = 0;
        GC_ASSERT(std::from_chars(digits, digits + sha_digits, word, 16).ptr == digits + sha_digits);
        spec.values.set(sha[i].name, word);
    }
    return spec;
}

Constant constant_of(const LayerSpec& layer) {
    Constant constant{.name = layer.name, .shape = {}, .dtype = layer_value_text(dtype, layer_value(layer, dtype.name)), .sha256 = {}};
    for (uint32_t i = 0; i < static_cast<uint32_t>(layer_value(layer, axes.name)); ++i)
        constant.shape.push_back(static_cast<uint64_t>(layer_value(layer, sizes[i].name)));
    for (const LayerKey& word : sha) constant.sha256 += fmt::format("{:08x}", static_cast<uint32_t>(layer_value(layer, word.name)));
    return constant;
}

LayerSpec alias_layer(const std::string& name, const std::string& of) {
    return {.kind = alias_kind.name, .name = name, .values = {}, .from = of};
}

std::string constant_difference(const NetSpec& a, const NetSpec& b) {
    for (const LayerSpec& each : a.layers) {
        if (each.kind != constant_kind.name) continue;
        const auto other = std::ranges::find(b.layers, each.name, &LayerSpec::name);
        if (other != b.layers.end() && layer_text(*other) != layer_text(each)) return each.name;
    }
    return {};
}

}   // namespace gradcast
