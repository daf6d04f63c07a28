// gradcast-lab's messages for wrong usage.  Its functions need root: tests/lab/run (`make lab-test`).
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>

namespace {

struct Result {
    int code;
    std::string out;
};
Result run(const std::string& command) {
    FILE* pipe = ::popen((command + " 2>&1 </dev/null").c_str(), "r");
    std::string out;
    std::array<char, 4096> chunk;
    while (size_t got = std::fread(chunk.data(), 1, chunk.size(), pipe)) out.append(chunk.data(), got);
    int status = ::pclose(pipe);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, out};
}

TEST(Lab, ScriptsParse) {
    for (const char* script : {"tools/gradcast-lab", "tests/lab/run"}) EXPECT_EQ(run(std::string("bash -n ") + script).out, "") << script;
}

TEST(Lab, HelpNamesEveryCommand) {
    Result result = run("tools/gradcast-lab help");
    EXPECT_EQ(result.code, 0);
    for (const char* word : {"up", "run", "cut", "heal", "loss", "slow", "status", "down"})
        EXPECT_NE(result.out.find(std::string(" ") + word + " "), std::string::npos) << word;
}

TEST(Lab, WrongUsageIsOneLineAndTwo) {
    struct Case {
        const char *arguments, *named;
    };
    for (const Case& one : {Case{"fly", "'fly'"},
                            {"up", "--nodes"},
                            {"up --nodes 0 --rate 100mbit", "'0'"},
                            {"up --nodes 251 --rate 100mbit", "'251'"},
                            {"up --nodes 2", "--rate"},
                            {"up --nodes 2 --rate fast", "'fast'"},
                            {"up --nodes 2 --rate 100MB", "'100MB'"},
                            {"up --nodes 2 --rate 0mbit", "'0mbit'"},
                            {"up --nodes 2 --rate", "needs a value"},
                            {"up --nodes 2 --rate 1gbit --loss some", "'some'"},
                            {"up --nodes 2 --rate 1gbit --loss 101%", "'101%'"},
                            {"up --nodes 2 --rate 1gbit --loss -1%", "'-1%'"},
                            {"up --nodes 2 --rate 1gbit --mtu 900", "'900'"},
                            {"up --nodes 2 --rate 1gbit --mtu 99999", "'99999'"},
                            {"up --nodes 2 --rate 1gbit --slow 1", "'1'"},
                            {"up --nodes 2 --rate 1gbit --slow 2:20%", "'2'"},
                            {"up --nodes 2 --rate 1gbit --slow 1:1%", "'1%'"},
                            {"up --nodes 2 --rate 1gbit --name a-b", "'a-b'"},
                            {"up --nodes 2 --rate 1gbit --name ../x", "'../x'"},
                            {"up --nodes 2 --rate 1gbit extra", "no words"},
                            {"up --nodes 2 --rate 1gbit --gate 3", "'--gate'"},
                            {"down now", "--name"},
                            {"cut", "a host"},
                            {"loss 3", "percentage"},
                            {"loss 3 x", "'x'"},
                            {"slow 3 1%", "'1%'"},
                            {"run", "no host"},
                            {"run 3", "no command"},
                            {"run 3 ls", "'--'"}}) {
        SCOPED_TRACE(one.arguments);
        Result result = run(std::string("tools/gradcast-lab ") + one.arguments);
        EXPECT_EQ(result.code, 2);
        EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1) << result.out;
        EXPECT_NE(result.out.find(one.named), std::string::npos) << result.out;
    }
}

}   // namespace
