// Commands of the benches, as a shell runs them.
#pragma once
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

struct Result {
    int code;
    std::string out;
};
inline std::string build_folder() {
    const char* set = std::getenv("GRADCAST_BUILD");
    return set ? set : "build";
}
inline Result shell(const std::string& command) {
    FILE* pipe = ::popen(command.c_str(), "r");
    std::string out;
    std::array<char, 4096> chunk;
    while (size_t got = std::fread(chunk.data(), 1, chunk.size(), pipe)) out.append(chunk.data(), got);
    int status = ::pclose(pipe);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, out};
}
inline Result run(const std::string& command) { return shell(build_folder() + "/" + command); }
/// What this script is without here; empty: nothing.
inline std::string lacks(const std::string& script, bool python = true) {
    if (!std::filesystem::exists(script) || !std::filesystem::exists(build_folder() + "/gradcastd"))
        return script + " or gradcastd is missing: run it in the folder of the sources, after make";
    return python && shell("/usr/bin/python3 -c 0 2>/dev/null").code != 0 ? script + ": python3 is missing" : "";
}
