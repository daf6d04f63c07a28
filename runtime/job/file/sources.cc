#include "runtime/job/file/sources.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/core/digest.h"
#include "runtime/core/fd.h"
#include "runtime/core/json_bounds.h"
#include "runtime/core/nearest.h"

namespace gradcast {
namespace {

namespace fs = std::filesystem;
// Exceptions are off here: parse() returns a discarded value, and every type is asked before it is taken.
using Json = nlohmann::ordered_json;

constexpr int format_version = 1;
constexpr size_t path_max = 4096, words_max = 4096;

std::string sha_of(const std::string& text) { return sha256_hex(std::as_bytes(std::span(text))); }

bool control(std::string_view text) {
    return std::ranges::any_of(text, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7f; });
}

/// "" or the absolute path without symbolic links, of what exists.
std::string real(const std::string& base, const std::string& path) {
    std::error_code error;
    const fs::path found = fs::canonical(path.starts_with('/') ? path : base + "/" + path, error);
    return error ? std::string() : found.string();
}

/// A path below a folder: its parts are names.
bool below(const std::string& path) {
    if (path.empty() || path.size() > path_max || path.starts_with('/') || control(path)) return false;
    for (size_t begin = 0, end; begin <= path.size(); begin = end + 1) {
        end = std::min(path.find('/', begin), path.size());
        const std::string_view part = std::string_view(path).substr(begin, end - begin);
        if (part.empty() || part == "." || part == "..") return false;
    }
    return true;
}

/// The deepest folder that all paths are in.
std::string common(const std::map<std::string, std::string>& files) {
    std::string folder = files.begin()->first;
    folder.resize(folder.rfind('/'));
    for (const auto& [path, sha] : files)
        while (!path.starts_with(folder + "/")) folder.resize(folder.rfind('/'));
    return folder;
}

/// Without a sync: what is not on the disk after a crash has not its SHA-256.
Status copy(const std::string& text, const std::string& to, bool executable) {
    std::error_code error;
    fs::create_directories(fs::path(to).parent_path(), error);
    FILE* const file = std::fopen(to.c_str(), "wb");
    if (!file) return fail_sys(errno, "cannot write {}", to);
    const bool wrote = std::fwrite(text.data(), 1, text.size(), file) == text.size();
    if (std::fclose(file) != 0 || !wrote || ::chmod(to.c_str(), executable ? 0755 : 0644) != 0)
        return fail_sys(errno, "cannot write {}", to);
    return {};
}

Status wrong(const std::string& folder, const std::string& what) { return fail(Code::data, "{}/{}: {}", folder, sources_file, what); }

std::string text_of(const Json& object, const char* key) {
    const auto at = object.is_object() ? object.find(key) : object.end();
    return at != object.end() && at->is_string() ? at->get<std::string>() : std::string();
}

}   // namespace

Status sources_keep(const std::string& folder, const std::string& base, const std::vector<std::string>& command,
                    const std::vector<std::pair<std::string, std::string>>& modules,
                    const std::vector<std::pair<std::string, std::string>>& libraries) {
    const std::string at = folder + "/" + sources_folder, part = at + ".part", json = folder + "/" + sources_file;
    std::error_code error;
    fs::remove_all(part, error);
    const auto given_up = [&](const Status& status) {
        fs::remove_all(part, error);
        return status;
    };
    std::map<std::string, std::string> files;   // SHA-256 by absolute path
    for (const auto& [path, sha] : modules) {
        const std::string found = real(base, path);
        if (found.empty()) return fail(Code::data, "source {}: it is not there", one_line(path));
        files[found] = sha;
    }
    if (files.size() > sources_max) return fail(Code::data, "{} sources are more than {}", files.size(), sources_max);
    Json root = {{"format", "gradcast sources"}, {"version", format_version}, {"root", ""}, {"files", Json::array()}};
    const std::string top = files.empty() ? std::string() : common(files);
    root["root"] = top;
    uint64_t bytes = 0;
    for (const auto& [path, sha] : files) {
        struct stat info {};
        if (::stat(path.c_str(), &info) == 0) bytes += static_cast<uint64_t>(info.st_size);
        if (bytes > sources_bytes_max) return given_up(fail(Code::data, "the sources have more than {} bytes", sources_bytes_max));
        std::string text;
        if (const Status status = file_read(path, &text); !status.ok()) return given_up(status);
        if (sha_of(text) != sha)
            return given_up(fail(Code::data, "source {}: it has changed since the program has loaded it", one_line(path)));
        const std::string name = path.substr(top.size() + 1);
        const bool executable = (info.st_mode & S_IXUSR) != 0;
        if (const Status status = copy(text, part + "/" + name, executable); !status.ok()) return given_up(status);
        root["files"].push_back({{"path", name}, {"sha256", sha}, {"executable", executable}});
    }
    root["words"] = Json::array();
    for (const std::string& word : command) {
        const bool by_path = &word == command.data() && word.find('/') == word.npos;
        const std::string found = by_path || word.empty() ? std::string() : real(base, word);
        root["words"].push_back(files.contains(found) ? found.substr(top.size() + 1) : std::string());
    }
    root["libraries"] = Json::object();
    for (const auto& [name, version] : libraries) root["libraries"][name] = version;
    fs::remove(json, error);
    fs::remove_all(at, error);
    if (files.empty()) return {};
    fs::rename(part, at, error);
    if (error) return given_up(fail(Code::node_io, "cannot write {}: {}", at, error.message()));
    return file_write(json, root.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

Status sources_read(const std::string& folder, Sources* sources) {
    *sources = {};
    const std::string path = folder + "/" + sources_file;
    std::error_code error;
    if (!fs::exists(fs::symlink_status(path, error))) return {};
    std::string text;
    GC_TRY(file_read(path, &text));
    if (const Status bounds = json_bounds(text, 8, 8 * sources_max); !bounds.ok()) return wrong(folder, bounds.what);
    const Json root = Json::parse(text, nullptr, false);
    if (text_of(root, "format") != "gradcast sources") return wrong(folder, "it is no list of sources");
    Sources read{.root = text_of(root, "root"), .files = {}, .words = {}, .libraries = {}};
    const Json none = Json::array();
    const auto list = [&](const char* key) -> const Json& { return root.contains(key) && root[key].is_array() ? root[key] : none; };
    if (list("files").empty() || list("files").size() > sources_max || list("words").size() > words_max)
        return wrong(folder, "it has no files, or too many");
    std::set<std::string> paths;
    for (const Json& each : list("files")) {
        Sources::File file{text_of(each, "path"), text_of(each, "sha256"), false};
        if (!below(file.path) || !paths.insert(file.path).second)
            return wrong(folder, fmt::format("{} is no path below {}/, or comes twice", one_line(file.path), sources_folder));
        file.executable = each.contains("executable") && each["executable"] == true;
        read.files.push_back(std::move(file));
    }
    for (const Json& each : list("words")) {
        read.words.push_back(each.is_string() ? each.get<std::string>() : std::string());
        if (!read.words.back().empty() && !paths.contains(read.words.back()))
            return wrong(folder, fmt::format("a word of the command is {}, which is none of its files", one_line(read.words.back())));
    }
    if (const auto at = root.find("libraries"); at != root.end() && at->is_object())
        for (const auto& [name, version] : at->items())
            if (version.is_string()) read.libraries.emplace_back(name, version.get<std::string>());
    *sources = std::move(read);
    return {};
}

Status sources_check(const std::string& folder, const Sources& sources, const std::string& to) {
    uint64_t bytes = 0;
    for (const Sources::File& file : sources.files) {
        const std::string path = fmt::format("{}/{}/{}", folder, sources_folder, file.path);
        std::string text;
        GC_TRY(file_read(path, &text));
        if ((bytes += text.size()) > sources_bytes_max) return fail(Code::data, "{}: more than {} bytes", folder, sources_bytes_max);
        if (sha_of(text) != file.sha256)
            return fail(Code::data, "{}: the copy was altered: its SHA-256 is not that of {}", path, sources_file);
        if (!to.empty()) GC_TRY(copy(text, to + "/" + file.path, file.executable));
    }
    return {};
}

std::vector<std::string> sources_command(const Sources& sources, const std::vector<std::string>& command, const std::string& at) {
    std::vector<std::string> words = command;
    for (size_t i = 0; i < words.size() && i < sources.words.size(); ++i)
        if (!sources.words[i].empty()) words[i] = at + "/" + sources.words[i];
    return words;
}

std::string sources_difference(const Sources& sources, const std::vector<std::pair<std::string, std::string>>& modules) {
    std::multiset<std::string> left;
    for (const Sources::File& file : sources.files) left.insert(file.sha256);
    for (const auto& [path, sha] : modules) {
        const auto at = left.find(sha);
        if (at == left.end()) return fmt::format("{} is not among the sources in {}", one_line(path), sources_file);
        left.erase(at);
    }
    for (const Sources::File& file : sources.files)
        if (left.contains(file.sha256)) return fmt::format("{} of {} was not loaded", one_line(file.path), sources_file);
    return {};
}

std::string sources_changed(const Sources& sources) {
    for (const Sources::File& file : sources.files) {
        std::string text;
        if (!file_read(sources.root + "/" + file.path, &text).ok() || sha_of(text) != file.sha256) return file.path;
    }
    return {};
}

}   // namespace gradcast
