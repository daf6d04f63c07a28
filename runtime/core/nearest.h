// "did you mean …": the nearest of some names, for errors about keys, flags and kinds.
#pragma once
#include <span>
#include <string>
#include <string_view>

namespace gradcast {

/// The name with the least edit distance to `word` if that is at most a third of its length (at least 2), else "".
std::string nearest(std::string_view word, std::span<const std::string> names);

}   // namespace gradcast
