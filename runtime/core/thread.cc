#include "runtime/core/thread.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "runtime/core/control_groups.h"

namespace gradcast {

Status Thread::start(std::function<void()> run) {
    GC_ASSERT(!runs_);
    auto task = std::make_unique<std::function<void()>>(std::move(run));
    const auto main = [](void* argument) -> void* {
        const std::unique_ptr<std::function<void()>> own(static_cast<std::function<void()>*>(argument));
        (*own)();
        return nullptr;
    };
    if (::pthread_create(&thread_, nullptr, main, task.get()) != 0)
        return fail(Code::node_memory, "cannot make a thread: {}", thread_limit());
    (void)task.release();   // the thread's
    runs_ = true;
    return {};
}

void Thread::join() {
    GC_ASSERT(runs_);
    ::pthread_join(thread_, nullptr);
    runs_ = false;
}

ThreadCpus::ThreadCpus(std::span<const uint32_t> cpus) {
    cpu_set_t own;
    CPU_ZERO(&own);
    for (const uint32_t cpu : cpus)
        if (cpu < CPU_SETSIZE) CPU_SET(cpu, &own);
    set_ = !cpus.empty() && ::pthread_getaffinity_np(::pthread_self(), sizeof before_, &before_) == 0 &&
           ::pthread_setaffinity_np(::pthread_self(), sizeof own, &own) == 0;
}

ThreadCpus::~ThreadCpus() {
    if (set_) ::pthread_setaffinity_np(::pthread_self(), sizeof before_, &before_);
}

std::string thread_limit(const std::string& root) {
    std::string text;
    control_groups(root, "pids", [&](const ControlGroup& group) {
        uint64_t most = 0, now = 0;
        if (text.empty() && number_in(group.folder + "/pids.max", &most) && number_in(group.folder + "/pids.current", &now) && now >= most)
            text = fmt::format("control group {} may have {} tasks (pids.max, TasksMax= of systemd) and has {}: raise it", group.path, most,
                               now);
    });
    if (!text.empty()) return text;
    rlimit limit{};
    if (::geteuid() != 0 && ::getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        return fmt::format("this user may have {} threads (RLIMIT_NPROC, ulimit -u, LimitNPROC= of systemd): raise it", limit.rlim_cur);
    if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        return fmt::format("this process may have {} MiB of address space (RLIMIT_AS, ulimit -v): raise it", limit.rlim_cur >> 20);
    uint64_t most = 0;
    (void)number_in(root + "/proc/sys/kernel/threads-max", &most);
    return fmt::format("this machine has no memory for one, or {} threads (sysctl kernel.threads-max, kernel.pid_max)", most);
}

Status fork_failed(int sys, const std::string& program) {
    if (sys == EAGAIN) return fail(Code::node_memory, "cannot start {}: {}", program, thread_limit());
    return fail_sys(sys, "cannot start {}", program);
}

}   // namespace gradcast
