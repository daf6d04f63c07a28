// A Process whose output is kept, for tests.
#pragma once
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/attach/process.h"
#include "runtime/core/clock.h"

namespace gradcast {

constexpr uint64_t wait_us_max = 20'000'000;   // for what takes milliseconds on an idle machine

/// Waits for a condition.  False: it did not come.
template <typename Condition>
bool wait_for(const Condition& condition) {
    for (const uint64_t until = clock_us() + wait_us_max; !condition(); ::usleep(2000))
        if (clock_us() > until) return false;
    return true;
}

/// False also for a zombie.
inline bool runs(pid_t pid) {
    std::ifstream file(fmt::format("/proc/{}/stat", pid));
    std::string text;
    std::getline(file, text);
    const size_t name = text.rfind(") ");
    return name != text.npos && text[name + 2] != 'Z' && text[name + 2] != 'X';
}

struct Watched {
    explicit Watched(std::vector<std::string> command) {
        config.command = std::move(command);
        config.name = "lane 0";
        config.output = [this](std::string_view line) {
            const std::lock_guard lock(mutex);
            lines.emplace_back(line);
        };
    }
    Watched(const Watched&) = delete;
    ~Watched() { process.reset(); }

    Status start() { return Process::start(config, &process); }
    std::vector<std::string> all() {
        const std::lock_guard lock(mutex);
        return lines;
    }
    std::string text() { return fmt::format("{}", fmt::join(all(), "\n")); }
    /// Waits for so many lines.
    bool printed(size_t count) {
        return wait_for([&] { return all().size() >= count; });
    }
    /// Process::death(), with time for a busy machine.
    std::string death() {
        wait_for([&] { return process->ended(); });
        return process->death();
    }
    /// The number in a line "NAME 123".
    pid_t number(const std::string& name) {
        for (const std::string& line : all())
            if (line.starts_with(name + " ")) return std::stoi(line.substr(name.size() + 1));
        return 0;
    }

    ProcessConfig config;
    std::mutex mutex;
    std::vector<std::string> lines;
    std::unique_ptr<Process> process;
};

}   // namespace gradcast
