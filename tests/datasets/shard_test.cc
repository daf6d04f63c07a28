#include <sys/stat.h>

#include <algorithm>

#include "tests/datasets/support.h"

namespace gradcast {
namespace {

TEST(Shard, WritesWhatItReads) {
    TestFolder folder;
    for (auto info : {info_of(1, 1, 1, 1, 1), info_of(300, 3, 8, 9, 10), info_of(5000, 1, 28, 28, 256), info_of(700, 2, 3, 5, 1000)}) {
        std::string path = folder.file("a.h5");
        ASSERT_TRUE(write_shard(path, info).ok());
        Shard shard;
        Status status = shard_open(path, &shard);
        ASSERT_TRUE(status.ok()) << status.what;
        EXPECT_EQ(shard.info.count, info.count);
        EXPECT_EQ(shard.info.C, info.C);
        EXPECT_EQ(shard.info.H, info.H);
        EXPECT_EQ(shard.info.W, info.W);
        EXPECT_EQ(shard.info.classes, info.classes);
        EXPECT_EQ(shard.info.mean, info.mean);
        EXPECT_EQ(shard.info.std, info.std);
        EXPECT_EQ(shard.info.source, info.source);
        EXPECT_EQ(shard.label_bytes, info.classes > 256 ? 2u : 1u);
        EXPECT_EQ(shard.images_offset % 4096, 0u);
        EXPECT_EQ(shard.labels_offset % 4096, 0u);
        status = shard_verify(shard);
        EXPECT_TRUE(status.ok()) << status.what;
        EXPECT_EQ(folder.names(), std::vector<std::string>{"a.h5"});
        std::unique_ptr<DataSet> data;
        ASSERT_TRUE(data_open(path, &data).ok());
        std::vector<uint64_t> indices;
        for (uint64_t i = 0; i < info.count; i += 1 + i % 5 * (i % 3)) indices.push_back(info.count - 1 - i);
        std::sort(indices.begin(), indices.begin() + static_cast<int64_t>(indices.size() / 2));   // one half with runs, one without
        uint64_t bytes = data->sample_bytes();
        std::vector<uint8_t> images(indices.size() * bytes);
        std::vector<int32_t> labels(indices.size());
        ASSERT_TRUE(data->read(indices, images.data(), labels.data()).ok());
        for (size_t i = 0; i < indices.size(); ++i) expect_sample(indices[i], &images[i * bytes], bytes, labels[i], info.classes);
    }
}

}   // namespace
}   // namespace gradcast
