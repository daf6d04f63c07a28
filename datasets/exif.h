// The one field of EXIF that is read: how the camera was held.
#pragma once
#include <cstdint>
#include <string_view>

namespace gradcast {

/// tiff: an EXIF block from its byte order on, which is not trusted.  1 .. 8, as in image_turn(); 1 where it says nothing valid.
inline uint32_t exif_orientation(std::string_view tiff) {
    const bool little = tiff.starts_with("II");
    if (!little && !tiff.starts_with("MM")) return 1;
    auto number = [&](size_t at, size_t bytes) {
        uint64_t value = 0;
        for (size_t i = 0; i < bytes && at + bytes <= tiff.size(); ++i)
            value = value << 8 | static_cast<uint8_t>(tiff[little ? at + bytes - 1 - i : at + i]);
        return value;
    };
    constexpr uint64_t orientation_tag = 0x112, short_type = 3;
    const uint64_t first = number(4, 4), entries = number(first, 2);
    for (uint64_t i = 0; i < entries; ++i) {
        const uint64_t at = first + 2 + 12 * i;
        if (number(at, 2) != orientation_tag || number(at + 2, 2) != short_type) continue;
        const uint64_t value = number(at + 8, 2);
        return value >= 1 && value <= 8 ? static_cast<uint32_t>(value) : 1;
    }
    return 1;
}

}   // namespace gradcast
