// A thread that may not start.  The constructor of std::thread throws then, and this code is compiled without exceptions: every thread of
// the libraries is a Thread.
#pragma once
#include <pthread.h>

#include <functional>
#include <string>
#include <utility>

#include "runtime/core/status.h"

namespace gradcast {

class Thread {
public:
    Thread() = default;
    Thread(Thread&& other) noexcept : thread_(other.thread_), runs_(std::exchange(other.runs_, false)) {}
    Thread& operator=(Thread&&) = delete;
    ~Thread() { GC_ASSERT(!runs_); }   // joined
    /// Runs `run` in a new thread, once.  Error: no thread can be made; names the limit that is reached (thread_limit).
    Status start(std::function<void()> run);
    bool joinable() const { return runs_; }
    void join();
    pthread_t handle() const { return thread_; }

private:
    pthread_t thread_{};
    bool runs_ = false;
};

/// Why no thread can be made now: the limit that is reached and how to raise it, as a part of a sentence.  Reads small files under `root`
/// (tests use another one).
std::string thread_limit(const std::string& root = "");

/// The error of a fork() that has just failed with `sys`: "cannot start `program`", and thread_limit() where a limit is the reason.
Status fork_failed(int sys, const std::string& program);

}   // namespace gradcast
