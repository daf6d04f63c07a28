// Control groups of processes: where they can be made, what they bound, and that nothing stays in them.
#include "runtime/attach/group.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <filesystem>

#include "tests/attach/watched.h"

namespace gradcast {
namespace {

#define NEEDS_TASKS_LIMIT() \
    if (!group_room().bounds_tasks()) GTEST_SKIP() << "no control group with a limit on tasks can be made: " << group_room().why

/// A child that enters the group and stays.
pid_t member(const ProcessGroup& group) {
    const pid_t pid = ::fork();
    if (pid != 0) return pid;
    for (const int entry : group.entries())
        if (::write(entry, "0", 1) != 1) ::_exit(1);
    for (;;) ::pause();
}

TEST(ControlGroup, MembersAreListedAndEnded) {
    if (!group_room().any()) GTEST_SKIP() << "no control group with a limit on tasks can be made: " << group_room().why;
    for (const bool freeze : {false, true}) {
        const auto group = ProcessGroup::make(group_room(), 0, 16);
        ASSERT_NE(group, nullptr);
        EXPECT_TRUE(group->members().empty());
        const pid_t one = member(*group), two = member(*group);
        ASSERT_TRUE(wait_for([&] { return group->members().size() == 2; }));
        EXPECT_FALSE(group->remove());   // it has members
        EXPECT_EQ(group->out_of_memory(), ProcessGroup::OutOfMemory::no);
        group->kill(freeze);
        for (pid_t pid : {one, two}) {
            int how = 0;
            ASSERT_EQ(::waitpid(pid, &how, 0), pid);
            EXPECT_EQ(WTERMSIG(how), SIGKILL);
        }
        EXPECT_TRUE(group->members().empty());
        EXPECT_TRUE(group->remove());
    }
}

TEST(ControlGroup, FoldersAreRemoved) {
    const GroupRoom& room = group_room();
    if (!room.any()) GTEST_SKIP() << "no control group with a limit on tasks can be made: " << room.why;
    const auto left = [&] {
        size_t count = 0;
        for (const std::string& folder : {room.two, room.pids, room.memory})
            if (!folder.empty())
                for (const auto& each : std::filesystem::directory_iterator(folder))
                    count += each.path().filename().string().starts_with(fmt::format("gradcast-{}-", ::getpid())) &&
                             !each.path().filename().string().ends_with("-self");
        return count;
    };
    {
        Watched watched({"sh", "-c", "sleep 1000 & echo child $!; wait"});
        ASSERT_TRUE(watched.start().ok());
        ASSERT_TRUE(watched.printed(1));
        EXPECT_GT(left(), 0u);
        watched.process->end(0);
        EXPECT_FALSE(runs(watched.number("child")));
    }
    EXPECT_EQ(left(), 0u);
}

TEST(ControlGroup, TwoHundredChildrenAreTooMany) {
    NEEDS_TASKS_LIMIT();
    Watched watched({"sh", "-c", "i=0; while [ $i -lt 200 ]; do sleep 1000 & i=$((i + 1)); done; echo all are there"});
    watched.config.pids_max = 50;
    ASSERT_TRUE(watched.start().ok());
    EXPECT_TRUE(watched.process->bounded());
    const std::string death = watched.death();
    EXPECT_NE(death.find("fork"), death.npos) << death;
    EXPECT_EQ(watched.text().find("all are there"), std::string::npos);
    EXPECT_GT(watched.process->memory().own, 0u);
    watched.process->end(0);
}

TEST(ControlGroup, AForkBombEnds) {
    NEEDS_TASKS_LIMIT();
    Watched watched({"sh", "-c", "bomb() { echo x; bomb & bomb & wait; }; bomb 2>/dev/null"});
    watched.config.pids_max = 60;
    ASSERT_TRUE(watched.start().ok());
    ASSERT_TRUE(watched.printed(5));
    const pid_t leader = watched.process->pid();
    watched.process->end(0);
    EXPECT_FALSE(runs(leader));
    EXPECT_EQ(watched.text().find("did not end"), std::string::npos) << watched.text();
}

#define NEEDS_MEMORY_LIMIT() \
    if (!group_room().bounds_memory()) GTEST_SKIP() << "no control group with a memory limit can be made: " << group_room().why_memory

constexpr const char* over_text =
    "it took more memory, with its children, than the 32.0 MiB that it may have: a larger `memory` in gradcastd.toml or fewer lanes "
    "(`cpus`) leave it more, and smaller blocks (job.blocks) need less";

TEST(ControlGroup, MemoryIsBounded) {
    NEEDS_MEMORY_LIMIT();
    Watched watched({"sh", "-c", "head -c 200000000 /dev/zero | tail -c 200000000 >/dev/null; echo status $?"});
    watched.config.memory_max = 32 << 20;
    ASSERT_TRUE(watched.start().ok());
    const std::string death = watched.death();
    EXPECT_NE(death.find(over_text), death.npos) << watched.text() << death;
}

// The kernel may have ended a child alone, and the process waits for it.
TEST(ControlGroup, AProcessEndsWithAChildThatTookTooMuch) {
    NEEDS_MEMORY_LIMIT();
    Watched watched({"sh", "-c", "head -c 200000000 /dev/zero | tail -c 200000000 >/dev/null; sleep 1000"});
    watched.config.memory_max = 32 << 20;
    ASSERT_TRUE(watched.start().ok());
    const std::string death = watched.death();
    EXPECT_NE(death.find(std::string("was ended by signal 9 (SIGKILL); ") + over_text), death.npos) << death;
}

TEST(ControlGroup, TheLimitOnMemoryMayBecomeLower) {
    NEEDS_MEMORY_LIMIT();
    Watched watched({"sh", "-c", "sleep 1; head -c 100000000 /dev/zero | tail -c 100000000 >/dev/null; sleep 1000"});
    watched.config.memory_max = uint64_t{1} << 30;
    ASSERT_TRUE(watched.start().ok());
    watched.process->limit_memory(32 << 20);
    const std::string death = watched.death();
    EXPECT_NE(death.find(over_text), death.npos) << death;
}

// Where there is no such control group, the daemon looks, and says the same.
TEST(ControlGroup, WithoutOneTheMemoryIsLookedAt) {
    Watched watched({"sh", "-c", "(head -c 100000000 /dev/zero; sleep 1000) | tail -c 100000000 >/dev/null"});
    watched.config.control_group = false;
    watched.config.memory_max = 32 << 20;
    ASSERT_TRUE(watched.start().ok());
    const std::string death = watched.death();
    EXPECT_NE(death.find(std::string("was ended by signal 9 (SIGKILL); ") + over_text), death.npos) << death;
    watched.process->end(0);
    EXPECT_TRUE(watched.text().empty()) << watched.text();
}

/// A folder that looks like /proc and /sys.
struct Machine {
    explicit Machine(const std::string& name) : root(fmt::format("{}gc-group-{}-{}", testing::TempDir(), ::getpid(), name)) {
        std::filesystem::remove_all(root);
        std::filesystem::create_directories(root + "/proc/self");
    }
    Machine(const Machine&) = delete;
    Machine& operator=(const Machine&) = delete;
    ~Machine() { std::filesystem::remove_all(root); }
    void write(const std::string& path, const std::string& text) const {
        std::filesystem::create_directories(std::filesystem::path(root + path).parent_path());
        std::ofstream(root + path) << text;
    }
    std::string read(const std::string& path) const {
        std::ifstream file(root + path);
        return {std::istreambuf_iterator<char>(file), {}};
    }
    const std::string root;
};

TEST(ControlGroup, WhereTheyCanBeMade) {
    const Machine none("none");
    none.write("/proc/self/mountinfo", "");
    none.write("/proc/self/cgroup", "0::/\n");
    GroupRoom room = group_room_find(none.root);
    EXPECT_FALSE(room.any());
    EXPECT_EQ(room.why, "no control groups of version 2 are mounted");
    EXPECT_EQ(room.why_memory, room.why);

    const Machine unit("unit");   // as systemd delegates it
    const std::string own = "/sys/fs/cgroup/system.slice/gradcastd.service";
    unit.write("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    unit.write("/proc/self/cgroup", "0::/system.slice/gradcastd.service\n");
    unit.write(own + "/cgroup.procs", fmt::format("{}\n", ::getpid()));
    unit.write(own + "/cgroup.controllers", "cpu memory pids\n");
    unit.write(own + "/cgroup.subtree_control", "\n");
    room = group_room_find(unit.root);
    EXPECT_TRUE(room.bounds_tasks());
    EXPECT_TRUE(room.bounds_memory());
    EXPECT_EQ(room.two, unit.root + own);
    EXPECT_EQ(unit.read(own + "/cgroup.subtree_control"), "+memory");   // "+pids" came first: a plain file keeps the last line alone

    unit.write(own + "/cgroup.subtree_control", "memory\n");
    unit.write(own + "/cgroup.controllers", "cpu memory\n");
    room = group_room_find(unit.root);
    EXPECT_FALSE(room.bounds_tasks());
    EXPECT_TRUE(room.bounds_memory());
    EXPECT_EQ(room.why, "control group /system.slice/gradcastd.service does not have the controller pids (Delegate=pids in the unit)");
    EXPECT_EQ(room.why_memory, "");

    unit.write(own + "/cgroup.subtree_control", "pids\n");
    unit.write(own + "/cgroup.controllers", "cpu pids\n");
    room = group_room_find(unit.root);
    EXPECT_TRUE(room.bounds_tasks());
    EXPECT_FALSE(room.bounds_memory());
    EXPECT_EQ(room.why_memory,
              "control group /system.slice/gradcastd.service does not have the controller memory (Delegate=memory in the unit)");
}

TEST(ControlGroup, NotBelowAGroupOfAnotherUser) {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    const Machine unit("foreign");
    unit.write("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    unit.write("/proc/self/cgroup", "0::/a\n");
    unit.write("/sys/fs/cgroup/a/cgroup.procs", "");
    for (const auto& each : std::filesystem::recursive_directory_iterator(unit.root))
        std::filesystem::permissions(each.path(), std::filesystem::perms::others_all & ~std::filesystem::perms::others_write,
                                     std::filesystem::perm_options::add);
    const pid_t child = ::fork();
    if (child == 0) {
        if (::setuid(65534) != 0) ::_exit(9);
        const GroupRoom room = group_room_find(unit.root);
        ::_exit(!room.any() && room.why.starts_with("this user may not make control groups below /a (Delegate=") ? 0 : 1);
    }
    int how = 0;
    ASSERT_EQ(::waitpid(child, &how, 0), child);
    EXPECT_EQ(how, 0);
}

}   // namespace
}   // namespace gradcast
