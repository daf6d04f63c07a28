// Little-endian integers of alignment 1 for wire formats.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>

namespace gradcast {

static_assert(std::endian::native == std::endian::little, "gradcast runs on little-endian machines");

template <typename T>
struct Le {
    uint8_t bytes[sizeof(T)];
    T get() const {
        T value;
        std::memcpy(&value, bytes, sizeof(T));
        return value;
    }
    void set(T value) { std::memcpy(bytes, &value, sizeof(T)); }
};
using Le16 = Le<uint16_t>;
using Le32 = Le<uint32_t>;
using Le64 = Le<uint64_t>;

}   // namespace gradcast
