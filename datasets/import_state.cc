// The record is text, a line for each fact:
//   gradcast import 1
//   what DIGEST
//   done FILES TRAIN_BYTES TEST_BYTES
//   skipped INDEX…                  files without a sample
//   bad TEXT                        of one of them
//   odd COUNT WHAT<tab>PATH         ImageOddities
//   end DIGEST                      of all that stands before
#include "datasets/import_state.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <span>

#include "runtime/core/digest.h"
#include "runtime/core/fd.h"

namespace gradcast {
namespace {

constexpr std::string_view first_line = "gradcast import 1";

std::string record_path(const std::string& folder) { return folder + "/import.part"; }
std::string samples_path(const std::string& folder, const char* half) { return fmt::format("{}/{}.samples.part", folder, half); }

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
        const bool read = number_take(&rest, &state->files) && number_take(&rest, &state->train_bytes);
        return read && number_take(&rest, &state->test_bytes) && rest.empty();
    }
    if (key == "skipped") {
        for (uint64_t index = 0; !rest.empty(); state->bad.push_back(index))
            if (!number_take(&rest, &index) || index >= state->files || (!state->bad.empty() && index <= state->bad.back())) return false;
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
        if (first ? line != first_line : !line_parse(line, what, state)) return false;
    }
}

}   // namespace

ImportFiles::~ImportFiles() {
    if (!folder_.empty()) remove(folder_);
}

void ImportFiles::remove(const std::string& folder) {
    for (const std::string& path : {record_path(folder), samples_path(folder, "train"), samples_path(folder, "test")}) {
        ::unlink(path.c_str());
        ::unlink((path + ".part").c_str());
    }
}

Status ImportFiles::open(const std::string& folder, const std::string& what, Spool* train, Spool* test, ImportState* state, bool* found,
                         bool* other) {
    std::string its;
    const bool read = record_read(record_path(folder), &its, state);
    *other = ::access(record_path(folder).c_str(), F_OK) == 0;
    *found = read && its == what && train->open_kept(samples_path(folder, "train"), state->train_bytes).ok() &&
             test->open_kept(samples_path(folder, "test"), state->test_bytes).ok();
    *other = *other && !*found;
    folder_ = folder;
    what_ = what;
    if (*found) return {};
    *state = {};
    remove(folder);
    GC_TRY(train->open_kept(samples_path(folder, "train"), 0));
    return test->open_kept(samples_path(folder, "test"), 0);
}

Status ImportFiles::save(Spool& train, Spool& test, ImportState& state) {
    GC_TRY(train.sync());
    GC_TRY(test.sync());
    state.train_bytes = train.bytes();
    state.test_bytes = test.bytes();
    std::string text = fmt::format("{}\nwhat {}\ndone {} {} {}\nskipped {}\n", first_line, what_, state.files, state.train_bytes,
                                   state.test_bytes, fmt::join(state.bad, " "));
    for (const std::string& each : state.bad_texts) text += fmt::format("bad {}\n", each);
    for (const auto& [what, of] : state.oddities.kinds()) text += fmt::format("odd {} {}\t{}\n", of.first, what, of.second);
    return file_write(record_path(folder_), text + last_line(text) + "\n", 0600);
}

}   // namespace gradcast
