// Two digests: a 64-bit additive one that is taken every step (spec/coded-sgd.md section 5), and SHA-256 for what is kept.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/core/isa.h"

namespace gradcast {

/// Always inline, because what is compiled for one instruction set may not be called where there is another.
inline __attribute__((always_inline)) uint64_t splitmix64(uint64_t x) {
    x += 0x9E3779B97F4A7C15;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
}

/// D = sum over i of (splitmix64(first + i) | 1) * bits(words[i])  mod 2^64.  Additive over disjoint ranges; cost: one pass.
uint64_t digest64(std::span<const uint32_t> words, uint64_t first = 0);
inline uint64_t digest64(std::span<const float> values, uint64_t first = 0) {
    return digest64({reinterpret_cast<const uint32_t*>(values.data()), values.size()}, first);
}

/// The same as it is computed on one instruction set (three builds of digest.isa.cc), which has no influence on it.
using Digest64 = uint64_t (*)(const uint32_t* words, uint64_t count, uint64_t first);
Digest64 digest64_of(Isa isa);

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
