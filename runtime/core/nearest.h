// For messages about keys, flags and kinds: "did you mean …", and untrusted text in one line.
#pragma once
#include <span>
#include <string>
#include <string_view>

namespace gradcast {

/// The name equal to `word` but for case; else the nearest by edit distance, at most max(2, length / 3); else "".  O(names * letters^2).
std::string nearest(std::string_view word, std::span<const std::string> names);
/// Untrusted text for a message: its first 60 bytes, without control characters.
std::string one_line(std::string_view text);

}   // namespace gradcast
