#include "runtime/job/file/command.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>

#include "runtime/core/digest.h"
#include "runtime/core/fd.h"

namespace gradcast {
namespace {

constexpr size_t files_max = 16, word_bytes_max = 512, text_bytes_max = 4096;   // files; bytes of a word and of all words

/// A word in quotes, without what would move a terminal's cursor.
std::string quoted(std::string_view word) {
    std::string text = "\"";
    for (const char each : word.substr(0, word_bytes_max)) {
        const auto byte = static_cast<uint8_t>(each);
        if (byte < 0x20 || byte >= 0x7f) text += fmt::format("\\x{:02x}", byte);
        else (text += each == '"' || each == '\\' ? "\\" : "") += each;
    }
    return text + (word.size() > word_bytes_max ? "\"..." : "\"");
}

}   // namespace

std::string command_text(const JobConfig& job, const Sources& copies, const std::string& folder) {
    const std::vector<std::string> started = sources_command(copies, job.command, folder + "/" + sources_folder);
    std::string words, files;
    size_t count = 0;
    for (const std::string& word : job.command) {
        if (words.size() < text_bytes_max) words += (words.empty() ? "" : ", ") + quoted(word);
        else if (!words.ends_with("...")) words += ", ...";
        if (word.empty()) continue;
        const bool program = &word == job.command.data() && word.find('/') == word.npos;   // by PATH
        const std::string& file = started[static_cast<size_t>(&word - job.command.data())];
        const std::string path = file[0] == '/' ? file : job.base + "/" + file;
        struct stat info;
        if (program || ::stat(path.c_str(), &info) != 0 || S_ISDIR(info.st_mode) || ++count > files_max) continue;
        std::string text;
        if (const Status status = file_read(path, &text); status.ok())
            files += fmt::format(", SHA-256 of {}: {}", quoted(path), sha256_hex(std::as_bytes(std::span(text))));
        else files += fmt::format(", {} cannot be read here", quoted(path));
    }
    std::string text = fmt::format("[{}] in {}{}", words, quoted(job.base), files);
    if (count > files_max) text += fmt::format(", and {} more files", count - files_max);
    if (!copies.files.empty()) text += fmt::format(", with {} copies of its sources in {}", copies.files.size(), quoted(folder));
    if (!job.environment.empty()) text += fmt::format(", with {} variables of its environment", job.environment.size());
    return text;
}

Status command_refused(const JobConfig& job, std::string_view from, const Sources& copies, const std::string& folder,
                       std::string_view option) {
    return fail(Code::invalid, "{} would start a command: {}; read what it does, then allow it by {}", from,
                command_text(job, copies, folder), option);
}

}   // namespace gradcast
