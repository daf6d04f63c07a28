// Log lines: to stderr (journald adds time and unit) and, for a job, also to its own file.  One line an event, lower case, value after
// noun.
#pragma once
#include <fmt/core.h>

#include <memory>
#include <string>

#include "runtime/core/status.h"

namespace spdlog {
class logger;
}

namespace gradcast {

enum class Level : uint8_t { debug, info, warn, error };

/// Thread-safe.  A default-constructed Log writes to stderr.  Copies share their sinks.
class Log {
public:
    Log();
    /// Writes nowhere.
    static Log none();
    /// Appends lines to `path`, too.  Lines start with `prefix`, e.g. "job 7f3a: ".
    Status open(const std::string& path, std::string prefix);
    template <typename... Args>
    void info(fmt::format_string<Args...> format, Args&&... args) const {
        write(Level::info, fmt::format(format, std::forward<Args>(args)...));
    }
    template <typename... Args>
    void warn(fmt::format_string<Args...> format, Args&&... args) const {
        write(Level::warn, fmt::format(format, std::forward<Args>(args)...));
    }
    template <typename... Args>
    void error(fmt::format_string<Args...> format, Args&&... args) const {
        write(Level::error, fmt::format(format, std::forward<Args>(args)...));
    }
    template <typename... Args>
    void debug(fmt::format_string<Args...> format, Args&&... args) const {
        write(Level::debug, fmt::format(format, std::forward<Args>(args)...));
    }

private:
    void write(Level level, const std::string& text) const;
    std::shared_ptr<spdlog::logger> logger_;
    std::string prefix_;
};

/// Drops lines below this level, process-wide (default: info).
void log_level(Level level);

}   // namespace gradcast
