// Two digests: a 64-bit additive one for every step (transport/exchange/CODES.md, "Holders agree"), and SHA-256 for files.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/core/isa.h"

namespace gradcast {

/// Always inline: a function compiled for one instruction set must not be called on another.
constexpr __attribute__((always_inline)) uint64_t splitmix64(uint64_t x) {
    x += 0x9E3779B97F4A7C15;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
}

/// The factor of word i: one for its place in a row of 256 words times one for the row.  Both are odd, so every change of one word changes
/// the digest.  The first has 32 bits: one vector instruction multiplies several words, on any CPU.
constexpr uint64_t digest_row = 256;
constexpr uint32_t digest_small(uint64_t place) { return static_cast<uint32_t>(splitmix64(~place) >> 33) | 1; }
constexpr __attribute__((always_inline)) uint64_t digest_large(uint64_t row) { return splitmix64(row) | 1; }
constexpr uint64_t digest_factor(uint64_t i) { return digest_small(i % digest_row) * digest_large(i / digest_row); }

/// D = sum over i of digest_factor(first + i) * bits(words[i])  mod 2^64.  Additive over disjoint ranges.  O(words).
uint64_t digest64(std::span<const uint32_t> words, uint64_t first = 0);
inline uint64_t digest64(std::span<const float> values, uint64_t first = 0) {
    return digest64({reinterpret_cast<const uint32_t*>(values.data()), values.size()}, first);
}

/// The build of digest64 for one instruction set (three builds of digest.isa.cc); all give the same value.
using Digest64 = uint64_t (*)(const uint32_t* words, uint64_t count, uint64_t first);
Digest64 digest64_of(Isa isa);

inline constexpr auto digest_smalls = [] {
    std::array<uint32_t, digest_row> all{};
    for (uint64_t i = 0; i < digest_row; ++i) all[i] = digest_small(i);
    return all;
}();
/// The digest as a plain loop, for code that is compiled for each instruction set; extends words to 64 bits, signed ones with their sign.
template <typename Word>
inline __attribute__((always_inline)) uint64_t digest_sum(const Word* words, uint64_t count, uint64_t first) {
    uint64_t sum = 0;
    for (uint64_t i = 0, some = 0; i < count; i += some) {
        const uint64_t place = (first + i) % digest_row;
        some = count - i < digest_row - place ? count - i : digest_row - place;
        uint64_t row = 0;
        for (uint64_t j = 0; j < some; ++j) row += digest_smalls[place + j] * static_cast<uint64_t>(words[i + j]);
        sum += row * digest_large((first + i) / digest_row);
    }
    return sum;
}

/// SHA-256 as 64 hex digits.
std::string sha256_hex(std::span<const std::byte> bytes);
/// SHA-256 of data that comes in pieces.
class Sha256 {
public:
    Sha256();
    ~Sha256();
    void add(std::span<const std::byte> bytes);
    std::string hex();   // once, at the end
private:
    void* context_;
};

}   // namespace gradcast
