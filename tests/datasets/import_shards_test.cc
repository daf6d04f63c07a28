// Imports whose halves are larger than a shard: the names, the samples, and what is there after an error.
#include <numeric>

#include "datasets/import.h"
#include "tests/datasets/support.h"

namespace gradcast {
namespace {

/// Ridge regression: samples of 500 bytes, 1000 of them to test on.
class ImportShards : public ::testing::Test {
protected:
    static constexpr uint64_t sample_bytes = 500;
    TestFolder folder;
    std::string out = folder.file("out");
    ImportResult result;
    ImportConfig config{.kind = "ridge", .from = "", .out = out, .samples = 1050};
    Status import(uint64_t shard_bytes, bool force = false) {
        config.shard_bytes = shard_bytes;
        config.force = force;
        return data_import(config, &result);
    }
    std::vector<std::string> names() const {
        std::vector<std::string> found;
        for (const auto& entry : std::filesystem::directory_iterator(out)) found.push_back(entry.path().filename());
        std::sort(found.begin(), found.end());
        return found;
    }
    struct All {
        DataInfo info;
        std::vector<uint64_t> counts;
        std::vector<uint8_t> images;
        std::vector<int32_t> labels;
    };
    static All all(const std::string& pattern) {
        All found;
        std::unique_ptr<DataSet> data;
        const Status status = data_open(pattern, &data);
        EXPECT_TRUE(status.ok()) << status.what;
        if (!status.ok()) return found;
        EXPECT_TRUE(data_verify(*data).ok());
        found.info = data->info();
        for (const Shard& shard : data->shards()) found.counts.push_back(shard.info.count);
        std::vector<uint64_t> indices(found.info.count);
        std::iota(indices.begin(), indices.end(), 0);
        found.images.resize(indices.size() * data->sample_bytes());
        found.labels.resize(indices.size());
        EXPECT_TRUE(data->read(indices, found.images.data(), found.labels.data()).ok());
        return found;
    }
};

TEST_F(ImportShards, AreTheSameDataSet) {
    ASSERT_TRUE(import(256 << 20).ok());
    EXPECT_EQ(names(), (std::vector<std::string>{"test.h5", "train.h5"}));
    const All whole = all(out + "/train*.h5"), test = all(out + "/test*.h5");
    const std::string before = read_file(out + "/train.h5");
    for (const uint32_t compress : {0u, 1u}) {
        config.out = folder.file(fmt::format("several-{}", compress));
        config.compress = compress;
        ASSERT_TRUE(import(200 * sample_bytes + 499).ok());
        std::vector<std::string> paths;
        for (int i = 0; i < 6; ++i) paths.push_back(fmt::format("{}/train-{:05}.h5", config.out, i));
        for (int i = 0; i < 5; ++i) paths.push_back(fmt::format("{}/test-{:05}.h5", config.out, i));
        EXPECT_EQ(result.paths, paths);
        EXPECT_EQ(result.train, 1050u);
        EXPECT_EQ(result.test, 1000u);
        const All several = all(config.out + "/train*.h5");
        EXPECT_EQ(several.counts, std::vector<uint64_t>(6, 175));
        EXPECT_EQ(several.images, whole.images);
        EXPECT_EQ(several.labels, whole.labels);
        EXPECT_EQ(several.info.mean, whole.info.mean);
        EXPECT_EQ(several.info.std, whole.info.std);
        EXPECT_EQ(several.info.classes, whole.info.classes);
        EXPECT_EQ(several.info.target_scale, whole.info.target_scale);
        EXPECT_EQ(all(config.out + "/test*.h5").images, test.images);
    }
    // A half that fits is one file.
    config.out = out;
    config.compress = 0;
    ASSERT_TRUE(import(1050 * sample_bytes, true).ok());
    EXPECT_EQ(names(), (std::vector<std::string>{"test.h5", "train.h5"}));
    EXPECT_EQ(read_file(out + "/train.h5"), before);
    ASSERT_TRUE(import(1050 * sample_bytes - 1, true).ok());
    EXPECT_EQ(names(), (std::vector<std::string>{"test.h5", "train-00000.h5", "train-00001.h5"}));
    EXPECT_EQ(all(out + "/train*.h5").counts, std::vector<uint64_t>(2, 525));
}

// Mean and deviation are those of the whole training set.
TEST_F(ImportShards, HaveMeanAndDeviationOfAll) {
    for (const char* name : {"in/train/ant", "in/test/ant"}) std::filesystem::create_directories(folder.file(name));
    std::string npy = "\x93NUMPY\x01", head = "{'descr': '|u1', 'fortran_order': False, 'shape': (90, 8, 8), }";
    npy += std::string(1, '\0') + std::string(1, static_cast<char>(head.size())) + std::string(1, '\0') + head;
    std::string labels = "\x93NUMPY\x01", labels_head = "{'descr': '|u1', 'fortran_order': False, 'shape': (90,), }";
    labels += std::string(1, '\0') + std::string(1, static_cast<char>(labels_head.size())) + std::string(1, '\0') + labels_head;
    for (int i = 0; i < 90 * 64; ++i) npy += static_cast<char>(pixel_of(static_cast<uint64_t>(i / 64), static_cast<uint64_t>(i % 64)));
    labels += std::string(90, '\1');
    write_file(folder.file("in/images.npy"), npy);
    write_file(folder.file("in/labels.npy"), labels);
    config = {.kind = "npy", .from = folder.file("in"), .out = out};
    ASSERT_TRUE(import(256 << 20).ok());
    const All whole = all(out + "/train*.h5");
    ASSERT_TRUE(import(640, true).ok());
    const All several = all(out + "/train*.h5");
    EXPECT_EQ(several.counts, std::vector<uint64_t>(9, 10));
    EXPECT_EQ(several.info.mean, whole.info.mean);
    EXPECT_EQ(several.info.std, whole.info.std);
    ASSERT_TRUE(import(1, true).ok());   // at least a sample each
    EXPECT_EQ(all(out + "/train*.h5").counts, std::vector<uint64_t>(90, 1));
}

// No shard of a text is so short that a window does not fit into it.
TEST_F(ImportShards, OfATextAreAlike) {
    std::string text;
    for (uint64_t i = 0; i < 1001; ++i) text += static_cast<char>('a' + pixel_of(1, i) % 26);
    write_file(folder.file("train.txt"), text);
    config = {.kind = "text", .from = folder.file("train.txt"), .out = out, .by = "bytes"};
    ASSERT_TRUE(import(1000).ok());   // 500 tokens of 2 bytes
    std::string found;
    std::vector<uint64_t> counts;
    for (const std::string& path : result.paths) {
        std::unique_ptr<DataSet> data;
        const Status status = data_open(path, &data, {.look = true});
        ASSERT_TRUE(status.ok()) << status.what;
        EXPECT_TRUE(data_verify(*data).ok());
        EXPECT_EQ(data->info().vocabulary, 256u);
        counts.push_back(data->info().count);
        std::vector<uint64_t> indices(counts.back());
        std::iota(indices.begin(), indices.end(), 0);
        std::vector<uint16_t> tokens(indices.size());
        std::vector<int32_t> labels(indices.size());
        ASSERT_TRUE(data->read(indices, reinterpret_cast<uint8_t*>(tokens.data()), labels.data()).ok());
        for (const uint16_t token : tokens) found += static_cast<char>(token);
    }
    EXPECT_EQ(counts, (std::vector<uint64_t>{334, 334, 333}));
    EXPECT_EQ(found, text);
}

TEST_F(ImportShards, ForceReplacesAllOfAnEarlierImport) {
    ASSERT_TRUE(import(100 * sample_bytes).ok());
    EXPECT_EQ(names().size(), 21u);
    std::filesystem::remove(out + "/train-00000.h5");
    expect_error(import(1 << 20), {"out/train-00001.h5 is there already: --force replaces it"});
    for (int i = 0; i < 11; ++i) std::filesystem::remove(fmt::format("{}/train-{:05}.h5", out, i));
    expect_error(import(1 << 20), {"out/test-00000.h5 is there already: --force replaces it"});
    for (const char* mine : {"train-1.h5", "train-00000.h5.old", "training.h5", "test-000001.h5", "mytrain.h5", "train-0000x.h5"})
        write_file(out + "/" + mine, "mine");
    write_file(out + "/train-00077.h5.part", "of an import that was killed");
    ASSERT_TRUE(import(500 * sample_bytes, true).ok());
    std::vector<std::string> expected{"mytrain.h5",     "test-00000.h5",      "test-000001.h5", "test-00001.h5",
                                      "train-00000.h5", "train-00000.h5.old", "train-00001.h5", "train-00002.h5",
                                      "train-0000x.h5", "train-1.h5",         "training.h5"};
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(names(), expected);
    ASSERT_TRUE(import(1 << 20, true).ok());
    EXPECT_TRUE(std::filesystem::exists(out + "/train.h5") && std::filesystem::exists(out + "/test.h5"));
    EXPECT_FALSE(std::filesystem::exists(out + "/train-00000.h5") || std::filesystem::exists(out + "/test-00001.h5"));
    ASSERT_TRUE(import(500 * sample_bytes, true).ok());
    EXPECT_EQ(names(), expected);
    EXPECT_EQ(all(out + "/train-0000[0-9].h5").counts, std::vector<uint64_t>(3, 350));
}

TEST_F(ImportShards, AnErrorLeavesNoHalf) {
    // A shard cannot be written.
    std::filesystem::create_directories(out + "/test-00004.h5.part/x");
    expect_error(import(200 * sample_bytes), {"test-00004.h5.part"});
    EXPECT_EQ(names(), (std::vector<std::string>{"test-00004.h5.part"}));
    // The data set of before stays.
    ASSERT_TRUE(import(1 << 20).ok());
    const std::string before = read_file(out + "/train.h5");
    config.seed = 2;
    expect_error(import(200 * sample_bytes, true), {"test-00004.h5.part"});
    EXPECT_EQ(names(), (std::vector<std::string>{"test-00004.h5.part", "test.h5", "train.h5"}));
    EXPECT_EQ(read_file(out + "/train.h5"), before);
    // A shard cannot get its name.
    std::filesystem::remove_all(out);
    std::filesystem::create_directories(out + "/test-00003.h5/x");
    expect_error(import(200 * sample_bytes, true), {"cannot write ", "test-00003.h5"});
    EXPECT_EQ(names(), (std::vector<std::string>{"test-00003.h5"}));
}

TEST_F(ImportShards, TooManyAreRefused) {
    config.samples = 100'001;
    expect_error(import(1), {"100001 shards of 1 samples are more than 100000: take a larger --shard-size"});
    EXPECT_FALSE(std::filesystem::exists(out));
}

// Pieces in which a shard is written, its digest chunks and its stored chunks have ends of their own.
TEST_F(ImportShards, AnySizeOfSampleIsWrittenWhole) {
    for (auto [count, side] : {std::pair{1u, 1u}, {5000u, 33u}, {7u, 1500u}, {3u, 2200u}, {1200u, 64u}}) {
        const DataInfo info = info_of(count, 1, side, side, 300);
        for (const uint32_t compress : {0u, 1u}) {
            const std::string path = folder.file("x.h5");
            ASSERT_TRUE(write_shard(path, info, 0, compress).ok());
            const All found = all(path);
            ASSERT_EQ(found.info.count, count);
            for (uint64_t n = 0; n < count; n += count / 3 + 1)
                expect_sample(n, &found.images[n * side * side], uint64_t{side} * side, found.labels[n], 300);
        }
    }
}

TEST_F(ImportShards, AReadThatFailsIsTold) {
    const DataInfo info = info_of(10, 1, 4, 4, 10);
    const std::vector<int32_t> labels(10);
    const std::string path = folder.file("x.h5");
    expect_error(shard_write_part(
                     path, info, [](uint64_t, uint64_t, uint8_t*) { return fail(Code::node_io, "no more"); }, labels.data()),
                 {"no more"});
    EXPECT_TRUE(folder.names().empty());
}

}   // namespace
}   // namespace gradcast
