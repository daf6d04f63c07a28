// import text and import tokens, and samples that are windows of a text.
#include <numeric>
#include <set>

#include "datasets/import.h"
#include "tests/datasets/support.h"

namespace gradcast {
namespace {

class ImportText : public ::testing::Test {
protected:
    TestFolder folder;
    std::string from = folder.file("t.txt"), out = folder.file("out");
    ImportConfig config{.kind = "text", .from = from, .out = out, .force = true};
    ImportResult result;
    Status import(std::string_view text) {
        write_file(from, text);
        return data_import(config, &result);
    }
    std::unique_ptr<DataSet> open(const std::string& name, uint32_t context, bool look = false) {
        std::unique_ptr<DataSet> data;
        const Status status = data_open(out + "/" + name, &data, {.context = context, .look = look});
        EXPECT_TRUE(status.ok()) << status.what;
        const Status verified = data_verify(*data);
        EXPECT_TRUE(verified.ok()) << verified.what;
        return data;
    }
    static std::vector<uint32_t> tokens(const DataSet& data, uint64_t index) {
        const uint32_t width = element_bytes(data.info().element);
        std::vector<uint8_t> bytes(data.sample_bytes());
        int32_t label = 7;
        EXPECT_TRUE(data.read(std::span(&index, 1), bytes.data(), &label).ok());
        EXPECT_EQ(label, 0);
        std::vector<uint32_t> tokens(bytes.size() / width);
        for (size_t i = 0; i < tokens.size(); ++i) std::memcpy(&tokens[i], &bytes[i * width], width);
        return tokens;
    }
    std::vector<uint32_t> all(const std::string& name) {
        const std::unique_ptr<DataSet> data = open(name, 0, true);
        std::vector<uint32_t> found;
        for (uint64_t i = 0; i < data->info().count; ++i) found.push_back(tokens(*data, i)[0]);
        return found;
    }
    static std::string little(const std::vector<uint32_t>& values, size_t width) {
        std::string bytes;
        for (const uint32_t value : values)
            for (size_t k = 0; k < width; ++k) bytes += static_cast<char>(value >> 8 * k);
        return bytes;
    }
};

TEST_F(ImportText, CharactersAreNumberedInTheirOrder) {
    ASSERT_TRUE(import("b\u00e9\u20aca\U0001F600b").ok());
    const std::unique_ptr<DataSet> data = open("train.h5", 0, true);
    EXPECT_EQ(data->info().vocabulary, 5u);
    EXPECT_EQ(data->shards()[0].info.alphabet, "ab\u00e9\u20ac\U0001F600");
    EXPECT_EQ(all("train.h5"), (std::vector<uint32_t>{1, 2, 3, 0, 4, 1}));
}

TEST_F(ImportText, BytesAndItsEndIsTestedOn) {
    config.by = "bytes";
    config.test = 0.25;
    ASSERT_TRUE(import("\xFFzyxabcd").ok());
    EXPECT_EQ(all("train.h5"), (std::vector<uint32_t>{255, 'z', 'y', 'x', 'a', 'b'}));
    EXPECT_EQ(all("test.h5"), (std::vector<uint32_t>{'c', 'd'}));
    EXPECT_EQ(open("test.h5", 1)->info().vocabulary, 256u);
}

TEST_F(ImportText, TokensOfNanoGptAndLlmC) {
    config.kind = "tokens";
    ASSERT_TRUE(import(little({5, 50256, 7}, 2)).ok());
    EXPECT_EQ(all("train.h5"), (std::vector<uint32_t>{5, 50256, 7}));
    EXPECT_EQ(open("train.h5", 1)->info().vocabulary, 50257u);
    config.wide_tokens = true;
    config.vocabulary = 200000;
    ASSERT_TRUE(import(little({5, 100000, 7, 1}, 4)).ok());
    EXPECT_EQ(all("train.h5"), (std::vector<uint32_t>{5, 100000, 7, 1}));
    EXPECT_EQ(open("train.h5", 1)->info().element, Element::u32);
    config.wide_tokens = false;
    config.vocabulary = 0;
    for (const auto& [magic, version, width] : {std::tuple{20240520u, 1u, 2u}, {20240801u, 7u, 4u}}) {
        std::vector<uint32_t> header(256);
        header[0] = magic, header[1] = version, header[2] = 3;
        ASSERT_TRUE(import(little(header, 4) + little({9, 8, 60000}, width)).ok());
        EXPECT_EQ(all("train.h5"), (std::vector<uint32_t>{9, 8, 60000}));
    }
}

TEST_F(ImportText, Halves) {
    std::filesystem::create_directory(folder.file("halves"));
    write_file(folder.file("halves/train.txt"), "abab");
    write_file(folder.file("halves/val.txt"), "bac");
    config.from = folder.file("halves");
    ASSERT_TRUE(data_import(config, &result).ok());
    EXPECT_EQ(all("test.h5"), (std::vector<uint32_t>{1, 0, 2}));
    EXPECT_EQ(open("train.h5", 1)->info().vocabulary, 3u);   // of both
    EXPECT_EQ(result.train, 4u);
    config.test = 0.5;
    expect_error(data_import(config, &result), {"--test: ", "val.txt is there to test on"});
}

// Windows of an epoch begin at one offset below the context, do not overlap but for a token, and stay within their shard.
TEST_F(ImportText, WindowsOfAnEpoch) {
    config.kind = "tokens";
    config.vocabulary = 1000;
    std::vector<uint32_t> first(103), second(57);
    std::iota(first.begin(), first.end(), 0);
    std::iota(second.begin(), second.end(), 500);
    for (const uint32_t compress : {0u, 6u}) {
        config.compress = compress;
        config.out = folder.file("a");
        ASSERT_TRUE(import(little(first, 2)).ok());
        config.out = folder.file("b");
        ASSERT_TRUE(import(little(second, 2)).ok());
        out = folder.path;
        constexpr uint32_t context = 10;
        const std::unique_ptr<DataSet> data = open("?/train.h5", context);
        ASSERT_EQ(data->info().count, 9u + 4u);
        ASSERT_EQ(data->info().W, context + 1);
        EXPECT_EQ(data->chunked(), compress > 0);
        std::set<uint64_t> offsets;
        for (uint64_t epoch = 0; epoch < 60; ++epoch) {
            uint64_t offset = 0;
            for (uint64_t index = 0; index < data->info().count; ++index) {
                const std::vector<uint32_t> window = tokens(*data, data->in_epoch(index, 3, epoch));
                const uint64_t base = index < 9 ? index * context : 500 + (index - 9) * context;
                if (index == 0) offset = window[0];
                ASSERT_LT(offset, context);
                for (uint32_t i = 0; i <= context; ++i) ASSERT_EQ(window[i], base + offset + i) << epoch << " " << index;
            }
            offsets.insert(offset);
        }
        EXPECT_EQ(offsets.size(), context);        // each begins somewhere
        EXPECT_EQ(tokens(*data, 1)[0], context);   // of an evaluation: no offset
        EXPECT_NE(data->in_epoch(0, 3, 1), data->in_epoch(0, 4, 1) + data->in_epoch(0, 3, 2));
    }
}

// The loader gives what read() gives, by io_uring and by pread.
TEST_F(ImportText, TheLoaderMovesWindowsByEpoch) {
    config.kind = "tokens";
    std::vector<uint32_t> values(211);
    std::iota(values.begin(), values.end(), 0);
    ASSERT_TRUE(import(little(values, 2)).ok());
    const std::unique_ptr<DataSet> data = open("train.h5", 10);
    const Sampler sampler(data->info().count, 5, 6, 2);
    for (const bool uring : {true, false}) {
        Arena arena;
        std::unique_ptr<Loader> loader;
        ASSERT_TRUE(loader_plan(*data, sampler, {.ahead = 3, .uring = uring}, arena, Log(), &loader).ok());
        ASSERT_TRUE(arena.seal().ok());
        ASSERT_TRUE(loader_start(*loader).ok());
        loader->plan(0, {0, 1});
        std::set<uint32_t> begins;
        for (StepId step = 0; step < 30; ++step)
            for (uint32_t block = 0; block < 2; ++block) {
                Samples samples;
                ASSERT_TRUE(loader->get({step, block}, 5'000'000, &samples).ok());
                ASSERT_EQ(samples.W, 11u);
                ASSERT_EQ(samples.element, Element::u16);
                std::vector<uint64_t> indices(samples.count);
                sampler.block({step, block}, indices);
                for (uint32_t i = 0; i < samples.count; ++i) {
                    const auto window = tokens(*data, data->in_epoch(indices[i], 5, sampler.epoch_of({step, block}, i)));
                    for (uint32_t k = 0; k < 11; ++k) {
                        uint16_t token;
                        std::memcpy(&token, samples.images + (i * 11 + k) * 2, 2);
                        ASSERT_EQ(token, window[k]);
                    }
                    begins.insert(window[0] % 10);
                }
                loader->done({step, block});
            }
        EXPECT_GT(begins.size(), 3u);
    }
}

TEST_F(ImportText, ErrorsNameFilePlaceAndWayOut) {
    expect_error(import("ab\xC3("), {"t.txt: byte 3 is no UTF-8: convert the file, or take it byte by byte (--by bytes)"});
    expect_error(import("ab\xE2\x82"), {"t.txt: byte 4 is no UTF-8"});
    expect_error(import("\xED\xA0\x80"), {"byte 2 is no UTF-8"});   // half of a pair
    expect_error(import(std::string("ab\0c", 4)), {"t.txt: byte 2 is NUL, which no alphabet has: take the text byte by byte (--by bytes)"});
    expect_error(import(""), {"t.txt: empty"});
    config.kind = "tokens";
    expect_error(import("abc"), {"t.txt: truncated: 3 bytes are not whole tokens of 2 bytes (--wide: they have 4)"});
    config.vocabulary = 10;
    expect_error(import(little({1, 2, 10}, 2)), {"t.txt: token 2 is 10, not below --vocabulary 10: give a larger --vocabulary"});
    config.vocabulary = 0;
    std::vector<uint32_t> header(256);
    header[0] = 20240520, header[1] = 2;
    expect_error(import(little(header, 4)), {"a header of llm.c of version 2, of which only 1 is known"});
    for (const auto& [magic, version, width] : {std::tuple{20240520u, 1u, 2u}, {20240801u, 7u, 4u}}) {
        header[0] = magic, header[1] = version, header[2] = 3;
        const std::string all = little(header, 4) + little({1, 2, 3}, width);
        ASSERT_TRUE(import(all).ok());
        expect_error(import(all.substr(0, all.size() - width)),
                     {"t.txt: truncated: its header says 3 tokens, it has 2: fetch or write the file again"});
        expect_error(import(all.substr(0, all.size() - 1)), {"t.txt: truncated: its header says 3 tokens, it has 2"});
        expect_error(import(all + std::string(width, '\1')),
                     {"t.txt: its header says 3 tokens, but it has 4: fetch or write the file again"});
        expect_error(import(all + '\1'),
                     {fmt::format("t.txt: truncated: {} bytes are not whole tokens of {} bytes", all.size() + 1, width)});
        expect_error(import(all.substr(0, 1024)), {"t.txt: truncated: its header says 3 tokens, it has 0"});
        for (const size_t bytes : {12, 1023})
            expect_error(import(all.substr(0, bytes)),
                         {fmt::format("t.txt: truncated: its header of llm.c ends after {} of 1024 bytes: fetch or write", bytes)});
    }
    config.from = folder.path;
    expect_error(data_import(config, &result), {"/train.bin[.gz, .xz] is missing"});
    config.from = from;
    ASSERT_TRUE(import(little({1, 2, 3, 4, 5, 6, 7}, 2)).ok());
    std::unique_ptr<DataSet> data;
    expect_error(data_open(out + "/train.h5", &data), {"train.h5 is a text: say how many tokens a sample has ([data] context)"});
    expect_error(data_open(out + "/train.h5", &data, {.context = 4}), {"train.h5 has 7 tokens, too few for a context of 4"});
    expect_error(data_open(out + "/train.h5", &data, {.classes = 2, .context = 2}), {"classes = 2: ", "is a text, which has none"});
    ASSERT_TRUE(write_shard(folder.file("images.h5"), info_of(4, 1, 2, 2, 3)).ok());
    expect_error(data_open(folder.file("images.h5"), &data, {.context = 4}),
                 {"context = 4: ", "is no text, but has samples: leave it out"});
}

// A token that is not below the vocabulary is found when all is read.
TEST_F(ImportText, AShardWithATokenBeyondItsVocabulary) {
    const std::vector<uint16_t> values{1, 2, 9, 3};
    DataInfo info{.count = 4, .C = 1, .H = 1, .W = 1, .classes = 1, .mean = {0}, .std = {1}, .source = "a test"};
    info.element = Element::u16;
    info.vocabulary = 9;
    const std::string path = folder.file("t.h5");
    ASSERT_TRUE(shard_write(path, info, reinterpret_cast<const uint8_t*>(values.data()), static_cast<const std::byte*>(nullptr)).ok());
    std::unique_ptr<DataSet> data;
    ASSERT_TRUE(data_open(path, &data, {.context = 1}).ok());
    expect_error(data_verify(*data), {"t.h5: data set samples, chunk 0 (token 2): 9 is not below the vocabulary of 9"});
}

}   // namespace
}   // namespace gradcast
