#include "runtime/daemon/bench_run.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "runtime/core/clock.h"
#include "runtime/core/program.h"
#include "runtime/core/thread.h"

namespace gradcast {
namespace {

constexpr uint64_t check_us_max = 10'000'000, run_us_max = 6 * 3600 * UINT64_C(1'000'000);
constexpr uint64_t stop_us_max = 2'000'000;   // between SIGTERM and SIGKILL
constexpr int listener_fd = 3;                // in the program

Status program_find(std::string* path) {
    *path = program_file("gradcast-bench", {".", "../bin"}, X_OK);
    if (!path->empty()) return {};
    return fail(Code::unsupported, "gradcast-bench is not beside gradcastd ({}): build or install it there", program_folder());
}

std::string last_line(const std::string& path) {
    std::string text;
    if (!file_read(path, &text).ok()) return {};
    while (!text.empty() && (text.ends_with('\n') || text.substr(text.rfind('\n') + 1).starts_with("run '")))
        text.resize(text.ends_with('\n') ? text.size() - 1 : text.rfind('\n') + 1);
    text.erase(0, text.rfind('\n') + 1);
    const std::string own = "gradcast-bench: ";
    return text.starts_with(own) ? text.substr(own.size()) : text;
}

/// Refuses flags that the daemons set, and flags that end the program at once, for which the other nodes would wait.
Status given_check(const std::string& word) {
    const std::string name = word.substr(0, word.find('='));
    for (const char* own : {"--nodes", "--server", "--listen-fd", "--connect", "--key", "--interface", "--rdma", "--wait", "--check"})
        if (name == own)
            return fail(Code::invalid, "{} is set by the daemons: give --nodes before the command, the rest is in gradcastd.toml", own);
    if (name == "--help" || name == "-h") return fail(Code::invalid, "for the options of a command run gradcast-bench COMMAND --help");
    return {};
}

}   // namespace

Status BenchRun::open(const DaemonConfig& config, const JobPlan& plan, Rank self, const std::string& folder,
                      std::unique_ptr<BenchRun>* run) {
    std::string program;
    GC_TRY(program_find(&program));
    GC_TRY(make_directories(folder));
    auto made = std::make_unique<BenchRun>();
    made->folder_ = folder;
    made->listener_ = plan.listener;
    std::vector<std::string>& words = made->words_ = {program};
    if (self == 0) {
        for (size_t at = 0; at < plan.text.size();) {
            const size_t end = std::min(plan.text.find('\n', at), plan.text.size());
            words.push_back(plan.text.substr(at, end - at));
            at = end + 1;
            GC_TRY(given_check(words.back()));
        }
        for (const std::string& word : {std::string("--nodes"), std::to_string(plan.members.size()), std::string("--server"), plan.server,
                                        std::string("--listen-fd"), std::to_string(listener_fd)})
            words.push_back(word);
    } else {
        words.insert(words.end(), {"--connect", plan.server});
    }
    words.insert(words.end(), {"--key", config.key, "--wait", "30"});
    if (plan.datagram_bytes == 0 && plan.text.starts_with("multicast\n"))
        return fail(Code::invalid, "multicast needs datagrams: set interface in gradcastd.toml of every node, and restart gradcastd");
    if (plan.datagram_bytes > 0) words.insert(words.end(), {"--interface", fmt::format("{}", fmt::join(config.interfaces, ","))});
    if (plan.rdma) words.insert(words.end(), {"--rdma", fmt::format("{}", fmt::join(config.rdma, ","))});
    const bool paced = std::any_of(words.begin(), words.end(), [](const std::string& word) { return word.starts_with("--pace"); });
    if (self == 0 && config.pace > 0 && plan.datagram_bytes > 0 && !paced)
        words.insert(words.end(), {"--pace", fmt::format("{}kbit", config.pace / 1000)});
    if (self == 0) {
        std::vector<std::string> check = words;
        check.push_back("--check");
        GC_TRY(made->execute(check, check_us_max));
    }
    *run = std::move(made);
    return {};
}

Status BenchRun::run() { return execute(words_, run_us_max); }

Status BenchRun::execute(const std::vector<std::string>& words, uint64_t limit_us) {
    const std::string log = folder_ + "/log", errors = folder_ + "/stderr";
    Fd out(::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0640));
    Fd err(::open(errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0640));
    Fd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!out || !err || !nothing) return fail_sys(errno, "cannot open {}", log);
    std::vector<char*> argv;
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));   // execv only reads them
    argv.push_back(nullptr);
    sigset_t none;
    sigemptyset(&none);
    const pid_t parent = ::getpid(), pid = ::fork();
    if (pid < 0) return fork_failed(errno, words[0]);
    if (pid == 0) {   // nothing here takes a lock that another thread may have held
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (::getppid() != parent) ::_exit(1);
        ::pthread_sigmask(SIG_SETMASK, &none, nullptr);   // gradcastd blocks its signals in all threads but one
        ::signal(SIGPIPE, SIG_DFL);
        ::dup2(nothing.get(), 0);
        ::dup2(out.get(), 1);
        ::dup2(err.get(), 2);
        if (listener_) {
            ::dup2(listener_->get(), listener_fd);
            ::fcntl(listener_fd, F_SETFD, 0);
        }
        ::execv(argv[0], argv.data());
        ::_exit(127);
    }
    int how = 0;
    const uint64_t end = clock_us() + limit_us;
    uint64_t terminated_us = 0;   // time of SIGTERM
    while (::waitpid(pid, &how, WNOHANG) == 0) {
        const uint64_t now = clock_us();
        if (!terminated_us && (now > end || cancelled_.load(std::memory_order_relaxed))) {
            ::kill(pid, SIGTERM);
            terminated_us = now;
        } else if (terminated_us && now > terminated_us + stop_us_max) ::kill(pid, SIGKILL);
        ::usleep(10'000);
    }
    if (cancelled_.load(std::memory_order_relaxed)) return fail(Code::cancelled, "cancelled");
    if (terminated_us) return fail(Code::deadline, "the benchmark did not end within {} s", limit_us / 1'000'000);
    if (how == 0) return {};
    const std::string last = last_line(errors);
    if (WIFSIGNALED(how)) return fail(Code::node_io, "gradcast-bench was ended by signal {}", WTERMSIG(how));
    if (WEXITSTATUS(how) == 2) return fail(Code::invalid, "{}", last);
    return fail(Code::diverged, "{}", last.empty() ? "elements are wrong: see the log" : last);
}

}   // namespace gradcast
