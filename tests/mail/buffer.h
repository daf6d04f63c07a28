// What the tests of mail, broadcasts and edges share.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/core/channel.h"
#include "runtime/core/rng.h"
#include "runtime/core/types.h"

namespace gradcast {

inline uint32_t random_of(uint64_t seed, uint32_t a, uint32_t b) { return random4(Purpose::test, seed, a, b)[0]; }
inline Buffer buffer_of(std::vector<std::byte>& bytes) { return {bytes.data(), nullptr, bytes.size()}; }

}   // namespace gradcast
