#include "runtime/core/nearest.h"

#include <algorithm>
#include <vector>

namespace gradcast {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}   // namespace

std::string nearest(std::string_view word, std::span<const std::string> names) {
    for (const std::string& name : names)
        if (std::ranges::equal(name, word, {}, lower, lower)) return name;
    std::string best;
    size_t least = std::max<size_t>(2, word.size() / 3) + 1;
    for (const std::string& name : names) {
        // Levenshtein, one row: row[j] is the distance between the first i letters of word and the first j of name.
        std::vector<size_t> row(name.size() + 1);
        for (size_t j = 0; j <= name.size(); ++j) row[j] = j;
        for (size_t i = 1; i <= word.size(); ++i) {
            size_t diagonal = row[0];
            row[0] = i;
            for (size_t j = 1; j <= name.size(); ++j) {
                size_t change = diagonal + (word[i - 1] != name[j - 1]);
                diagonal = row[j];
                row[j] = std::min({row[j] + 1, row[j - 1] + 1, change});
            }
        }
        if (row.back() < least) {
            least = row.back();
            best = name;
        }
    }
    return best;
}

std::string one_line(std::string_view text) {
    std::string line(text.substr(0, 60));
    for (char& c : line)
        if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = '?';
    return line + (text.size() > 60 ? "…" : "");
}

}   // namespace gradcast
