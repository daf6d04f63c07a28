// Bits of ranks, nodes or slots in vectors of words: bit i is bit i % 64 of word i / 64, as RankSet::bits has them (runtime/core/types.h).
#pragma once
#include <cstddef>
#include <cstdint>

namespace gradcast {

/// Words of 64 bits that `count` bits take.
constexpr size_t bit_words(size_t count) { return (count + 63) / 64; }

inline bool bit(const uint64_t* bits, uint32_t i) { return bits[i / 64] >> (i % 64) & 1; }
inline void set_bit(uint64_t* bits, uint32_t i) { bits[i / 64] |= uint64_t{1} << i % 64; }
inline void clear_bit(uint64_t* bits, uint32_t i) { bits[i / 64] &= ~(uint64_t{1} << i % 64); }
inline void flip_bit(uint64_t* bits, uint32_t i) { bits[i / 64] ^= uint64_t{1} << i % 64; }

}   // namespace gradcast
