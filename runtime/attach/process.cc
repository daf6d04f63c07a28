#include "runtime/attach/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "runtime/attach/descendants.h"
#include "runtime/attach/spawn.h"
#include "runtime/core/clock.h"

namespace gradcast {
namespace {

constexpr uint64_t kill_us_max = 5'000'000, death_us_max = 2'000'000;
constexpr int round_ms = 1000;                             // the thread reaps orphans so often
constexpr int round_blind_ms = 50;                         // where the kernel has no pidfd, an exit is looked for so often
constexpr uint64_t look_us = 1'000'000, look_share = 50;   // looks at the memory take one part of so many of a CPU's time, at most
constexpr size_t read_max = 65536;                         // bytes at a time
constexpr size_t drain_max = 1 << 20;                      // bytes read after an exit: a descendant may print on and on

std::string signal_text(int signal) {
    const char* name = ::sigabbrev_np(signal);
    return name ? fmt::format("was ended by signal {} (SIG{})", signal, name) : fmt::format("was ended by signal {}", signal);
}

bool pipe_make(Fd* reads, Fd* writes) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return false;
    *reads = Fd(ends[0]), *writes = Fd(ends[1]);
    return ::fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0;   // the process's end blocks, as programs expect it
}

/// True also where no child has this number.  The status stays, and with it the number.
bool has_exited(pid_t pid, siginfo_t* how) {
    *how = {};
    return ::waitid(P_PID, static_cast<id_t>(pid), how, WEXITED | WNOHANG | WNOWAIT) != 0 || how->si_pid == pid;
}

}   // namespace

Status process_check(const std::vector<std::string>& command, const std::string& folder,
                     const std::vector<std::pair<std::string, std::string>>& environment) {
    struct stat info;
    if (!folder.empty() && (::stat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)))
        return fail(Code::invalid, "net.command: the working directory {} is not a folder of this node", folder);
    std::string path;
    return program_find(command, folder, environment, &path);
}

Status Process::start(const ProcessConfig& config, std::unique_ptr<Process>* process) {
    GC_TRY(process_check(config.command, config.folder, config.environment));
    std::unique_ptr<Process> made(new Process(config));
    made->wake_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!made->wake_) return fail_sys(errno, "{}: cannot make an eventfd", config.name);
    GC_TRY(made->thread_.start([self = made.get()] { self->run(); }));
    std::unique_lock lock(made->mutex_);
    made->changed_.wait(lock, [&] { return made->started_; });   // spawn_process() has a deadline
    const Status status = made->start_;
    lock.unlock();
    if (status.ok()) *process = std::move(made);
    return status;
}

Process::~Process() { end(0); }

Status Process::execute() {
    static std::atomic<uint64_t> count = 0;
    const std::string marker = fmt::format("{}-{}", ::getpid(), count.fetch_add(1, std::memory_order_relaxed));
    Fd out, error;
    if (!pipe_make(&out_, &out) || !pipe_make(&error_, &error)) return fail_sys(errno, "{}: cannot make a pipe", config_.name);
    Spawn spawn{.name = config_.name,
                .path = {},
                .words = config_.command,
                .environment = {},
                .folder = config_.folder,
                .socket = config_.socket,
                .out = out.get(),
                .error = error.get(),
                .groups = {}};
    GC_TRY(program_find(config_.command, config_.folder, config_.environment, &spawn.path));
    Variables variables = {{descendant_marker, marker}};
    if (config_.socket >= 0) variables.emplace_back("GRADCAST_ATTACH", std::to_string(attach_fd));
    for (const auto& each : config_.environment)
        if (std::none_of(variables.begin(), variables.end(), [&](const auto& own) { return own.first == each.first; }))
            variables.push_back(each);
    spawn.environment = environment_with(variables);
    if (config_.control_group) group_ = ProcessGroup::make(group_room(), config_.memory_max, config_.pids_max);
    if (group_) spawn.groups = group_->entries();
    Descendants::starting();
    bool group_failed = false;
    Status status = spawn_process(spawn, &pid_, &group_failed);
    if (group_failed) {   // a limit of a group above, or a rule of the kernel: without a group it is ended all the same
        group_.reset();
        spawn.groups.clear();
        status = spawn_process(spawn, &pid_, &group_failed);
    }
    if (!status.ok()) {
        Descendants::not_started();
        return status;
    }
    Descendants::started(pid_, marker);
    exit_ = Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
    return {};
}

bool Process::read_some(Fd& from, ProcessOutput::Stream stream) {
    char bytes[read_max];
    const ssize_t got = from ? ::read(from.get(), bytes, sizeof bytes) : 0;
    if (got > 0) output_.push(stream, std::string_view(bytes, static_cast<size_t>(got)), clock_us());
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) from.close();   // no process has the other end
    return got > 0;
}

/// Reads what the pipes hold.
void Process::drain() {
    for (size_t read = 0; read < drain_max && read_some(out_, ProcessOutput::Stream::out);) read += read_max;
    for (size_t read = 0; read < drain_max && read_some(error_, ProcessOutput::Stream::error);) read += read_max;
}

/// The process has exited: what it has printed is in the pipes.
void Process::exited() {
    siginfo_t how;
    if (!has_exited(pid_, &how)) return;
    drain();
    std::string text = how.si_pid != pid_          ? "has exited"   // its status was taken elsewhere
                       : how.si_code == CLD_EXITED ? fmt::format("exited with status {}", how.si_status)
                                                   : signal_text(how.si_status);
    using OutOfMemory = ProcessGroup::OutOfMemory;
    const OutOfMemory kernel = group_ ? group_->out_of_memory() : OutOfMemory::no;
    if (over_memory_ || kernel == OutOfMemory::limit)
        text += fmt::format(
            "; it took more memory, with its children, than the {:.1f} MiB that it may have: a larger `memory` in gradcastd.toml or fewer "
            "lanes (`cpus`) leave it more, and smaller blocks (job.blocks) need less",
            static_cast<double>(memory_max_.load(std::memory_order_relaxed)) / 0x1p20);
    else if (kernel == OutOfMemory::elsewhere) text += "; this machine, or a control group above the daemon, had no memory for it";
    if (const std::string last = output_.last_error(); !last.empty()) text += "; its last line: " + last;
    const std::lock_guard lock(mutex_);
    exited_ = true, death_ = text;
    changed_.notify_all();
}

void Process::run() {
    const Status status = execute();
    {
        const std::lock_guard lock(mutex_);
        started_ = true, start_ = status;
        changed_.notify_all();
    }
    if (!status.ok()) return;
    uint64_t reaped_us = clock_us();
    looks_us_ = reaped_us + look_us;
    for (bool stop = false, over = false; !stop;) {
        pollfd polls[4] = {
            {wake_.get(), POLLIN, 0}, {out_.get(), POLLIN, 0}, {error_.get(), POLLIN, 0}, {over ? -1 : exit_.get(), POLLIN, 0}};
        const bool quiet = ::poll(polls, 4, exit_ || over ? round_ms : round_blind_ms) <= 0;
        if (!quiet && polls[1].revents) read_some(out_, ProcessOutput::Stream::out);
        if (!quiet && polls[2].revents) read_some(error_, ProcessOutput::Stream::error);
        if (!over && (!exit_ || (!quiet && polls[3].revents))) exited();
        if (!over && clock_us() >= looks_us_) look_at_memory();
        const std::lock_guard lock(mutex_);
        over = exited_, stop = stop_;
        if (clock_us() - reaped_us < 1000 * round_ms) continue;
        reaped_us = clock_us();
        Descendants::reap();
    }
    drain();
    output_.finish(clock_us());
    if (!left_.empty() && config_.output) config_.output(left_);
}

/// Ends a process that has more than it may.  Where the kernel holds the limit, it may have ended a child alone (control groups of version
/// 1); then the rest is ended here.
void Process::look_at_memory() {
    const uint64_t most = memory_max_.load(std::memory_order_relaxed), begin_us = clock_us();
    const auto sum = [this](auto bytes_of) {
        uint64_t bytes = bytes_of(pid_, std::string());
        for (const pid_t each : descendants()) bytes += bytes_of(each, std::string());
        return bytes;
    };
    bool over = false;
    if (group_ && group_->bounds_memory()) over = group_->out_of_memory() != ProcessGroup::OutOfMemory::no;
    else if (most > 0) over = over_memory_ = over_memory_ || (sum(process_rss) > most && sum(process_pss) > most);
    if (over) {   // again at the next look, until it has exited
        if (group_) group_->kill();
        ::kill(pid_, SIGKILL);   // not reaped yet, so the number is still its own
        for (const pid_t each : descendants()) ::kill(each, SIGKILL);
    }
    const uint64_t now_us = clock_us();
    looks_us_ = now_us + std::max(look_us, look_share * (now_us - begin_us));
}

bool Process::wait_exited(uint64_t limit_us) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::microseconds(limit_us), [&] { return exited_; });
}

/// Until two searches have found nobody: a process that starts another one and exits may hide both from one search.
void Process::kill_all() {
    const uint64_t until = clock_us() + kill_us_max;
    for (unsigned empty = 0;;) {
        if (group_) group_->kill();
        if (!ended()) ::kill(pid_, SIGKILL);   // not reaped yet, so the number is still its own
        std::vector<pid_t> left = Descendants::of(pid_);
        if (group_)
            for (pid_t member : group_->members()) left.push_back(member);
        for (pid_t each : left) ::kill(each, SIGKILL);
        Descendants::reap();
        empty = left.empty() && ended() ? empty + 1 : 0;
        if (empty == 2) return;
        if (clock_us() > until) {
            if (!ended()) left.push_back(pid_);
            std::sort(left.begin(), left.end());
            left.erase(std::unique(left.begin(), left.end()), left.end());
            const size_t count = left.size();
            left.resize(std::min<size_t>(count, 8));
            const std::lock_guard lock(mutex_);
            left_ = fmt::format("{}: {} process{} did not end within {} s of SIGKILL ({}{}): the kernel holds {} for a device or a disk",
                                config_.name, count, count == 1 ? "" : "es", kill_us_max / 1'000'000, fmt::join(left, ", "),
                                count > 8 ? ", ..." : "", count == 1 ? "it" : "them");
            return;
        }
        if (empty == 0) ::usleep(2000);
    }
}

void Process::end(uint64_t patience_us) {
    std::call_once(end_, [&] {
        if (!thread_.joinable()) return;
        if (pid_ > 0) {
            wait_exited(patience_us);
            kill_all();
        }
        {
            const std::lock_guard lock(mutex_);
            stop_ = true;
        }
        const uint64_t one = 1;
        (void)!::write(wake_.get(), &one, sizeof one);
        thread_.join();
        if (pid_ <= 0) return;
        ::waitpid(pid_, nullptr, WNOHANG);
        Descendants::ended(pid_);   // one that the kernel still holds is an orphan from now on
        group_.reset();
    });
}

bool Process::ended() const {
    const std::lock_guard lock(mutex_);
    return exited_;
}

std::string Process::death() const {
    if (!wait_exited(death_us_max)) return "is still running";
    const std::lock_guard lock(mutex_);
    return death_;
}

std::vector<pid_t> Process::descendants() const {
    std::vector<pid_t> all = group_ ? group_->members() : Descendants::of(pid_);
    std::erase(all, pid_);
    return all;
}

ProcessMemory Process::memory() const {
    ProcessMemory all;
    process_memory_add(pid_, &all);
    for (const pid_t each : descendants()) process_memory_add(each, &all);
    return all;
}

void Process::limit_memory(uint64_t bytes) {
    memory_max_.store(bytes, std::memory_order_relaxed);
    if (group_) group_->limit_memory(bytes);
}

}   // namespace gradcast
