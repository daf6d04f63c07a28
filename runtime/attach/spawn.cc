#include "runtime/attach/spawn.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <string_view>

#include "runtime/core/clock.h"
#include "runtime/core/fd.h"
#include "runtime/core/thread.h"

namespace gradcast {
namespace {

constexpr uint64_t start_us_max = 10'000'000;   // until the program is executed: it may lie on a slow network disk
constexpr uint64_t reap_us_max = 1'000'000;     // of a child that has failed
constexpr int error_fd = 4, first_high = 16;    // in the child
// Where memory runs out the kernel ends the process of the most memory.  A program counts as if it had half of all memory more.
constexpr char oom_score[] = "500";

/// What the child says when it fails.
struct Failure {
    enum Stage : int { folder, group, execute } stage;
    int sys;
};

/// All that the child needs, made before the fork.
struct Prepared {
    std::vector<char*> words, environment;
    int nothing, failed;   // /dev/null; the writing end of the pipe for a Failure
    pid_t parent;
    rlim_t files;   // the limit of descriptors
};

[[noreturn]] void child_fail(int fd, Failure::Stage stage) {
    const Failure failure{stage, errno};
    (void)!::write(fd, &failure, sizeof failure);
    ::_exit(127);
}

/// In the child.  Calls nothing that may take a lock: another thread may have held it at the fork.
[[noreturn]] void child(const Spawn& spawn, const Prepared& prepared) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != prepared.parent) ::_exit(1);   // the daemon has ended before the line above
    ::setsid();
    // Sources move out of the way of the numbers that they are to have.
    const int failed = ::fcntl(prepared.failed, F_DUPFD_CLOEXEC, first_high);
    const int in = ::fcntl(prepared.nothing, F_DUPFD_CLOEXEC, first_high);
    const int out = ::fcntl(spawn.out, F_DUPFD_CLOEXEC, first_high);
    const int error = ::fcntl(spawn.error, F_DUPFD_CLOEXEC, first_high);
    const int socket = spawn.socket < 0 ? -1 : ::fcntl(spawn.socket, F_DUPFD_CLOEXEC, first_high);
    for (const int group : spawn.groups)
        if (::write(group, "0", 1) != 1) child_fail(failed, Failure::group);
    if (const int score = ::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC); score >= 0) {
        (void)!::write(score, oom_score, sizeof oom_score - 1);   // the daemon may have a higher one, which cannot be lowered
        ::close(score);
    }
    if (!spawn.folder.empty() && ::chdir(spawn.folder.c_str()) != 0) child_fail(failed, Failure::folder);
    if (::dup2(in, 0) < 0 || ::dup2(out, 1) < 0 || ::dup2(error, 2) < 0 || (socket >= 0 && ::dup2(socket, attach_fd) < 0) ||
        ::dup3(failed, error_fd, O_CLOEXEC) < 0)
        child_fail(failed, Failure::execute);
    if (socket < 0) ::close(attach_fd);
    if (::syscall(SYS_close_range, error_fd + 1, ~0u, 0) != 0)   // a kernel older than 5.9, or a filter of system calls
        for (rlim_t fd = error_fd + 1; fd < prepared.files; ++fd) ::close(static_cast<int>(fd));
    struct sigaction usual {};
    usual.sa_handler = SIG_DFL;
    for (int signal = 1; signal < NSIG; ++signal) ::sigaction(signal, &usual, nullptr);   // ignored ones would stay ignored
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::execve(spawn.path.c_str(), prepared.words.data(), prepared.environment.data());
    child_fail(error_fd, Failure::execute);
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
    std::vector<char*> all;
    for (const std::string& each : texts) all.push_back(const_cast<char*>(each.c_str()));   // execve() only reads them
    all.push_back(nullptr);
    return all;
}

Status failed(const Spawn& spawn, const Failure& failure) {
    switch (failure.stage) {
        case Failure::folder: return fail_sys(failure.sys, "{}: cannot enter the working directory {}", spawn.name, spawn.folder);
        case Failure::group: return fail_sys(failure.sys, "{}: cannot enter its control group", spawn.name);
        case Failure::execute: break;
    }
    if (failure.sys == ENOENT)   // it was there, so what is missing is what executes it
        return fail(Code::invalid, "{}: cannot execute {}: the interpreter in its first line (#!), or its loader, is not at this node",
                    spawn.name, spawn.path);
    if (failure.sys == ENOEXEC)
        return fail(Code::invalid,
                    "{}: cannot execute {}: it is neither a program of this machine nor a script that begins with #!: name the interpreter "
                    "first in `command`",
                    spawn.name, spawn.path);
    return fail_sys(failure.sys, "{}: cannot execute {}", spawn.name, spawn.path);
}

void kill_and_reap(pid_t pid) {
    ::kill(pid, SIGKILL);
    for (const uint64_t until = clock_us() + reap_us_max; ::waitpid(pid, nullptr, WNOHANG) == 0 && clock_us() < until;) ::usleep(1000);
}

/// Error of a file that cannot be executed.
Status executable(const std::string& path) {
    struct stat info;
    if (::stat(path.c_str(), &info) != 0) return fail_sys(errno, "net.command: {}", path);
    if (S_ISDIR(info.st_mode)) return fail(Code::invalid, "net.command: {} is a folder: name a program", path);
    if (::faccessat(AT_FDCWD, path.c_str(), X_OK, AT_EACCESS) == 0 && S_ISREG(info.st_mode)) return {};
    return fail(Code::invalid,
                "net.command: {} may not be executed (mode {:04o}): chmod +x, or name its interpreter first, as in [\"python3\", \"{}\"]",
                path, info.st_mode & 07777u, path.substr(path.rfind('/') + 1));
}

}   // namespace

Status program_find(const std::vector<std::string>& command, const std::string& folder, const Variables& environment, std::string* path) {
    if (command.empty() || command[0].empty())
        return fail(Code::invalid, "net.command is empty: name a program and its arguments, as in [\"python3\", \"train.py\"]");
    for (const std::string& word : command)
        if (word.find('\0') != word.npos) return fail(Code::invalid, "net.command has a word with a zero byte");
    const std::string& program = command[0];
    if (program.find('/') != program.npos) {
        const std::string at = program[0] == '/' || folder.empty() ? program : folder + "/" + program;
        if (::access(at.c_str(), F_OK) != 0)
            return fail(Code::invalid, "net.command: there is no {} at this node ({}): put it there, or name another program", at,
                        std::string_view(strerrorname_np(errno)));
        GC_TRY(executable(at));
        *path = at;
        return {};
    }
    const char* own = std::getenv("PATH");
    std::string folders = own ? own : "/usr/local/bin:/usr/bin:/bin";
    for (const auto& [name, value] : environment)
        if (name == "PATH") folders = value;
    std::string found;   // the first one that may not be executed
    for (size_t at = 0; at <= folders.size();) {
        const size_t end = std::min(folders.find(':', at), folders.size());
        const std::string candidate = folders.substr(at, end - at) + "/" + program;
        at = end + 1;
        if (candidate[0] != '/' || candidate.size() == program.size() + 1) continue;   // PATH relative to nothing in particular
        struct stat info;
        if (::stat(candidate.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
        if (::faccessat(AT_FDCWD, candidate.c_str(), X_OK, AT_EACCESS) != 0) {
            if (found.empty()) found = candidate;
            continue;
        }
        *path = candidate;
        return {};
    }
    if (!found.empty()) return executable(found);
    return fail(Code::invalid, "net.command: no program {} in PATH ({}) of this node: install it, or name it with its folder", program,
                folders);
}

std::vector<std::string> environment_with(const Variables& variables) {
    constexpr std::array<std::string_view, 13> own = {
        "GRADCAST_KEY",   "CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET",  "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS",     "LISTEN_PID",
        "LISTEN_FDNAMES", "INVOCATION_ID",         "JOURNAL_STREAM", "MAINPID",       "MANAGERPID",   "GRADCAST_ATTACH"};
    std::vector<std::string> all;
    const auto set = [&](std::string_view name) {
        return std::any_of(variables.begin(), variables.end(), [&](const auto& each) { return each.first == name; });
    };
    for (const auto& [name, value] : variables) all.push_back(name + "=" + value);
    for (char** each = environ; each && *each; ++each) {
        const std::string_view text = *each, name = text.substr(0, text.find('='));
        if (!set(name) && std::find(own.begin(), own.end(), name) == own.end()) all.emplace_back(text);
    }
    return all;
}

Status spawn_process(const Spawn& spawn, pid_t* pid, bool* group_failed) {
    *group_failed = false;
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return fail_sys(errno, "{}: cannot make a pipe", spawn.name);
    const Fd reads(ends[0]);
    Fd writes(ends[1]);
    const Fd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!nothing) return fail_sys(errno, "{}: cannot open /dev/null", spawn.name);
    rlimit files{};
    ::getrlimit(RLIMIT_NOFILE, &files);
    const Prepared prepared{pointers(spawn.words),
                            pointers(spawn.environment),
                            nothing.get(),
                            writes.get(),
                            ::getpid(),
                            std::min<rlim_t>(files.rlim_cur, 1 << 20)};
    // A handler of the daemon must not run in the child.
    sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    const pid_t made = ::fork();
    const int sys = errno;
    if (made == 0) child(spawn, prepared);
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (made < 0) return fork_failed(sys, spawn.path);
    writes.close();   // the child's copy is the last one, and is closed when the program is executed
    const uint64_t until = clock_us() + start_us_max;
    for (;;) {
        const uint64_t now = clock_us();
        pollfd poll{reads.get(), POLLIN, 0};
        const int ready = now < until ? ::poll(&poll, 1, static_cast<int>((until - now) / 1000) + 1) : 0;
        if (ready < 0 && errno == EINTR) continue;
        if (ready > 0) break;
        kill_and_reap(made);
        return fail(Code::deadline, "{}: {} was not executed within {} s: is its disk reachable?", spawn.name, spawn.path,
                    start_us_max / 1'000'000);
    }
    Failure failure;
    if (const ssize_t got = ::read(reads.get(), &failure, sizeof failure); got == sizeof failure) {
        kill_and_reap(made);
        *group_failed = failure.stage == Failure::group;
        return failed(spawn, failure);
    }
    *pid = made;
    return {};
}

}   // namespace gradcast
