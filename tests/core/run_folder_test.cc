// The folder that a process makes for its sockets.
#include "runtime/core/run_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>

namespace gradcast {
namespace {

namespace fs = std::filesystem;

struct RunFolder : testing::Test {
    std::optional<std::string> before;
    fs::path here = fs::current_path();
    RunFolder() {
        if (const char* set = std::getenv("TMPDIR")) before = set;
    }
    ~RunFolder() override {
        if (before) ::setenv("TMPDIR", before->c_str(), 1);
        else ::unsetenv("TMPDIR");
        fs::current_path(here);
    }
    /// The folder in which one is made.
    static std::string made() {
        std::string folder;
        if (const Status status = run_folder_make(&folder); !status.ok()) return status.what;
        struct stat info {};
        EXPECT_EQ(::stat(folder.c_str(), &info), 0);
        EXPECT_EQ(info.st_mode & 0777, 0700u);
        EXPECT_LE(folder.size() + sizeof "/node-1000/control.sock", 107u);
        EXPECT_TRUE(fs::remove(folder));
        return fs::path(folder).parent_path();
    }
};

TEST_F(RunFolder, IsInTheFirstThatCanBeWritten) {
    char base[] = "/tmp/gc-run-XXXXXX";
    ASSERT_NE(::mkdtemp(base), nullptr);
    ::setenv("TMPDIR", base, 1);
    EXPECT_EQ(made(), base);
    for (const std::string& wrong :
         {std::string("/no/such/folder"), std::string("relative"), std::string(), "/tmp/" + std::string(60, 'x')}) {
        ::setenv("TMPDIR", wrong.c_str(), 1);
        EXPECT_EQ(made(), "/tmp") << wrong;
    }
    ::unsetenv("TMPDIR");
    EXPECT_EQ(made(), "/tmp");
    fs::remove(base);
}

// Where nothing else can be written, as in a container with a read-only root.
TEST_F(RunFolder, IsInTheWorkingFolderWhereThereIsNoOther) {
    if (::getuid() != 0) GTEST_SKIP() << "needs root";
    char base[] = "/tmp/gc-run-XXXXXX";
    ASSERT_NE(::mkdtemp(base), nullptr);
    const pid_t pid = ::fork();
    if (pid == 0) {   // without /tmp
        std::string folder;
        ::setenv("TMPDIR", "/no/such/folder", 1);
        const bool refused = ::chroot(base) == 0 && ::mkdir("/work", 0755) == 0 && ::chdir("/work") == 0 && ::chmod("/work", 0500) == 0 &&
                             ::setgid(54'321) == 0 && ::setuid(54'321) == 0 &&
                             std::string_view(run_folder_make(&folder).what).find("set TMPDIR") != std::string_view::npos;
        ::_exit(refused ? 0 : 1);
    }
    int how = -1;
    ::waitpid(pid, &how, 0);
    EXPECT_EQ(how, 0) << "no folder can be written";
    ::chmod((std::string(base) + "/work").c_str(), 0777);
    const pid_t other = ::fork();
    if (other == 0) {
        std::string folder;
        const bool made = ::chroot(base) == 0 && ::chdir("/work") == 0 && run_folder_make(&folder).ok() && folder.starts_with("/work/");
        ::_exit(made ? 0 : 1);
    }
    ::waitpid(other, &how, 0);
    EXPECT_EQ(how, 0);
    fs::remove_all(base);
}

}   // namespace
}   // namespace gradcast
