// For errors about keys, flags and kinds: "did you mean …", and a stranger's text in one line.
#pragma once
#include <span>
#include <string>
#include <string_view>

namespace gradcast {

/// The name with the least edit distance to `word` if that is at most a third of its length (at least 2), else "".
std::string nearest(std::string_view word, std::span<const std::string> names);
/// A text from outside as part of a message: its first 60 bytes, without control characters.
std::string one_line(std::string_view text);

}   // namespace gradcast
