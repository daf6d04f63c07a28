#include "runtime/core/amount.h"

#include <charconv>
#include <initializer_list>
#include <string_view>
#include <utility>

namespace gradcast {
namespace {

/// A number times the unit behind it; below 0: the text is none.
double amount(std::string_view text, std::initializer_list<std::pair<std::string_view, double>> units) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
    const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
    for (const auto& [name, scale] : units)
        if (error == std::errc() && unit == name) return value * scale;
    return -1;
}

}   // namespace

Status bytes_parse(const std::string& text, uint64_t* bytes) {
    const double found = amount(text, {{"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}});
    if (!(found >= 1 && found <= 0x1p60)) return fail(Code::invalid, "{}: not a size like 512MiB, 8GiB or 20GB", text);
    *bytes = static_cast<uint64_t>(found);
    return {};
}

Status microseconds_parse(const std::string& text, double* us) {
    const double found = amount(text, {{"us", 1}, {"ms", 1e3}, {"s", 1e6}});
    if (!(found >= 0 && found <= 1e9)) return fail(Code::invalid, "{}: not a time like 50us or 1.5ms", text);
    *us = found;
    return {};
}

}   // namespace gradcast
