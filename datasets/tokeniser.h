// Byte pairs as GPT-2 encodes texts (Sennrich, Haddow, Birch, "Neural machine translation of rare words with subword units", ACL 2016;
// Radford et al. 2019, on bytes): a text is cut into words, and neighbouring tokens of a word are merged, the earliest merge of the list
// first.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/core/status.h"

namespace gradcast {

/// Returns the bytes of the first word of `text`, cut by GPT-2's pattern
///   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
/// with letters and numbers of Unicode 14 and the white space of Unicode.  Bytes that are no UTF-8 are neither of them.
/// Returns 0 if `text` is empty, or if the word may go on behind it and `end` is false.  end: nothing follows `text`.
size_t word_length(std::string_view text, bool end);

class Tokeniser {
public:
    static constexpr uint64_t text_bytes_max = 16 << 20;   // of text()
    static constexpr uint32_t merges_max = 1'000'000;
    static constexpr uint64_t token_bytes_max = 1024;   // of bytes()
    static constexpr uint64_t word_bytes_max = 1 << 20;

    /// A file of merges ("#version: 0.2", then a pair a line, as merges.txt and vocab.bpe), vocab.json with the merges beside it, or the
    /// folder of both.  Without vocab.json tokens are numbered as GPT-2's: 256 bytes, the merges, <|endoftext|>.  Errors name file and
    /// line or token: a merge of tokens that no line before makes, a token that is there twice or has no number.
    static Status open(const std::string& path, Tokeniser* tokeniser);
    /// Reads a text that text() gave; `name` is for messages.
    static Status parse(std::string_view text, const std::string& name, Tokeniser* tokeniser);
    /// Returns whether a text, as DataInfo::alphabet, is of merges, not characters.  Characters are there once and in order.
    static bool is_text(std::string_view alphabet) { return alphabet.starts_with("#merges\n"); }

    /// The merges, a pair a line, and where numbers are not GPT-2's, all tokens in their order.
    const std::string& text() const { return text_; }
    uint32_t vocabulary() const { return static_cast<uint32_t>(bytes_.size()); }
    /// Appends the tokens of a word.  O(bytes log bytes); remembers words that were seen.  One thread at a time.
    void encode_word(std::string_view word, std::vector<uint32_t>* tokens);
    /// Appends the tokens of a text, which may also say <|endoftext|> in so many characters: they are not that token.
    void encode(std::string_view text, std::vector<uint32_t>* tokens);
    /// Returns the bytes of a token.  It must be below the vocabulary.
    const std::string& bytes(uint32_t token) const { return bytes_[token]; }

private:
    struct Merge {
        uint32_t rank = 0, made = 0;   // made: the token
    };
    std::string text_;
    std::vector<std::string> bytes_;               // by token
    std::vector<uint32_t> of_byte_;                // [256]
    std::unordered_map<uint64_t, Merge> merges_;   // by left << 32 | right
    std::unordered_map<std::string, std::vector<uint32_t>> seen_;
};

}   // namespace gradcast
