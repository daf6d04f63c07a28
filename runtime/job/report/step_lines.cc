#include "runtime/job/report/step_lines.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <utility>

#include "runtime/core/nearest.h"

namespace gradcast {
namespace {

constexpr size_t block_bytes = 1 << 16;
constexpr size_t text_bytes_max = 64;   // a name, or a loss below 2^43 with six digits after the point

/// Takes `start` off the front.
bool take(std::string_view* text, std::string_view start) {
    if (!text->starts_with(start)) return false;
    text->remove_prefix(start.size());
    return true;
}
/// Takes a number of `base` off the front that ends before `end`, and `end`.
bool take(std::string_view* text, uint64_t* number, int base, char end) {
    const auto [stop, error] = std::from_chars(text->data(), text->data() + text->size(), *number, base);
    if (error != std::errc() || stop == text->data() + text->size() || *stop != end) return false;
    text->remove_prefix(static_cast<size_t>(stop - text->data()) + 1);
    return true;
}
/// The short text behind "name":" in a line; empty: there is none.
std::string text_of(std::string_view line, std::string_view name) {
    const size_t at = line.find(name);
    if (at == std::string_view::npos) return {};
    const std::string_view text = line.substr(at + name.size());
    const size_t end = text.find('"');
    return end <= text_bytes_max ? std::string(text.substr(0, end)) : std::string();
}

}   // namespace

std::string step_gap_line(const StepGap& gap) {
    std::string name = gap.logged_by.substr(0, text_bytes_max);
    std::replace_if(
        name.begin(), name.end(), [](unsigned char letter) { return letter < ' ' || letter == '"' || letter == '\\'; }, '?');
    return fmt::format("{{\"gap\":[{},{}]{}}}\n", gap.first, gap.last, name.empty() ? "" : fmt::format(",\"logged_by\":\"{}\"", name));
}

bool step_gap_parse(std::string_view line, StepGap* gap) {
    StepGap read;
    std::string_view rest = line;
    if (!take(&rest, "{\"gap\":[") || !take(&rest, &read.first, 10, ',') || !take(&rest, &read.last, 10, ']') || !rest.ends_with('}'))
        return false;
    if (read.first == 0 || read.first > read.last || read.last > UINT32_MAX) return false;
    read.logged_by = text_of(rest, "\"logged_by\":\"");
    *gap = std::move(read);
    return true;
}

std::string step_range(uint64_t first, uint64_t last) {
    return first == last ? fmt::format("step {}", first) : fmt::format("steps {}..{}", first, last);
}

std::string step_gap_text(const StepGap& gap) {
    return fmt::format("steps.jsonl has no lines of {}{}", step_range(gap.first, gap.last),
                       gap.logged_by.empty() ? "" : fmt::format(": node {} logged them", one_line(gap.logged_by)));
}

Status StepLines::open(const std::string& path) {
    path_ = path;
    return file_open(path, &fd_);
}

Status StepLines::next(StepLine* line, bool* got) {
    *got = false;
    gap_ = {};
    for (size_t looked = at_;;) {
        if (const size_t end = block_.find('\n', looked); end != std::string::npos) {
            ++number_;
            GC_TRY(parse(std::string_view(block_).substr(at_, end - at_), line, got));
            looked = at_ = end + 1;
            if (!*got) continue;
            return {};
        }
        if (block_.size() - at_ > step_line_bytes_max) return fail(Code::data, "{}: line {} is too long", path_, number_ + 1);
        block_.erase(0, at_);
        at_ = 0;
        looked = block_.size();
        block_.resize(looked + block_bytes);
        const ssize_t some = ::read(fd_.get(), block_.data() + looked, block_bytes);
        const int error = errno;
        block_.resize(looked + static_cast<size_t>(std::max<ssize_t>(some, 0)));
        if (some < 0) return fail_sys(error, "cannot read {}", path_);
        if (some == 0) return {};
    }
}

Status StepLines::parse(std::string_view text, StepLine* line, bool* is_step) {
    if (StepGap gap; step_gap_parse(text, &gap)) {
        if (gap.first <= step_)
            return fail(Code::data, "{}: line {} is of step {}, the one before of step {}", path_, number_, gap.first, step_);
        step_ = gap.last;
        gap_ = std::move(gap);
        return {};
    }
    uint64_t epoch = 0;
    std::string_view rest = text;
    bool good = take(&rest, "{\"step\":") && take(&rest, &line->step, 10, ',') && take(&rest, "\"epoch\":") &&
                take(&rest, &epoch, 10, ',') && take(&rest, "\"loss\":");
    const size_t end = std::min(rest.find(','), rest.size());
    good = good && end > 0 && end <= text_bytes_max && rest.substr(0, end).find_first_not_of("-0123456789.") == std::string_view::npos;
    if (good) {
        line->loss = rest.substr(0, end);
        rest.remove_prefix(end);
        good = take(&rest, ",\"digest\":\"") && rest.find('"') == 16 && take(&rest, &line->digest, 16, '"') && text.ends_with('}');
    }
    if (!good || line->step > UINT32_MAX) return fail(Code::data, "{}: line {} is not the record of a step", path_, number_);
    if (line->step <= step_)
        return fail(Code::data, "{}: line {} is of step {}, the one before of step {}", path_, number_, line->step, step_);
    step_ = line->step;
    *is_step = true;
    kernel_set_last_ = text_of(text, "\"kernel_set\":\"");
    if (!std::exchange(seen_, true)) {
        kernels_ = text_of(text, "\"kernels\":\"");
        kernel_set_ = kernel_set_last_;
    }
    return {};
}

}   // namespace gradcast
