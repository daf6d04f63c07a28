// A process of the user: started, watched, and ended with all its descendants.
#include "runtime/attach/process.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "tests/attach/watched.h"

namespace gradcast {
namespace {

std::string folder_make(const std::string& name) {
    const std::string path = testing::TempDir() + "/" + name;
    std::filesystem::create_directories(path);
    return path;
}

std::string file_make(const std::string& path, const std::string& text, unsigned mode) {
    std::ofstream(path) << text;
    ::chmod(path.c_str(), mode);
    return path;
}

std::string error_of(const std::vector<std::string>& command, const std::string& folder = "") {
    Watched watched(command);
    watched.config.folder = folder;
    const Status status = watched.start();
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(watched.process, nullptr);
    return status.what;
}

#define EXPECT_HAS(text, part) EXPECT_NE(std::string(text).find(part), std::string::npos) << (text)

TEST(Process, StartsAndEndsByItself) {
    Watched watched({"sh", "-c", "echo one; echo two >&2; pwd"});
    watched.config.folder = folder_make("working folder");
    ASSERT_TRUE(watched.start().ok());
    EXPECT_GT(watched.process->pid(), 1);
    EXPECT_EQ(watched.death(), "exited with status 0; its last line: two");
    EXPECT_TRUE(watched.process->ended());
    watched.process->end(0);
    std::vector<std::string> lines = watched.all();
    std::sort(lines.begin(), lines.end());
    EXPECT_EQ(lines, (std::vector<std::string>{std::filesystem::canonical(watched.config.folder), "one", "two"}));
    EXPECT_EQ(::waitpid(watched.process->pid(), nullptr, WNOHANG), -1);   // reaped
}

TEST(Process, WhatCannotBeStartedIsNamed) {
    EXPECT_HAS(error_of({}), "net.command is empty");
    EXPECT_HAS(error_of({""}), "net.command is empty");
    EXPECT_HAS(error_of({"no-such-program-4711"}), "net.command: no program no-such-program-4711 in PATH (");
    EXPECT_HAS(error_of({"no-such-program-4711"}), "install it");
    EXPECT_HAS(error_of({"/no/such/program"}), "there is no /no/such/program at this node (ENOENT)");
    EXPECT_HAS(error_of({"/usr"}), "/usr is a folder");
    EXPECT_HAS(error_of({"sh"}, "/no/such/folder"), "the working directory /no/such/folder is not a folder");
    const std::string folder = folder_make("programs");
    file_make(folder + "/train.py", "print(1)\n", 0644);
    EXPECT_HAS(error_of({"./train.py"}, folder), "train.py may not be executed (mode 0644): chmod +x");
    EXPECT_HAS(process_check({"./train.py"}, folder).what, "may not be executed");
    file_make(folder + "/text", "neither\n", 0755);
    EXPECT_HAS(error_of({"./text"}, folder), "lane 0: cannot execute " + folder + "/./text: it is neither a program");
    file_make(folder + "/lost", "#!/no/such/interpreter\n", 0755);
    EXPECT_HAS(error_of({"./lost"}, folder), "the interpreter in its first line");
    EXPECT_TRUE(process_check({"sh"}, folder).ok());
}

TEST(Process, ProgramsAreFoundByThePathOfTheJob) {
    const std::string folder = folder_make("path");
    file_make(folder + "/python4711", "#!/bin/sh\necho found $0\n", 0755);
    Watched watched({"python4711"});
    EXPECT_FALSE(watched.start().ok());
    watched.config.environment = {{"PATH", folder + ":/bin:/usr/bin"}};
    ASSERT_TRUE(watched.start().ok());
    ASSERT_TRUE(watched.printed(1));
    EXPECT_EQ(watched.all()[0], "found " + folder + "/python4711");
    EXPECT_TRUE(process_check(watched.config.command, "", watched.config.environment).ok());
}

TEST(Process, NoProcessCanBeMade) {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    // Another user may have no further process: the limit does not hold for root.
    const pid_t child = ::fork();
    if (child == 0) {
        const rlimit none{0, 0};
        if (::setrlimit(RLIMIT_NPROC, &none) != 0 || ::setuid(65534) != 0) ::_exit(9);
        Watched watched({"/bin/true"});
        const Status status = watched.start();
        ::_exit(!status.ok() && std::string(status.what).find("ulimit -u") != std::string::npos ? 0 : 1);
    }
    int how = 0;
    ASSERT_EQ(::waitpid(child, &how, 0), child);
    EXPECT_EQ(how, 0);
}

TEST(Process, Environment) {
    ::setenv("GRADCAST_KEY", "k1 secret", 1);
    ::setenv("NOTIFY_SOCKET", "/run/nothing", 1);
    ::setenv("GC_OF_THE_DAEMON", "kept", 1);
    ::setenv("GC_REPLACED", "old", 1);
    Watched watched({"env"});
    watched.config.environment = {{"GC_REPLACED", "new"}, {"GC_OWN", "a = b"}, {"GRADCAST_ATTACH", "99"}, {"GRADCAST_PROCESS", "x"}};
    ASSERT_TRUE(watched.start().ok());
    watched.death();
    watched.process->end(0);
    const std::string text = "\n" + watched.text() + "\n";
    EXPECT_HAS(text, "\nGC_OF_THE_DAEMON=kept\n");
    EXPECT_HAS(text, "\nGC_REPLACED=new\n");
    EXPECT_HAS(text, "\nGC_OWN=a = b\n");
    EXPECT_HAS(text, fmt::format("\nGRADCAST_PROCESS={}-", ::getpid()));
    for (const char* each : {"GRADCAST_KEY", "NOTIFY_SOCKET", "GC_REPLACED=old", "GRADCAST_PROCESS=x"})
        EXPECT_EQ(text.find(each), text.npos) << each;
    for (const char* each : {"GRADCAST_KEY", "NOTIFY_SOCKET", "GC_OF_THE_DAEMON", "GC_REPLACED"}) ::unsetenv(each);
}

TEST(Process, HasItsSocketAndNoOtherDescriptor) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    const Fd own(ends[0]);
    Fd its(ends[1]);
    const Fd open_for_all(::open("/dev/null", O_RDONLY)), high(::fcntl(open_for_all.get(), F_DUPFD, 700));
    ASSERT_TRUE(high);
    const char* script =
        "i=0; all=; while [ $i -lt 1000 ]; do if [ -e /proc/$$/fd/$i ]; then all=\"$all $i\"; fi; i=$((i + 1)); done; echo "
        "$GRADCAST_ATTACH $all; "
        "echo hello >&3; cat <&3; echo over";
    Watched watched({"sh", "-c", script});
    watched.config.socket = its.get();
    ASSERT_TRUE(watched.start().ok());
    its.close();
    char text[16] = {};
    ASSERT_EQ(::read(own.get(), text, sizeof text), 6);
    EXPECT_EQ(std::string(text), "hello\n");
    ASSERT_TRUE(watched.printed(1));
    EXPECT_EQ(watched.all()[0], "3 0 1 2 3");
    EXPECT_FALSE(watched.process->ended());
    ::shutdown(own.get(), SHUT_RDWR);   // the process sees the end of the socket
    EXPECT_EQ(watched.death(), "exited with status 0");
    watched.process->end(0);
    EXPECT_EQ(watched.all().back(), "over");
}

TEST(Process, ASocketWhoseNumberIsInTheWay) {
    // The parent's descriptors have the numbers that the child is to get.
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    const Fd own(ends[0]), its(ends[1]);
    const Fd low(::fcntl(its.get(), F_DUPFD_CLOEXEC, 3));
    Watched watched({"sh", "-c", "echo to-out; echo to-error >&2; echo to-socket >&3"});
    watched.config.socket = low.get();
    ASSERT_TRUE(watched.start().ok());
    char text[16] = {};
    ASSERT_EQ(::read(own.get(), text, sizeof text), 10);
    EXPECT_EQ(watched.death(), "exited with status 0; its last line: to-error");
}

TEST(Process, SignalsAreReset) {
    ::signal(SIGPIPE, SIG_IGN);   // as in the daemon
    sigset_t blocked, before;
    ::sigemptyset(&blocked);
    ::sigaddset(&blocked, SIGTERM);
    ::pthread_sigmask(SIG_BLOCK, &blocked, &before);
    Watched watched({"grep", "-E", "SigBlk|SigIgn", "/proc/self/status"});
    ASSERT_TRUE(watched.start().ok());
    watched.death();
    watched.process->end(0);
    const std::string said = watched.text();
    ASSERT_TRUE(said.starts_with("SigBlk: 0000000000000000\nSigIgn: ")) << said;
    constexpr uint64_t of_glibc = uint64_t{3} << 31;   // 32 and 33: a program that posix_spawn() has started may have inherited them
    EXPECT_EQ(std::stoull(said.substr(said.rfind(' ') + 1), nullptr, 16) & ~of_glibc, 0u) << said;
    sigset_t now;
    ::pthread_sigmask(SIG_SETMASK, &before, &now);
    EXPECT_EQ(::sigismember(&now, SIGTERM), 1);   // the caller's own mask is as it was
}

TEST(Process, Deaths) {
    const auto death = [](const std::string& script) {
        Watched watched({"sh", "-c", script});
        EXPECT_TRUE(watched.start().ok());
        return watched.death();
    };
    EXPECT_EQ(death("exit 3"), "exited with status 3");
    EXPECT_EQ(death("kill -SEGV $$"), "was ended by signal 11 (SIGSEGV)");
    EXPECT_EQ(death("echo out; echo 'Traceback' >&2; printf 'ValueError: x is bad' >&2; exit 1"),
              "exited with status 1; its last line: ValueError: x is bad");
    EXPECT_EQ(death("echo 'Fatal Python error' >&2; kill -ABRT $$"), "was ended by signal 6 (SIGABRT); its last line: Fatal Python error");
    Watched running({"sleep", "1000"});
    ASSERT_TRUE(running.start().ok());
    EXPECT_EQ(running.process->death(), "is still running");
}

TEST(Process, OutputComesFromAThreadWhileItRuns) {
    Watched watched({"sh", "-c", "echo first; sleep 1000"});
    ASSERT_TRUE(watched.start().ok());
    ASSERT_TRUE(watched.printed(1));
    EXPECT_FALSE(watched.process->ended());
}

TEST(Process, AFloodDoesNotHoldItUp) {
    Watched watched({"sh", "-c", "head -c 50000000 /dev/zero | tr '\\0' x; echo; yes line | head -n 1000000; echo end >&2"});
    ASSERT_TRUE(watched.start().ok());
    ASSERT_TRUE(wait_for([&] { return watched.process->ended(); }));
    EXPECT_EQ(watched.death(), "exited with status 0; its last line: end");
    watched.process->end(0);
    const std::string text = watched.text();
    EXPECT_HAS(text, "xxx... (49995904 bytes more)");
    EXPECT_HAS(text, "it prints more than 64 KiB in a second");
    EXPECT_LT(text.size(), 2u << 20);
}

TEST(Process, EndGivesItTime) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    Fd own(ends[0]), its(ends[1]);
    Watched watched({"sh", "-c", "cat <&3; echo saved"});
    watched.config.socket = its.get();
    ASSERT_TRUE(watched.start().ok());
    its.close(), own.close();
    watched.process->end(wait_us_max);
    EXPECT_EQ(watched.text(), "saved");
    EXPECT_EQ(watched.death(), "exited with status 0");
}

TEST(Process, EndIsBoundedWhateverItIgnores) {
    Watched watched({"sh", "-c", "trap '' TERM INT HUP; echo ready; while :; do sleep 1000; done"});
    ASSERT_TRUE(watched.start().ok());
    ASSERT_TRUE(watched.printed(1));
    const uint64_t begun = clock_us();
    watched.process->end(50'000);
    EXPECT_LT(clock_us() - begun, wait_us_max);
    EXPECT_FALSE(runs(watched.process->pid()));
    EXPECT_EQ(watched.death(), "was ended by signal 9 (SIGKILL)");
    watched.process->end(0);   // a second call does nothing
}

/// The numbers are printed as "child N".
pid_t child_of(Watched& watched) {
    EXPECT_TRUE(watched.printed(1));
    const pid_t pid = watched.number("child");
    EXPECT_GT(pid, 1);
    EXPECT_TRUE(runs(pid));
    return pid;
}

TEST(Process, ChildrenEndWithIt) {
    Watched watched({"sh", "-c", "sleep 1000 & echo child $!; wait"});
    ASSERT_TRUE(watched.start().ok());
    const pid_t child = child_of(watched);
    EXPECT_GT(watched.process->memory().own, 100'000u);
    watched.process->end(0);
    EXPECT_FALSE(runs(child));
}

TEST(Process, WhatOutlivesItEnds) {
    Watched watched({"sh", "-c", "sleep 1000 & echo child $!"});
    ASSERT_TRUE(watched.start().ok());
    const pid_t child = child_of(watched);
    EXPECT_EQ(watched.death(), "exited with status 0");
    EXPECT_TRUE(runs(child));
    watched.process->end(0);
    EXPECT_FALSE(runs(child));
    EXPECT_FALSE(std::filesystem::exists(fmt::format("/proc/{}", child)));   // reaped, too
}

const char* const daemonised = "setsid sh -c 'echo child $$; exec sleep 1000' &";
const char* const hidden = "env -i setsid sh -c 'echo child $$; exec sleep 1000' &";

TEST(Process, DaemonsWithSessionsOfTheirOwnEnd) {
    for (const char* script : {daemonised, hidden}) {
        Watched watched({"sh", "-c", script});
        ASSERT_TRUE(watched.start().ok());
        const pid_t child = child_of(watched);
        watched.death();
        watched.process->end(0);
        EXPECT_FALSE(runs(child)) << script;
    }
}

TEST(Process, WithoutAControlGroupTheyEndAsWell) {
    for (const char* script : {daemonised, hidden}) {
        Watched watched({"sh", "-c", script});
        watched.config.control_group = false;
        ASSERT_TRUE(watched.start().ok());
        EXPECT_FALSE(watched.process->bounded());
        const pid_t child = child_of(watched);
        watched.death();
        watched.process->end(0);
        EXPECT_FALSE(runs(child)) << script;
        EXPECT_FALSE(std::filesystem::exists(fmt::format("/proc/{}", child))) << script;
    }
}

TEST(Process, DescendantsOfOthersStay) {
    Watched one({"sh", "-c", daemonised}), two({"sh", "-c", daemonised});
    one.config.control_group = two.config.control_group = false;
    ASSERT_TRUE(one.start().ok());
    ASSERT_TRUE(two.start().ok());
    const pid_t first = child_of(one), second = child_of(two);
    one.death();
    two.death();
    one.process->end(0);
    EXPECT_FALSE(runs(first));
    EXPECT_TRUE(runs(second));
    two.process->end(0);
    EXPECT_FALSE(runs(second));
}

// While a program is executed it has no environment yet: whose it is cannot be told, and is looked at once more.
TEST(Process, DescendantsThatExecuteProgramsAllTheTimeEnd) {
    const std::string again = file_make(folder_make("again") + "/again.sh", "exec sh \"$0\"\n", 0644);
    Watched other({"sleep", "1000"});
    other.config.control_group = false;
    ASSERT_TRUE(other.start().ok());
    for (int i = 0; i < 40; ++i) {
        Watched watched({"sh", "-c", "setsid sh -c 'echo child $$; exec sh \"$0\"' " + again + " &"});
        watched.config.control_group = false;
        ASSERT_TRUE(watched.start().ok());
        const pid_t child = child_of(watched);
        watched.death();
        watched.process->end(0);
        const bool left = runs(child);
        if (left) ::kill(child, SIGKILL);
        ASSERT_FALSE(left) << i;
    }
}

TEST(Process, AnUnknownOrphanEndsWithTheLastProcess) {
    Watched one({"sh", "-c", hidden}), two({"sleep", "1000"});
    one.config.control_group = two.config.control_group = false;
    ASSERT_TRUE(one.start().ok());
    ASSERT_TRUE(two.start().ok());
    const pid_t child = child_of(one);
    one.death();
    one.process->end(0);
    EXPECT_TRUE(runs(child));
    two.process->end(0);
    EXPECT_FALSE(runs(child));
}

TEST(Process, OtherChildrenOfTheDaemonStay) {
    // As gradcast-bench, which the daemon starts: it runs on, and its status is its starter's.
    int to[2];
    ASSERT_EQ(::pipe2(to, O_CLOEXEC), 0);
    const Fd reads(to[0]);
    Fd writes(to[1]);
    const pid_t other = ::fork();
    if (other == 0) {
        ::close(to[1]);
        char byte;
        ::_exit(::read(to[0], &byte, 1) == 0 ? 42 : 1);
    }
    {
        Watched watched({"sh", "-c", "sleep 1000 & echo child $!"});
        ASSERT_TRUE(watched.start().ok());
        child_of(watched);
        watched.process->end(0);
        EXPECT_TRUE(runs(other));
        Watched next({"sleep", "1000"});
        ASSERT_TRUE(next.start().ok());
        writes.close();
        ASSERT_TRUE(wait_for([&] { return !runs(other); }));
        next.process->end(0);   // reaps orphans
    }
    int how = 0;
    ASSERT_EQ(::waitpid(other, &how, WNOHANG), other);
    EXPECT_EQ(WEXITSTATUS(how), 42);
}

TEST(Process, OrphansAreReapedWhileItRuns) {
    Watched watched({"sh", "-c", "(sh -c 'echo child $$' &); sleep 1000"});
    ASSERT_TRUE(watched.start().ok());
    ASSERT_TRUE(watched.printed(1));
    const pid_t child = watched.number("child");
    EXPECT_TRUE(wait_for([&] { return !std::filesystem::exists(fmt::format("/proc/{}", child)); }));
}

TEST(Process, EndsWithItsDaemon) {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const Fd reads(ends[0]), writes(ends[1]);
    const pid_t daemon = ::fork();
    if (daemon == 0) {
        ProcessConfig config{.command = {"sleep", "1000"}, .folder = "", .environment = {}, .name = "lane 0", .output = {}};
        std::unique_ptr<Process> process;
        const pid_t pid = Process::start(config, &process).ok() ? process->pid() : 0;
        (void)!::write(ends[1], &pid, sizeof pid);
        ::pause();
        ::_exit(0);
    }
    pid_t pid = 0;
    ASSERT_EQ(::read(reads.get(), &pid, sizeof pid), static_cast<ssize_t>(sizeof pid));
    ASSERT_GT(pid, 1);
    EXPECT_TRUE(runs(pid));
    ::kill(daemon, SIGKILL);
    ASSERT_EQ(::waitpid(daemon, nullptr, 0), daemon);
    EXPECT_TRUE(wait_for([&] { return !runs(pid); }));

    // Its control group is left; who looks for a place for groups next removes it.
    const GroupRoom again = group_room_find();
    for (const std::string& folder : {again.two, again.pids, again.memory}) {
        if (folder.empty()) continue;
        for (const auto& each : std::filesystem::directory_iterator(folder))
            EXPECT_FALSE(each.path().filename().string().starts_with(fmt::format("gradcast-{}-", daemon))) << each.path();
    }
}

TEST(Process, ManyAtOnce) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i)
        threads.emplace_back([] {
            for (int round = 0; round < 3; ++round) {
                Watched watched({"sh", "-c", "sleep 1000 & echo child $!; echo done >&2; exit 7"});
                ASSERT_TRUE(watched.start().ok());
                EXPECT_EQ(watched.death(), "exited with status 7; its last line: done");
                const pid_t child = watched.number("child");
                watched.process->end(0);
                EXPECT_FALSE(child > 0 && runs(child));
            }
        });
    for (std::thread& each : threads) each.join();
}

}   // namespace
}   // namespace gradcast
