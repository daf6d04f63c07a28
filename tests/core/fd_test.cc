// Only regular files are opened; patterns are bounded.
#include "runtime/core/fd.h"

#include <glob.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>

#include "runtime/core/clock.h"

namespace gradcast {
namespace {

namespace fs = std::filesystem;

class File : public ::testing::Test {
protected:
    const std::string folder = ::testing::TempDir() + "gc-fd-" + std::to_string(::getpid());
    void SetUp() override { fs::remove_all(folder), fs::create_directories(folder); }
    void TearDown() override { fs::remove_all(folder); }
    void make(const std::string& name) {
        fs::create_directories(fs::path(folder + "/" + name).parent_path());
        ASSERT_TRUE(file_write(folder + "/" + name, "x").ok());
    }
};

TEST_F(File, WhatIsNotARegularFileIsRefusedAtOnce) {
    ASSERT_EQ(::mkfifo((folder + "/pipe").c_str(), 0600), 0);
    ASSERT_EQ(::symlink("pipe", (folder + "/link").c_str()), 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    (folder + "/socket").copy(address.sun_path, sizeof address.sun_path - 1);
    Fd socket(::socket(AF_UNIX, SOCK_STREAM, 0));
    ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    for (const auto& [path, what] : {std::pair{folder + "/pipe", "a pipe"},
                                     {folder + "/link", "a pipe"},
                                     {folder + "/socket", "a socket"},
                                     {folder, "a folder"},
                                     {std::string("/dev/zero"), "a device"}}) {
        Fd fd;
        std::string text = "as it was";
        const std::string error = "cannot open " + path + ": it is " + what + ", not a file";
        EXPECT_EQ(file_open(path, &fd).what, error);
        EXPECT_FALSE(fd);
        EXPECT_EQ(file_read(path, &text).what, error);
        EXPECT_EQ(text, "as it was");
    }
    make("file");
    Fd fd;
    uint64_t bytes = 0;
    EXPECT_TRUE(file_open(folder + "/file", &fd, &bytes).ok());
    EXPECT_TRUE(fd);
    EXPECT_EQ(bytes, 1u);
}

TEST_F(File, WhatIsWrittenHasItsNameAndNothingElse) {
    ASSERT_TRUE(file_write(folder + "/a", "one").ok());
    ASSERT_TRUE(file_write(folder + "/a", "two").ok());
    std::string text;
    ASSERT_TRUE(file_read(folder + "/a", &text).ok());
    EXPECT_EQ(text, "two");
    EXPECT_FALSE(fs::exists(folder + "/a.part"));
    ASSERT_TRUE(file_rename(folder + "/a", folder + "/b").ok());
    EXPECT_FALSE(fs::exists(folder + "/a"));
    EXPECT_FALSE(file_rename(folder + "/a", folder + "/b").ok());
    EXPECT_FALSE(file_write(folder + "/none/a", "x").ok());
}

TEST_F(File, PatternsMatchAsTheShellsDo) {
    for (const char* name : {"a1.h5", "a2.h5", "b.h5", ".hidden.h5", "sub/a1.h5", "sub/deep/a3.h5", "other/a1.h5", "a[1].h5"}) make(name);
    for (const char* pattern : {"*.h5", "a?.h5", "a[12].h5", "a[!1].h5", ".*.h5", "*/a1.h5", "*/*/*.h5", "*", "*/", "sub/*", "a\\[1\\].h5",
                                "*/none.h5", "none*", "b.h5/*", "./*.h5", "sub/../*.h5"}) {
        const std::string full = folder + "/" + pattern;
        glob_t wanted;
        std::vector<std::string> expected, found;
        if (::glob(full.c_str(), 0, nullptr, &wanted) == 0) expected.assign(wanted.gl_pathv, wanted.gl_pathv + wanted.gl_pathc);
        ::globfree(&wanted);
        EXPECT_EQ(file_glob(full, &found).ok(), !expected.empty()) << pattern;
        EXPECT_EQ(found, expected) << pattern;
    }
    std::vector<std::string> found;
    EXPECT_TRUE(file_glob(folder + "/a[1].h5", &found).ok());   // a file of this literal name exists
    EXPECT_EQ(found, std::vector{folder + "/a[1].h5"});
    EXPECT_EQ(file_glob(folder + "/none*", &found).what, "no file matches " + folder + "/none*");
}

TEST_F(File, AFolderInFrontOfAPatternIsNone) {
    for (const char* name : {"p*q/a.h5", "pOTHERq/a.h5", "[x]/a.h5", "e\\f/a.h5"}) make(name);
    for (const char* name : {"p*q/", "[x]/", "e\\f/"}) {
        const std::string front = folder + "/" + name;
        std::vector<std::string> found;
        EXPECT_TRUE(file_glob(front + "*.h5", &found, front.size()).ok()) << name;
        EXPECT_EQ(found, std::vector{front + "a.h5"});
        EXPECT_FALSE(file_glob(front + "b*.h5", &found, front.size()).ok());
    }
}

TEST_F(File, APatternIsBounded) {
    for (int i = 0; i < 12; ++i) ASSERT_EQ(::symlink(".", (folder + "/" + static_cast<char>('a' + i)).c_str()), 0);
    std::string wide = folder;   // 12^30 paths
    for (int i = 0; i < 30; ++i) wide += "/*";
    std::vector<std::string> found;
    const uint64_t begin_us = clock_us();
    EXPECT_EQ(file_glob(wide, &found).what, wide + ": too many files to look through: name them more closely");
    EXPECT_LT(clock_us() - begin_us, 10'000'000u);
    std::string long_one;
    for (int i = 0; i < 500'000; ++i) long_one += "/*";
    EXPECT_EQ(file_glob(long_one, &found).code, Code::invalid);
    EXPECT_TRUE(found.empty());
}

}   // namespace
}   // namespace gradcast
