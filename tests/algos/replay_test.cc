// replay.log as a run writes it: rounds go behind one another, a repeated round takes the place of the first, and nothing half written
// remains.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "algos/replay.h"
#include "runtime/core/fd.h"

namespace gradcast {
namespace {

struct ReplayLogTest : testing::Test {
    const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / fmt::format("gc-replay-{}", ::getpid());
    const std::string path = (folder / "replay.log").string(), head = replay_head({{"job.seed", "1"}});
    ReplayLog log;

    void SetUp() override {
        std::filesystem::create_directories(folder);
        log.open(path);
    }
    void TearDown() override { std::filesystem::remove_all(folder); }
    std::string text() const {
        std::string whole;
        (void)file_read(path, &whole).ok();
        return whole;
    }
};

TEST_F(ReplayLogTest, RoundsGoBehindOneAnother) {
    ASSERT_TRUE(log.keep(head, 0, "a\nb\n").ok());
    const auto inode = [&] {
        struct stat info;
        EXPECT_EQ(::stat(path.c_str(), &info), 0);
        return info.st_ino;
    };
    const auto first = inode();
    ASSERT_TRUE(log.keep(head, 2, "c\nd\n").ok());
    ASSERT_TRUE(log.keep(head, 4, "e\n").ok());
    EXPECT_EQ(text(), head + "a\nb\nc\nd\ne\n");
    EXPECT_EQ(inode(), first) << "it is written anew";
}

TEST_F(ReplayLogTest, ARepeatedRoundTakesThePlaceOfTheFirst) {
    ASSERT_TRUE(log.keep(head, 0, "a\nb\n").ok());
    ASSERT_TRUE(log.keep(head, 2, "c\nd\n").ok());
    ASSERT_TRUE(log.keep(head, 2, "x\ny\n").ok());
    ASSERT_TRUE(log.keep(head, 4, "z\n").ok());
    EXPECT_EQ(text(), head + "a\nb\nx\ny\nz\n");
    ReplayLog resumed;
    resumed.open(path);
    ASSERT_TRUE(resumed.keep(head, 2, "v\n").ok());
    EXPECT_EQ(text(), head + "a\nb\nv\n");
}

TEST_F(ReplayLogTest, WithoutItsBeginningThereIsNone) {
    ASSERT_TRUE(log.keep(head, 2, "c\n").ok());
    EXPECT_FALSE(std::filesystem::exists(path));
    ASSERT_TRUE(log.keep(head, 0, "a\n").ok());
    ASSERT_TRUE(log.keep(head, 2, "c\n").ok()) << "b is missing";
    ASSERT_TRUE(log.keep(head, 3, "d\n").ok());
    EXPECT_EQ(text(), head + "a\n");
    const std::string other = replay_head({{"job.seed", "2"}});
    ReplayLog elsewhere;
    elsewhere.open(path);
    ASSERT_TRUE(elsewhere.keep(other, 1, "b\n").ok());
    EXPECT_EQ(text(), head + "a\n") << "it is of another job";
}

// As on a full disk.
TEST_F(ReplayLogTest, AWriteThatFailsLeavesWholeRounds) {
    ASSERT_TRUE(log.keep(head, 0, "a\n").ok());
    const auto before = std::signal(SIGXFSZ, SIG_IGN);
    rlimit limit{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
    const rlimit small{head.size() + 6, limit.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    const Status status = log.keep(head, 1, "bcdefghij\n");
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    std::signal(SIGXFSZ, before);
    EXPECT_NE(std::string(status.what).find("replay.log: File too large"), std::string::npos) << status.what;
    EXPECT_EQ(text(), head + "a\n");
    ASSERT_TRUE(log.keep(head, 1, "b\n").ok());
    EXPECT_EQ(text(), head + "a\nb\n");
}

}   // namespace
}   // namespace gradcast
