#include "datasets/tokeniser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <queue>

#include "datasets/source.h"
#include "datasets/unicode_ranges.h"
#include "runtime/core/fd.h"
#include "runtime/core/nearest.h"

namespace gradcast {
namespace {

// ---- words ---------------------------------------------------------------------------------------------------------------------

enum class Class : uint8_t { letter, number, space, other };

template <size_t count>
bool within(const CodeRange (&ranges)[count], uint32_t code) {
    const CodeRange* after =
        std::upper_bound(std::begin(ranges), std::end(ranges), code, [](uint32_t c, const CodeRange& range) { return c < range.first; });
    return after != std::begin(ranges) && code <= after[-1].last;
}

Class class_of(uint32_t code) {
    constexpr std::array<CodeRange, 10> spaces = {{{9, 13},
                                                   {32, 32},
                                                   {0x85, 0x85},
                                                   {0xA0, 0xA0},
                                                   {0x1680, 0x1680},
                                                   {0x2000, 0x200A},
                                                   {0x2028, 0x2029},
                                                   {0x202F, 0x202F},
                                                   {0x205F, 0x205F},
                                                   {0x3000, 0x3000}}};
    if (std::ranges::any_of(spaces, [&](const CodeRange& range) { return code >= range.first && code <= range.last; })) return Class::space;
    return within(unicode_letters, code) ? Class::letter : within(unicode_numbers, code) ? Class::number : Class::other;
}

/// A character of a text.
struct Character {
    Class of = Class::other;
    size_t bytes = 0;   // 0: the text ends within it
};
Character character_at(std::string_view text, size_t at, bool end) {
    const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
    const uint8_t first = byte(at);
    if (first < 0x80) return {class_of(first), 1};
    const size_t length = first >> 5 == 6 ? 2 : first >> 4 == 14 ? 3 : first >> 3 == 30 ? 4 : 1;
    if (length == 1) return {Class::other, 1};
    uint32_t code = first & (0xFFu >> (length + 1));
    for (size_t i = 1; i < length; ++i) {
        if (at + i == text.size()) return end ? Character{Class::other, 1} : Character{};
        if (byte(at + i) >> 6 != 2) return {Class::other, 1};
        code = code << 6 | (byte(at + i) & 0x3Fu);
    }
    return {class_of(code), length};
}

// ---- files ---------------------------------------------------------------------------------------------------------------------

constexpr std::string_view end_of_text = "<|endoftext|>", merges_head = "#merges\n", tokens_head = "#tokens\n";

/// The characters that stand for bytes in files of merges: those that can be seen stand for themselves, the others are 256, 257, ….
/// order: bytes in the order of their tokens.
struct ByteNames {
    std::array<std::string, 256> names;
    std::vector<uint32_t> order;
    std::unordered_map<std::string, uint8_t> bytes;
    ByteNames() {
        const auto seen = [](uint32_t byte) { return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174; };
        for (const bool visible : {true, false})
            for (uint32_t byte = 0; byte < 256; ++byte) {
                if (seen(byte) != visible) continue;
                const uint32_t code = visible ? byte : 256 + static_cast<uint32_t>(order.size()) - 188;
                names[byte] = code < 0x80 ? std::string(1, static_cast<char>(code))
                                          : std::string{static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
                bytes[names[byte]] = static_cast<uint8_t>(byte);
                order.push_back(byte);
            }
    }
};
const ByteNames& byte_names() {
    static const ByteNames all;
    return all;
}

/// The bytes that a token's name stands for; a name with other characters stands for itself.
std::string bytes_of_name(std::string_view name) {
    std::string bytes;
    for (size_t at = 0; at < name.size();) {
        const size_t length = static_cast<uint8_t>(name[at]) < 0x80 ? 1 : 2;
        const auto found = byte_names().bytes.find(std::string(name.substr(at, length)));
        if (found == byte_names().bytes.end()) return std::string(name);
        bytes += static_cast<char>(found->second);
        at += length;
    }
    return bytes;
}

/// Calls each(line, number from 1) for the lines of a text; the last one may lack its end.
template <typename Each>
Status lines(std::string_view text, Each each) {
    for (uint32_t number = 1; !text.empty(); ++number) {
        const size_t end = std::min(text.find('\n'), text.size());
        std::string_view line = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        if (line.ends_with('\r')) line.remove_suffix(1);
        GC_TRY(each(line, number));
    }
    return {};
}

/// vocab.json: the names of all tokens, by number.
Status numbers_read(const std::string& path, const std::string& text, std::vector<std::string>* names) {
    const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
    if (!json.is_object()) return fail(Code::data, "{}: no list of tokens with their numbers, as {{\"a\": 0, \"b\": 1}}", path);
    names->assign(json.size(), "");
    for (const auto& [name, number] : json.items()) {
        const uint64_t at = number.is_number_unsigned() ? number.get<uint64_t>() : UINT64_MAX;
        if (at >= names->size() || !(*names)[at].empty() || name.empty())
            return fail(Code::data, "{}: token \"{}\" has the number {}: each of the {} tokens has another one, from 0 on", path,
                        one_line(name), one_line(number.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)), names->size());
        (*names)[at] = name;
    }
    return {};
}

}   // namespace

size_t word_length(std::string_view text, bool end) {
    if (text.empty()) return 0;
    // A contraction, which three characters tell.
    if (text[0] == '\'') {
        if (text.size() < 3 && !end) return 0;
        for (const std::string_view each : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"})
            if (text.starts_with(each)) return each.size();
    }
    const Character first = character_at(text, 0, end);
    if (first.bytes == 0) return 0;
    size_t at = first.bytes;
    Class run = first.of;
    if (text[0] == ' ') {
        if (at == text.size()) return end ? at : 0;
        const Character next = character_at(text, at, end);
        if (next.bytes == 0) return 0;
        run = next.of;
    }
    size_t last = 0;   // where the last character of the run begins
    while (at < text.size()) {
        const Character next = character_at(text, at, end);
        if (next.bytes == 0) return 0;
        if (next.of != run) {
            // Of white space the last character belongs to what follows, unless it is all.
            return run == Class::space && last > 0 ? last : at;
        }
        last = at;
        at += next.bytes;
    }
    return end ? at : 0;
}

Status Tokeniser::open(const std::string& path, Tokeniser* tokeniser) {
    std::string merges_path = path, numbers_path;
    const auto beside = [](const std::string& folder) {
        for (const char* name : {"merges.txt", "vocab.bpe"})
            if (const std::string found = source_in(folder, name); !found.empty()) return found;
        return std::string();
    };
    const auto numbers_in = [](const std::string& folder) {
        for (const char* name : {"vocab.json", "encoder.json"})
            if (const std::string found = source_in(folder, name); !found.empty()) return found;
        return std::string();
    };
    if (is_folder(path)) {
        merges_path = beside(path);
        numbers_path = numbers_in(path);
    } else if (path.ends_with(".json")) {
        numbers_path = path;
        const size_t slash = path.rfind('/');
        merges_path = beside(slash == path.npos ? "." : path.substr(0, slash));
    }
    if (merges_path.empty())
        return fail(Code::data, "{}: merges.txt (or vocab.bpe) is missing there: it has the merges of the vocabulary", path);
    std::string merges, stored(merges_head), numbers;
    uint64_t bytes = 0;
    Fd fd;
    for (const std::string* each : {&merges_path, &numbers_path}) {
        if (each->empty()) continue;
        if (each->ends_with(".gz") || each->ends_with(".xz"))
            return fail(Code::data, "{}: a vocabulary is read as it is: unpack it", *each);
        GC_TRY(file_open(*each, &fd, &bytes));
        if (bytes > text_bytes_max)
            return fail(Code::data, "{}: {} bytes are more than a vocabulary has, {} MiB", *each, bytes, text_bytes_max >> 20);
    }
    GC_TRY(file_read(merges_path, &merges));
    GC_TRY(lines(merges, [&](std::string_view line, uint32_t number) {
        if (line.empty() || (number == 1 && line.starts_with("#version"))) return Status();
        if (std::ranges::count(line, ' ') != 1 || line[0] == ' ' || line.ends_with(' '))
            return fail(Code::data, "{}: line {}: not two tokens with a space between, as \"t h\": a file of merges is needed", merges_path,
                        number);
        stored += line;
        stored += '\n';
        return Status();
    }));
    Tokeniser read;
    GC_TRY(parse(stored, merges_path, &read));
    if (!numbers_path.empty()) {
        std::vector<std::string> names, own;
        GC_TRY(file_read(numbers_path, &numbers));
        GC_TRY(numbers_read(numbers_path, numbers, &names));
        for (const std::string& name : names) own.push_back(bytes_of_name(name));
        if (own != read.bytes_) {   // tokens have other numbers than GPT-2's
            stored += tokens_head;
            for (const std::string& name : names) {
                if (name.find_first_of("\r\n") != name.npos)
                    return fail(Code::data, "{}: token \"{}\" has the end of a line", numbers_path, one_line(name));
                stored += name + "\n";
            }
            GC_TRY(parse(stored, numbers_path, &read));
        }
    }
    *tokeniser = std::move(read);
    return {};
}

Status Tokeniser::parse(std::string_view text, const std::string& name, Tokeniser* tokeniser) {
    if (!is_text(text)) return fail(Code::data, "{}: no vocabulary of merges", name);
    if (text.size() > text_bytes_max)
        return fail(Code::data, "{}: a vocabulary of {} bytes is larger than {} MiB", name, text.size(), text_bytes_max >> 20);
    Tokeniser read;
    read.text_ = text;
    text.remove_prefix(merges_head.size());
    // "#tokens" is no line of merges, which have a space.
    const size_t end = text.starts_with(tokens_head) ? 0 : text.find(fmt::format("\n{}", tokens_head));
    const bool numbered = end != text.npos;
    const std::string_view merges = numbered ? text.substr(0, end == 0 ? 0 : end + 1) : text;
    std::unordered_map<std::string, uint32_t> numbers;   // by name
    std::vector<std::string> names;
    const auto add = [&](std::string token) {
        return numbers.emplace(token, names.size()).second && (names.push_back(std::move(token)), true);
    };
    if (numbered)
        GC_TRY(lines(text.substr((end == 0 ? 0 : end + 1) + tokens_head.size()), [&](std::string_view line, uint32_t) {
            return add(std::string(line)) ? Status() : fail(Code::data, "{}: token \"{}\" is there twice", name, one_line(line));
        }));
    else
        for (const uint32_t byte : byte_names().order) add(byte_names().names[byte]);
    for (uint32_t byte = 0; byte < 256; ++byte) {
        const auto found = numbers.find(byte_names().names[byte]);
        if (found == numbers.end())
            return fail(Code::data, "{}: the byte {} is no token (\"{}\"): the vocabulary does not fit the merges", name, byte,
                        byte_names().names[byte]);
        read.of_byte_.push_back(found->second);
    }
    std::vector<bool> made(names.size());
    for (const uint32_t token : read.of_byte_) made[token] = true;
    uint32_t rank = 0;
    const Status status = lines(merges, [&](std::string_view line, uint32_t number) -> Status {
        if (rank == merges_max) return fail(Code::data, "{}: more than {} merges", name, merges_max);
        const size_t space = line.find(' ');
        if (space == line.npos) return fail(Code::data, "{}: merge {} is not two tokens", name, number);
        const std::string left(line.substr(0, space)), right(line.substr(space + 1)), both = left + right;
        for (const std::string* part : {&left, &right})
            if (const auto found = numbers.find(*part); found == numbers.end() || !made[found->second])
                return fail(Code::data,
                            "{}: merge {} is of \"{}\", which no merge before makes: the lines are in another order, or some are missing",
                            name, number, one_line(*part));
        if (bytes_of_name(both).size() > token_bytes_max)
            return fail(Code::data, "{}: merge {} makes a token of more than {} bytes", name, number, token_bytes_max);
        if (!numbered && add(both)) made.push_back(false);
        const auto found = numbers.find(both);
        if (found == numbers.end())
            return fail(Code::data, "{}: \"{}\", which merge {} makes, has no number: the vocabulary does not fit the merges", name,
                        one_line(both), number);
        const uint64_t pair = uint64_t{numbers[left]} << 32 | numbers[right];
        if (!read.merges_.emplace(pair, Merge{rank, found->second}).second)
            return fail(Code::data, "{}: merge {}, \"{}\", is there twice", name, number, one_line(line));
        made[found->second] = true;
        ++rank;
        return {};
    });
    GC_TRY(status);
    if (!numbered) add(std::string(end_of_text));
    for (const std::string& each : names) read.bytes_.push_back(bytes_of_name(each));
    *tokeniser = std::move(read);
    return {};
}

void Tokeniser::encode_word(std::string_view word, std::vector<uint32_t>* tokens) {
    constexpr size_t seen_max = 1 << 16, remembered_bytes_max = 64;
    if (word.size() <= remembered_bytes_max)
        if (const auto found = seen_.find(std::string(word)); found != seen_.end()) {
            tokens->insert(tokens->end(), found->second.begin(), found->second.end());
            return;
        }
    // A list of tokens, linked, and the merges that are possible in it, the earliest first, of equal ones the left one.  A pair that is
    // no longer there when its turn comes is passed over.
    constexpr uint32_t none = UINT32_MAX;
    struct Place {
        uint32_t token, before, after;   // none: merged away, or there is none
    };
    std::vector<Place> places;
    for (uint32_t i = 0; i < word.size(); ++i)
        places.push_back({of_byte_[static_cast<uint8_t>(word[i])], i == 0 ? none : i - 1, i + 1 == word.size() ? none : i + 1});
    struct Possible {
        uint32_t rank, place, left, right, made;
        bool operator>(const Possible& other) const { return rank != other.rank ? rank > other.rank : place > other.place; }
    };
    std::priority_queue<Possible, std::vector<Possible>, std::greater<>> possible;
    const auto look = [&](uint32_t at) {
        if (at == none || places[at].after == none) return;
        const uint32_t left = places[at].token, right = places[places[at].after].token;
        const auto found = merges_.find(uint64_t{left} << 32 | right);
        if (found != merges_.end()) possible.push({found->second.rank, at, left, right, found->second.made});
    };
    for (uint32_t i = 0; i < places.size(); ++i) look(i);
    while (!possible.empty()) {
        const Possible next = possible.top();
        possible.pop();
        Place& place = places[next.place];
        if (place.token != next.left || place.after == none || places[place.after].token != next.right) continue;
        Place& gone = places[place.after];
        place.token = next.made;
        place.after = gone.after;
        gone.token = none;
        if (place.after != none) places[place.after].before = next.place;
        look(place.before);
        look(next.place);
    }
    const size_t before = tokens->size();
    for (uint32_t at = 0; at != none && at < places.size(); at = places[at].after) tokens->push_back(places[at].token);
    if (word.size() > remembered_bytes_max) return;
    if (seen_.size() == seen_max) seen_.clear();
    seen_.emplace(word, std::vector<uint32_t>(tokens->begin() + static_cast<ptrdiff_t>(before), tokens->end()));
}

void Tokeniser::encode(std::string_view text, std::vector<uint32_t>* tokens) {
    for (size_t length; (length = word_length(text, true)) > 0; text.remove_prefix(length)) encode_word(text.substr(0, length), tokens);
}

}   // namespace gradcast
