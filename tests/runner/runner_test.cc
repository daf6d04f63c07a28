// tests/run over shell scripts as test programs: its counts, its output, and its exit status.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace {

namespace fs = std::filesystem;

constexpr char passes[] = R"(echo '[ RUN      ] Suite.Quick
[       OK ] Suite.Quick (3 ms)
[ RUN      ] Suite.Long
[       OK ] Suite.Long (12345 ms)
[  PASSED  ] 2 tests.')";

constexpr char skips[] = R"(echo '[ RUN      ] Suite.Device
some_test.cc:18: Skipped
no device: none found

[  SKIPPED ] Suite.Device (0 ms)
[  PASSED  ] 0 tests.
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] Suite.Device')";

/// A copy of tests/run with `expected` as its tests/skips, and a build folder.
class Runner : public testing::Test {
protected:
    void SetUp() override {
        root_ = fs::temp_directory_path() / ("runner." + std::to_string(::getpid()));
        fs::create_directories(root_ / "tests");
        fs::create_directories(root_ / "build/tests");
        ASSERT_TRUE(fs::copy_file("tests/run", root_ / "tests/run")) << "run it in the folder of the sources";
    }
    void TearDown() override { fs::remove_all(root_); }

    void program(const std::string& name, const std::string& script) {
        const fs::path path = root_ / "build/tests" / name;
        std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
        fs::permissions(path, fs::perms::owner_all);
    }
    /// Returns the output; `code_` is the exit status.
    std::string run(const std::string& expected = "", const std::string& environment = "") {
        std::ofstream(root_ / "tests/skips") << expected;
        const std::string command = "cd " + root_.string() + " && " + environment + " tests/run build 2>&1";
        FILE* pipe = ::popen(command.c_str(), "r");
        std::string text;
        for (char piece[4096]; size_t bytes = ::fread(piece, 1, sizeof(piece), pipe);) text.append(piece, bytes);
        code_ = WEXITSTATUS(::pclose(pipe));
        return text;
    }
    fs::path root_;
    int code_ = -1;
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_F(Runner, CountsAndNamesTheSlowestTests) {
    program("good", passes);
    const std::string text = run();
    EXPECT_EQ(code_, 0) << text;
    EXPECT_TRUE(has(text, "good             2 passed   0 failed   0 skipped")) << text;
    EXPECT_TRUE(has(text, "slowest tests:\n   12.3 s  good Suite.Long\n    0.0 s  good Suite.Quick\n")) << text;
    EXPECT_TRUE(has(text, "\n2 passed, 0 failed, 0 skipped\n")) << text;
}

TEST_F(Runner, ASkipThatIsExpectedHerePasses) {
    program("good", passes);
    program("device", skips);
    const std::string text = run("[true]\n^device .*: no device: \n");
    EXPECT_EQ(code_, 0) << text;
    EXPECT_TRUE(has(text, "\n2 passed, 0 failed, 1 skipped\n")) << text;
    EXPECT_TRUE(has(text, "1 device: no device: none found")) << text;
}

TEST_F(Runner, ASkipThatIsNotExpectedFails) {
    program("good", passes);
    program("device", skips);
    for (const char* expected : {"", "[false]\n: no device: \n", "[true]\n: no other thing\n"}) {
        const std::string text = run(expected);
        EXPECT_EQ(code_, 1) << text;
        EXPECT_TRUE(has(text, "does not expect here:\n  device Suite.Device: no device: none found\n")) << text;
        EXPECT_TRUE(has(text, "\n2 passed, 1 failed, 0 skipped\n")) << text;
    }
}

TEST_F(Runner, ASkipThatItsOutputDoesNotNameFails) {
    program("good", passes);
    program("device", "echo '[  SKIPPED ] 3 tests, listed below:'");
    const std::string text = run("[true]\n: no device: \n");
    EXPECT_EQ(code_, 1) << text;
    EXPECT_TRUE(has(text, "device: 3 tests were skipped")) << text;
}

TEST_F(Runner, FailuresCrashesAndTimeOutsFail) {
    program("good", passes);
    program("bad", "echo '[  FAILED  ] Suite.Wrong (1 ms)\n[  PASSED  ] 4 tests.\n[  FAILED  ] 2 tests, listed below:'; exit 1");
    program("crash", "kill -SEGV $$");
    program("hang", "sleep 1000");
    const std::string text = run("", "TEST_SECONDS=1");
    EXPECT_EQ(code_, 1) << text;
    EXPECT_TRUE(has(text, "hang did not end within 1 s")) << text;
    EXPECT_TRUE(has(text, "  [  FAILED  ] Suite.Wrong")) << text;
    EXPECT_TRUE(has(text, "\n6 passed, 4 failed, 0 skipped\n")) << text;
}

TEST_F(Runner, NothingThatPassesFails) {
    EXPECT_TRUE(has(run(), "\n0 passed, 0 failed, 0 skipped\n"));
    EXPECT_EQ(code_, 1);
}

}   // namespace
