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

struct Le24 {
    uint8_t bytes[3];
    uint32_t get() const { return uint32_t{bytes[0]} | uint32_t{bytes[1]} << 8 | uint32_t{bytes[2]} << 16; }
    void set(uint32_t value) { std::memcpy(bytes, &value, 3); }   // below 2^24
};
struct Le48 {
    uint8_t bytes[6];
    uint64_t get() const {
        uint64_t value = 0;
        std::memcpy(&value, bytes, 6);
        return value;
    }
    void set(uint64_t value) { std::memcpy(bytes, &value, 6); }   // below 2^48
};

}   // namespace gradcast
