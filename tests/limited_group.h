// A control group with a limit, for tests of what happens in it.
#pragma once
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

namespace gradcast {

/// Creates a control group of `controller` whose file `two` (or `one`, in the hierarchy of version 1) holds `limit`, without swap; empty
/// path if that is not possible.
struct LimitedGroup {
    LimitedGroup(const std::string& controller, const std::string& two, const std::string& one, uint64_t limit,
                 const std::string& suffix = "") {
        for (const auto& [at, name] : {std::pair<std::string, std::string>{"/sys/fs/cgroup", two}, {"/sys/fs/cgroup/" + controller, one}}) {
            if (!std::filesystem::exists(std::filesystem::path(at) / "cgroup.procs")) continue;   // no hierarchy is mounted there
            std::error_code error;
            const std::filesystem::path made = std::filesystem::path(at) / fmt::format("gradcast-test.{}{}", ::getpid(), suffix);
            if (!std::filesystem::create_directory(made, error)) continue;
            std::ofstream out(made / name);
            if (out << limit && out.flush()) {
                std::ofstream(made / "memory.swap.max") << 0 << std::flush;   // where the kernel counts swap
                path = made;
                file = made / name;
                return;
            }
            std::filesystem::remove(made, error);
        }
    }
    ~LimitedGroup() {
        std::error_code error;
        if (!path.empty()) std::filesystem::remove(path, error);
    }
    void enter() const { std::ofstream(path / "cgroup.procs") << "0" << std::flush; }
    /// What `work` returns in a process of the group, an exit code; -1: the process was killed.
    int inside(const std::function<int()>& work) const {
        const pid_t pid = ::fork();
        if (pid == 0) {
            enter();
            ::_exit(work());
        }
        int ended = 0;
        ::waitpid(pid, &ended, 0);
        return WIFEXITED(ended) ? WEXITSTATUS(ended) : -1;
    }
    /// Another limit from now on.  False: the kernel does not take it.
    bool limit(uint64_t other) const { return static_cast<bool>(std::ofstream(file) << other << std::flush); }
    std::filesystem::path path, file;   // of the group; of its limit
};

struct MemoryGroup : LimitedGroup {
    explicit MemoryGroup(uint64_t bytes, const std::string& suffix = "")
        : LimitedGroup("memory", "memory.max", "memory.limit_in_bytes", bytes, suffix) {}
    /// Bytes that its processes have taken, without pages of files.
    uint64_t used() const {
        const auto number = [&](const std::string& name, const std::string& key) {
            std::ifstream in(path / name);
            std::string word;
            uint64_t value = 0;
            while (key.empty() ? static_cast<bool>(in >> value) : static_cast<bool>(in >> word >> value))
                if (key.empty() || word == key) return value;
            return uint64_t{0};
        };
        const bool two = std::filesystem::exists(path / "memory.current");
        const char* total = two ? "" : "total_";
        return number(two ? "memory.current" : "memory.usage_in_bytes", "") - number("memory.stat", fmt::format("{}inactive_file", total)) -
               number("memory.stat", fmt::format("{}active_file", total));
    }
};

}   // namespace gradcast
