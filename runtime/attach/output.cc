#include "runtime/attach/output.h"

#include <fmt/format.h>

#include <utility>

namespace gradcast {
namespace {

/// Bytes of the UTF-8 character at the front; 0: these bytes are none.
size_t character(std::string_view text) {
    const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
    const uint8_t first = byte(0);
    if (first < 0x80) return 1;
    const size_t bytes = first >= 0xc2 && first < 0xe0 ? 2 : first >= 0xe0 && first < 0xf0 ? 3 : first >= 0xf0 && first < 0xf5 ? 4 : 0;
    if (bytes == 0 || text.size() < bytes) return 0;
    for (size_t i = 1; i < bytes; ++i)
        if ((byte(i) & 0xc0) != 0x80) return 0;
    // Encodings that are longer than needed, surrogates, and numbers beyond U+10FFFF.
    const uint8_t second = byte(1);
    if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second >= 0xa0) || (first == 0xf0 && second < 0x90) ||
        (first == 0xf4 && second >= 0x90))
        return 0;
    return bytes;
}

/// Bytes of the escape sequence of a terminal at the front, as of a colour; 1: the escape character alone.
size_t escape(std::string_view text) {
    if (text.size() < 2 || text[1] != '[') return 1;
    for (size_t i = 2; i < text.size(); ++i)
        if (text[i] >= 0x40 && text[i] <= 0x7e) return i + 1;
    return text.size();
}

}   // namespace

std::string printable(std::string_view text) {
    std::string line;
    while (!text.empty()) {
        size_t bytes = 0;
        while (bytes < text.size() && text[bytes] >= 0x20 && text[bytes] < 0x7f) ++bytes;
        line += text.substr(0, bytes);
        text.remove_prefix(bytes);
        if (text.empty()) break;
        bytes = 1;
        const auto first = static_cast<uint8_t>(text[0]);
        if (first == 0x1b) {
            bytes = escape(text);
        } else if (first == '\t') {
            line += ' ';
        } else if (first >= 0x80) {
            bytes = character(text);
            const bool control = bytes == 2 && first == 0xc2 && static_cast<uint8_t>(text[1]) < 0xa0;   // C1
            if (bytes == 0) line += '?', bytes = 1;
            else if (!control) line += text.substr(0, bytes);
        }
        text.remove_prefix(bytes);
    }
    return line;
}

void ProcessOutput::push(Stream stream, std::string_view bytes, uint64_t now_us) {
    Line& line = lines_[static_cast<size_t>(stream)];
    while (!bytes.empty()) {
        const size_t length = std::min(bytes.find_first_of("\r\n"), bytes.size());
        const size_t kept = std::min(length, line_max - line.text.size());
        line.text += bytes.substr(0, kept);
        line.missing += length - kept;
        if (length == bytes.size()) return;
        end(stream, now_us);
        bytes.remove_prefix(length + 1);
    }
}

void ProcessOutput::end(Stream stream, uint64_t now_us) {
    Line& line = lines_[static_cast<size_t>(stream)];
    if (std::string text = printable(line.text); text.find_first_not_of(' ') != text.npos) {
        if (stream == Stream::error) last_error_ = text.substr(0, last_max);
        if (line.missing > 0) text += fmt::format("... ({} bytes more)", line.missing);
        pass(text, now_us);
    }
    line = {};
}

void ProcessOutput::finish(uint64_t now_us) {
    end(Stream::out, now_us);
    end(Stream::error, now_us);
}

void ProcessOutput::pass(std::string_view text, uint64_t now_us) {
    if (!line_ || full_) return;
    if (now_us - second_us_ >= 1'000'000) {
        if (!dropped_) flooded_ = false;
        dropped_ = false, second_us_ = now_us, second_bytes_ = 0;
    }
    const uint64_t bytes = text.size() + 1;
    if (all_bytes_ + bytes > all_max) {
        full_ = true;
        return line_(fmt::format("it has printed {} MiB: the rest is dropped", all_max >> 20));
    }
    if (second_bytes_ + bytes > second_max) {
        dropped_ = true;
        if (!std::exchange(flooded_, true))
            line_(fmt::format("it prints more than {} KiB in a second: the rest of each second is dropped", second_max >> 10));
        return;
    }
    second_bytes_ += bytes, all_bytes_ += bytes;
    line_(text);
}

std::string ProcessOutput::last_error() const {
    const std::string open = printable(lines_[static_cast<size_t>(Stream::error)].text).substr(0, last_max);
    const std::string& last = open.find_first_not_of(' ') == open.npos ? last_error_ : open;
    return printable(last);   // the cut may have split a character
}

}   // namespace gradcast
