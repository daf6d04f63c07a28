// tests/run over shell scripts as test programs: its counts, its output, and its exit status.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
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

/// What a program with these tests, of which GoogleTest gives each shard its own, says of those that it is given.
constexpr char sharded[] = R"sh(echo "$TEST_TMPDIR" >>"$0.folders"
for test in 0 1 2 3 4; do
    [ $((test % GTEST_TOTAL_SHARDS)) = "$GTEST_SHARD_INDEX" ] || continue
    echo "[ RUN      ] Suite.Test$test"
    case $test in
        1) echo 'some_test.cc:18: Skipped'; echo 'no device'; echo; echo "[  SKIPPED ] Suite.Test$test (0 ms)"; s=1 ;;
        [$FAILS]) echo "wrong by $test"; echo "[  FAILED  ] Suite.Test$test (2 ms)"; f=1 ;;
        [$CRASHES]) kill -SEGV $$ ;;
        *) echo "[       OK ] Suite.Test$test ($((test + 1))000 ms)"; p=$((p + 1)) ;;
    esac
done
echo "[  PASSED  ] $((p)) tests."
[ -z "$s" ] || echo '[  SKIPPED ] 1 test, listed below:'
[ -z "$f" ] || { echo '[  FAILED  ] 1 test, listed below:'; exit 1; })sh";

TEST_F(Runner, WhatACrashLeavesIsShownOfEveryShard) {
    program("system", sharded);
    const std::string text = run("[true]\n^system Suite.Test1: no device$\n", "FAILS=x CRASHES=0");
    EXPECT_EQ(code_, 1) << text;
    EXPECT_TRUE(has(text, "  [ RUN      ] Suite.Test0")) << text;
    EXPECT_FALSE(has(text, "does not say which")) << text;
}

TEST_F(Runner, AProgramWhoseShellDiesFails) {
    program("good", passes);
    program("system",
            "[ $GTEST_SHARD_INDEX = 0 ] && kill -9 $(ps -o ppid= -p $PPID); exit 0");   // above it: timeout, the shell of the shard
    const std::string text = run();
    EXPECT_EQ(code_, 1) << text;
    EXPECT_TRUE(has(text, "system: 3 of its 4 shards ended with a result, so it counts as failed")) << text;
    EXPECT_TRUE(has(text, "\n2 passed, 1 failed, 0 skipped\n")) << text;
}

TEST_F(Runner, ACrashBehindASkipIsOneFailure) {
    program("good", passes);
    program("crash",
            "echo '[ RUN      ] Suite.Device\nsome_test.cc:18: Skipped\nno device\n\n[  SKIPPED ] Suite.Device (0 ms)'; kill -SEGV $$");
    const std::string text = run("[true]\n^crash Suite.Device: no device$\n");
    EXPECT_EQ(code_, 1) << text;
    EXPECT_TRUE(has(text, "\n2 passed, 1 failed, 1 skipped\n")) << text;
}

TEST_F(Runner, ShardsOfAProgramAreOneLine) {
    program("system", sharded);
    std::string text = run("[true]\n^system Suite.Test1: no device$\n", "FAILS=x CRASHES=x");
    EXPECT_EQ(code_, 0) << text;
    EXPECT_TRUE(has(text, "system           4 passed   0 failed   1 skipped")) << text;
    EXPECT_EQ(text.find("skipped  "), text.rfind("skipped  ")) << text;
    EXPECT_TRUE(has(text, "slowest tests:\n    5.0 s  system Suite.Test4\n    4.0 s  system Suite.Test3\n    3.0 s  ")) << text;
    EXPECT_TRUE(has(text, "\n4 passed, 0 failed, 1 skipped\n")) << text;
    // All that was said is in one file, and no two shards share a folder.
    std::stringstream log, folders;
    log << std::ifstream(root_ / "build/tests/system.log").rdbuf();
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(has(log.str(), "Suite.Test" + std::to_string(i))) << log.str();
    EXPECT_FALSE(fs::exists(root_ / "build/tests/system.0.log"));
    std::ifstream in(root_ / "build/tests/system.folders");
    std::set<std::string> different;
    size_t shards = 0;
    for (std::string line; std::getline(in, line); ++shards) different.insert(line);
    EXPECT_GT(shards, 1u);
    EXPECT_EQ(different.size(), shards);
}

TEST_F(Runner, AShardThatFailsOrCrashesFailsTheProgram) {
    program("system", sharded);
    const std::string expected = "[true]\n^system Suite.Test1: no device$\n";
    std::string text = run(expected, "FAILS=23 CRASHES=x");
    EXPECT_EQ(code_, 1) << text;
    EXPECT_TRUE(has(text, "system           2 passed   2 failed   1 skipped")) << text;
    for (const char* wrong : {"  wrong by 2\n  [  FAILED  ] Suite.Test2", "  wrong by 3\n  [  FAILED  ] Suite.Test3"})
        EXPECT_TRUE(has(text, wrong)) << text;
    text = run(expected, "FAILS=x CRASHES=3");
    EXPECT_EQ(code_, 1) << text;
    EXPECT_TRUE(has(text, "\n3 passed, 1 failed, 1 skipped\n")) << text;
    program("ctl", "[ $GTEST_SHARD_INDEX = 0 ] || sleep 1000; echo '[  PASSED  ] 2 tests.'");
    EXPECT_TRUE(has(run(expected, "FAILS=x CRASHES=x TEST_SECONDS=1"), "  ctl did not end within 1 s"));
    fs::remove(root_ / "build/tests/ctl");
    text = run(expected, "FAILS=x CRASHES=23");
    EXPECT_TRUE(has(text, "\n2 passed, 2 failed, 1 skipped\n")) << text;
}

/// Fails whenever GoogleTest gives it a shard, and alone as $ALONE says.
constexpr char busy[] = R"sh(
[ -z "$GTEST_TOTAL_SHARDS" ] || [ "$GTEST_SHARD_INDEX" = 0 ] || { echo '[  PASSED  ] 0 tests.'; exit 0; }
n=1
[ -z "$GTEST_TOTAL_SHARDS" ] || n=$TESTS
if [ -n "$GTEST_TOTAL_SHARDS" ] || [ "$ALONE" != passes ] || [ "$2$3" != "--gtest_brief=0" ]; then
    for i in $(seq $n); do echo "[  FAILED  ] Suite.Busy$i (1 ms)"; done
    echo '[  PASSED  ] 0 tests.'; echo "[  FAILED  ] $n tests, listed below:"; exit 1
fi
case $1 in --gtest_filter=Suite.Busy?) echo '[  PASSED  ] 1 test.' ;; *) exit 1 ;; esac)sh";

TEST_F(Runner, ATestOfRealTimeThatFailedRunsOnceMoreAlone) {
    program("good", passes);
    program("system", busy);
    std::string text = run("", "TESTS=2 ALONE=passes");
    EXPECT_EQ(code_, 0) << text;
    EXPECT_TRUE(has(text, "system Suite.Busy1: failed beside the others and passed alone, which counts\nsystem Suite.Busy2: ")) << text;
    EXPECT_TRUE(has(text, "\n4 passed, 0 failed, 0 skipped\n")) << text;
    text = run("", "TESTS=2 ALONE=fails");
    EXPECT_EQ(code_, 1) << text;
    EXPECT_TRUE(has(text, "system Suite.Busy1: failed beside the others and alone; the whole output: ")) << text;
    EXPECT_TRUE(has(text, "\n2 passed, 2 failed, 0 skipped\n")) << text;
    text = run("", "TESTS=5 ALONE=passes");   // too many
    EXPECT_EQ(code_, 1) << text;
    EXPECT_FALSE(has(text, "alone")) << text;
    fs::rename(root_ / "build/tests/system", root_ / "build/tests/compute");   // does not depend on real time
    text = run("", "TESTS=2 ALONE=passes");
    EXPECT_EQ(code_, 1) << text;
    EXPECT_FALSE(has(text, "alone")) << text;
}

/// Each of the two waits for the other one.
TEST_F(Runner, WhatComputesRunsBesideWhatWaitsAndIsNicer) {
    for (const char* name : {"compute", "control"})
        program(name,
                "cd build/tests; nice >$(basename $0).part; mv $(basename $0).part $(basename $0).nice\n"
                "for i in $(seq 1000); do [ -e compute.nice ] && [ -e control.nice ] && break; sleep 0.05; done\n"
                "[ $(cat compute.nice) -gt $(cat control.nice) ] || [ $(cat compute.nice) = 19 ] || exit 1\n" +
                    std::string(passes));
    const std::string text = run();
    EXPECT_EQ(code_, 0) << text;
    EXPECT_TRUE(has(text, "\n4 passed, 0 failed, 0 skipped\n")) << text;
}

TEST_F(Runner, NothingThatPassesFails) {
    EXPECT_TRUE(has(run(), "\n0 passed, 0 failed, 0 skipped\n"));
    EXPECT_EQ(code_, 1);
}

}   // namespace
