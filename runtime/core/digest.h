// Two digests: a 64-bit additive one that is taken every step (spec/coded-sgd.md section 5), and SHA-256 for what is kept.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/core/isa.h"

namespace gradcast {

/// Always inline, because what is compiled for one instruction set may not be called where there is another.
constexpr __attribute__((always_inline)) uint64_t splitmix64(uint64_t x) {
    x += 0x9E3779B97F4A7C15;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
}

/// What word i of a digest is multiplied by: a factor of its place among 256 and one of these 256, both odd, so that no change of one word
/// is lost.  The first is small: it takes one instruction for several words, on any CPU.
constexpr uint64_t digest_row = 256;
constexpr uint32_t digest_small(uint64_t place) { return static_cast<uint32_t>(splitmix64(~place) >> 33) | 1; }
constexpr __attribute__((always_inline)) uint64_t digest_large(uint64_t row) { return splitmix64(row) | 1; }
constexpr uint64_t digest_factor(uint64_t i) { return digest_small(i % digest_row) * digest_large(i / digest_row); }

/// D = sum over i of digest_factor(first + i) * bits(words[i])  mod 2^64.  Additive over disjoint ranges; cost: one pass.
uint64_t digest64(std::span<const uint32_t> words, uint64_t first = 0);
inline uint64_t digest64(std::span<const float> values, uint64_t first = 0) {
    return digest64({reinterpret_cast<const uint32_t*>(values.data()), values.size()}, first);
}

/// The same as it is computed on one instruction set (three builds of digest.isa.cc), which has no influence on it.
using Digest64 = uint64_t (*)(const uint32_t* words, uint64_t count, uint64_t first);
Digest64 digest64_of(Isa isa);

inline constexpr auto digest_smalls = [] {
    std::array<uint32_t, digest_row> all{};
    for (uint64_t i = 0; i < digest_row; ++i) all[i] = digest_small(i);
    return all;
}();
/// The plain sum, for code that is compiled for each instruction set; words are extended to 64 bits, with their sign if they have one.
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
/// SHA-256 in pieces.
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
