#include <zlib.h>

#include "tests/datasets/support.h"

namespace gradcast {
namespace {

TEST(Import, FashionMnist) {
    if (!std::filesystem::exists("/usr/share/datasets/fashion-mnist")) GTEST_SKIP() << "package dataset-fashion-mnist is missing";
    TestFolder folder;
    ImportResult result;
    Status status = data_import({.kind = "fashion-mnist", .from = "", .out = folder.file("out")}, &result);
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_EQ(result.train, 60000u);
    EXPECT_EQ(result.test, 10000u);
    std::unique_ptr<DataSet> data;
    status = data_open(result.paths[0], &data);
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_TRUE(data_verify(*data).ok());
    EXPECT_NEAR(data->info().mean[0], 0.2860406f, 1e-6);   // as published for this set
    EXPECT_NEAR(data->info().std[0], 0.3530242f, 1e-6);
    std::vector<uint64_t> counts(10), indices(60000);
    for (uint64_t i = 0; i < 60000; ++i) indices[i] = i;
    std::vector<int32_t> labels(60000);
    data->labels(indices, labels.data());
    for (int32_t label : labels) ++counts[label];
    EXPECT_EQ(counts, std::vector<uint64_t>(10, 6000));
}

}   // namespace
}   // namespace gradcast
