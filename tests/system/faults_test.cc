// The script of `make fault-test`, with a few faults.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

namespace {

TEST(SystemFaults, AFewOfThem) {
    if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "python3 is missing";
    FILE* pipe = ::popen("python3 -B tests/system/faults --nodes 4 --faults 3 --seconds 10 --seed 1 2>&1", "r");
    ASSERT_NE(pipe, nullptr);
    std::string out;
    std::array<char, 4096> chunk;
    while (const size_t got = std::fread(chunk.data(), 1, chunk.size(), pipe)) out.append(chunk.data(), got);
    const int status = ::pclose(pipe);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << out;
    EXPECT_NE(out.find("stood: median "), std::string::npos) << out;
}

}   // namespace
