#include "runtime/core/gpu_count.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "runtime/core/fd.h"

namespace gradcast {

uint32_t gpu_count(const std::string& root) {
    const auto all = static_cast<uint32_t>(folder_names(root + "/proc/driver/nvidia/gpus").size());
    const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
    if (!visible) return all;
    uint32_t named = 0;   // CUDA ends the list at the first entry that names no GPU
    for (std::string_view rest = visible; !rest.empty(); ++named) {
        const std::string_view entry = rest.substr(0, rest.find(','));
        const bool number = !entry.empty() && entry.find_first_not_of("0123456789") == entry.npos;
        uint32_t value = 0;
        std::from_chars(entry.data(), entry.data() + entry.size(), value);
        if (entry.empty() || entry.front() == '-' || (number && value >= all)) break;
        rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
    }
    return std::min(all, named);
}

std::vector<uint32_t> gpus_shared_out(uint32_t count, uint32_t index, uint32_t sharers) {
    if (count < 2 || sharers < 2) return {};
    std::vector<uint32_t> own;
    for (uint32_t number = index; number < count; number += sharers) own.push_back(number);
    if (own.empty()) own.push_back(index % count);
    return own;
}

std::string gpus_text(std::span<const uint32_t> numbers) {
    return fmt::format("GPU{} {}", numbers.size() == 1 ? "" : "s", fmt::join(numbers, ", "));
}

}   // namespace gradcast
