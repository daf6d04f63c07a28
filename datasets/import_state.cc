// The record is text, a line for each fact:
//   gradcast import 1
//   what DIGEST
//   done TAKEN BYTES…               ImportState::taken and bytes
//   skipped INDEX…                  files without a sample
//   bad TEXT                        of one of them
//   odd COUNT WHAT<tab>PATH         ImageOddities
//   end DIGEST                      of all that stands before
#include "datasets/import_state.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <span>

#include "runtime/core/clock.h"
#include "runtime/core/digest.h"
#include "runtime/core/fd.h"

namespace gradcast {
namespace {

constexpr std::string_view state_first_line = "gradcast import 1";

std::string record_path(const std::string& folder) { return folder + "/import.part"; }
std::string spool_path(const std::string& folder, const char* name) { return fmt::format("{}/{}.part", folder, name); }

std::string last_line(std::string_view text) { return fmt::format("end {}", sha256_hex(std::as_bytes(std::span(text)))); }

/// Takes a number and the space behind it from the front of a text.
bool number_take(std::string_view* text, uint64_t* number) {
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *number);
    if (error != std::errc()) return false;
    text->remove_prefix(static_cast<size_t>(end - text->data()));
    if (text->empty()) return true;
    if (text->front() != ' ') return false;
    text->remove_prefix(1);
    return true;
}

bool line_parse(std::string_view line, std::string* what, ImportState* state) {
    const size_t space = std::min(line.find(' '), line.size());
    const std::string_view key = line.substr(0, space);
    std::string_view rest = line.substr(std::min(space + 1, line.size()));
    if (key == "what") return *what = rest, true;
    if (key == "done") {
        if (!number_take(&rest, &state->taken)) return false;
        for (uint64_t bytes = 0; !rest.empty(); state->bytes.push_back(bytes))
            if (!number_take(&rest, &bytes)) return false;
        return true;
    }
    if (key == "skipped") {
        for (uint64_t index = 0; !rest.empty(); state->bad.push_back(index))
            if (!number_take(&rest, &index) || index >= state->taken || (!state->bad.empty() && index <= state->bad.back())) return false;
        return true;
    }
    if (key == "bad") return state->bad_texts.emplace_back(rest), true;
    uint64_t count = 0;
    const bool odd = key == "odd" && number_take(&rest, &count);
    const size_t tab = rest.find('\t');
    if (!odd || count == 0 || tab == rest.npos) return false;
    state->oddities.restore(std::string(rest.substr(0, tab)), count, std::string(rest.substr(tab + 1)));
    return true;
}

/// False: it is damaged, or not there.
bool record_read(const std::string& path, std::string* what, ImportState* state) {
    std::string text;
    if (::access(path.c_str(), F_OK) != 0 || !file_read(path, &text).ok()) return false;
    std::string_view rest = text;
    for (bool first = true;; first = false) {
        const size_t end = rest.find('\n');
        if (end == rest.npos) return false;
        const std::string_view line = rest.substr(0, end), before = std::string_view(text).substr(0, text.size() - rest.size());
        rest.remove_prefix(end + 1);
        if (rest.empty()) return line == last_line(before);
        if (first ? line != state_first_line : !line_parse(line, what, state)) return false;
    }
}

}   // namespace

ImportFiles::~ImportFiles() {
    if (!folder_.empty()) remove(folder_);
}

void ImportFiles::remove(const std::string& folder) {
    const auto unlink = [](const std::string& path) {
        ::unlink(path.c_str());
        ::unlink((path + ".part").c_str());
    };
    unlink(record_path(folder));
    for (const char* name : import_spools) unlink(spool_path(folder, name));
}

Status ImportFiles::open(const std::string& folder, const std::string& what, std::vector<KeptSpool> spools, ImportState* state, bool* found,
                         bool* other) {
    spools_ = std::move(spools);
    const auto open_all = [&](bool kept) -> Status {
        for (size_t i = 0; i < spools_.size(); ++i)
            GC_TRY(spools_[i].spool->open_kept(spool_path(folder, spools_[i].name), kept ? state->bytes[i] : 0));
        return {};
    };
    std::string its;
    const bool read = record_read(record_path(folder), &its, state);
    *other = ::access(record_path(folder).c_str(), F_OK) == 0;
    *found = read && its == what && state->bytes.size() == spools_.size() && open_all(true).ok();
    *other = *other && !*found;
    folder_ = folder;
    what_ = what;
    saved_us_ = clock_us();
    if (*found) return {};
    *state = {};
    remove(folder);
    return open_all(false);
}

Status ImportFiles::save(ImportState& state) {
    constexpr uint64_t period_us = 1'000'000;
    if (clock_us() - saved_us_ < period_us) return {};
    state.bytes.clear();
    for (const KeptSpool& each : spools_) {
        GC_TRY(each.spool->sync());
        state.bytes.push_back(each.spool->bytes());
    }
    std::string text = fmt::format("{}\nwhat {}\ndone {} {}\nskipped {}\n", state_first_line, what_, state.taken,
                                   fmt::join(state.bytes, " "), fmt::join(state.bad, " "));
    for (const std::string& each : state.bad_texts) text += fmt::format("bad {}\n", each);
    for (const auto& [what, of] : state.oddities.kinds()) text += fmt::format("odd {} {}\t{}\n", of.first, what, of.second);
    GC_TRY(file_write(record_path(folder_), text + last_line(text) + "\n", 0600));
    saved_us_ = clock_us();
    return {};
}

std::string file_line(const std::string& path) {
    struct stat file {};
    (void)::stat(path.c_str(), &file);   // of a file that is not there the error comes when it is read
    return fmt::format("{} {}.{:09} {}\n", file.st_size, file.st_mtim.tv_sec, file.st_mtim.tv_nsec, path);
}

}   // namespace gradcast
