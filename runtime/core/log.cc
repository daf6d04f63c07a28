#include "runtime/core/log.h"

#define SPDLOG_NO_EXCEPTIONS
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <fcntl.h>

#include <cerrno>

#include "runtime/core/fd.h"

namespace gradcast {
namespace {

spdlog::level::level_enum level_of(Level level) {
    switch (level) {
        case Level::debug: return spdlog::level::debug;
        case Level::info: return spdlog::level::info;
        case Level::warn: return spdlog::level::warn;
        case Level::error: return spdlog::level::err;
    }
    return spdlog::level::info;
}

Level level_min = Level::info;

}   // namespace

void log_level(Level level) { level_min = level; }

Log::Log() {
    static auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    logger_ = std::make_shared<spdlog::logger>("gradcast", sink);
    logger_->set_pattern("%Y-%m-%d %H:%M:%S.%e %L %v");
    logger_->set_level(spdlog::level::trace);
}

Log Log::none() {
    Log log;
    log.logger_ = std::make_shared<spdlog::logger>("none");
    return log;
}

Status Log::open(const std::string& path, std::string prefix) {
    // Checked here first: spdlog reports a file that cannot be opened by an exception.
    if (Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)); !fd)
        return fail_sys(errno, "cannot open the log {}", path);
    auto file = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path);
    auto logger = std::make_shared<spdlog::logger>("gradcast", spdlog::sinks_init_list{logger_->sinks().front(), file});
    logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %L %v");
    logger->set_level(spdlog::level::trace);
    logger->flush_on(spdlog::level::info);
    logger_ = std::move(logger);
    prefix_ = std::move(prefix);
    return {};
}

void Log::write(Level level, const std::string& text) const {
    if (level >= level_min) logger_->log(level_of(level), "{}{}", prefix_, text);
}

}   // namespace gradcast
