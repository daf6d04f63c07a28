// The record of verified shards: what is read again and what is not, told by the bytes that this process has read.
#include "datasets/verified.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cinttypes>

#include "runtime/core/clock.h"
#include "tests/datasets/support.h"

namespace gradcast {
namespace {

/// Bytes that this process has read by system calls so far.
uint64_t bytes_read() {
    std::string text;
    uint64_t count = 0;
    EXPECT_TRUE(file_read("/proc/self/io", &text).ok());
    EXPECT_EQ(std::sscanf(text.c_str(), "rchar: %" SCNu64, &count), 1) << text;
    return count;
}

constexpr uint64_t seconds = 1'000'000'000;
uint64_t later() { return unix_ns() + 60 * seconds; }   // the files of a test are old by then

class Verified : public ::testing::Test {
protected:
    static constexpr uint64_t sample_bytes = 64 * 64, count = 1024, bytes = count * sample_bytes;   // 4 MiB
    TestFolder folder;
    std::string path = folder.file("a.h5"), record = folder.file("cache/gradcast/verified");
    void SetUp() override { ASSERT_TRUE(write_shard(path, info_of(count, 1, 64, 64, 10)).ok()); }

    /// Whether the shards were read; the verification succeeds.
    bool reads(uint64_t (*now)() = later) {
        std::unique_ptr<DataSet> data;
        EXPECT_TRUE(data_open(path, &data).ok());
        const uint64_t before = bytes_read();
        const Status status = data_verify_once(*data, record, nullptr, now);
        const uint64_t read = bytes_read() - before;
        EXPECT_TRUE(status.ok()) << status.what;
        EXPECT_TRUE(read < bytes / 4 || read >= bytes) << read;
        return read >= bytes;
    }
    Status verify() const {
        std::unique_ptr<DataSet> data;
        GC_TRY(data_open(path, &data));
        return data_verify_once(*data, record, nullptr, later);
    }
    std::vector<std::string> lines() const {
        std::vector<std::string> all;
        std::ifstream in(record);
        for (std::string line; std::getline(in, line);) all.push_back(line);
        return all;
    }
};

TEST_F(Verified, TheSecondTimeNothingIsRead) {
    EXPECT_TRUE(reads());
    EXPECT_EQ(lines().size(), 2u);
    EXPECT_FALSE(reads());
    EXPECT_FALSE(reads());
    std::unique_ptr<DataSet> data;
    ASSERT_TRUE(data_open(path, &data).ok());
    const uint64_t before = bytes_read();
    ASSERT_TRUE(data_verify(*data).ok());   // what `data inspect` does
    EXPECT_GE(bytes_read() - before, bytes);
    record.clear();
    EXPECT_TRUE(reads());
    EXPECT_TRUE(reads());
}

// A file keeps its mtime where somebody restores it, its ctime never.
TEST_F(Verified, AChangedFileIsReadAgain) {
    EXPECT_TRUE(reads());
    struct stat before, after;
    ASSERT_EQ(::stat(path.c_str(), &before), 0);
    const uint64_t middle = static_cast<uint64_t>(before.st_size) / 2;
    flip(path, middle);
    const timespec times[] = {before.st_atim, before.st_mtim};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
    ASSERT_EQ(::stat(path.c_str(), &after), 0);
    ASSERT_TRUE(after.st_mtim.tv_nsec == before.st_mtim.tv_nsec && after.st_size == before.st_size && after.st_ino == before.st_ino);
    expect_error(verify(), {"a.h5", "images", "SHA-256"});
    expect_error(verify(), {"a.h5", "images", "SHA-256"});   // damage is not recorded
    flip(path, middle);
    EXPECT_TRUE(reads());
    EXPECT_FALSE(reads());
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), nullptr, 0), 0);
    EXPECT_TRUE(reads());
    std::filesystem::copy_file(path, folder.file("copy.h5"));
    std::filesystem::rename(folder.file("copy.h5"), path);
    EXPECT_TRUE(reads());
    EXPECT_FALSE(reads());
}

// A shard that is another data set in the same file is another shard.
TEST_F(Verified, OnlyTheShardsThatAreNewAreRead) {
    EXPECT_TRUE(reads());
    ASSERT_TRUE(write_shard(folder.file("b.h5"), info_of(count, 1, 64, 64, 10), count).ok());
    path = folder.file("*.h5");
    std::unique_ptr<DataSet> data;
    ASSERT_TRUE(data_open(path, &data).ok());
    const uint64_t before = bytes_read();
    ASSERT_TRUE(data_verify_once(*data, record, nullptr, later).ok());
    EXPECT_GE(bytes_read() - before, bytes);
    EXPECT_LT(bytes_read() - before, bytes + bytes / 2);
    EXPECT_FALSE(reads());
    EXPECT_EQ(lines().size(), 3u);
}

// Time stamps are coarse: a write just after the verification could leave them as they are.
TEST_F(Verified, AFileThatHasJustChangedIsNotRecorded) {
    static uint64_t changed_ns = 0;
    struct stat file;
    ASSERT_EQ(::stat(path.c_str(), &file), 0);
    changed_ns = static_cast<uint64_t>(file.st_ctim.tv_sec) * seconds + static_cast<uint64_t>(file.st_ctim.tv_nsec);
    EXPECT_TRUE(reads([] { return changed_ns; }));
    EXPECT_TRUE(reads([] { return changed_ns - 3600 * seconds; }));   // the clock was set back
    EXPECT_TRUE(reads([] { return changed_ns + verified_age_ns - 1; }));
    EXPECT_FALSE(std::filesystem::exists(record));
    EXPECT_TRUE(reads([] { return changed_ns + verified_age_ns; }));
    EXPECT_FALSE(reads([] { return changed_ns; }));
    const timespec future[] = {{0, UTIME_OMIT}, {file.st_mtim.tv_sec + 100'000, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), future, 0), 0);
    EXPECT_TRUE(reads());
    EXPECT_TRUE(reads());
}

TEST_F(Verified, ADamagedRecordIsReplaced) {
    EXPECT_TRUE(reads());
    const std::string good = read_file(record);
    EXPECT_EQ(std::filesystem::status(record).permissions(), std::filesystem::perms(0600));
    for (const std::string& bad :
         {std::string(), std::string("x"), good.substr(0, good.size() - 1), good.substr(0, 60), "2" + good, good + "more\n",
          good.substr(0, good.rfind(' ')) + " 12x\n", good.substr(0, good.rfind(' ')) + " \n", good + std::string(66, 'a') + "\n",
          std::string(1 << 20, '\0'), good.substr(0, good.find('\n') + 1) + "G" + good.substr(good.find('\n') + 2)}) {
        write_file(record, bad);
        EXPECT_TRUE(reads()) << bad.substr(0, 100);
        EXPECT_EQ(lines().size(), 2u);
        EXPECT_FALSE(reads());
    }
}

TEST_F(Verified, WithoutAFolderToWriteEverythingIsRead) {
    write_file(folder.file("file"), "x");
    record = folder.file("file/gradcast/verified");
    EXPECT_TRUE(reads());
    EXPECT_TRUE(reads());
    record = folder.file("none/deep/er/verified");   // not a folder of a user who has none
    EXPECT_TRUE(reads());
    EXPECT_FALSE(std::filesystem::exists(folder.file("none")));
    std::filesystem::create_directories(folder.file("cache/verified"));
    record = folder.file("cache/verified");
    EXPECT_TRUE(reads());
    EXPECT_TRUE(reads());
    ASSERT_EQ(::mkfifo(folder.file("cache/pipe").c_str(), 0600), 0);
    record = folder.file("cache/pipe");   // is not waited for
    EXPECT_TRUE(reads());
}

TEST_F(Verified, TheOldestAreDropped) {
    EXPECT_TRUE(reads());
    std::string text = read_file(record);
    const std::string own = text.substr(text.find('\n') + 1);
    for (size_t i = 0; i + 1 < verified_max; ++i) text += fmt::format("{:064x} {}\n", i, i);
    write_file(record, text);
    EXPECT_FALSE(reads());
    EXPECT_EQ(lines().size(), 1 + verified_max);
    path = folder.file("b.h5");
    ASSERT_TRUE(write_shard(path, info_of(count, 1, 64, 64, 10), count).ok());
    EXPECT_TRUE(reads());
    EXPECT_EQ(lines().size(), 1 + verified_max);
    EXPECT_EQ(read_file(record).find(own), std::string::npos);
    EXPECT_FALSE(reads());
    path = folder.file("a.h5");
    EXPECT_TRUE(reads());
}

TEST_F(Verified, ProcessesAddToOneRecord) {
    constexpr int processes = 6, shards = 8;
    for (int i = 0; i < processes * shards; ++i)
        ASSERT_TRUE(write_shard(folder.file(fmt::format("{}-{}.h5", i / shards, i % shards)), info_of(10, 1, 4, 4, 10), i * 10).ok());
    std::vector<pid_t> children;
    for (int child = 0; child < processes; ++child)
        if (const pid_t pid = ::fork(); pid != 0) children.push_back(pid);
        else {
            for (int i = 0; i < shards; ++i) {
                path = folder.file(fmt::format("{}-{}.h5", child, i));
                if (!verify().ok()) ::_exit(1);
            }
            ::_exit(0);
        }
    for (const pid_t pid : children) {
        int how = -1;
        ASSERT_EQ(::waitpid(pid, &how, 0), pid);
        EXPECT_EQ(how, 0);
    }
    EXPECT_EQ(lines().size(), 1u + processes * shards);
    path = folder.file("?-?.h5");
    std::unique_ptr<DataSet> data;
    ASSERT_TRUE(data_open(path, &data).ok());
    const std::string before = read_file(record);
    ASSERT_TRUE(data_verify_once(*data, record, nullptr, later).ok());
    EXPECT_EQ(read_file(record), before);   // all were known
    EXPECT_EQ(std::filesystem::hard_link_count(record), 1u);
    std::filesystem::remove(record);
    EXPECT_TRUE(std::filesystem::is_empty(folder.file("cache/gradcast")));
}

// Whoever holds the lock for long keeps nobody from training.
TEST_F(Verified, ALockedRecordIsLeft) {
    std::filesystem::create_directories(folder.file("cache/gradcast"));
    Fd other(::open(folder.file("cache/gradcast").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ASSERT_EQ(::flock(other.get(), LOCK_EX), 0);
    const uint64_t begin_us = clock_us();
    EXPECT_TRUE(reads());
    EXPECT_LT(clock_us() - begin_us, 30'000'000u);
    EXPECT_FALSE(std::filesystem::exists(record));
    other = Fd();
    EXPECT_TRUE(reads());
    EXPECT_FALSE(reads());
}

TEST_F(Verified, StopsAndKeepsNothingUnverified) {
    std::unique_ptr<DataSet> data;
    ASSERT_TRUE(data_open(path, &data).ok());
    const std::atomic<bool> stop{true};
    EXPECT_EQ(data_verify_once(*data, record, &stop, later).code, Code::cancelled);
    EXPECT_FALSE(std::filesystem::exists(record));
}

TEST(VerifiedOfUser, LiesInTheCache) {
    struct Variable {
        explicit Variable(const char* which) : name(which) {
            const char* value = std::getenv(name);
            set = value != nullptr;
            before = set ? value : "";
        }
        ~Variable() { set ? ::setenv(name, before.c_str(), 1) : ::unsetenv(name); }
        const char* name;
        bool set;
        std::string before;
    };
    const Variable cache("XDG_CACHE_HOME"), home("HOME");
    ::setenv("XDG_CACHE_HOME", "/c", 1);
    ::setenv("HOME", "/h", 1);
    EXPECT_EQ(verified_path_of_user(), "/c/gradcast/verified");
    ::setenv("XDG_CACHE_HOME", "relative", 1);
    EXPECT_EQ(verified_path_of_user(), "/h/.cache/gradcast/verified");
    ::unsetenv("XDG_CACHE_HOME");
    EXPECT_EQ(verified_path_of_user(), "/h/.cache/gradcast/verified");
    ::setenv("HOME", "", 1);
    EXPECT_EQ(verified_path_of_user(), "");
}

}   // namespace
}   // namespace gradcast
