// Imports and compressed shards in a control group that leaves less memory than they have bytes.
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <cstdlib>
#include <functional>

#include "datasets/chunks.h"
#include "datasets/import.h"
#include "runtime/core/memory_room.h"
#include "tests/datasets/images.h"
#include "tests/limited_group.h"

namespace gradcast {
namespace {

constexpr uint64_t mib = 1 << 20, memory_limit = 96 * mib, data_bytes = 200 * mib;

struct SlowMemory : testing::Test {
    TestFolder folder;
    MemoryGroup group{memory_limit};
    void SetUp() override {
        if (group.path.empty()) GTEST_SKIP() << "no control group with a memory limit can be made: it needs root and the memory controller";
    }
    /// What `work` returns in a process of the group; -1: it was killed.
    int inside(const std::function<Status()>& work) const {
        return group.inside([&] {
            const Status status = work();
            if (!status.ok()) fmt::print(stderr, "{}\n", status.what);
            return status.ok() ? 0 : status.code == Code::node_memory ? 3 : 4;
        });
    }
};

void idx_write(const std::string& path, std::vector<uint32_t> dims, uint64_t bytes) {
    gzFile file = gzopen(path.c_str(), "wb1");
    std::string head{0, 0, 8, static_cast<char>(dims.size())};
    for (uint32_t dim : dims)
        for (int shift = 24; shift >= 0; shift -= 8) head += static_cast<char>(dim >> shift);
    ASSERT_GT(gzwrite(file, head.data(), static_cast<unsigned>(head.size())), 0);
    const std::vector<char> zeros(mib);
    for (uint64_t remaining = bytes; remaining > 0;) {
        const uint64_t now = std::min<uint64_t>(remaining, zeros.size());
        ASSERT_GT(gzwrite(file, zeros.data(), static_cast<unsigned>(now)), 0);
        remaining -= now;
    }
    gzclose(file);
}

TEST_F(SlowMemory, AnImportOfIdxFilesFits) {
    idx_write(folder.file("train-images-idx3-ubyte.gz"), {800, 512, 512}, data_bytes);
    idx_write(folder.file("train-labels-idx1-ubyte.gz"), {800}, 800);
    EXPECT_EQ(inside([&] {
                  ImportResult result;
                  return data_import({.kind = "idx", .from = folder.path, .out = folder.file("out")}, &result);
              }),
              0);
    Shard shard;
    ASSERT_TRUE(shard_open(folder.file("out/train.h5"), &shard).ok());
    EXPECT_EQ(shard.info.count, 800u);
}

TEST_F(SlowMemory, AnImportOfImagesFitsUnlessOneDoesNot) {
    std::filesystem::create_directories(folder.file("in/ant"));
    png(folder.file("in/ant/0.png"), 1024, 1024, PNG_FORMAT_RGB, std::vector<uint8_t>(3 * mib, 7));
    for (int i = 1; i < 70; ++i)
        std::filesystem::create_hard_link(folder.file("in/ant/0.png"), folder.file(fmt::format("in/ant/{}.png", i)));
    ImportConfig config{.kind = "images", .from = folder.file("in"), .out = folder.file("out"), .force = true, .compress = 1};
    auto import = [&] {
        ImportResult result;
        return data_import(config, &result);
    };
    for (const uint32_t threads : {1u, 2u, 16u}) {
        config.threads = threads;
        EXPECT_EQ(inside(import), 0);
    }
    png(folder.file("in/ant/big.png"), 8000, 8000, PNG_FORMAT_GRAY, std::vector<uint8_t>(64'000'000, 7));
    config.size = 64;
    EXPECT_EQ(inside(import), 3);
}

// JPEGs of mixed sizes, many of which are links to the same ones: what an import holds grows by some bytes a file alone.  GC_PICTURES: how
// many there are, 1600 by default.
TEST_F(SlowMemory, AnImportOfPicturesFits) {
    std::filesystem::create_directories(folder.file("in/ant"));
    const char* const wish = std::getenv("GC_PICTURES");
    constexpr int shapes = 8;
    const int files = wish ? std::atoi(wish) : 1600;
    for (int i = 0; i < files; ++i) {
        const std::string path = folder.file(fmt::format("in/ant/{}.jpg", i));
        const uint32_t H = 60 + 40 * static_cast<uint32_t>(i), W = 400 - 30 * static_cast<uint32_t>(i);
        if (i < shapes) jpeg(path, H, W, JCS_RGB, std::vector<uint8_t>(3 * H * W, static_cast<uint8_t>(i * 9)));
        else std::filesystem::create_hard_link(folder.file(fmt::format("in/ant/{}.jpg", i % shapes)), path);
    }
    jpeg(folder.file("in/ant/large.jpg"), 2000, 3000, JCS_RGB, std::vector<uint8_t>(18'000'000, 7));
    ImportConfig config{
        .kind = "images", .from = folder.file("in"), .out = folder.file("out"), .shard_bytes = 100'000, .size = 96, .pictures = true};
    config.threads = 4;
    EXPECT_EQ(inside([&] {
                  ImportResult result;
                  GC_TRY(data_import(config, &result));
                  std::unique_ptr<DataSet> data;
                  GC_TRY(data_open(folder.file("out/train-*.h5"), &data, {.side = 64}));
                  std::vector<uint8_t> image(data->sample_bytes());
                  int32_t label = 0;
                  for (uint64_t i = 0; i < data->info().count; ++i) GC_TRY(data->read({&i, 1}, image.data(), &label));
                  return data->info().count == static_cast<uint64_t>(files) + 1 ? Status()
                                                                                : fail(Code::invalid, "{} samples", data->info().count);
              }),
              0);
}

TEST_F(SlowMemory, CompressedShardsAreReadWithinWhatIsLeft) {
    DataInfo info = info_of(800, 1, 512, 512, 10);
    const std::vector<uint8_t> images(data_bytes);
    const std::vector<int32_t> labels(info.count);
    const std::string path = folder.file("a.h5");
    ASSERT_TRUE(shard_write(path, info, images.data(), labels.data(), 1).ok());
    EXPECT_EQ(inside([&] {
                  std::unique_ptr<DataSet> data;
                  GC_TRY(data_open(path, &data));
                  std::vector<uint8_t> image(data->sample_bytes());
                  int32_t label = 0;
                  for (uint64_t i = 0; i < info.count; ++i) GC_TRY(data->read({&i, 1}, image.data(), &label));
                  return Status();
              }),
              0);
    // What a job plans afterwards sees that the cache has its memory.
    EXPECT_EQ(inside([&] {
                  const uint64_t before = memory_room().bytes;
                  std::unique_ptr<DataSet> data;
                  GC_TRY(data_open(path, &data));
                  return memory_room().bytes + before / 16 < before ? Status() : fail(Code::invalid, "the cache is not taken");
              }),
              0);
}

}   // namespace
}   // namespace gradcast
