#include "datasets/manifest.h"

#include <algorithm>

#include "runtime/core/fd.h"
#include "runtime/core/nearest.h"
#include "runtime/core/toml.h"

namespace gradcast {
namespace {

/// The error for an unknown key, with the keys that are known.
Status unknown(const std::string& path, uint32_t line, std::string_view key, std::span<const std::string> known) {
    std::string best = nearest(key, known);
    return fail(Code::data, "{}: line {}: unknown key \"{}\"{}", path, line, one_line(key),
                best.empty() ? "" : ", did you mean " + best + "?");
}
uint32_t line_of(const toml::node& node) { return static_cast<uint32_t>(node.source().begin.line); }

Status entry_read(const std::string& path, const std::string& folder, const toml::node& node, bool confidential, Manifest* manifest) {
    static const std::vector<std::string> known{"path", "samples"};
    const uint32_t line = line_of(node);
    std::string pattern;
    int64_t samples = 0;
    if (const toml::table* table = node.as_table()) {
        for (const auto& [key, value] : *table)
            if (std::find(known.begin(), known.end(), key.str()) == known.end()) return unknown(path, line_of(value), key.str(), known);
        pattern = (*table)["path"].value_exact<std::string>().value_or("");
        samples = (*table)["samples"].value_exact<int64_t>().value_or(0);
        if (table->contains("samples") && samples <= 0)
            return fail(Code::data, "{}: line {}: samples is not a whole number above 0", path, line);
    } else {
        pattern = node.value_exact<std::string>().value_or("");
    }
    if (pattern.empty()) return fail(Code::data, "{}: line {}: a shard is \"PATH\" or {{ path = \"PATH\", samples = N }}", path, line);
    std::vector<Manifest::Entry> found;
    const bool relative = pattern.front() != '/';
    if (Status status = shards_find(relative ? folder + pattern : pattern, confidential, &found, relative ? folder.size() : 0);
        !status.ok())
        return fail(status.code, "{}: line {}: {}", path, line, status.what);
    if (samples > 0 && (found.size() > 1 || !found[0].pattern.empty())) {
        const std::string count = found[0].pattern.empty() ? fmt::format("{} files match ", found.size()) : "";
        return fail(Code::data, "{}: line {}: {}{}: samples can be said of one alone", path, line, count, one_line(pattern));
    }
    for (Manifest::Entry& entry : found) {
        entry.samples = static_cast<uint64_t>(samples);
        entry.line = line;
        manifest->shards.push_back(std::move(entry));
    }
    return {};
}

}   // namespace

bool is_manifest(const std::string& path) { return path.ends_with(".toml"); }

std::string Manifest::Entry::shown() const { return pattern.empty() ? path : fmt::format("{} (file {})", pattern, number); }

Status shards_absent(const std::string& pattern) {
    return fail(Code::data, "{}: no file matches, or one that does is not a gradcast shard: gradcastctl data inspect '{}' says more",
                pattern, pattern);
}

Status shards_find(const std::string& pattern, bool confidential, std::vector<Manifest::Entry>* shards, size_t literal) {
    std::vector<std::string> files;
    const bool shown = !confidential || !file_is_pattern(std::string_view(pattern).substr(literal));
    if (Status status = file_glob(pattern, &files, literal); !status.ok())
        return shown || status.code != Code::data ? status : shards_absent(pattern);
    for (size_t i = 0; i < files.size(); ++i)
        shards->push_back({.path = std::move(files[i]), .pattern = shown ? "" : pattern, .number = i + 1});
    return {};
}

Status manifest_read(const std::string& path, Manifest* manifest, bool confidential) {
    static const std::vector<std::string> known{"digest", "shards"};
    std::string text;
    GC_TRY(file_read(path, &text));
    toml::parse_result parsed = toml_parse(text);
    if (!parsed)
        return fail(Code::data, "{}: line {}: {}", path, parsed.error().source().begin.line, one_line(parsed.error().description()));
    const toml::table& table = parsed.table();
    Manifest read;
    for (const auto& [key, value] : table)
        if (std::find(known.begin(), known.end(), key.str()) == known.end()) return unknown(path, line_of(value), key.str(), known);
    if (const toml::node* digest = table.get("digest")) {
        read.digest = digest->value_exact<std::string>().value_or("");
        if (read.digest.size() != 64 || read.digest.find_first_not_of("0123456789abcdef") != read.digest.npos)
            return fail(Code::data, "{}: line {}: digest is not made of 64 hex digits", path, line_of(*digest));
    }
    const toml::array* shards = table["shards"].as_array();
    if (!shards || shards->empty()) return fail(Code::data, "{}: shards is missing: a list, as shards = [\"a.h5\", \"b*.h5\"]", path);
    const std::string folder = path.substr(0, path.rfind('/') + 1);
    for (const toml::node& each : *shards) GC_TRY(entry_read(path, folder, each, confidential, &read));
    *manifest = std::move(read);
    return {};
}

}   // namespace gradcast
