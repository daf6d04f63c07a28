// What the tests of edges share.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/core/types.h"

namespace gradcast {

constexpr uint16_t edge_channel = 5;

inline Buffer buffer_of(std::vector<std::byte>& bytes) { return {bytes.data(), nullptr, bytes.size()}; }

}   // namespace gradcast
