#include "runtime/job/report/step_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>

#include "runtime/job/report/step_lines.h"

namespace gradcast {

Status StepLog::open(const std::string& path, bool threaded, bool append, const Log& log) {
    path_ = path;
    log_ = log;
    fd_ = Fd(::open(path.c_str(), O_RDWR | O_CREAT | (append ? 0 : O_TRUNC) | O_CLOEXEC, 0644));
    if (!fd_) return fail_sys(errno, "cannot open {}", path);
    lines_.reserve(1 << 20), writing_.reserve(1 << 20);
    if (threaded) GC_TRY(thread_.start([this] { loop(); }));
    threaded_ = threaded;
    return {};
}

uint64_t StepLog::keep(uint64_t steps) {
    constexpr std::string_view start = "{\"step\":";
    std::string block(1 << 16, '\0'), line;
    uint64_t kept = 0, at = 0, last = 0;   // bytes; the last step
    for (bool more = true; more;) {
        const ssize_t got = ::pread(fd_.get(), block.data(), block.size(), static_cast<off_t>(at));
        if (got <= 0) break;
        at += static_cast<uint64_t>(got);
        for (ssize_t i = 0; i < got && more; ++i) {
            line += block[static_cast<size_t>(i)];
            if (line.back() != '\n') {
                more = line.size() < step_line_bytes_max;
                continue;
            }
            uint64_t step = 0;
            const char* number = line.data() + std::min(start.size(), line.size());
            StepGap gap;
            if (step_gap_parse(std::string_view(line).substr(0, line.size() - 1), &gap)) step = gap.last, more = step <= steps;
            else
                more =
                    line.starts_with(start) && std::from_chars(number, line.data() + line.size(), step).ec == std::errc() && step <= steps;
            if (more) kept += line.size(), last = step;
            line.clear();
        }
    }
    if (::ftruncate(fd_.get(), static_cast<off_t>(kept)) != 0 || ::lseek(fd_.get(), 0, SEEK_END) < 0)
        log_.error("{}", fail_sys(errno, "cannot cut {} after step {}", path_, steps).what);
    return last;
}

void StepLog::add(std::string_view line) {
    std::lock_guard lock(mutex_);
    lines_.append(line);
    ++added_;
    if (!threaded_) write(lines_);
}

void StepLog::hurry() {
    std::lock_guard lock(mutex_);
    flush_ = true;
    wake_.notify_all();
}

void StepLog::flush() {
    std::unique_lock lock(mutex_);
    if (!threaded_) return;
    const uint64_t wanted = added_;
    flush_ = true;
    wake_.notify_all();
    written_.wait(lock, [&] { return done_ >= wanted; });
}

Status StepLog::sync(uint64_t us_max) {
    std::unique_lock lock(mutex_);
    if (!threaded_ || stop_) return {};
    const uint64_t wanted = added_;
    flush_ = sync_ = true;
    wake_.notify_all();
    if (written_.wait_for(lock, std::chrono::microseconds(us_max), [&] { return synced_ >= wanted; })) return {};
    return fail(Code::deadline, "{} is not on the disk after {} ms", path_, us_max / 1000);
}

void StepLog::loop() {
    std::unique_lock lock(mutex_);
    for (bool stop = false; !stop;) {
        wake_.wait_for(lock, std::chrono::milliseconds(500), [this] { return stop_ || flush_; });
        stop = stop_;
        flush_ = false;
        const bool sync = std::exchange(sync_, false);
        std::swap(lines_, writing_);
        const uint64_t done = added_;
        lock.unlock();
        write(writing_);
        lock.lock();
        done_ = done;
        written_.notify_all();
        if (!sync) continue;
        lock.unlock();
        if (::fdatasync(fd_.get()) != 0) lost(errno);
        lock.lock();
        synced_ = done;
        written_.notify_all();
    }
}

void StepLog::write(std::string& lines) {
    for (std::string_view rest = lines; !rest.empty() && !failed_;) {
        ssize_t done = ::write(fd_.get(), rest.data(), rest.size());
        if (done > 0) rest.remove_prefix(static_cast<size_t>(done));
        else if (done < 0 && errno != EINTR) lost(errno);
    }
    lines.clear();
}

void StepLog::lost(int error) {
    if (!std::exchange(failed_, true))
        log_.error("{}", fail_sys(error, "cannot write {}: records of steps are lost from here on", path_).what);
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
