#include "tools/gradcastctl/job_input.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "runtime/core/fd.h"
#include "runtime/core/toml.h"
#include "runtime/mesh/membership.h"

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

/// Columns count characters of UTF-8.
size_t offset_of(std::string_view text, toml::source_position position) {
    size_t at = 0;
    for (uint32_t line = 1; line < position.line && at < text.size(); ++line) at = std::min(text.find('\n', at), text.size() - 1) + 1;
    for (uint32_t column = 1; column < position.column && at < text.size(); ++column)
        for (++at; at < text.size() && (text[at] & 0xC0) == 0x80;) ++at;
    return at;
}

}   // namespace

Status job_set(const std::string& set, std::string* text, std::string* note) {
    const size_t equals = set.find('='), dot = set.find('.');
    if (equals == set.npos || dot == set.npos || dot == 0 || dot + 1 >= equals || equals + 1 == set.size())
        return fail(Code::invalid, "--set {}: must be section.key=value, as optimiser.lr=0.01", set);
    const std::string section = trimmed(set.substr(0, dot)), key = trimmed(set.substr(dot + 1, equals - dot - 1));
    std::string value = set.substr(equals + 1);
    if (value.find_first_of("\n\r") != value.npos) return fail(Code::invalid, "--set {}.{}: a value has one line", section, key);
    toml::parse_result made = toml_parse("x = " + value);
    const auto one = [&] { return made && made.table().size() == 1; };
    if (!one() && value.find_first_not_of("+-0123456789_") == value.npos)   // text would be refused as if it were meant as text
        return fail(Code::invalid, "--set {}: no number that a file of TOML can hold, which has 64 bits and a sign", set);
    if (!one()) {
        std::string quoted = "\"";
        for (const char c : value) (quoted += c == '"' || c == '\\' ? "\\" : "") += c;
        value = quoted + "\"";
        made = toml_parse("x = " + value);
        if (!one()) return fail(Code::invalid, "--set {}: the value is no text", set);
    }
    const toml::parse_result before = toml_parse(*text);
    if (!before) return {};   // job_parse() names its mistake
    // The table that is wanted, and then the text of that table that is nearest to the one that is there.
    toml::table wanted = before.table();   // a copy, which does not know where its nodes stand in the text
    const toml::node* its = before.table().get(section);
    if (its && !its->is_table()) return {};   // likewise
    if (!its) wanted.insert(section, toml::table{});
    toml::table& table = *wanted[section].as_table();
    const std::string other = section == "job" && key == "steps" ? "epochs" : section == "job" && key == "epochs" ? "steps" : "";
    const toml::key* old_key = nullptr;
    const toml::node* old = nullptr;
    for (const std::string& each : {key, other})
        if (its)
            for (auto&& [name, node] : *its->as_table())
                if (!old && name.str() == each) old_key = &name, old = &node;
    size_t from = 0, to = 0;   // of the key and its value
    if (old) {
        from = offset_of(*text, old_key->source().begin), to = offset_of(*text, old->source().end);
        if (old_key->str() != key) *note = fmt::format("--set {}.{} takes the place of {}", section, key, text->substr(from, to - from));
        table.erase(old_key->str());
    }
    made.table().get("x")->visit([&](const auto& node) { table.insert_or_assign(key, node); });
    auto fits = [&](const std::string& changed) {
        const toml::parse_result parsed = toml_parse(changed);
        if (!parsed || parsed.table() != wanted) return false;
        *text = changed;
        return true;
    };
    const std::string line = key + " = " + value;
    if (old && fits(std::string(*text).replace(from, to - from, line))) return {};
    if (!old && its) {   // behind the head of the section, "[job]" or "{"
        const size_t at = offset_of(*text, its->source().begin);
        const bool in_line = text->compare(at, 1, "{") == 0;
        const size_t behind = in_line ? at + 1 : std::min(text->find('\n', at), text->size() - 1) + 1;
        const char* comma = its->as_table()->empty() ? " " : ",";
        std::string changed = *text;
        changed.insert(behind, in_line ? " " + line + comma : (text->back() == '\n' || behind < text->size() ? "" : "\n") + line + "\n");
        if (fits(changed)) return {};
    }
    if (!old && (fits(*text + "\n[" + section + "]\n" + line + "\n") || fits(section + "." + line + "\n" + *text))) return {};
    return fail(Code::invalid, "--set {}.{}: it cannot be changed where the file has it: write the value into the file", section, key);
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
    for (const std::string& set : sets) {
        std::string note;
        GC_TRY(job_set(set, &text, &note));
        if (!note.empty()) fmt::print(stderr, "{}\n", note);
    }
    const Status parsed = job_parse(text, name, base, config);
    if (parsed.ok() || sets.empty()) return parsed;
    return fail(parsed.code, "{} (with --set {})", parsed.what, fmt::join(sets, ", "));
}

}   // namespace gradcast
