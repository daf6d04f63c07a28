// A thread that may not start, and the CPUs of a thread.  The constructor of std::thread throws where no thread can be made, and this code
// is compiled without exceptions: every thread of the libraries is a Thread.
#pragma once
#include <pthread.h>
#include <sched.h>

#include <cstdint>
#include <functional>
#include <span>
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

/// While it lives, the thread that made it may use these CPUs alone, and threads and processes that it starts begin with them.  A hint:
/// nothing happens where there are none, or where the system refuses them.
class ThreadCpus {
public:
    explicit ThreadCpus(std::span<const uint32_t> cpus);
    ~ThreadCpus();
    ThreadCpus(const ThreadCpus&) = delete;
    ThreadCpus& operator=(const ThreadCpus&) = delete;

private:
    cpu_set_t before_;
    bool set_ = false;
};

/// Why no thread can be made now: the limit that is reached and how to raise it, as a part of a sentence.  Reads small files under `root`
/// (tests use another one).
std::string thread_limit(const std::string& root = "");

/// The error of a fork() that has just failed with `sys`: "cannot start `program`", and thread_limit() where a limit is the reason.
Status fork_failed(int sys, const std::string& program);

}   // namespace gradcast
