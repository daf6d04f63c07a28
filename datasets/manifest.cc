#include "datasets/manifest.h"

#include <algorithm>

#include "runtime/core/fd.h"
#include "runtime/core/nearest.h"
#include "runtime/core/toml.h"

namespace gradcast {
namespace {

/// `key` of a table, for messages: a table of a manifest has few.
Status unknown(const std::string& path, uint32_t line, std::string_view key, std::span<const std::string> known) {
    std::string best = nearest(key, known);
    return fail(Code::data, "{}: line {}: unknown key \"{}\"{}", path, line, one_line(key),
                best.empty() ? "" : ", did you mean " + best + "?");
}
uint32_t line_of(const toml::node& node) { return static_cast<uint32_t>(node.source().begin.line); }

Status entry_read(const std::string& path, const std::string& folder, const toml::node& node, Manifest* manifest) {
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
    std::vector<std::string> files;
    if (Status status = file_glob(pattern.front() == '/' ? pattern : folder + pattern, &files); !status.ok())
        return fail(status.code, "{}: line {}: {}", path, line, status.what);
    if (samples > 0 && files.size() > 1)
        return fail(Code::data, "{}: line {}: {} files match {}: samples can be said of one alone", path, line, files.size(),
                    one_line(pattern));
    for (std::string& file : files) manifest->shards.push_back({std::move(file), static_cast<uint64_t>(samples), line});
    return {};
}

}   // namespace

bool is_manifest(const std::string& path) { return path.ends_with(".toml"); }

Status manifest_read(const std::string& path, Manifest* manifest) {
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
    for (const toml::node& each : *shards) GC_TRY(entry_read(path, folder, each, &read));
    *manifest = std::move(read);
    return {};
}

}   // namespace gradcast
