#include <fcntl.h>
#include <liburing.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <new>
#include <thread>

#include "tests/datasets/support.h"

// Counts allocations: the loader makes none in its steady state.
static std::atomic<uint64_t> allocations = 0;
// Not inlined: g++ would warn of a mismatched malloc and free.
[[gnu::noinline]] void* operator new(size_t bytes) {
    ++allocations;
    if (void* memory = std::malloc(bytes)) return memory;
    throw std::bad_alloc();
}
// std::stable_sort takes its buffer so.
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
    ++allocations;
    return std::malloc(bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace gradcast {
namespace {

struct Case {
    const char* name;
    LoaderConfig config;
    const char* path;
    uint32_t compress = 0;
    uint64_t inflated_max = 0;
};
const Case cases[] = {
    {"uring", {}, "io_uring"},         {"unregistered", {.registered = false}, "io_uring"},  {"pread", {.uring = false}, "pread"},
    {"one", {.ahead = 1}, "io_uring"}, {"inline", {.ahead = 2, .threaded = false}, "pread"}, {"chunks", {}, "pread", 6},
    {"forgetful", {}, "pread", 6, 1},
};

class LoaderTest : public ::testing::TestWithParam<Case> {
protected:
    TestFolder folder;
    std::unique_ptr<DataSet> data;
    void SetUp() override {
        for (uint64_t i = 0; i < 3; ++i)
            ASSERT_TRUE(write_shard(folder.file(fmt::format("s{}.h5", i)), info_of(101, 2, 5, 7, 10), i * 101, GetParam().compress).ok());
        ASSERT_TRUE(data_open(folder.file("s*.h5"), &data, {.inflated_max = GetParam().inflated_max}).ok());
    }
    /// Arena and loader over `data`.
    struct Made {
        Arena arena;
        std::unique_ptr<Loader> loader;
    };
    void make(Made& made, const Sampler& sampler, LoaderConfig config) {
        ASSERT_TRUE(loader_plan(*data, sampler, config, made.arena, Log(), &made.loader).ok());
        ASSERT_TRUE(made.arena.seal().ok());
        ASSERT_TRUE(loader_start(*made.loader).ok());
    }
    static void expect_block(const Sampler& sampler, BlockId id, const Samples& samples) {
        std::vector<uint64_t> indices(sampler.block_size(id.block));
        sampler.block(id, indices);
        ASSERT_EQ(samples.count, indices.size());
        ASSERT_EQ(samples.C * samples.H * samples.W, 70u);
        for (uint32_t i = 0; i < samples.count; ++i) expect_sample(indices[i], samples.images + 70 * i, 70, samples.labels[i], 10);
    }
};

TEST_P(LoaderTest, GivesEveryBlockOfThePlan) {
    Sampler sampler(data->info().count, 9, 50, 7);
    Made made;
    make(made, sampler, GetParam().config);
    io_uring ring;
    const bool refused = io_uring_queue_init(1, &ring, 0) < 0;   // e.g. in a container
    if (!refused) io_uring_queue_exit(&ring);
    EXPECT_STREQ(made.loader->name(), refused ? "pread" : GetParam().path);
    made.loader->plan(3, {1, 2, 5});
    for (StepId step = 3; step < 30; ++step)
        for (uint32_t block : {1, 2, 5}) {
            Samples samples;
            Status status = made.loader->get({step, block}, 10'000'000, &samples);
            ASSERT_TRUE(status.ok()) << status.what;
            expect_block(sampler, {step, block}, samples);
            EXPECT_EQ(samples.mean[1], 0.25f);
            made.loader->done({step, block});
        }
}

TEST_P(LoaderTest, LanesTakeBlocksSideBySide) {
    Sampler sampler(data->info().count, 9, 64, 16);
    Made made;
    make(made, sampler, GetParam().config);
    std::vector<uint32_t> blocks(16);
    for (uint32_t i = 0; i < 16; ++i) blocks[i] = i;
    made.loader->plan(0, blocks);
    std::mutex mutex;
    uint64_t next = 0, end = 16 * 20;
    auto lane = [&] {
        for (;;) {
            std::unique_lock lock(mutex);
            if (next == end) return;
            BlockId id{next / 16, static_cast<uint32_t>(next % 16)};
            ++next;
            lock.unlock();
            Samples samples;
            Status status = made.loader->get(id, 10'000'000, &samples);
            ASSERT_TRUE(status.ok()) << status.what;
            expect_block(sampler, id, samples);
            made.loader->done(id);
        }
    };
    std::thread lanes[4];
    for (auto& each : lanes) each = std::thread(lane);
    for (auto& each : lanes) each.join();
}

TEST_P(LoaderTest, ANewPlanStartsAnew) {
    Sampler sampler(data->info().count, 9, 50, 10);
    Made made;
    make(made, sampler, GetParam().config);
    for (uint32_t round = 0; round < 200; ++round) {
        uint32_t a = round % 10, b = (round + 3) % 10;
        made.loader->plan(round % 5, {a, b});
        for (uint32_t i = 0; i < round % 4; ++i) {
            BlockId id{round % 5 + i / 2, i % 2 ? b : a};
            Samples samples;
            Status status = made.loader->get(id, 10'000'000, &samples);
            ASSERT_TRUE(status.ok()) << status.what;
            expect_block(sampler, id, samples);
            if (round % 3 || i % 2) made.loader->done(id);   // some are not given back
            else if (GetParam().config.ahead == 1) break;
        }
    }
}

// More reads than the ring has entries.
TEST_P(LoaderTest, BlocksLargerThanTheRing) {
    ASSERT_TRUE(write_shard(folder.file("s3.h5"), info_of(4000, 2, 5, 7, 10), 303).ok());
    ASSERT_TRUE(data_open(folder.file("s*.h5"), &data).ok());
    Sampler sampler(data->info().count, 9, 5000, 2);
    Made made;
    make(made, sampler, GetParam().config);
    made.loader->plan(0, {1, 0});
    for (StepId step = 0; step < 3; ++step)
        for (uint32_t block : {1, 0}) {
            Samples samples;
            ASSERT_TRUE(made.loader->get({step, block}, 10'000'000, &samples).ok());
            expect_block(sampler, {step, block}, samples);
            made.loader->done({step, block});
        }
}

// With DataOptions::classes, blocks hold only samples of the first classes.
TEST_P(LoaderTest, FirstClasses) {
    ASSERT_TRUE(data_open(folder.file("s*.h5"), &data, {.classes = 4}).ok());
    std::vector<uint64_t> kept;
    for (uint64_t i = 0; i < 303; ++i)
        if (label_of(i, 10) < 4) kept.push_back(i);
    ASSERT_EQ(data->info().count, kept.size());
    Sampler sampler(kept.size(), 9, 50, 7);
    Made made;
    make(made, sampler, GetParam().config);
    made.loader->plan(0, {1, 2, 5});
    for (StepId step = 0; step < 10; ++step)
        for (uint32_t block : {1, 2, 5}) {
            Samples samples;
            ASSERT_TRUE(made.loader->get({step, block}, 10'000'000, &samples).ok());
            std::vector<uint64_t> indices(sampler.block_size(block));
            sampler.block({step, block}, indices);
            for (uint32_t i = 0; i < samples.count; ++i)
                expect_sample(kept[indices[i]], samples.images + 70 * i, 70, samples.labels[i], 10);
            made.loader->done({step, block});
        }
}

// Across the end of an epoch; the result does not depend on the number of blocks, their order or the loader.
TEST_P(LoaderTest, AugmentsBySampleAndEpoch) {
    LoaderConfig config = GetParam().config;
    config.augment = {.crop = 2, .flip = true, .seed = 5};
    for (uint32_t blocks : {1u, 4u}) {
        Sampler sampler(data->info().count, 5, 50, blocks);
        Made made;
        make(made, sampler, config);
        std::vector<uint32_t> own;
        for (uint32_t block = 0; block < blocks; ++block) own.push_back(block);
        made.loader->plan(3, own);
        for (StepId step = 3; step < 15; ++step)
            for (uint32_t block : own) {
                Samples samples;
                ASSERT_TRUE(made.loader->get({step, block}, 10'000'000, &samples).ok());
                std::vector<uint64_t> indices(samples.count);
                sampler.block({step, block}, indices);
                uint64_t first = step * 50 + uint64_t{block} * 50 / blocks;
                for (uint32_t i = 0; i < samples.count; ++i) {
                    std::vector<uint8_t> image(70);
                    for (uint64_t pixel = 0; pixel < 70; ++pixel) image[pixel] = pixel_of(indices[i], pixel);
                    augment(config.augment, data->info(), (first + i) / 303, indices[i], image.data());
                    ASSERT_TRUE(std::equal(image.begin(), image.end(), samples.images + 70 * i)) << step << " " << block << " " << i;
                }
                made.loader->done({step, block});
            }
    }
}

TEST_P(LoaderTest, AllocatesNothing) {
    Sampler sampler(data->info().count, 9, 64, 4);
    Made made;
    make(made, sampler, GetParam().config);
    made.loader->plan(0, {0, 3});
    uint64_t before = 0;
    for (StepId step = 0; step < 100; ++step) {
        if (step == 20) before = allocations;
        for (uint32_t block : {0, 3}) {
            Samples samples;
            ASSERT_TRUE(made.loader->get({step, block}, 10'000'000, &samples).ok());
            made.loader->done({step, block});
        }
    }
    EXPECT_EQ(allocations - before, 0u);
}

// All slots are taken: the next block cannot be read.
TEST_P(LoaderTest, KeepsItsDeadline) {
    Sampler sampler(data->info().count, 9, 50, 10);
    Made made;
    make(made, sampler, GetParam().config);
    made.loader->plan(0, {0, 1, 2});
    Samples samples;
    uint32_t ahead = GetParam().config.ahead;
    for (uint32_t i = 0; i < ahead; ++i) ASSERT_TRUE(made.loader->get({i / 3, i % 3}, 10'000'000, &samples).ok());
    BlockId next{ahead / 3, ahead % 3};
    Status status = made.loader->get(next, 3000, &samples);
    EXPECT_EQ(status.code, Code::deadline);
    expect_error(status, {fmt::format("block {} of step {}", next.block, next.step + 1), "s*.h5", "3 ms"});
    EXPECT_GE(made.loader->waited_us(), 3000u);
    made.loader->done({0, 0});
    EXPECT_TRUE(made.loader->get(next, 10'000'000, &samples).ok());
    expect_block(sampler, next, samples);
}

TEST_P(LoaderTest, SaysWhereAReadFailed) {
    Sampler sampler(data->info().count, 9, 303, 3);   // every step has all samples
    for (bool truncated : {true, false}) {
        Made made;
        make(made, sampler, GetParam().config);
        if (truncated)
            std::filesystem::resize_file(folder.file("s1.h5"), GetParam().compress ? data->shards()[1].chunks[0].offset + 30
                                                                                   : data->shards()[1].samples_offset + 70 * 90 + 30);
        else ASSERT_GE(::dup2(::open("/", O_RDONLY | O_CLOEXEC), data->fd(1)), 0);   // reads of a folder fail
        made.loader->plan(0, {0, 1, 2});
        std::string errors;
        for (uint32_t block : {0, 1, 2}) {
            Samples samples;
            Status status = made.loader->get({0, block}, 10'000'000, &samples);
            if (!status.ok()) {
                expect_error(status, {"s1.h5", "images", "chunk 0", "sample",
                                      !truncated            ? "Is a directory"
                                      : GetParam().compress ? "ends here"
                                                            : "truncated"});
                if (GetParam().config.ahead == 1) break;   // the failed block keeps the only slot: a job ends with the first error
            } else {
                expect_block(sampler, {0, block}, samples);
                made.loader->done({0, block});
            }
            errors += status.what;
        }
        if (GetParam().config.ahead > 1) {
            EXPECT_NE(errors, "");
        }
    }
}

INSTANTIATE_TEST_SUITE_P(All, LoaderTest, ::testing::ValuesIn(cases), [](const auto& each) { return each.param.name; });

}   // namespace
}   // namespace gradcast
