// Private networks for tests that run as root.
#pragma once
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "runtime/core/fd.h"

namespace gradcast {

/// Runs `body` in a thread with its own network namespace, after these commands.  Returns why it cannot, else "".
template <typename Body>
std::string in_namespace(const std::vector<std::string>& commands, Body body) {
    std::string why;
    std::thread([&] {
        if (::unshare(CLONE_NEWNET) != 0) {
            why = fmt::format("no network namespace: {} (needs root)", std::strerror(errno));
            return;
        }
        for (const std::string& command : commands)
            if (std::system((command + " 2>/dev/null").c_str()) != 0) {
                why = "this failed: " + command;
                return;
            }
        body();
    }).join();
    return why;
}
#define IN_NAMESPACE(...) \
    if (std::string why = in_namespace(__VA_ARGS__); !why.empty()) GTEST_SKIP() << why

/// Runs `body` in a thread in which /etc/hosts has these lines behind localhost's.  Returns why it cannot, else "".
template <typename Body>
std::string with_hosts(const std::string& lines, Body body) {
    const std::string path = testing::TempDir() + "gc-hosts-" + std::to_string(::getpid());
    if (Status status = file_write(path, "127.0.0.1 localhost\n" + lines); !status.ok()) return status.what;
    std::string why;
    std::thread([&] {
        if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
            ::mount(path.c_str(), "/etc/hosts", nullptr, MS_BIND, nullptr) != 0)
            why = fmt::format("no mount namespace: {} (needs root)", std::strerror(errno));
        else body();
    }).join();
    ::unlink(path.c_str());
    return why;
}
#define WITH_HOSTS(...) \
    if (std::string why = with_hosts(__VA_ARGS__); !why.empty()) GTEST_SKIP() << why

inline const std::vector<std::string> lo_up = {"ip link set lo up"};
inline std::vector<std::string> lo_and(const std::vector<std::string>& more) {
    std::vector<std::string> commands = lo_up;
    commands.insert(commands.end(), more.begin(), more.end());
    return commands;
}
inline const std::string nft_input =
    "nft 'add table inet t; add chain inet t c { type filter hook input priority 0; }' && nft add rule inet t c ";

}   // namespace gradcast
