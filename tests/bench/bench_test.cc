// Every benchmark runs tiny, so that none of them rots.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

namespace {

struct Result {
    int code;
    std::string out;
};
Result run(const std::string& command) {
    const char* build = std::getenv("GRADCAST_BUILD");
    FILE* pipe = ::popen(((build ? std::string(build) : std::string("build")) + "/" + command).c_str(), "r");
    std::string out;
    std::array<char, 4096> chunk;
    while (size_t got = std::fread(chunk.data(), 1, chunk.size(), pipe)) out.append(chunk.data(), got);
    int status = ::pclose(pipe);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, out};
}

TEST(SystemBench, MicroRuns) {
    Result result = run("bench/micro/micro --benchmark_min_time=0.001 --benchmark_format=json 2>/dev/null");
    ASSERT_EQ(result.code, 0);
    nlohmann::json report = nlohmann::json::parse(result.out, nullptr, false);
    ASSERT_FALSE(report.is_discarded());
    std::string names;
    for (const auto& row : report["benchmarks"]) {
        EXPECT_FALSE(row.value("error_occurred", false)) << row.dump();
        names += row["name"].get<std::string>() + " ";
    }
    for (const char* name : {"quantiser/auto32", "sampler", "loader", "net_step/lenet5"})
        EXPECT_NE(names.find(name), std::string::npos) << name << " is not among " << names;
}

TEST(SystemBench, AllreduceIsExactAndCounts) {
    for (const char* flags :
         {"--nodes 2 --exchange ring", "--nodes 2 --exchange unicast", "--nodes 2 --exchange unicast --quantiser fixed",
          "--nodes 2 --exchange ring --link epoll_tcp", "--nodes 3 --exchange ring --protect encrypt", "--nodes 1 --exchange ring"}) {
        SCOPED_TRACE(flags);
        Result result = run(std::string("gradcast-bench allreduce --size 4,64K --runs 2 --warmup 1 --json ") + flags);
        ASSERT_EQ(result.code, 0);
        nlohmann::json report = nlohmann::json::parse(result.out, nullptr, false);
        ASSERT_FALSE(report.is_discarded()) << result.out;
        EXPECT_TRUE(report["exact"].get<bool>());
        ASSERT_EQ(report["rows"].size(), 2u);
        for (const auto& row : report["rows"]) {
            EXPECT_EQ(row["wrong_elements"], 0);
            // What was sent is the formula's bytes and no more than headers, tags and records on top of them.
            EXPECT_GE(row["sent_bytes"].get<double>(), row["bound_bytes"].get<double>());
            EXPECT_LE(row["sent_bytes"].get<double>(), row["bound_bytes"].get<double>() * 1.05 + 4096);
        }
    }
}

TEST(SystemBench, WrongFlagsAreUsage) {
    EXPECT_EQ(run("gradcast-bench allreduce --exchange coded-rs 2>/dev/null").code, 2);
    EXPECT_EQ(run("gradcast-bench allreduce --exchange ring --quantiser fixed 2>/dev/null").code, 2);
    EXPECT_EQ(run("gradcast-bench allreduce --size 3 2>/dev/null").code, 2);
    Result result = run("gradcast-bench allreduce --node 3 2>&1");
    EXPECT_EQ(result.code, 2);
    EXPECT_NE(result.out.find("did you mean --nodes?"), std::string::npos) << result.out;
}

}   // namespace
