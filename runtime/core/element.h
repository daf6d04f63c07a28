// The types of a sample's elements: in a shard, in memory and at a net's input.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace gradcast {

/// u8: pixels, which a net divides by 255.  u16, u32: tokens, which are not scaled.  f32: values.
enum class Element : uint8_t { u8, u16, u32, f32 };
constexpr std::array<std::string_view, 4> element_names = {"u8", "u16", "u32", "f32"};   // in files, in the order of Element

constexpr uint32_t element_bytes(Element element) { return element == Element::u8 ? 1 : element == Element::u16 ? 2 : 4; }
constexpr std::string_view element_name(Element element) { return element_names[static_cast<size_t>(element)]; }
/// Number `at` of whole numbers of that type, in this machine's byte order.  Not of f32.
inline uint32_t element_number(Element element, const std::byte* from, uint64_t at) {
    uint32_t number = 0;
    uint16_t half;
    switch (element) {
        case Element::u8: return static_cast<uint32_t>(from[at]);
        case Element::u16: return std::memcpy(&half, from + at * sizeof half, sizeof half), half;
        default: return std::memcpy(&number, from + at * sizeof number, sizeof number), number;
    }
}
/// False: it is no name of an element.
constexpr bool element_find(std::string_view name, Element* element) {
    for (size_t i = 0; i < element_names.size(); ++i)
        if (element_names[i] == name) return *element = static_cast<Element>(i), true;
    return false;
}

}   // namespace gradcast
