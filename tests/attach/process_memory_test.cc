// What a process takes of the memory, as /proc says it.
#include "runtime/attach/process_memory.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <vector>

#include "runtime/attach/shared_memory.h"
#include "tests/attach/watched.h"

namespace gradcast {
namespace {

constexpr uint64_t mib = 1 << 20;

/// A child that stays until the object goes.
struct StayingChild {
    template <typename Work>
    explicit StayingChild(const Work& work) {
        int ends[2];
        if (::pipe(ends) != 0) return;
        pid = ::fork();
        if (pid == 0) {
            work();
            (void)!::write(ends[1], "r", 1);
            for (;;) ::pause();
        }
        ::close(ends[1]);   // so that the end of the child ends the wait
        char ready;
        (void)!::read(ends[0], &ready, 1);
        ::close(ends[0]);
    }
    StayingChild(const StayingChild&) = delete;
    StayingChild& operator=(const StayingChild&) = delete;
    ~StayingChild() {
        ::kill(pid, SIGKILL);
        ::waitpid(pid, nullptr, 0);
    }
    pid_t pid = -1;
};

ProcessMemory memory_of(pid_t pid) {
    ProcessMemory memory;
    process_memory_add(pid, &memory);
    return memory;
}

char* touched(uint64_t bytes) {
    void* made = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    std::memset(made, 1, bytes);
    return static_cast<char*>(made);
}

TEST(ProcessMemory, OwnPagesAndThePeakCount) {
    const StayingChild plain([] {}), large([] { touched(64 * mib); }), was_large([] {
        char* const room = touched(64 * mib);
        ::munmap(room, 64 * mib);
    });
    const uint64_t base = memory_of(plain.pid).own;
    EXPECT_GT(memory_of(large.pid).own, base + 60 * mib);
    EXPECT_LT(memory_of(was_large.pid).own, base + 8 * mib);
    EXPECT_GT(memory_of(was_large.pid).above, 56 * mib);
    EXPECT_GT(process_rss(large.pid), 64 * mib);
    ProcessMemory none;
    process_memory_add(1 << 30, &none);   // no process has this number
    EXPECT_EQ(none.peak() + none.files, 0u);
}

// Three workers that were forked use the pages of the process that has forked them.
TEST(ProcessMemory, APageThatSeveralShareCountsOnce) {
    const uint64_t own = memory_of(::getpid()).own, before = process_pss(::getpid());
    char* const room = touched(64 * mib);
    {
        std::vector<std::unique_ptr<StayingChild>> workers;
        for (int i = 0; i < 3; ++i) workers.push_back(std::make_unique<StayingChild>([] {}));
        ProcessMemory all;
        uint64_t pss = 0, rss = 0;
        for (const pid_t pid : {::getpid(), workers[0]->pid, workers[1]->pid, workers[2]->pid}) {
            process_memory_add(pid, &all);
            pss += process_pss(pid), rss += process_rss(pid);
        }
        EXPECT_GT(all.own, own + 60 * mib);
        EXPECT_LT(all.own, own + 96 * mib);
        EXPECT_LT(pss, before + 96 * mib);
        EXPECT_GT(rss, before + 4 * 60 * mib);
    }
    ::munmap(room, 64 * mib);
}

// The memory of the border is planned, and nobody's own; other shared memory is the process's.
TEST(ProcessMemory, OfSharedMemoryThatOfTheBorderDoesNotCount) {
    SharedMemory border;
    ASSERT_TRUE(border.open("gradcast-block", 64 * mib, SharedMemory::Others::write).ok());
    const auto writes = [](int fd) {
        void* const mapped = ::mmap(nullptr, 64 * mib, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        std::memset(mapped, 1, 64 * mib);
    };
    const StayingChild plain([] {}), theirs([&] { writes(border.fd()); }), own([&] {
        const int fd = ::memfd_create("queue", 0);
        if (::ftruncate(fd, 64 * mib) == 0) writes(fd);
    });
    const uint64_t base = memory_of(plain.pid).own;
    EXPECT_LT(memory_of(theirs.pid).own, base + 4 * mib);
    EXPECT_GT(memory_of(own.pid).own, base + 60 * mib);
    EXPECT_GT(process_pss(theirs.pid), 20 * mib);
}

TEST(ProcessMemory, OlderKernelsTellLess) {
    const std::string root = fmt::format("{}gc-process-memory-{}", testing::TempDir(), ::getpid());
    std::filesystem::create_directories(root + "/proc/7");
    std::ofstream(root + "/proc/7/status") << "Name:\tx\nVmHWM:\t  3000 kB\nVmRSS:\t  2000 kB\nRssAnon:\t  1500 kB\nRssFile:\t   400 kB\n"
                                              "RssShmem:\t   100 kB\nVmSwap:\t    50 kB\n";
    ProcessMemory memory;
    process_memory_add(7, &memory, root);
    EXPECT_EQ(memory.own, 1650u * 1024);
    EXPECT_EQ(memory.files, 400u * 1024);
    EXPECT_EQ(memory.above, 1000u * 1024);
    EXPECT_EQ(process_pss(7, root), 2050u * 1024);
    EXPECT_EQ(process_rss(7, root), 2050u * 1024);
    std::filesystem::remove_all(root);
}

}   // namespace
}   // namespace gradcast
