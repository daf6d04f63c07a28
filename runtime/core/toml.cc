#include "runtime/core/toml.h"

#include <fmt/format.h>

#include <algorithm>

namespace gradcast {
namespace {

/// The end of the string that begins at `at`.  An unclosed one ends with its line, where toml++ stops, too.
size_t string_end(std::string_view text, size_t at, uint32_t* line) {
    const char quote = text[at];
    const bool multi = text.substr(at, 3) == std::string(3, quote);
    for (at += multi ? 3 : 1; at < text.size(); ++at) {
        if (text[at] == '\n') {
            if (!multi) return at;
            ++*line;
        }
        if (text[at] == '\\' && quote == '"' && at + 1 < text.size() && text[at + 1] != '\n') ++at;
        else if (text[at] == quote && !multi) return at + 1;
        else if (text[at] == quote && text.substr(at, 3) == std::string(3, quote)) {
            at += 3;
            for (int more = 0; more < 2 && at < text.size() && text[at] == quote; ++more)
                ++at;   // a multi-line string may end with five quotes
            return at;
        }
    }
    return at;
}

/// What is nested too deep, and its line; null: nothing.  Also works on text that is not TOML.
const char* too_deep(std::string_view text, uint32_t* line) {
    uint32_t nested = 0, dots = 0;
    *line = 1;
    for (size_t at = 0; at < text.size();) {
        switch (text[at]) {
            case '"':
            case '\'': at = string_end(text, at, line); continue;
            case '#': at = std::min(text.find('\n', at), text.size()); continue;
            case '\n':
                ++*line;
                dots = 0;
                break;
            case '[':
            case '{':
                dots = 0;
                if (++nested > toml_depth_max) return "arrays and inline tables are nested";
                break;
            case ']':
            case '}':
                dots = 0;
                if (nested > 0) --nested;
                break;
            case '=':
            case ',': dots = 0; break;
            case '.':
                if (++dots >= toml_depth_max) return "the parts of a key go";
                break;
            default: break;
        }
        ++at;
    }
    return nullptr;
}

}   // namespace

toml::parse_result toml_parse(std::string_view text) {
    toml::source_position at{1, 1};
    if (const char* what = too_deep(text, &at.line))
        return toml::parse_result(toml::parse_error(fmt::format("{} more than {} deep", what, toml_depth_max), at));
    return toml::parse(text);
}

}   // namespace gradcast
