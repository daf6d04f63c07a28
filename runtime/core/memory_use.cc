#include "runtime/core/memory_use.h"

#include <fmt/format.h>

#include <algorithm>

namespace gradcast {

void MemoryUse::add(const char* purpose, uint64_t more) {
    auto same = std::find_if(bytes.begin(), bytes.end(), [&](const auto& each) { return each.first == purpose; });
    if (same == bytes.end()) bytes.emplace_back(purpose, more);
    else same->second += more;
}

uint64_t MemoryUse::total() const {
    uint64_t sum = 0;
    for (const auto& [purpose, count] : bytes) sum += count;
    return sum;
}

std::string memory_text(const std::vector<MemoryUse>& places) {
    auto mib = [](uint64_t bytes) { return static_cast<double>(bytes) / 0x1p20; };
    std::string text;
    for (const MemoryUse& place : places) {
        if (!text.empty()) text += "; ";
        if (!place.place.empty()) text += place.place + ": ";
        for (const auto& [purpose, bytes] : place.bytes) text += fmt::format("{} {:.1f} MiB, ", purpose, mib(bytes));
        text += fmt::format("{:.1f} MiB in all", mib(place.total()));
    }
    return text;
}

}   // namespace gradcast
