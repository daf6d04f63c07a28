#include <algorithm>
#include <array>

#include "nn/net.h"

namespace gradcast {

std::span<const char* const> precision_names() {
    static constexpr std::array names = {"f32", "bf16", "tf32"};
    return names;
}

Precision precision_of(std::string_view name) {
    const auto names = precision_names();
    const auto at = std::find(names.begin(), names.end(), name);
    GC_ASSERT(at != names.end());
    return static_cast<Precision>(at - names.begin());
}

}   // namespace gradcast
