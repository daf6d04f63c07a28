// The memory of jobs that have test data, beside that of the same jobs without.
#include "datasets/import.h"
#include "runtime/job/run/job_check.h"
#include "tests/job/runs.h"

namespace gradcast {
namespace {

struct JobMemory : RunsTest {
    /// Bytes of a node with two lanes, without or with test data.
    uint64_t planned(const std::string& net, const std::string& data, bool tested) {
        const std::string text =
            fmt::format("[job]\nsteps = 2\nbatch = 32\nblocks = 8\n[data]\ntrain = \"{0}\"\n{1}{2}[optimiser]\nkind = \"adam\"\n", data,
                        tested ? fmt::format("test = \"{}\"\n", data) : "", net);
        JobConfig job;
        JobCheck check;
        Status status = job_parse(text, "job.toml", folder_, &job);
        if (status.ok()) status = job_check(job, "job.toml", {.lanes = 2, .verify = false}, &check);
        EXPECT_TRUE(status.ok()) << status.what;
        return check.memory.total();
    }
    std::string images(uint32_t side) {
        const uint32_t count = 120;
        const std::vector<uint8_t> pixels(uint64_t{count} * 3 * side * side);
        const std::vector<int32_t> labels(count);
        const DataInfo info{count, 3, side, side, 10, {0.4f, 0.4f, 0.4f}, {0.3f, 0.3f, 0.3f}, "a test"};
        const std::string path = fmt::format("{}/images{}.h5", folder_, side);
        const Status status = shard_write(path, info, pixels.data(), labels.data());
        EXPECT_TRUE(status.ok()) << status.what;
        return path;
    }
    std::string text() {
        ImportResult result;
        std::string words;
        for (int i = 0; i < 2000; ++i) words += fmt::format("{} green bottles. ", i);
        Status status = file_write(folder_ + "/words.txt", words);
        if (status.ok()) status = data_import({.kind = "text", .from = folder_ + "/words.txt", .out = folder_ + "/text"}, &result);
        EXPECT_TRUE(status.ok()) << status.what;
        return folder_ + "/text/train.h5";
    }
};

// An evaluation has 100 samples a batch, a block here 4.
TEST_F(JobMemory, TestDataTakeLittle) {
    const std::pair<std::string, std::string> nets[] = {
        {"context = 64\n[net]\npreset = \"gpt\"\ndepth = 3\nwidth = 96\nheads = 3\n", text()},
        {"[net]\npreset = \"vit-s\"\n", images(32)},
        {"[net]\npreset = \"resnet18\"\n", images(32)}};
    for (const auto& [net, data] : nets) {
        SCOPED_TRACE(net);
        const uint64_t without = planned(net, data, false), with = planned(net, data, true);
        EXPECT_LE(static_cast<double>(with), 1.2 * static_cast<double>(without));
    }
}

}   // namespace
}   // namespace gradcast
