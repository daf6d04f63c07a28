#include "runtime/job/step_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

namespace gradcast {

Status StepLog::open(const std::string& path, bool threaded, const Log& log) {
    path_ = path, log_ = log, threaded_ = threaded;
    fd_ = Fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!fd_) return fail_sys(errno, "cannot open {}", path);
    lines_.reserve(1 << 20), writing_.reserve(1 << 20);
    if (threaded) thread_ = std::thread([this] { loop(); });
    return {};
}

void StepLog::add(std::string_view line) {
    std::lock_guard lock(mutex_);
    lines_.append(line);
    if (!threaded_) write(lines_);
}

void StepLog::loop() {
    std::unique_lock lock(mutex_);
    for (bool stop = false; !stop;) {
        wake_.wait_for(lock, std::chrono::milliseconds(500), [this] { return stop_; });
        stop = stop_;
        std::swap(lines_, writing_);
        lock.unlock();
        write(writing_);
        lock.lock();
    }
}

void StepLog::write(std::string& lines) {
    for (std::string_view left = lines; !left.empty() && !failed_;) {
        ssize_t done = ::write(fd_.get(), left.data(), left.size());
        if (done > 0) left.remove_prefix(static_cast<size_t>(done));
        else if (done < 0 && errno != EINTR) {
            failed_ = true;
            log_.error("{}", fail_sys(errno, "cannot write {}: records of steps are lost from here on", path_).what);
        }
    }
    lines.clear();
}

void StepLog::close() {
    if (thread_.joinable()) {
        {
            std::lock_guard lock(mutex_);
            stop_ = true;
        }
        wake_.notify_all();
        thread_.join();
    }
    fd_.close();
}

}   // namespace gradcast
