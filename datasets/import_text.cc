// Texts: bytes or characters of a text file, and files of tokens as nanoGPT and llm.c write them.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <span>

#include "datasets/import.h"
#include "datasets/source.h"
#include "datasets/tokeniser.h"
#include "runtime/core/digest.h"
#include "runtime/core/version.h"

namespace gradcast {
namespace {

constexpr size_t text_piece_bytes = 1 << 20;

/// The file to train on, and the one to test on, if there is one.
Status files_find(const ImportConfig& config, std::string_view ending, std::string* train, std::string* test) {
    *train = config.from;
    if (!is_folder(config.from)) return {};
    const auto find = [&](const char* name) { return source_in(config.from, fmt::format("{}{}", name, ending)); };
    *train = find("train");
    for (const char* name : {"test", "val", "valid", "validation"})
        if (test->empty()) *test = find(name);
    if (train->empty()) return fail(Code::data, "{}/train{}[.gz, .xz] is missing: --from is that folder, or one file", config.from, ending);
    if (!test->empty() && config.test > 0) return fail(Code::invalid, "--test: {} is there to test on: leave one of them out", *test);
    return {};
}

/// Passes all bytes of a file on, in pieces: each(bytes, offset of the first one).
template <typename Each>
Status pieces(const std::string& path, Each each) {
    Source source;
    GC_TRY(source.open(path));
    std::vector<uint8_t> piece(text_piece_bytes);
    uint64_t at = 0;
    for (size_t got; (got = source.read(piece.data(), piece.size())) > 0; at += got) GC_TRY(each(std::span(piece).first(got), at));
    GC_TRY(source.end("its text"));
    return at > 0 ? Status{} : fail(Code::data, "{}: empty", path);
}

/// Characters of UTF-8 whose bytes come in pieces.
class Characters {
public:
    explicit Characters(const std::string& path) : path_(path) {}
    /// each(character)
    template <typename Each>
    Status add(std::span<const uint8_t> bytes, uint64_t at, Each each) {
        for (const uint8_t byte : bytes) {
            if (more_ == 0) {
                more_ = byte < 0x80 ? 0 : byte >> 5 == 6 ? 1 : byte >> 4 == 14 ? 2 : byte >> 3 == 30 ? 3 : 9;
                if (more_ == 9) return broken(at);
                value_ = more_ == 0 ? byte : byte & (0x3Fu >> more_);
                least_ = more_ == 0 ? 0 : more_ == 1 ? 0x80 : more_ == 2 ? 0x800 : 0x10000;
            } else {
                if (byte >> 6 != 2) return broken(at);
                value_ = value_ << 6 | (byte & 0x3F);
                --more_;
            }
            ++at;
            if (more_ > 0) continue;
            if (value_ < least_ || value_ > 0x10FFFF || (value_ >= 0xD800 && value_ < 0xE000)) return broken(at - 1);
            if (value_ == 0)
                return fail(Code::data, "{}: byte {} is NUL, which no alphabet has: take the text byte by byte (--by bytes)", path_,
                            at - 1);
            GC_TRY(each(value_));
        }
        return {};
    }
    Status end(uint64_t at) const { return more_ == 0 ? Status{} : broken(at); }

private:
    Status broken(uint64_t at) const {
        return fail(Code::data, "{}: byte {} is no UTF-8: convert the file, or take it byte by byte (--by bytes)", path_, at);
    }
    const std::string path_;
    uint32_t more_ = 0, value_ = 0, least_ = 0;
};

std::string utf8(uint32_t character) {
    const auto byte = [](uint32_t value) { return static_cast<char>(value); };
    if (character < 0x80) return {byte(character)};
    if (character < 0x800) return {byte(0xC0 | character >> 6), byte(0x80 | (character & 0x3F))};
    if (character < 0x10000) return {byte(0xE0 | character >> 12), byte(0x80 | (character >> 6 & 0x3F)), byte(0x80 | (character & 0x3F))};
    return {byte(0xF0 | character >> 18), byte(0x80 | (character >> 12 & 0x3F)), byte(0x80 | (character >> 6 & 0x3F)),
            byte(0x80 | (character & 0x3F))};
}

/// How far an import is in its sources, which it takes in pieces: those to train on, then those to test on.
class Taken {
public:
    Taken(const ImportConfig& config, Import* import) : config_(config), import_(*import) {}
    /// Opens what an import of the same has left that was killed.  what: all that the tokens depend on beside the sources.
    Status open(const std::string& what, const std::string& train, const std::string& test) {
        const std::string all = fmt::format("{} {} {} {}\n{}{}{}", config_.kind, version_text, config_.test, what, file_line(train),
                                            test.empty() ? "" : file_line(test), import_.alphabet);
        GC_TRY(import_.keep(config_, sha256_hex(std::as_bytes(std::span(all))), " MiB", &state_, 1 << 20));
        found_ = state_.taken;
        return {};
    }
    /// Whether the tokens of the next piece, of so many bytes, are there.
    bool there(size_t bytes) const { return taken_ + bytes <= found_; }
    /// Whether a piece behind those that were taken is there.
    bool more_there() const { return taken_ < found_; }
    /// The piece is taken.
    Status take(size_t bytes) {
        taken_ += bytes;
        if (config_.progress && pace_.due(false)) config_.progress({false, taken_ >> 20, 0});
        if (taken_ <= found_) return {};
        state_.taken = taken_;
        return import_.kept.save(state_);
    }

private:
    const ImportConfig& config_;
    Import& import_;
    ImportState state_;
    ImportPace pace_;
    uint64_t taken_ = 0, found_ = 0;
};

/// Appends tokens to the half that they belong to, behind those that are there: of one file the last share is for testing.
class Halves {
public:
    Halves(Import* import, Element element, uint64_t train_count) : import_(*import) {
        for (Set* set : {&import_.train, &import_.test}) {
            set->C = set->H = set->W = 1, set->element = element;
            set->tokens = set->images.bytes() / element_bytes(element);
        }
        left_ = train_count - import_.train.tokens;
    }
    Status add(uint32_t token) {
        Set& set = left_ > 0 ? import_.train : import_.test;
        left_ -= left_ > 0;
        ++set.tokens;
        return set.images.append(reinterpret_cast<const uint8_t*>(&token), element_bytes(set.element));
    }
    void test() { left_ = 0; }

private:
    Import& import_;
    uint64_t left_;
};

uint64_t train_share(const ImportConfig& config, uint64_t count) {
    return count - static_cast<uint64_t>(static_cast<double>(count) * config.test);
}

// ---- tokens --------------------------------------------------------------------------------------------------------------------

constexpr uint32_t llm_c_header = 1024;
struct LlmC {
    uint32_t magic, version;
    Element element;
};
constexpr LlmC llm_c[] = {{20240520, 1, Element::u16}, {20240801, 7, Element::u32}};

struct TokensFormat {
    Element element = Element::u16;
    uint64_t skip = 0;                     // bytes of a header
    std::optional<uint32_t> tokens = {};   // as a header says
    Status check(const std::string& path, uint64_t bytes) const;
};

Status tokens_format(const std::string& path, const ImportConfig& config, TokensFormat* format) {
    Source source;
    GC_TRY(source.open(path));
    uint32_t head[3] = {};
    format->element = config.wide_tokens ? Element::u32 : Element::u16;
    if (source.read(reinterpret_cast<uint8_t*>(head), sizeof head) < sizeof head) return {};
    for (const LlmC& each : llm_c) {
        if (head[0] != each.magic) continue;
        if (head[1] != each.version)
            return fail(Code::data, "{}: a header of llm.c of version {}, of which only {} is known", path, head[1], each.version);
        format->element = each.element;
        format->skip = llm_c_header;
        format->tokens = head[2];
    }
    return {};
}

/// Of a file that has so many bytes.
Status TokensFormat::check(const std::string& path, uint64_t bytes) const {
    const uint64_t width = element_bytes(element), found = bytes > skip ? (bytes - skip) / width : 0;
    if (tokens && bytes < skip)
        return fail(Code::data, "{}: truncated: its header of llm.c ends after {} of {} bytes: fetch or write the file again", path, bytes,
                    skip);
    if (tokens && found < *tokens)
        return fail(Code::data, "{}: truncated: its header says {} tokens, it has {}: fetch or write the file again", path, *tokens, found);
    if (tokens && found > *tokens)
        return fail(Code::data, "{}: its header says {} tokens, but it has {}: fetch or write the file again", path, *tokens, found);
    if (bytes > skip && (bytes - skip) % width == 0) return {};
    return fail(Code::data, "{}: truncated: {} bytes are not whole tokens of {} bytes{}", path, bytes, width,
                width == 2 && !tokens ? " (--wide: they have 4)" : "");
}

/// The vocabulary of --vocabulary FILE, if there is one.
Status vocabulary_open(const ImportConfig& config, Import* import, Tokeniser* tokeniser, Element* element) {
    if (config.vocabulary_file.empty()) return {};
    GC_TRY(Tokeniser::open(config.vocabulary_file, tokeniser));
    import->vocabulary = tokeniser->vocabulary();
    import->alphabet = tokeniser->text();
    *element = import->vocabulary > 65536 ? Element::u32 : Element::u16;
    return {};
}

/// Moves the last share of the tokens to the half to test on.
Status tail_move(const ImportConfig& config, Import* import) {
    Set &train = import->train, &test = import->test;
    const uint64_t width = element_bytes(train.element), kept = train_share(config, train.tokens);
    std::vector<uint8_t> piece(text_piece_bytes);
    for (uint64_t at = kept * width, end = train.tokens * width, some = 0; at < end; at += some) {
        some = std::min<uint64_t>(piece.size(), end - at);
        GC_TRY(train.images.read(at, piece.data(), some));
        GC_TRY(test.images.append(piece.data(), some));
    }
    test.tokens += train.tokens - kept;
    train.tokens = kept;
    return {};
}

/// A text whose words are encoded by merges.
Status merged_sets(const ImportConfig& config, const std::string& train, const std::string& test, Import* import) {
    if (config.by == "bytes")
        return fail(Code::invalid, "--by bytes: the tokens are those of --vocabulary {}: leave one of them out", config.vocabulary_file);
    Tokeniser tokeniser;
    Element element = Element::u16;
    GC_TRY(vocabulary_open(config, import, &tokeniser, &element));
    Taken taken(config, import);
    GC_TRY(taken.open("merges", train, test));
    Halves halves(import, element, UINT64_MAX);
    for (const bool tested : {false, true}) {
        const std::string& path = tested ? test : train;
        if (path.empty()) continue;
        if (tested) halves.test();
        Characters characters(path);   // they are to be whole; words are cut from the bytes
        std::string waiting;
        std::vector<uint32_t> tokens;
        uint64_t end_at = 0;
        const auto words = [&](bool end, bool there) -> Status {
            std::string_view left = waiting;
            for (size_t length; (length = word_length(left, end)) > 0; left.remove_prefix(length)) {
                if (there) continue;
                tokens.clear();
                tokeniser.encode_word(left.substr(0, length), &tokens);
                for (const uint32_t token : tokens) GC_TRY(halves.add(token));
            }
            if (left.size() > Tokeniser::word_bytes_max)
                return fail(Code::data, "{}: a word of more than {} MiB before byte {}: it is no text", path,
                            Tokeniser::word_bytes_max >> 20, end_at);
            waiting.erase(0, waiting.size() - left.size());
            return {};
        };
        const Status status = pieces(path, [&](std::span<const uint8_t> piece, uint64_t at) -> Status {
            end_at = at + piece.size();
            GC_TRY(characters.add(piece, at, [](uint32_t) { return Status(); }));
            waiting.append(reinterpret_cast<const char*>(piece.data()), piece.size());
            GC_TRY(words(false, taken.there(piece.size())));
            return taken.take(piece.size());
        });
        GC_TRY(status);
        GC_TRY(characters.end(end_at));
        GC_TRY(words(true, taken.more_there()));
    }
    return tail_move(config, import);
}

}   // namespace

Status token_sets(const ImportConfig& config, uint32_t, Import* import) {
    std::string train, test;
    GC_TRY(files_find(config, ".bin", &train, &test));
    Element element = Element::u16;
    uint32_t largest = 0;
    Tokeniser tokeniser;
    GC_TRY(vocabulary_open(config, import, &tokeniser, &element));
    const uint32_t vocabulary = config.vocabulary_file.empty() ? config.vocabulary : tokeniser.vocabulary();
    Taken taken(config, import);
    uint64_t train_count = 0;
    for (const bool second : {false, true}) {   // how many there are, then the tokens
        std::unique_ptr<Halves> halves;
        if (second) {
            GC_TRY(taken.open(fmt::format("{} {}", config.wide_tokens, vocabulary), train, test));
            halves = std::make_unique<Halves>(import, element, train_share(config, train_count));
        }
        for (const bool tested : {false, true}) {
            const std::string& path = tested ? test : train;
            if (path.empty()) continue;
            TokensFormat format;
            GC_TRY(tokens_format(path, config, &format));
            if (tested && format.element != element)
                return fail(Code::data, "{}: tokens are {}, but those of {} {}", path, element_name(format.element), train,
                            element_name(element));
            element = format.element;
            const uint64_t skip = format.skip;
            const uint32_t width = element_bytes(element);
            uint64_t bytes = 0;
            uint32_t token = 0;
            if (second && tested) halves->test();
            const Status status = pieces(path, [&](std::span<const uint8_t> piece, uint64_t at) -> Status {
                bytes = at + piece.size();
                const bool there = second && taken.there(piece.size());
                for (size_t i = at < skip ? std::min<uint64_t>(skip - at, piece.size()) : 0; i < piece.size(); ++i) {
                    const auto place = static_cast<uint32_t>((at + i) % width);
                    token = (place == 0 ? 0 : token) | uint32_t{piece[i]} << (8 * place);
                    if (place + 1 < width) continue;
                    if (vocabulary > 0 && token >= vocabulary)
                        return fail(Code::data, "{}: token {} is {}, not below --vocabulary {}", path, (at + i - skip) / width, token,
                                    config.vocabulary_file.empty() ? fmt::format("{}: give a larger --vocabulary", vocabulary)
                                                                   : fmt::format("{}, which has {}: it is not that of these tokens",
                                                                                 config.vocabulary_file, vocabulary));
                    largest = std::max(largest, token);
                    if (second && !there) GC_TRY(halves->add(token));
                    else if (!second && !tested) ++train_count;
                }
                return second ? taken.take(piece.size()) : Status{};
            });
            GC_TRY(status);
            GC_TRY(format.check(path, bytes));
        }
    }
    if (largest == UINT32_MAX) return fail(Code::data, "{}: the token {} is too large", train, largest);
    import->vocabulary = vocabulary > 0 ? vocabulary : largest + 1;
    if (element == Element::u16 && import->vocabulary > 65536)
        return fail(Code::data,
                    "{}: tokens of 16 bits are below 65536, but the vocabulary has {}: it is that of tokens of 32 bits (--wide)", train,
                    import->vocabulary);
    return {};
}

Status text_sets(const ImportConfig& config, uint32_t, Import* import) {
    const bool bytes = config.by == "bytes";
    if (!bytes && config.by != "characters") return fail(Code::invalid, "--by {}: a text is taken by characters or by bytes", config.by);
    std::string train, test;
    GC_TRY(files_find(config, ".txt", &train, &test));
    if (!config.vocabulary_file.empty()) return merged_sets(config, train, test, import);
    std::set<uint32_t> seen;
    uint64_t count = 0;
    Taken taken(config, import);
    const auto read = [&](const std::string& path, bool second, auto each) -> Status {
        Characters characters(path);
        uint64_t end = 0;
        const Status status = pieces(path, [&](std::span<const uint8_t> piece, uint64_t at) -> Status {
            end = at + piece.size();
            const bool there = second && taken.there(piece.size());
            const auto one = [&](uint32_t character) { return there ? Status{} : each(character); };
            if (!bytes) GC_TRY(characters.add(piece, at, one));
            for (size_t i = 0; bytes && i < piece.size(); ++i) GC_TRY(one(piece[i]));
            return second ? taken.take(piece.size()) : Status{};
        });
        GC_TRY(status);
        return characters.end(end);
    };
    for (const bool tested : {false, true})
        if (const std::string& path = tested ? test : train; !path.empty())
            GC_TRY(read(path, false, [&](uint32_t character) -> Status {
                if (!bytes) seen.insert(character);
                count += !tested;
                return {};
            }));
    for (const uint32_t character : seen) import->alphabet += utf8(character);
    if (import->alphabet.size() > class_names_max)
        return fail(Code::data,
                    "{}: its {} different characters have {} bytes, more than the {} that a shard holds: take it by bytes (--by bytes)",
                    train, seen.size(), import->alphabet.size(), class_names_max);
    import->vocabulary = bytes ? 256 : static_cast<uint32_t>(seen.size());
    const std::vector<uint32_t> all(seen.begin(), seen.end());
    GC_TRY(taken.open(config.by, train, test));
    Halves halves(import, Element::u16, train_share(config, count));
    for (const bool tested : {false, true}) {
        const std::string& path = tested ? test : train;
        if (path.empty()) continue;
        if (tested) halves.test();
        GC_TRY(read(path, true, [&](uint32_t character) {
            return halves.add(bytes ? character : static_cast<uint32_t>(std::ranges::lower_bound(all, character) - all.begin()));
        }));
    }
    return {};
}

}   // namespace gradcast
