#include "algos/replay.h"

#include <algorithm>

#include "runtime/core/fd.h"

namespace gradcast {

Status replay_read(const std::string& path, const std::string& title, std::string* lines) {
    std::string text;
    GC_TRY(file_read(path, &text));
    if (!text.starts_with(title + "\n"))
        return fail(Code::data, "{}: of another job: it begins with \"{:.80}\" instead of \"{}\"", path,
                    text.substr(0, std::min(text.find('\n'), size_t{80})), title);
    *lines = text.substr(title.size() + 1);
    return {};
}

Status replay_keep(const std::string& path, const std::string& title, uint64_t before, const std::string& lines) {
    std::string text;
    if (before > 0 && !file_read(path, &text).ok()) return {};
    size_t end = title.size() + 1;
    for (uint64_t line = 0; line < before; ++line) {
        end = text.find('\n', std::min(end, text.size()));
        if (end++ == text.npos) return {};
    }
    return file_write(path, before > 0 ? text.substr(0, end) + lines : title + "\n" + lines);
}

}   // namespace gradcast
