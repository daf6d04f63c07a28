// A control group with a limit on memory, for tests of what happens in it.
#pragma once
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace gradcast {

/// Creates a control group with a memory limit; empty if that is not possible.
struct MemoryGroup {
    explicit MemoryGroup(uint64_t bytes) {
        for (const auto& [at, name] : {std::pair{"/sys/fs/cgroup", "memory.max"}, {"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}}) {
            if (!std::filesystem::exists(std::filesystem::path(at) / "cgroup.procs")) continue;   // no hierarchy is mounted there
            std::error_code error;
            const std::filesystem::path made = std::filesystem::path(at) / fmt::format("gradcast-test.{}", ::getpid());
            if (!std::filesystem::create_directory(made, error)) continue;
            std::ofstream out(made / name);
            if (out << bytes && out.flush()) {
                path = made;
                return;
            }
            std::filesystem::remove(made, error);
        }
    }
    ~MemoryGroup() {
        std::error_code error;
        if (!path.empty()) std::filesystem::remove(path, error);
    }
    void enter() const { std::ofstream(path / "cgroup.procs") << "0" << std::flush; }
    std::filesystem::path path;
};

}   // namespace gradcast
