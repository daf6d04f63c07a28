#include "runtime/daemon/launch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include "datasets/verified.h"
#include "nn/net.h"
#include "runtime/core/clock.h"
#include "runtime/core/cpu_room.h"
#include "runtime/core/net/interface.h"
#include "runtime/core/net/socket.h"
#include "runtime/core/run_folder.h"
#include "runtime/daemon/daemon.h"
#include "runtime/daemon/job_run.h"
#include "runtime/daemon/placement.h"
#include "runtime/job/file/job_file.h"

namespace gradcast {
namespace {

constexpr uint64_t round_us = 100'000;        // of the main thread
constexpr uint64_t leave_us = 25'000'000;     // how long the job may take to end after a signal; Slurm kills after KillWait, 30 s
constexpr uint64_t key_us = 5'000'000;        // from the making of WORK/key to its content
constexpr uint64_t progress_us = 5'000'000;   // between two lines

std::string toml_text(const std::string& text) {
    std::string result = "\"";
    for (const char c : text) {
        if (static_cast<unsigned char>(c) < 0x20) result += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        else (result += c == '"' || c == '\\' ? "\\" : "") += c;
    }
    return result + "\"";
}

/// The CPUs of this process.  Processes of one host that may use the same ones divide them.  Empty: as many as a quota allows.
std::vector<uint32_t> cpus_own(const LaunchedNodes& placement) {
    cpu_set_t set;
    CPU_ZERO(&set);
    std::vector<uint32_t> all, own;
    if (::sched_getaffinity(0, sizeof set, &set) == 0)
        for (uint32_t cpu = 0; cpu < CPU_SETSIZE; ++cpu)
            if (CPU_ISSET(cpu, &set)) all.push_back(cpu);
    const CpuRoom room = cpu_room();
    if (all.empty() || (placement.locals == 1 && room.threads() < all.size())) return {};
    if (placement.locals == 1 || static_cast<long>(all.size()) < ::sysconf(_SC_NPROCESSORS_ONLN)) return all;   // bound by the launcher
    for (size_t at = placement.local; at < all.size(); at += placement.locals) own.push_back(all[at]);
    if (own.empty()) own.push_back(all[placement.local % all.size()]);
    own.resize(std::min<size_t>(own.size(), std::max(1u, room.threads() / placement.locals)));
    return own;
}

class Launch {
public:
    explicit Launch(const LaunchOptions& options) : options_(options), until_us_(clock_us() + options.wait_s * uint64_t{1'000'000}) {}
    ~Launch();
    int run();

private:
    Status place();
    Status work();
    Status key(std::string* path);
    Status configure(DaemonConfig* config);
    Status log_aside();
    std::string rank_text(const std::string& name) const;
    int fail_with(int exit, const Status& status);
    int follow();
    Status begin(std::optional<JobDetail>* done);
    bool done_before(const std::string& rank_folder, JobDetail* run) const;
    bool done_anywhere() const;
    int ended(const JobDetail& job, const std::vector<NodeInfo>& nodes);
    void warn(const JobStatus& status);
    void progress(const JobStatus& status);
    bool speaks(const std::vector<NodeInfo>& nodes) const;
    template <typename... Args>
    void say(fmt::format_string<Args...> format, Args&&... args) const {
        const std::string line = fmt::format(format, std::forward<Args>(args)...) + "\n";
        (void)!::write(terminal_.get() < 0 ? STDERR_FILENO : terminal_.get(), line.data(), line.size());
    }
    bool first() const { return placement_.rank == 0; }
    std::string job_path() const { return work_ + "/job"; }

    const LaunchOptions options_;
    const uint64_t until_us_;
    LaunchedNodes placement_;
    std::string work_, own_, run_;     // own_: this rank's part of WORK; run_: of the control socket
    std::string text_, base_, path_;   // of the job file
    bool command_ = false;             // it has net.command
    Fd terminal_, key_;                // terminal_: stderr as the launcher gave it
    std::unique_ptr<Daemon> daemon_;
    std::unique_ptr<ControlServer> control_;
    std::string id_;   // of the job; rank 0
    int signal_ = 0;
    uint64_t printed_us_ = 0;
    std::string printed_;               // progress_text() of the last line
    std::vector<std::string> warned_;   // all that warn() has printed
    uint32_t printed_view_ = 1;
};

Launch::~Launch() {
    control_.reset();
    daemon_.reset();
    std::error_code ignored;
    if (!run_.empty()) std::filesystem::remove_all(run_, ignored);
}

/// "rank 1 (node2)", as a job names it.
std::string Launch::rank_text(const std::string& name) const {
    const auto at =
        std::find_if(placement_.nodes.begin(), placement_.nodes.end(), [&](const NodeAddress& each) { return each.name == name; });
    return fmt::format("rank {} ({})", at - placement_.nodes.begin(), name);
}

int Launch::fail_with(int exit, const Status& status) {
    const std::string who = placement_.nodes.empty() ? "" : rank_text(placement_.nodes[placement_.rank].name) + ": ";
    say("gradcastd: {}{}", who, status.what);
    return exit;
}

Status Launch::place() {
    const Environment environment = [](const char* name) -> const char* { return std::getenv(name); };
    const std::string stem = std::filesystem::path(options_.job).stem().string();
    placement_.id = stem + ".run";
    std::string host;
    if (!options_.interface.empty()) {
        NetworkInterface found;
        GC_TRY(interface_find(options_.interface, &found));
        host = address_text(found.address);
        host.resize(host.rfind(':'));
    }
    std::error_code error;
    auto set_work = [&] { work_ = std::filesystem::absolute(options_.work.empty() ? placement_.id : options_.work, error).string(); };
    if (options_.launcher == Launcher::slurm) GC_TRY(placement_slurm(environment, options_.port, &placement_));
    if (options_.launcher == Launcher::hosts) GC_TRY(placement_hosts(options_.hosts, options_.rank, options_.port, &placement_));
    set_work();
    if (options_.launcher != Launcher::mpi) return {};
    MpiRank mpi;
    GC_TRY(mpi_rank(environment, &mpi));
    return placement_rendezvous(mpi, work_ + "/meet", host, options_.port, until_us_, &placement_);
}

/// The folder of this rank and the job file.
Status Launch::work() {
    JobConfig config;
    GC_TRY(job_read(options_.job, &config));
    text_ = config.text;
    base_ = config.base;
    command_ = config.attached();
    std::error_code error;
    path_ = std::filesystem::absolute(options_.job, error).string();
    own_ = fmt::format("{}/rank-{}", work_, placement_.rank);
    return make_directories(own_);
}

/// The file of the cluster key.
Status Launch::key(std::string* path) {
    *path = options_.key;
    if (!path->empty()) {
        std::error_code error;
        *path = std::filesystem::absolute(*path, error).string();
        return {};
    }
    if (const char* text = std::getenv("GRADCAST_KEY"); text && *text) {
        key_ = Fd(::memfd_create("key", MFD_CLOEXEC));
        const std::string line = std::string(text) + "\n";
        if (!key_ || ::fchmod(key_.get(), 0600) != 0 || ::write(key_.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size()))
            return fail_sys(errno, "cannot keep GRADCAST_KEY");
        ::unsetenv("GRADCAST_KEY");   // what this process starts does not see it
        *path = fmt::format("/proc/self/fd/{}", key_.get());
        std::vector<ClusterKey> keys;
        if (!cluster_keys_read(*path, &keys).ok())
            return fail(Code::invalid, "GRADCAST_KEY is no key: it has the form 'k1 <64 hex digits>', as the line of a key file");
        return {};
    }
    *path = work_ + "/key";
    if (first() && ::access(path->c_str(), F_OK) != 0) return cluster_key_create(*path);
    while (::access(path->c_str(), F_OK) != 0 && clock_us() < until_us_) ::usleep(round_us);
    struct stat info;   // rank 0 makes it and then writes it
    const auto empty = [&] { return ::stat(path->c_str(), &info) == 0 && info.st_size == 0; };
    for (const uint64_t end = clock_us() + key_us; !first() && empty() && clock_us() < end;) ::usleep(round_us);
    if (empty()) return fail(Code::invalid, "{} is empty: remove it, and rank 0 makes a new one", *path);
    if (::access(path->c_str(), F_OK) != 0)
        return fail(Code::deadline,
                    "rank 0 has not written {}: is it on a disk that all nodes share? Else name a key file by --key, or set GRADCAST_KEY",
                    *path);
    return {};
}

Status Launch::configure(DaemonConfig* config) {
    std::string key_path;
    GC_TRY(key(&key_path));
    GC_TRY(run_folder_make(&run_));
    const NodeAddress& self = placement_.nodes[placement_.rank];
    std::string members;
    for (const NodeAddress& each : placement_.nodes)
        members += fmt::format("{}{}", members.empty() ? "" : ", ", toml_text(each.name + "=" + each.address));
    // All addresses: what the launcher calls a node may be one that is not its own in its /etc/hosts.
    const std::string listen = placement_.listener ? self.address : address_any(self.port());
    std::string text = fmt::format("name = {}\nmembers = [{}]\nlisten = {}\nkey = {}\nstate = {}\nsocket = {}\nisa = {}\n",
                                   toml_text(self.name), members, toml_text(listen), toml_text(key_path), toml_text(own_ + "/state"),
                                   toml_text(run_ + "/control.sock"), toml_text(options_.isa));
    if (!options_.interface.empty()) text += fmt::format("interface = {}\n", toml_text(options_.interface));
    if (const auto cpus = cpus_own(placement_); !cpus.empty()) text += fmt::format("cpus = [{}]\n", fmt::join(cpus, ", "));
    std::vector<std::string> mistakes;
    if (!config_parse(text, "launch", work_, config, &mistakes)) return fail(Code::invalid, "{}", fmt::join(mistakes, "\n"));
    config->only = text_;
    config->verified = verified_path_of_user();   // a run has a state folder of its own
    config->commands = command_;                  // as the user who has typed this command line
    return nn_isa(config->isa);
}

/// The daemon's lines go to a file; only progress and errors to the launcher.
Status Launch::log_aside() {
    const Fd file(::open((own_ + "/log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (!file) return fail_sys(errno, "cannot open {}/log", own_);
    terminal_ = Fd(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3));
    if (!terminal_ || ::dup2(file.get(), STDERR_FILENO) < 0) return fail_sys(errno, "cannot write the log {}/log", own_);
    return {};
}

int Launch::run() {
    ::setenv("OMP_NUM_THREADS", "1", 0);   // a block of samples is computed by one thread
    ::setenv("OMP_WAIT_POLICY", "passive", 0);
    if (Status status = place(); !status.ok()) {
        placement_.nodes.clear();   // the rank is not known
        return fail_with(status.code == Code::invalid ? launch_usage : launch_failed, status);
    }
    if (Status status = work(); !status.ok()) return fail_with(status.code == Code::invalid ? launch_usage : launch_failed, status);
    DaemonConfig config;
    if (Status status = configure(&config); !status.ok())
        return fail_with(status.code == Code::invalid ? launch_usage : launch_failed, status);
    if (Status status = log_aside(); !status.ok()) return fail_with(launch_failed, status);
    const Log log;
    Status status = Daemon::open(config, placement_.listener ? placement_.listener.release() : -1, log, &daemon_);
    if (status.ok()) status = control_open({.socket = config.socket, .mode = 0600}, *daemon_, log, &control_);
    if (!status.ok()) return fail_with(launch_failed, status);
    if (first())
        say("{} node{}, work folder {}, control socket {}", placement_.nodes.size(), placement_.nodes.size() == 1 ? "" : "s", work_,
            config.socket);
    return follow();
}

/// Returns whether this rank has done WORK's job: its record says done, its job file is the same text, and its model exists.
bool Launch::done_before(const std::string& rank_folder, JobDetail* run) const {
    std::string id, text;
    if (!file_read(job_path(), &id).ok()) return false;
    while (!id.empty() && id.back() == '\n') id.pop_back();
    const std::string folder = rank_folder + "/state/jobs/" + id;
    JobDetail found;
    if (!job_record_read(folder, &found).ok() || found.summary.status.state != JobState::done) return false;
    if (!file_read(folder + "/job.toml", &text).ok() || text != text_) return false;
    if (const std::string& model = found.summary.status.model; !model.empty() && ::access(model.c_str(), F_OK) != 0) return false;
    found.summary.id = id;
    *run = std::move(found);
    return true;
}

/// The same of any rank, as far as this one sees their folders.
bool Launch::done_anywhere() const {
    JobDetail run;
    std::error_code error;
    for (std::filesystem::directory_iterator at(work_, error), end; !error && at != end; at.increment(error))
        if (at->path().filename().string().starts_with("rank-") && done_before(at->path().string(), &run)) return true;
    return false;
}

/// Rank 0, when all are alive: the job of this folder goes on, or a new one begins.  *done: it had come to its end before.
Status Launch::begin(std::optional<JobDetail>* done) {
    Submission submission{.text = text_, .path = path_, .base = base_, .nodes = {}, .count = 0, .role = Role::admin};
    for (const NodeAddress& node : placement_.nodes) submission.nodes.push_back(node.name);   // so a rank is the same for job and launcher
    std::string before;
    if (id_.empty() && ::access(job_path().c_str(), F_OK) == 0) GC_TRY(file_read(job_path(), &before));
    while (!before.empty() && before.back() == '\n') before.pop_back();
    if (JobDetail run; !before.empty() && done_before(own_, &run)) {
        *done = std::move(run);
        return Status{};
    }
    if (!before.empty()) GC_TRY(daemon_->resume(before, submission, &id_));
    else GC_TRY(daemon_->submit(submission, &id_));
    return file_write(job_path(), id_ + "\n");
}

/// Rank 0 speaks for the job; without it the lowest rank that lives.
bool Launch::speaks(const std::vector<NodeInfo>& nodes) const {
    return std::none_of(placement_.nodes.begin(), placement_.nodes.begin() + placement_.rank, [&](const NodeAddress& lower) {
        return std::any_of(nodes.begin(), nodes.end(), [&](const NodeInfo& each) { return each.name == lower.name && each.alive; });
    });
}

/// Prints the warnings that are new.
void Launch::warn(const JobStatus& status) {
    for (const std::string& warning : status.warnings) {
        if (std::find(warned_.begin(), warned_.end(), warning) != warned_.end()) continue;
        say("warning: {}", warning);
        warned_.push_back(warning);
    }
}

void Launch::progress(const JobStatus& status) {
    warn(status);
    for (const ViewRecord& view : status.views) {
        if (view.number <= printed_view_) continue;
        printed_view_ = view.number;
        say("view {}: {} node{} from step {}, {}", view.number, view.members.size(), view.members.size() == 1 ? "" : "s", view.first_step,
            view.why);
    }
    const uint64_t now = clock_us();
    const std::string text = progress_text(status);
    if (status.step == 0 || text == printed_ || (now - printed_us_ < progress_us && status.state != JobState::done)) return;
    printed_us_ = now;
    printed_ = text;
    say("{}  {:.1f} s  {}", text, status.seconds, speed_text(status));
}

int Launch::ended(const JobDetail& job, const std::vector<NodeInfo>& nodes) {
    const JobStatus& status = job.summary.status;
    if (status.state == JobState::done) {
        // The ranks that have the model.  Rank 0 may have ended before, so that it is alive cannot be the rule.
        if (!first() && status.model.empty()) return launch_done;
        progress(status);
        fmt::print("time {:.1f} s, {} of {} steps, {}\n", status.seconds, status.step, status.steps, speed_text(status));
        if (!status.model.empty()) fmt::print("model {}\n", status.model);
        fmt::print("{}digest {}\n", quality_text(status), status.digest);
        std::fflush(stdout);
        return launch_done;
    }
    const bool speaker = speaks(nodes);
    if (speaker) warn(status);
    if (signal_) {
        if (speaker)
            say("gradcastd: interrupted by SIG{} after step {} of {}: started again with this work folder the job goes on",
                ::sigabbrev_np(signal_), status.step, status.steps);
        return launch_again;
    }
    if (!speaker) return launch_failed;   // another rank says why
    fail_with(launch_failed, fail(status.code, "job {} {}: {}", job.summary.id.substr(0, 8), job_state_name(status.state), status.error));
    if (status.error.starts_with("not resumed: no checkpoint")) {
        say("--anew begins the job anew in {}", work_);
        return launch_failed;
    }
    const bool another = status.error.starts_with("not resumed: ") && (status.code == Code::data || status.code == Code::invalid);
    if (another) say("{} stays as it is: another --work begins a new job", work_);
    if (status.code == Code::invalid) return launch_usage;
    if (another) return launch_failed;
    if (status.checkpoint > 0)
        say("a checkpoint has {} of {} steps: started again with --work {}, on these nodes or others, the job goes on", status.checkpoint,
            status.steps, work_);
    return launch_failed;
}

int Launch::follow() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int each : {SIGTERM, SIGINT, SIGUSR1}) sigaddset(&signals, each);
    const timespec round{0, round_us * 1000};
    bool all = false, leader_seen = false;   // all nodes were alive; rank 0 was
    std::optional<JobDetail> done;
    const std::string& leader = placement_.nodes[0].name;
    for (uint64_t leave_until = 0;;) {
        if (const int got = ::sigtimedwait(&signals, nullptr, &round); got > 0 && !signal_) {
            signal_ = got;
            leave_until = clock_us() + leave_us;
            daemon_->leave(fmt::format("node {} leaves (SIG{})", placement_.nodes[placement_.rank].name, ::sigabbrev_np(got)), true);
        }
        if (const Status failed = daemon_->failed(); !failed.ok()) return fail_with(launch_failed, failed);
        const std::vector<NodeInfo> nodes = daemon_->nodes();
        JobDetail job;
        const bool has_ended = daemon_->last_ended(&job);
        if (has_ended && (id_.empty() || job.summary.id == id_) && daemon_->running() == 0) {
            // A run that has ended before its first checkpoint begins anew.  Behind a semicolon stand files that are damaged and nodes that
            // were not asked.
            const std::string& error = job.summary.status.error;
            const bool none = error.starts_with("not resumed: no checkpoint"), damaged = error.find(';') != error.npos;
            if (!first() || signal_ || !none || (damaged && !options_.anew)) return ended(job, nodes);
            if (damaged) say("warning: {}", error);
            say("the run before has left no checkpoint{}: the job begins anew", damaged ? " that is whole" : "");
            if (Status status = begin(&done); !status.ok()) return fail_with(launch_failed, status);
            continue;
        }
        if (signal_ && daemon_->running() == 0 && !has_ended) {
            say("gradcastd: interrupted by SIG{} before the job began", ::sigabbrev_np(signal_));
            return launch_again;
        }
        if (signal_ && clock_us() > leave_until) {
            fail_with(launch_failed, fail(Code::deadline, "the job did not end within {} s", leave_us / 1'000'000));
            ::_exit(launch_failed);   // its threads cannot be joined
        }
        if (first() && all) {
            if (daemon_->job(id_, &job).ok() && job.started) progress(job.summary.status);
            continue;
        }
        if (leader_seen && daemon_->running() > 0 && speaks(nodes))
            for (const JobSummary& each : daemon_->jobs()) progress(each.status);
        std::vector<std::string> missing;
        for (const NodeInfo& each : nodes) {
            if (each.alive || each.self) continue;
            if (each.why.find("keys differ") != std::string::npos)
                return fail_with(launch_failed,
                                 fail(Code::peer_refused, "{}: {} (--key FILE, or GRADCAST_KEY)", rank_text(each.name), each.why));
            if (first() || each.name == leader) missing.push_back(fmt::format("{}: {}", rank_text(each.name), each.why));
        }
        if (missing.empty()) leader_seen = true;
        if (missing.empty() && first()) {
            all = true;
            if (Status status = begin(&done); !status.ok())
                return fail_with(status.code == Code::invalid ? launch_usage : launch_failed, status);
            if (done) return say("the job of this work folder is done already: another --work begins anew"), ended(*done, nodes);
        } else if (!missing.empty() && leader_seen && daemon_->running() == 0) {
            if (done_anywhere()) return launch_done;
            return fail_with(launch_failed, fail(Code::peer_lost, "{} has ended before a job began: it says why", rank_text(leader)));
        } else if (!missing.empty() && !leader_seen && clock_us() > until_us_) {
            return fail_with(launch_failed,
                             fail(Code::deadline, "not all nodes are there after {} s: {}", options_.wait_s, fmt::join(missing, "; ")));
        }
    }
}

}   // namespace

int launch(const LaunchOptions& options) {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int each : {SIGTERM, SIGINT, SIGUSR1}) sigaddset(&signals, each);
    ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);   // before the first thread is made
    Launch made(options);
    return made.run();
}

}   // namespace gradcast
