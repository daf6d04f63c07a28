// Memory is checked against the available amount, and touched, when it is taken.
#include "runtime/core/arena.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "runtime/core/cpu_room.h"
#include "runtime/core/gpu_count.h"
#include "runtime/core/memory_room.h"
#include "runtime/core/thread.h"
#include "tests/limited_group.h"

namespace gradcast {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t mib = 1 << 20;

void put(const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
}

/// A synthetic /proc and control group tree.
struct Room : testing::Test {
    void SetUp() override {
        root = fs::path(testing::TempDir()) / fmt::format("gc-room-{}", ::getpid());
        put(root / "proc/meminfo", "MemTotal:       4194304 kB\nMemFree: 1 kB\nMemAvailable:    2097152 kB\n");
    }
    void TearDown() override { fs::remove_all(root); }
    void group(const std::string& folder, const std::string& limit, uint64_t current, uint64_t file) {
        put(root / folder / "memory.max", limit + "\n");
        put(root / folder / "memory.current", fmt::format("{}\n", current));
        put(root / folder / "memory.stat", fmt::format("anon 5\nfile 99\ninactive_file {}\nactive_file {}\n", file / 2, file / 2));
    }
    MemoryRoom room() const { return memory_room(root.string()); }
    fs::path root;
};

TEST_F(Room, IsTheMachinesWithoutGroups) {
    EXPECT_EQ(room().bytes, 2048 * mib);
    EXPECT_EQ(room().where, "this machine");
    EXPECT_EQ(memory_room("/nonexistent").bytes, UINT64_MAX);
    EXPECT_EQ(memory_for_jobs(root.string()).bytes, 3840 * mib);
    EXPECT_EQ(memory_for_jobs("/nonexistent").bytes, UINT64_MAX);
}

TEST_F(Room, IsTheTightestGroupsAboveUs) {
    put(root / "proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n");
    put(root / "proc/self/cgroup", "0::/system.slice/gradcastd.service\n");
    group("sys/fs/cgroup/system.slice/gradcastd.service", "max", 100 * mib, 0);
    group("sys/fs/cgroup/system.slice", fmt::format("{}", 1024 * mib), 800 * mib, 100 * mib);
    EXPECT_EQ(room().bytes, 324 * mib);   // file pages are reclaimable
    EXPECT_EQ(room().where, "control group /system.slice");
    EXPECT_EQ(memory_for_jobs(root.string()).bytes, 960 * mib);   // whatever is used
    EXPECT_EQ(memory_for_jobs(root.string()).where, "control group /system.slice");
    put(root / "sys/fs/cgroup/system.slice/gradcastd.service/memory.high", fmt::format("{}\n", 164 * mib));
    EXPECT_EQ(room().bytes, 64 * mib);
    EXPECT_EQ(room().where, "control group /system.slice/gradcastd.service");
    put(root / "sys/fs/cgroup/system.slice/gradcastd.service/memory.high", fmt::format("{}\n", 50 * mib));
    EXPECT_EQ(room().bytes, 0u);
}

// In a container the mount shows a part of the hierarchy, but /proc/self/cgroup names the full path.
TEST_F(Room, OfVersionOneAndOfAContainer) {
    put(root / "proc/self/mountinfo",
        "30 20 0:26 /docker/1 /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n31 20 0:27 /docker/1 /sys/fs/cgroup/memory rw shared:7 - "
        "cgroup cgroup rw,memory\n");
    put(root / "proc/self/cgroup", "5:cpu:/docker/1\n4:memory:/docker/1/job\n0::/\n");
    put(root / "sys/fs/cgroup/memory/memory.limit_in_bytes", fmt::format("{}\n", 512 * mib));
    put(root / "sys/fs/cgroup/memory/memory.usage_in_bytes", fmt::format("{}\n", 300 * mib));
    put(root / "sys/fs/cgroup/memory/memory.stat", fmt::format("inactive_file 1\ntotal_inactive_file {}\ntotal_active_file 0\n", 50 * mib));
    EXPECT_EQ(room().bytes, 262 * mib);
    EXPECT_EQ(room().where, "control group /");
}

TEST_F(Room, TheLimitOfThreadsThatIsReachedIsNamed) {
    put(root / "proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n");
    put(root / "proc/self/cgroup", "0::/system.slice/gradcastd.service\n");
    put(root / "sys/fs/cgroup/system.slice/gradcastd.service/pids.max", "max\n");
    put(root / "sys/fs/cgroup/system.slice/gradcastd.service/pids.current", "40\n");
    put(root / "sys/fs/cgroup/system.slice/pids.max", "50\n");
    put(root / "sys/fs/cgroup/system.slice/pids.current", "50\n");
    EXPECT_EQ(thread_limit(root.string()),
              "control group /system.slice may have 50 tasks (pids.max, TasksMax= of systemd) and has 50: raise it");
    put(root / "sys/fs/cgroup/system.slice/pids.current", "49\n");
    EXPECT_EQ(thread_limit(root.string()).find("control group"), std::string::npos);
}

TEST_F(Room, GpusAreThoseOfTheDriverThatCudaMaySee) {
    EXPECT_EQ(gpu_count(root.string()), 0u);
    for (const char* gpu : {"0000:17:00.0", "0000:65:00.0", "0000:98:00.0"})
        put(root / "proc/driver/nvidia/gpus" / gpu / "information", "");
    const auto visible = [&](const char* list) {
        ::setenv("CUDA_VISIBLE_DEVICES", list, 1);
        const uint32_t count = gpu_count(root.string());
        ::unsetenv("CUDA_VISIBLE_DEVICES");
        return count;
    };
    ::unsetenv("CUDA_VISIBLE_DEVICES");
    EXPECT_EQ(gpu_count(root.string()), 3u);
    EXPECT_EQ(visible("2"), 1u);
    EXPECT_EQ(visible("2,0"), 2u);
    EXPECT_EQ(visible("0,7,1"), 1u);
    EXPECT_EQ(visible("GPU-8932f937-d72c,GPU-1,GPU-2,GPU-3"), 3u);
    EXPECT_EQ(visible("0,-1,1"), 1u);
    EXPECT_EQ(visible(""), 0u);
}

TEST(GpuCount, DaemonsOfAHostDivideItsGpus) {
    using Numbers = std::vector<uint32_t>;
    EXPECT_EQ(gpus_shared_out(2, 1, 2), Numbers{1});
    EXPECT_EQ(gpus_shared_out(8, 1, 3), (Numbers{1, 4, 7}));
    EXPECT_EQ(gpus_shared_out(2, 3, 4), Numbers{1});   // two daemons a GPU
    EXPECT_EQ(gpus_shared_out(8, 0, 1), Numbers());    // all
    EXPECT_EQ(gpus_shared_out(1, 1, 2), Numbers());
    EXPECT_EQ(gpus_shared_out(0, 1, 2), Numbers());
    EXPECT_EQ(gpus_text(Numbers{3}), "GPU 3");
    EXPECT_EQ(gpus_text(Numbers{0, 2}), "GPUs 0, 2");
}

TEST_F(Room, TheTightestCpuQuotaCounts) {
    put(root / "proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n");
    put(root / "proc/self/cgroup", "0::/system.slice/gradcastd.service\n");
    EXPECT_EQ(cpu_room(root.string()).quota, 0);
    EXPECT_EQ(cpu_room(root.string()).threads(), std::max(1u, std::thread::hardware_concurrency()));
    put(root / "sys/fs/cgroup/system.slice/gradcastd.service/cpu.max", "max 100000\n");
    put(root / "sys/fs/cgroup/system.slice/cpu.max", "150000 100000\n");
    EXPECT_EQ(cpu_room(root.string()).quota, 1.5);
    EXPECT_EQ(cpu_room(root.string()).where, "control group /system.slice");
    EXPECT_EQ(cpu_room(root.string()).threads(), 1u);
    EXPECT_EQ((CpuRoom{.cpus = 8, .quota = 3.9, .where = ""}.threads()), 3u);
    EXPECT_EQ((CpuRoom{.cpus = 8, .quota = 0.2, .where = ""}.threads()), 1u);
    EXPECT_EQ((CpuRoom{.cpus = 8, .quota = 99, .where = ""}.threads()), 8u);
    // Version 1: -1 is no quota.
    put(root / "proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n");
    put(root / "proc/self/cgroup", "5:cpu,cpuacct:/job\n");
    put(root / "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "50000\n");
    put(root / "sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
    put(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    put(root / "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    EXPECT_EQ(cpu_room(root.string()).quota, 0.5);
}

uint64_t faults() {
    rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return static_cast<uint64_t>(usage.ru_minflt + usage.ru_majflt);
}

TEST(ArenaMemory, IsTouchedWhenItIsTaken) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "page faults: a sanitizer has shadow memory of its own";
#endif
    constexpr uint64_t bytes = 48 * mib;
    Arena arena;
    Buffer buffer;
    arena.plan("words", bytes, &buffer);
    ASSERT_TRUE(arena.seal().ok());
    const uint64_t before = faults();
    for (uint64_t at = 0; at < bytes; at += 4096) const_cast<volatile std::byte&>(buffer.host[at]) = std::byte{1};
    EXPECT_EQ(faults(), before);
}

TEST(ArenaMemory, MoreThanTheMachineHasIsRefusedWithTheBudget) {
    Arena arena;
    Buffer words, gradients;
    arena.plan("words", machine_memory(), &words);
    arena.plan("gradients", 3 * mib, &gradients);
    const Status status = arena.seal();
    ASSERT_EQ(status.code, Code::node_memory);
    for (const char* part : {"the job needs words ", ", gradients 3.0 MiB, ", " MiB are available ("})
        EXPECT_NE(std::string_view(status.what).find(part), std::string_view::npos) << status.what;
    EXPECT_EQ(arena.whole().host, nullptr);
}

/// Exit code of a child that takes `bytes`: 0 taken, 3 refused with the budget, 4 refused otherwise, -1 killed.
int child(uint64_t bytes, const std::function<void()>& first, bool wait = true) {
    if (const pid_t pid = ::fork(); pid == 0) {
        first();
        Arena arena;
        Buffer buffer;
        arena.plan("words", bytes, &buffer);
        const Status status = arena.seal();
        if (status.ok()) ::usleep(100'000);   // holds it while the other children take theirs
        _exit(status.ok() ? 0 : std::string_view(status.what).find("words ") != std::string_view::npos ? 3 : 4);
    } else {
        if (!wait) return pid;
        int ended = 0;
        ::waitpid(pid, &ended, 0);
        return WIFEXITED(ended) ? WEXITSTATUS(ended) : -1;
    }
}

TEST(ArenaMemory, AnAddressSpaceTooSmallIsRefused) {
    auto limit = [] {
        const rlimit small{256 * mib, 256 * mib};
        ::setrlimit(RLIMIT_AS, &small);
    };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "ulimit -v: a sanitizer maps terabytes";
#endif
    EXPECT_EQ(child(512 * mib, limit), 3);
    EXPECT_EQ(child(64 * mib, limit), 0);
}

// What is no part of an arena is asked for before a container ends the process.
TEST(ArenaMemory, AContainerTooLargeForTheAddressSpaceIsRefused) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "ulimit -v: a sanitizer maps terabytes";
#endif
    if (pid_t pid = ::fork(); pid == 0) {
        const rlimit small{256 * mib, 256 * mib};
        ::setrlimit(RLIMIT_AS, &small);
        const Status large = memory_room_for(512 * mib, "it");
        const bool refused = large.code == Code::node_memory && std::string_view(large.what).starts_with("it needs 512 MiB of memory; ");
        _exit(refused && memory_room_for(64 * mib, "it").ok() ? 0 : 1);
    } else {
        int ended = 0;
        ::waitpid(pid, &ended, 0);
        EXPECT_EQ(ended, 0);
    }
}

TEST(ArenaMemory, AGroupsLimitIsRefusedAndNobodyIsKilled) {
    MemoryGroup group(192 * mib);
    if (group.path.empty()) GTEST_SKIP() << "no control group with a memory limit can be made: it needs root and the memory controller";
    auto enter = [&] { group.enter(); };
    EXPECT_EQ(child(256 * mib, enter), 3);
    EXPECT_EQ(child(128 * mib, enter), 0);
    // Daemons of one machine plan at the same time: together they do not fit, and none may be killed.
    for (int round = 0; round < 5; ++round) {
        std::vector<pid_t> children;
        for (int i = 0; i < 6; ++i) children.push_back(child(96 * mib, enter, false));
        for (pid_t pid : children) {
            int ended = 0;
            ::waitpid(pid, &ended, 0);
            EXPECT_TRUE(WIFEXITED(ended)) << "killed by signal " << WTERMSIG(ended);
            if (WIFEXITED(ended)) {
                EXPECT_TRUE(WEXITSTATUS(ended) == 0 || WEXITSTATUS(ended) == 3) << WEXITSTATUS(ended);
            }
        }
    }
}

}   // namespace
}   // namespace gradcast
