// Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a counter-based generator.
// The key says what a number is for (Purpose, the job's seed, step, element …): it does not depend on who draws it, or when.
#pragma once
#include <array>
#include <cmath>
#include <cstdint>

#include "runtime/core/elementary.h"

namespace gradcast {

enum class Purpose : uint32_t {
    weights = 1,
    shuffle = 2,
    rounding = 3,
    dropout = 4,
    augment = 5,
    test = 6,
    synthetic = 7,
    split = 8,
    generate = 9,
    cut = 10,
    jitter = 11
};

using Philox = std::array<uint32_t, 4>;

constexpr Philox philox(Philox counter, std::array<uint32_t, 2> key) {
    for (int round = 0; round < 10; ++round) {
        uint64_t a = uint64_t{0xD2511F53} * counter[0], b = uint64_t{0xCD9E8D57} * counter[2];
        counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
                   static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
        key[0] += 0x9E3779B9;
        key[1] += 0xBB67AE85;
    }
    return counter;
}

/// 128 random bits for (purpose, seed, a, b), e.g. (a, b) = (epoch, round) or (layer, element / 4).
inline Philox random4(Purpose purpose, uint64_t seed, uint64_t a, uint32_t b) {
    // The purpose is the fourth counter word: purposes share no numbers.
    return philox({static_cast<uint32_t>(a), static_cast<uint32_t>(a >> 32), b, static_cast<uint32_t>(purpose)},
                  {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

/// Uniform in (0, 1), 24 bits, exact in float.
inline float uniform(uint32_t bits) { return (static_cast<float>(bits >> 8) + 0.5f) * 0x1p-24f; }

/// Two standard normal numbers (Box and Muller 1958), in double.
inline std::array<double, 2> normal2(uint32_t a, uint32_t b) {
    const double radius = std::sqrt(-2 * elementary::log(static_cast<double>(uniform(a))));
    const elementary::Turn angle = elementary::turn(static_cast<double>(uniform(b)));
    return {radius * angle.cos, radius * angle.sin};
}

}   // namespace gradcast
