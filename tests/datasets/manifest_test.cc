#include <numeric>

#include "tests/datasets/support.h"

namespace gradcast {
namespace {

class ManifestTest : public ::testing::Test {
protected:
    TestFolder folder;
    std::string path = folder.file("all.toml");
    std::unique_ptr<DataSet> data;
    void SetUp() override {
        std::filesystem::create_directory(folder.file("sub"));
        ASSERT_TRUE(write_shard(folder.file("sub/b.h5"), info_of(20, 1, 6, 6, 10), 0).ok());
        ASSERT_TRUE(write_shard(folder.file("a1.h5"), info_of(31, 1, 6, 6, 10), 20, 6).ok());
        ASSERT_TRUE(write_shard(folder.file("a2.h5"), info_of(5, 1, 6, 6, 10), 51).ok());
    }
    Status open(std::string_view text) {
        write_file(path, text);
        return data_open(path, &data);
    }
};

TEST_F(ManifestTest, ShardsAreOneDataSetInItsOrder) {
    Status status = open("shards = [\"sub/b.h5\", { path = \"a1.h5\", samples = 31 }, \"" + folder.file("a2.h5") + "\"]");
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_EQ(data->info().count, 56u);
    std::vector<uint64_t> indices(56);
    std::iota(indices.begin(), indices.end(), 0);
    std::vector<uint8_t> images(56 * 36);
    std::vector<int32_t> labels(56);
    ASSERT_TRUE(data->read(indices, images.data(), labels.data()).ok());
    for (uint64_t i = 0; i < 56; ++i) expect_sample(i, &images[i * 36], 36, labels[i], 10);

    std::string digest = data->digest();
    status = open("digest = \"" + digest + "\"\nshards = [\"sub/b.h5\", \"a*.h5\"]");
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_EQ(data->digest(), digest);
    EXPECT_TRUE(data_verify(*data).ok());
    // The digest is that of the shards, with DataOptions::classes too, and that of a pattern with the same matches.
    EXPECT_TRUE(data_open(path, &data, {.classes = 3}).ok());
    std::unique_ptr<DataSet> same;
    ASSERT_TRUE(open("shards = [\"a1.h5\", \"a2.h5\"]").ok());
    ASSERT_TRUE(data_open(folder.file("a?.h5"), &same).ok());
    EXPECT_EQ(data->digest(), same->digest());
    expect_error(open("digest = \"" + digest + "\"\nshards = [\"a*.h5\", \"sub/b.h5\"]"),
                 {"all.toml", "instead of " + digest, "not those"});
}

// Only what stands in the manifest is a pattern.
TEST_F(ManifestTest, ItsFolderIsNoPattern) {
    for (const char* name : {"p*q", "exp [lr=0.1]", "e\\f", "pOTHERq"}) {
        std::filesystem::create_directory(folder.file(name));
        ASSERT_TRUE(write_shard(folder.file(name + std::string("/tr1.h5")), info_of(7, 1, 6, 6, 10)).ok());
        write_file(folder.file(name + std::string("/all.toml")), "shards = [\"tr*.h5\"]");
        Status status = data_open(folder.file(name + std::string("/all.toml")), &data);
        ASSERT_TRUE(status.ok()) << status.what;
        EXPECT_EQ(data->info().count, 7u) << name;
        EXPECT_EQ(data->shards()[0].path, folder.file(name + std::string("/tr1.h5")));
        const size_t literal = folder.file(name).size() + 1;
        status = data_open(folder.file(name) + "/t?1.h5", &data, {.literal = literal});
        EXPECT_TRUE(status.ok()) << status.what;
        EXPECT_EQ(data->info().count, 7u) << name;
    }
    // A folder that is not there matches nothing.
    std::filesystem::remove_all(folder.file("p*q"));
    expect_error(data_open(folder.file("p*q") + "/tr*.h5", &data, {.literal = folder.file("p*q").size() + 1}), {"no file matches"});
    // A path without wildcards in such a folder is shown.
    write_file(folder.file("exp [lr=0.1]/tr1.h5"), "no shard");
    expect_error(
        data_open(folder.file("exp [lr=0.1]/tr1.h5"), &data, {.literal = folder.file("exp [lr=0.1]/").size(), .confidential = true}),
        {"exp [lr=0.1]/tr1.h5: not a gradcast shard"});
}

TEST_F(ManifestTest, MistakesAreNamed) {
    expect_error(open("shards = [\n\"a1.h5\n\"]"), {"all.toml: line 2"});
    std::string parts;
    for (int i = 0; i < 500'000; ++i) parts += "a.";
    expect_error(open("\n" + parts + "a = 1"), {"all.toml: line 2", "more than 16 deep"});
    expect_error(open("shards = []"), {"all.toml", "shards is missing"});
    expect_error(open("shards = \"a1.h5\""), {"all.toml", "shards is missing", "a list"});
    expect_error(open("shard = [\"a1.h5\"]"), {"all.toml: line 1", "unknown key \"shard\"", "did you mean shards?"});
    expect_error(open("shards = [\n{ path = \"a1.h5\", sample = 3 }]"), {"all.toml: line 2", "did you mean samples?"});
    expect_error(open("shards = [\n{ samples = 3 }]"), {"all.toml: line 2", "a shard is"});
    expect_error(open("shards = [7]"), {"all.toml: line 1", "a shard is"});
    expect_error(open("shards = [{ path = 7 }]"), {"all.toml: line 1", "a shard is"});
    for (const char* wrong : {"0", "-1", "\"31\"", "31.0"})
        expect_error(open(fmt::format("shards = [{{ path = \"a1.h5\", samples = {} }}]", wrong)), {"all.toml: line 1", "samples"});
    expect_error(open("shards = [\"a1.h5\",\n\"sub/c*.h5\"]"), {"all.toml: line 2", "sub/c*.h5"});
    expect_error(open("shards = [\"a1.h5\",\n\"a*.h5\"]"), {"all.toml: line 2", "a1.h5 is there twice", "line 1"});
    expect_error(open("shards = [\n{ path = \"a*.h5\", samples = 36 }]"), {"all.toml: line 2", "2 files match"});
    expect_error(open("shards = [\n{ path = \"a1.h5\", samples = 30 }]"), {"all.toml: line 2", "a1.h5 has 31 samples instead of 30"});
    expect_error(open("digest = \"ab\"\nshards = [\"a1.h5\"]"), {"all.toml: line 1", "64 hex digits"});
    expect_error(open("shards = [\"all.toml\"]"), {"all.toml", "not an HDF5 file"});
    expect_error(data_open(folder.file("none.toml"), &data), {"none.toml", "No such file"});
    ASSERT_TRUE(write_shard(folder.file("c.h5"), info_of(20, 1, 6, 6, 11)).ok());
    expect_error(open("shards = [\"a1.h5\", \"c.h5\"]"), {"c.h5", "a1.h5", "alike"});
    ASSERT_TRUE(write_shard(folder.file("c.h5"), info_of(20, 1, 6, 7, 10)).ok());
    expect_error(open("shards = [\"a1.h5\", \"c.h5\"]"), {"c.h5", "a1.h5", "1 x 6 x 7", "alike"});
}

}   // namespace
}   // namespace gradcast
