// Bounds a JSON text before it is parsed: each value of it takes memory of its own, many times its letters.
#pragma once
#include <cstddef>
#include <string_view>

#include "runtime/core/status.h"

namespace gradcast {

/// Checks a text from outside, which need not be JSON.  O(letters), no memory.  Error: Code::invalid, a part of a sentence: "it is
/// nested deeper than 16 levels".
Status json_bounds(std::string_view text, size_t depth_max, size_t values_max);

}   // namespace gradcast
