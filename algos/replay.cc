#include "algos/replay.h"

#include <algorithm>
#include <string_view>

#include "runtime/core/fd.h"

namespace gradcast {
namespace {

constexpr std::string_view first_line = "gradcast replay 2";

/// Cuts the next line off.
std::string_view line_of(std::string_view* text) {
    const std::string_view line = text->substr(0, text->find('\n'));
    text->remove_prefix(std::min(line.size() + 1, text->size()));
    return line;
}

Status version_check(const std::string& path, std::string_view first) {
    if (first == first_line) return {};
    for (const char* old : {"gradcast asgd ", "gradcast softsync ", "gradcast allocation "})
        if (first.starts_with(old))
            return fail(Code::data, "{}: a replay log of version 1, which does not say all of its job, and this is version 2: train anew",
                        path);
    return fail(Code::data, "{}: begins with \"{:.40}\", not with \"{}\"", path, first, first_line);
}

}   // namespace

std::string replay_head(const Facts& job) {
    std::string head(first_line);
    for (const auto& [name, value] : job) head += "\n" + name + " = " + value;
    return head + "\n\n";
}

Status replay_read(const std::string& path, const Facts& job, std::string* lines) {
    std::string whole;
    GC_TRY(file_read(path, &whole));
    std::string_view text = whole;
    GC_TRY(version_check(path, line_of(&text)));
    size_t i = 0;
    for (std::string_view line = line_of(&text); !line.empty(); line = line_of(&text), ++i) {
        if (i >= job.size() || line == job[i].first + " = " + job[i].second) continue;
        const std::string_view name = line.substr(0, line.find(" = ")), value = line.substr(std::min(name.size() + 3, line.size()));
        return fail(Code::data, "{}: of another job: {:.80} is {:.80} there and {} here", path, name, value,
                    name == job[i].first ? job[i].second : "not set");
    }
    if (i < job.size()) return fail(Code::data, "{}: of another job: {} is not set there and {} here", path, job[i].first, job[i].second);
    *lines = text;
    return {};
}

Status ReplayLog::keep(const std::string& head, uint64_t before, std::string_view lines) {
    const bool behind = lines_ == before;
    lines_.reset();
    if (behind) {
        GC_TRY(file_append(path_, lines));
    } else {
        std::string text = head;
        if (before > 0 && (!file_read(path_, &text).ok() || !text.starts_with(head))) return {};
        size_t end = head.size();
        for (uint64_t line = 0; line < before; ++line) {
            end = text.find('\n', std::min(end, text.size()));
            if (end++ == text.npos) return {};
        }
        GC_TRY(file_write(path_, text.substr(0, end).append(lines)));
    }
    lines_ = before + static_cast<uint64_t>(std::ranges::count(lines, '\n'));
    return {};
}

}   // namespace gradcast
