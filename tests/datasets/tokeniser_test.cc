// Byte pairs: encodings that follow from the merges by hand, files that make no sense, and texts that are imported with them.
#include "datasets/tokeniser.h"

#include <algorithm>
#include <random>

#include "datasets/hdf5.h"
#include "datasets/import.h"
#include "tests/datasets/support.h"

namespace gradcast {
namespace {

// The tokens that they make have the numbers 256, 257, …; <|endoftext|> is 268.
constexpr char merges[] = "#version: 0.2\nh e\nl l\nhe ll\nhell o\nĠ w\no r\nĠw or\nl d\nĠwor ld\nĠ t\nĠt he\n! !\n";
constexpr uint32_t vocabulary = 269;
using Tokens = std::vector<uint32_t>;

class Merges : public testing::Test {
protected:
    TestFolder folder;
    Tokeniser tokeniser;
    void SetUp() override {
        write_file(folder.file("merges.txt"), merges);
        const Status status = Tokeniser::open(folder.file("merges.txt"), &tokeniser);
        ASSERT_TRUE(status.ok()) << status.what;
    }
    Tokens encoded(const std::string& text) {
        Tokens tokens;
        tokeniser.encode(text, &tokens);
        return tokens;
    }
    std::string decoded(const Tokens& tokens) {
        std::string text;
        for (const uint32_t token : tokens) text += tokeniser.bytes(token);
        return text;
    }
};

std::vector<std::string> words(std::string_view text) {
    std::vector<std::string> all;
    for (size_t length; (length = word_length(text, true)) > 0; text.remove_prefix(length)) all.emplace_back(text.substr(0, length));
    return all;
}

TEST(Words, AreThoseOfGpt2sPattern) {
    using Words = std::vector<std::string>;
    EXPECT_EQ(words("Hello, world! it's 2026"), (Words{"Hello", ",", " world", "!", " it", "'s", " 2026"}));
    EXPECT_EQ(words("  two  spaces "), (Words{" ", " two", " ", " spaces", " "}));
    EXPECT_EQ(words("a\n\n b\n"), (Words{"a", "\n\n", " b", "\n"}));
    EXPECT_EQ(words("a\nb \nc"), (Words{"a", "\n", "b", " ", "\n", "c"}));
    EXPECT_EQ(words("they're we'll I'd 'tis!'s"), (Words{"they", "'re", " we", "'ll", " I", "'d", " '", "tis", "!'", "s"}));
    EXPECT_EQ(words("'S 'sx ''s"), (Words{"'", "S", " '", "sx", " ''", "s"}));
    EXPECT_EQ(words("x1y2 ½ⅷ"), (Words{"x", "1", "y", "2", " ½ⅷ"}));
    EXPECT_EQ(words("né 汉字かな ß_ö"), (Words{"né", " 汉字かな", " ß", "_", "ö"}));
    EXPECT_EQ(words("a\u00a0b\u2003\u2003c"), (Words{"a", "\u00a0", "b", "\u2003", "\u2003", "c"}));
    EXPECT_EQ(words("\xff\xfe a\xc3"), (Words{"\xff\xfe", " a", "\xc3"}));
    EXPECT_EQ(words(""), Words{});
    // The beginning of a text tells no word that may go on.
    EXPECT_EQ(word_length("ab", false), 0u);
    EXPECT_EQ(word_length("ab c", false), 2u);
    EXPECT_EQ(word_length("a\xc3", false), 0u);
    EXPECT_EQ(word_length("'r", false), 0u);
    EXPECT_EQ(word_length("  ", false), 0u);
    EXPECT_EQ(word_length(" ", false), 0u);
}

TEST_F(Merges, EncodeAsTheListSays) {
    EXPECT_EQ(tokeniser.vocabulary(), vocabulary);
    EXPECT_EQ(encoded("hello world!"), (Tokens{259, 264, 0}));
    EXPECT_EQ(encoded("hell"), (Tokens{258}));
    EXPECT_EQ(encoded("help"), (Tokens{256, 75, 79}));
    EXPECT_EQ(encoded("lll"), (Tokens{257, 75}));
    EXPECT_EQ(encoded("llll"), (Tokens{257, 257}));
    EXPECT_EQ(encoded(" the hello"), (Tokens{266, 220, 259}));
    EXPECT_EQ(encoded("hello  world"), (Tokens{259, 220, 264}));
    EXPECT_EQ(encoded("!!!"), (Tokens{267, 0}));
    EXPECT_EQ(encoded("it's"), (Tokens{72, 83, 6, 82}));
    EXPECT_EQ(encoded("a1 2!"), (Tokens{64, 16, 220, 17, 0}));
    EXPECT_EQ(encoded("é\n"), (Tokens{127, 102, 198}));
    EXPECT_EQ(encoded(std::string(1, '\0') + "\xff"), (Tokens{188, 187}));
    EXPECT_EQ(encoded("<|endoftext|>").size(), 13u);
    EXPECT_EQ(tokeniser.bytes(268), "<|endoftext|>");
    EXPECT_EQ(tokeniser.bytes(264), " world");
    EXPECT_EQ(tokeniser.bytes(198), "\n");
}

// The definition: of all neighbours those of the earliest merge are merged, from the left, until none is left.
Tokens plain(const std::vector<std::pair<std::string, std::string>>& list, Tokeniser& tokeniser, const std::string& word) {
    std::vector<std::string> parts;
    for (const char byte : word) parts.emplace_back(1, byte);
    for (;;) {
        size_t best = list.size();
        for (size_t i = 0; i + 1 < parts.size(); ++i)
            best = std::min(best, static_cast<size_t>(std::ranges::find(list, std::pair(parts[i], parts[i + 1])) - list.begin()));
        if (best == list.size()) break;
        std::vector<std::string> merged;
        for (size_t i = 0; i < parts.size(); ++i) {
            const bool here = i + 1 < parts.size() && std::pair(parts[i], parts[i + 1]) == list[best];
            merged.push_back(here ? parts[i] + parts[i + 1] : parts[i]);
            i += here;
        }
        parts = std::move(merged);
    }
    Tokens tokens;
    for (const std::string& part : parts)
        for (uint32_t token = 0; token < tokeniser.vocabulary(); ++token)
            if (tokeniser.bytes(token) == part) {
                tokens.push_back(token);
                break;
            }
    return tokens;
}

TEST_F(Merges, RandomListsAreAppliedByTheDefinition) {
    std::mt19937 random(5);
    for (int round = 0; round < 30; ++round) {
        std::vector<std::string> parts = {"a", "b", "c"};
        std::vector<std::pair<std::string, std::string>> list;
        std::string file;
        while (list.size() < 25) {
            const std::pair pair(parts[random() % parts.size()], parts[random() % parts.size()]);
            if (std::ranges::find(list, pair) != list.end() || pair.first.size() + pair.second.size() > 12) continue;
            list.push_back(pair);
            file += pair.first + " " + pair.second + "\n";
            if (std::ranges::find(parts, pair.first + pair.second) == parts.end()) parts.push_back(pair.first + pair.second);
        }
        write_file(folder.file("merges.txt"), file);
        ASSERT_TRUE(Tokeniser::open(folder.file("merges.txt"), &tokeniser).ok());
        for (int word = 0; word < 40; ++word) {
            std::string text;
            for (size_t i = random() % 30; i > 0; --i) text += static_cast<char>('a' + random() % 3);
            EXPECT_EQ(encoded(text), plain(list, tokeniser, text)) << text << "\n" << file;
        }
    }
}

TEST_F(Merges, AnyBytesComeBack) {
    std::mt19937 random(7);
    for (int round = 0; round < 200; ++round) {
        std::string text;
        for (size_t i = random() % 60; i > 0; --i)
            text += random() % 3 ? static_cast<char>(random() % 256) : "hello world the !!"[random() % 18];
        EXPECT_EQ(decoded(encoded(text)), text);
    }
    // A long word takes n log n, not n^2.
    std::string longest(1 << 20, 'l');
    EXPECT_EQ(encoded(longest).size(), longest.size() / 2);
}

/// vocab.json with these tokens before GPT-2's.
std::string json_of(const std::vector<std::string>& first) {
    std::vector<std::string> names = first;
    for (uint32_t code = 33; code < 256; ++code)
        if (code <= 126 || (code >= 161 && code != 173))
            names.push_back(code == '"' || code == '\\' ? fmt::format("\\{}", static_cast<char>(code)) : fmt::format("\\u{:04x}", code));
    for (uint32_t code = 256; code < 324; ++code) names.push_back(fmt::format("\\u{:04x}", code));
    for (const char* each : {"he", "ll", "hell", "hello", "Ġw", "or", "Ġwor", "ld", "Ġworld", "Ġt", "Ġthe", "!!"}) names.emplace_back(each);
    std::string text = "{";
    for (size_t i = 0; i < names.size(); ++i) text += fmt::format("{}\"{}\": {}", i ? ", " : "", names[i], i);
    return text + "}";
}

TEST_F(Merges, NumbersOfAnotherVocabulary) {
    const std::string gpt2 = json_of({});
    write_file(folder.file("vocab.json"), gpt2.substr(0, gpt2.size() - 1) + ", \"<|endoftext|>\": 268}");
    Tokeniser same;
    ASSERT_TRUE(Tokeniser::open(folder.path, &same).ok());
    EXPECT_EQ(same.text(), tokeniser.text());
    write_file(folder.file("vocab.json"), json_of({"<s>", "<pad>"}));
    Tokeniser other;
    const Status status = Tokeniser::open(folder.file("vocab.json"), &other);
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_EQ(other.vocabulary(), 270u);
    Tokens tokens;
    other.encode("hello world!", &tokens);
    EXPECT_EQ(tokens, (Tokens{261, 266, 2}));
    EXPECT_EQ(other.bytes(1), "<pad>");
    EXPECT_EQ(other.bytes(266), " world");
    // What is stored is all that it needs.
    Tokeniser again;
    ASSERT_TRUE(Tokeniser::parse(other.text(), "again", &again).ok());
    EXPECT_EQ(again.text(), other.text());
    tokens.clear();
    again.encode("hello world!", &tokens);
    EXPECT_EQ(tokens, (Tokens{261, 266, 2}));
    EXPECT_TRUE(Tokeniser::is_text(other.text()));
    EXPECT_FALSE(Tokeniser::is_text("#abc"));
}

TEST_F(Merges, FilesThatMakeNoSenseAreNamed) {
    const std::string path = folder.file("merges.txt");
    const auto refused = [&](const std::string& text, std::initializer_list<std::string> parts) {
        write_file(path, text);
        expect_error(Tokeniser::open(path, &tokeniser), parts);
    };
    refused("h e\nhe\n", {path + ": line 2: not two tokens with a space between"});
    refused("h e\nhe l l\n", {path + ": line 2: not two tokens"});
    refused("h e\nhell o\n", {path, "merge 2 is of \"hell\", which no merge before makes"});
    refused("h e\nl l\nh e\n", {path, "merge 3, \"h e\", is there twice"});
    refused("{\"a\": 0}", {path, "merge 1 is of \"{\"a\":\", which no merge before makes"});
    write_file(path, merges);
    const auto numbers = [&](const std::string& text, std::initializer_list<std::string> parts) {
        write_file(folder.file("vocab.json"), text);
        expect_error(Tokeniser::open(folder.path, &tokeniser), parts);
    };
    numbers("[1, 2]", {"vocab.json: no list of tokens with their numbers"});
    numbers("{\"a\": 1}", {"vocab.json: token \"a\" has the number 1: each of the 1 tokens has another one, from 0 on"});
    numbers("{\"a\": 0, \"b\": 0}", {"vocab.json: token \"b\" has the number 0"});
    numbers("{\"a\": -1, \"b\": 0}", {"vocab.json: token \"a\" has the number -1"});
    numbers("{\"a\": 0}", {"vocab.json: the byte 0 is no token", "the vocabulary does not fit the merges"});
    std::string without = json_of({});
    without = without.substr(0, without.rfind(',')) + "}";
    numbers(without, {"vocab.json: \"!!\", which merge 12 makes, has no number: the vocabulary does not fit the merges"});
    std::filesystem::remove(path);
    expect_error(Tokeniser::open(folder.path, &tokeniser), {"merges.txt (or vocab.bpe) is missing there"});
    expect_error(Tokeniser::open(folder.file("none"), &tokeniser), {folder.file("none")});
    EXPECT_FALSE(Tokeniser::parse("abc", "x", &tokeniser).ok());
}

class ImportMerges : public Merges {
protected:
    ImportResult result;
    std::string text;
    void SetUp() override {
        Merges::SetUp();
        for (int i = 0; i < 60'000; ++i) text += fmt::format("hello world {} é!!\n", i % 97);
        write_file(folder.file("a.txt"), text);
    }
    Status import(const std::string& kind, const std::string& from, double test = 0) {
        ImportConfig config{.kind = kind, .from = folder.file(from), .out = folder.file("out"), .force = true, .test = test};
        config.vocabulary_file = folder.file("merges.txt");
        return data_import(config, &result);
    }
    Tokens tokens(const std::string& name) {
        std::unique_ptr<DataSet> data;
        EXPECT_TRUE(data_open(folder.file("out/" + name), &data, {.look = true}).ok());
        EXPECT_TRUE(data_verify(*data).ok());
        EXPECT_EQ(data->info().vocabulary, vocabulary);
        EXPECT_EQ(data->info().alphabet, tokeniser.text());
        std::vector<uint64_t> indices(data->info().count);
        for (size_t i = 0; i < indices.size(); ++i) indices[i] = i;
        std::vector<uint16_t> all(indices.size());
        std::vector<int32_t> labels(indices.size());
        EXPECT_TRUE(data->read(indices, reinterpret_cast<uint8_t*>(all.data()), labels.data()).ok());
        return {all.begin(), all.end()};
    }
};

TEST_F(ImportMerges, ATextIsItsTokens) {
    ASSERT_GT(text.size(), 1u << 20);   // words lie across pieces of the file
    ASSERT_TRUE(import("text", "a.txt").ok());
    EXPECT_EQ(tokens("train.h5"), encoded(text));
    // The end is to test on.
    ASSERT_TRUE(import("text", "a.txt", 0.25).ok());
    Tokens all = tokens("train.h5");
    EXPECT_EQ(result.test, (result.train + result.test) / 4);
    for (const uint32_t token : tokens("test.h5")) all.push_back(token);
    EXPECT_EQ(all, encoded(text));
    // A folder has both.
    std::filesystem::create_directories(folder.file("in"));
    write_file(folder.file("in/train.txt"), "hello world");
    write_file(folder.file("in/val.txt"), "hell");
    ASSERT_TRUE(import("text", "in").ok());
    EXPECT_EQ(tokens("train.h5"), (Tokens{259, 264}));
    EXPECT_EQ(tokens("test.h5"), (Tokens{258}));
}

TEST_F(ImportMerges, TokensOfOtherProgramsWithTheirVocabulary) {
    write_file(folder.file("a.bin"), std::string("\x03\x01\x08\x01", 4));   // 259, 264
    ASSERT_TRUE(import("tokens", "a.bin").ok());
    EXPECT_EQ(tokens("train.h5"), (Tokens{259, 264}));
    write_file(folder.file("a.bin"), std::string("\x03\x01\x0d\x01", 4));   // 269
    expect_error(import("tokens", "a.bin"),
                 {"token 1 is 269, not below --vocabulary", "merges.txt, which has 269: it is not that of these tokens"});
}

TEST_F(ImportMerges, MistakesAreNamed) {
    write_file(folder.file("b.txt"), "hello \xff");
    expect_error(import("text", "b.txt"), {"b.txt: byte 6 is no UTF-8"});
    write_file(folder.file("b.txt"), std::string((2 << 20) + 10, 'a'));
    expect_error(import("text", "b.txt"), {"b.txt: a word of more than 1 MiB before byte", "it is no text"});
    expect_error(import("ridge", ""), {"--vocabulary: ridge is neither text nor tokens: leave it out"});
    ImportConfig config{.kind = "text", .from = folder.file("a.txt"), .out = folder.file("out"), .by = "bytes"};
    config.vocabulary_file = folder.file("merges.txt");
    expect_error(data_import(config, &result), {"--by bytes: the tokens are those of --vocabulary"});
    // A shard whose merges are not those of its tokens.
    ASSERT_TRUE(import("text", "a.txt").ok());
    const std::string path = folder.file("out/train.h5");
    {
        Hdf5Lock lock;
        Hid file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT)), attribute(H5Aopen(file.get(), "vocabulary", H5P_DEFAULT));
        const uint32_t other = 300;
        H5Awrite(attribute.get(), H5T_NATIVE_UINT32, &other);
    }
    Shard shard;
    expect_error(shard_open(path, &shard),
                 {"data set alphabet has 269 tokens, but attribute vocabulary is 300: it is that of another text"});
}

}   // namespace
}   // namespace gradcast
