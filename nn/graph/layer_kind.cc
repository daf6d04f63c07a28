#include "nn/graph/layer_kind.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "nn/graph/process.h"

namespace gradcast {

namespace {

#define GC_LAYER(kind) &kind##_kind,
constexpr const LayerKind* all_kinds[] = {GC_LAYER_KINDS(GC_LAYER) & tensor_kind, &running_kind, &constant_kind, &alias_kind,
                                          &process_kind};
#undef GC_LAYER
constexpr size_t process_kinds = 5;   // at its end

}   // namespace

std::span<const LayerKind* const> layer_kinds() { return std::span(all_kinds).first(std::size(all_kinds) - process_kinds); }

std::vector<std::string> layer_kind_names() {
    std::vector<std::string> names;
    for (const LayerKind* kind : layer_kinds()) names.emplace_back(kind->name);
    return names;
}

const LayerKind* layer_kind_find(std::string_view name) {
    for (const LayerKind* kind : all_kinds)
        if (name == kind->name) return kind;
    return nullptr;
}

const LayerKey* layer_key_find(std::string_view name) {
    for (const LayerKind* kind : all_kinds)
        for (const LayerKey* key : kind->keys)
            if (name == key->name) return key;
    return nullptr;
}

std::vector<LayerKeyUse> layer_keys() {
    std::vector<LayerKeyUse> all;
    for (const LayerKind* kind : layer_kinds())
        for (const LayerKey* key : kind->keys) {
            if (!key->of_job_files) continue;
            auto at = std::find_if(all.begin(), all.end(), [key](const LayerKeyUse& use) { return use.key == key; });
            if (at == all.end()) at = all.insert(all.end(), {key, {}});
            at->kinds.emplace_back(kind->name);
        }
    return all;
}

double layer_value(const LayerSpec& spec, std::string_view name) {
    if (const double* given = spec.values.find(name)) return *given;
    const LayerKind* kind = layer_kind_find(spec.kind);
    GC_ASSERT(kind);
    for (const LayerKey* key : kind->keys)
        if (name == key->name) return key->value;
    GC_ASSERT(false && "a key of this kind");
    return 0;
}

// ---- as text -------------------------------------------------------------------------------------------------------------------

std::string layer_text(const LayerSpec& spec) {
    std::string text = spec.kind;
    if (!spec.name.empty()) text += " name=" + spec.name;
    if (!spec.from.empty()) text += " from=" + spec.from;
    if (!spec.weights_of.empty()) text += " weights_of=" + spec.weights_of;
    if (const LayerKind* kind = layer_kind_find(spec.kind))
        for (const LayerKey* key : kind->keys)
            if (const double* value = spec.values.find(key->name); value && *value != key->value)
                text += fmt::format(" {}={}", key->name, layer_value_text(*key, *value));
    return text;
}

std::string layer_value_text(const LayerKey& key, double value) {
    return key.type == LayerKey::Type::word ? key.words()[static_cast<size_t>(value)] : fmt::format("{}", value);
}

bool layer_set(LayerSpec& spec, std::string_view name, double value) {
    const LayerKey* key = layer_key_find(name);
    if (!key || key->type == LayerKey::Type::word || !key->in_range(value)) return false;
    if (key->type != LayerKey::Type::number && value != std::floor(value)) return false;
    spec.values.set(name, value);
    return true;
}

bool layer_set(LayerSpec& spec, std::string_view name, std::string_view word) {
    const LayerKey* key = layer_key_find(name);
    if (!key || key->type != LayerKey::Type::word) return false;
    const std::vector<std::string> words = key->words();
    const auto at = std::find(words.begin(), words.end(), word);
    if (at == words.end()) return false;
    spec.values.set(name, static_cast<double>(at - words.begin()));
    return true;
}

bool layer_parse(std::string_view text, LayerSpec* spec) {
    for (size_t begin = 0, end; begin <= text.size(); begin = end + 1) {
        end = std::min(text.find(' ', begin), text.size());
        const std::string_view word = text.substr(begin, end - begin);
        if (begin == 0) {
            spec->kind = word;
            continue;
        }
        const size_t equals = word.find('=');
        if (equals == std::string_view::npos) return false;
        const std::string_view key = word.substr(0, equals), value = word.substr(equals + 1);
        double number = 0;
        if (key == "name") spec->name = value;
        else if (key == "from") spec->from = value;
        else if (key == "weights_of") spec->weights_of = value;
        else if (layer_set(*spec, key, value)) continue;
        else if (const auto [at, error] = std::from_chars(value.data(), value.data() + value.size(), number);
                 error != std::errc() || at != value.data() + value.size() || !layer_set(*spec, key, number))
            return false;
    }
    return !spec->kind.empty();
}

}   // namespace gradcast
