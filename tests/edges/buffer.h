// What the tests of edges share.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/core/channel.h"
#include "runtime/core/types.h"

namespace gradcast {

inline Buffer buffer_of(std::vector<std::byte>& bytes) { return {bytes.data(), nullptr, bytes.size()}; }

}   // namespace gradcast
