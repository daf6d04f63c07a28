// The script that has two networks between two nodes.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

TEST(SystemRails, TwoNetworksCarryAJobAndOneOfThemFails) {
    const char* build = std::getenv("GRADCAST_BUILD");
    FILE* pipe = ::popen(("tests/system/rails " + std::string(build ? build : "build") + " 2>&1").c_str(), "r");
    ASSERT_NE(pipe, nullptr);
    std::string out;
    std::array<char, 4096> chunk;
    while (const size_t got = std::fread(chunk.data(), 1, chunk.size(), pipe)) out.append(chunk.data(), got);
    const int status = ::pclose(pipe);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << out;
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << out;
}

}   // namespace
