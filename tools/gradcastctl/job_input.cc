#include "tools/gradcastctl/job_input.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "runtime/core/fd.h"
#include "runtime/core/toml.h"
#include "runtime/job/membership.h"

namespace gradcast {
namespace {

std::string trimmed(std::string_view text) {
    const size_t from = text.find_first_not_of(" \t\r");
    return from == text.npos ? "" : std::string(text.substr(from, text.find_last_not_of(" \t\r") - from + 1));
}

Status stdin_read(std::string* text) {
    char bytes[65536];
    ssize_t got;
    while ((got = ::read(STDIN_FILENO, bytes, sizeof bytes)) > 0) {
        text->append(bytes, static_cast<size_t>(got));
        if (text->size() > job_text_max)
            return fail(Code::invalid, "stdin has more than {} bytes: a job file has 1 MiB at most", job_text_max);
    }
    return got == 0 ? Status{} : fail_sys(errno, "cannot read stdin");
}

bool is_toml(const std::string& value) {
    const toml::parse_result parsed = toml_parse("x = " + value);
    return parsed && parsed.table().size() == 1;
}

}   // namespace

Status job_set(const std::string& set, std::string* text) {
    const size_t equals = set.find('='), dot = set.find('.');
    if (equals == set.npos || dot == set.npos || dot == 0 || dot + 1 >= equals || equals + 1 == set.size())
        return fail(Code::invalid, "--set {}: must be section.key=value, as optimiser.lr=0.01", set);
    const std::string section = trimmed(set.substr(0, dot)), key = trimmed(set.substr(dot + 1, equals - dot - 1));
    std::string value = set.substr(equals + 1);
    if (value.find_first_of("\n\r") != value.npos) return fail(Code::invalid, "--set {}.{}: a value has one line", section, key);
    if (!is_toml(value)) {
        std::string quoted = "\"";
        for (const char c : value) (quoted += c == '"' || c == '\\' ? "\\" : "") += c;
        value = quoted + "\"";
        if (!is_toml(value)) return fail(Code::invalid, "--set {}: the value is no text", set);
    }
    const std::string line = key + " = " + value + "\n";
    size_t behind = std::string::npos;   // the section's header
    bool inside = false;
    for (size_t at = 0; at < text->size();) {
        const size_t end = std::min(text->find('\n', at), text->size());
        const std::string row = trimmed(std::string_view(*text).substr(at, end - at));
        const size_t next = std::min(end + 1, text->size());
        if (row.starts_with('[')) {
            inside = row.starts_with("[" + section + "]");
            if (inside) behind = next;
        } else if (inside && trimmed(row.substr(0, row.find('='))) == key) {
            text->replace(at, next - at, line);
            return {};
        }
        at = next;
    }
    if (behind == std::string::npos) *text += "\n[" + section + "]\n" + line;
    else text->insert(behind, (*text)[behind - 1] == '\n' ? line : "\n" + line);
    return {};
}

Status job_input(const std::string& path, const std::vector<std::string>& sets, JobConfig* config) {
    if (path != "-" && sets.empty()) return job_read(path, config);
    std::string text, base, name = path;
    std::error_code error;
    if (path == "-") {
        GC_TRY(stdin_read(&text));
        base = std::filesystem::current_path(error).string();
        name = "stdin";
    } else {
        GC_TRY(job_read(path, config));   // its own mistakes have its own lines
        text = config->text;
        base = config->base;
    }
    for (const std::string& set : sets) GC_TRY(job_set(set, &text));
    std::vector<JobMistake> mistakes;
    if (job_parse(text, name, base, config, &mistakes)) return {};
    std::string all;
    for (const JobMistake& mistake : mistakes) all += (all.empty() ? "" : "\n") + mistake.text;
    return fail(Code::invalid, "{}{}", all, sets.empty() ? "" : fmt::format(" (with --set {})", fmt::join(sets, ", ")));
}

}   // namespace gradcast
