// gradcastd: reads its flags and file, starts a Daemon and its control socket, notifies systemd, and ends on SIGTERM or SIGINT.
// SIGHUP reads the file again; without jobs, or when they have ended, a Daemon made of it takes the place of the old one.  More nodes are
// taken in at once.
#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <signal.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <cstring>

#include "nn/net.h"
#include "runtime/control/cli.h"
#include "runtime/control/cli_docs.h"
#include "runtime/core/clock.h"
#include "runtime/core/gpu_count.h"
#include "runtime/core/program.h"
#include "runtime/core/version.h"
#include "runtime/daemon/daemon.h"
#include "runtime/daemon/doctor.h"
#include "runtime/daemon/identity.h"
#include "runtime/daemon/launch.h"

namespace gradcast {
namespace {

constexpr uint64_t leave_us = 20'000'000;   // how long running jobs may take to end after SIGTERM; systemd would kill after 90 s
constexpr uint64_t round_us = 500'000;      // of the main thread, which reports to systemd

struct Keys {
    std::vector<ClusterKey> cluster;
    std::vector<ControlKey> control;   // the cluster's and the clients'
    std::string text() const {
        std::vector<std::string> names;
        for (const ClusterKey& each : cluster) names.push_back(each.id);
        const size_t clients = control.size() - cluster.size();
        return fmt::format("cluster key{} {}, {} client key{}", names.size() == 1 ? "" : "s", fmt::join(names, ", "), clients,
                           clients == 1 ? "" : "s");
    }
};
Status keys_read(const DaemonConfig& config, Keys* keys) {
    Keys result;
    GC_TRY(daemon_keys_read(config, &result.cluster));
    if (!config.clients.empty()) GC_TRY(client_keys_read(config.clients, &result.control));
    for (const ClusterKey& each : result.cluster) result.control.push_back(control_key(each));
    *keys = std::move(result);
    return {};
}

/// SIGHUP: keys and nodes behind the present ones at once, the rest of the file when no job runs: then *next has a name.
void reload(const DaemonConfig& config, const std::string& path, const Log& log, Daemon& daemon, ControlServer& control,
            DaemonConfig* next) {
    Keys keys;
    *next = {};
    Status read = keys_read(config, &keys);
    if (read.ok()) {
        daemon.keys(keys.cluster);
        control.keys(keys.control);
        log.info("keys are read again: {}", keys.text());
    } else {
        log.error("the keys stay as they were: {}", read.what);
    }
    read = config_read(path, next);
    if (read.ok()) read = keys_read(*next, &keys);
    if (!read.ok()) {
        log.error("{} stays as it was: {}", path, read.what);
        *next = {};
    } else if (const size_t jobs = daemon.running(); jobs > 0) {
        size_t added = 0;
        if (const Status status = daemon.extend(next->members, &added); !status.ok()) log.warn("{}: {}", path, status.what);
        DaemonConfig rest = config;
        rest.members = next->members;
        if (added > 0) log.info("{}: {} node{} more, which may join jobs from now on", path, added, added == 1 ? "" : "s");
        if (added > 0 && rest == *next) *next = {};   // nothing remains to be done
        else log.info("{}: takes effect when {} job{} {} ended", path, jobs, jobs == 1 ? "" : "s", jobs == 1 ? "has" : "have");
    }
}

/// Runs until a signal ends it, or until a file that SIGHUP has found to be valid can take effect: *next has a name.  listen_fd: stays
/// open.
Status serve(const DaemonConfig& config, const std::string& path, const sigset_t& signals, const Fd& listen_fd, const Log& log,
             DaemonConfig* next) {
    GC_TRY(make_directories(config.socket.substr(0, config.socket.rfind('/'))));
    std::unique_ptr<Daemon> daemon;
    GC_TRY(Daemon::open(config, listen_fd ? ::fcntl(listen_fd.get(), F_DUPFD_CLOEXEC, 3) : -1, log, &daemon));
    std::unique_ptr<ControlServer> control;
    Keys keys;
    GC_TRY(keys_read(config, &keys));
    GC_TRY(control_open({.socket = config.socket, .tcp = config.metrics, .remote = config.control, .keys = keys.control}, *daemon, log,
                        &control));
    const std::vector<uint32_t> gpus = config.gpus_used();
    log.info("gradcastd {}: node {}, one of {}; listening on {}, control socket {}; {} lane{}, {}{}", version_text, config.name,
             config.members.size(), daemon->address(), config.socket, config.lanes(), config.lanes() == 1 ? "" : "s", isa_name(config.isa),
             gpus.empty() ? "" : ", " + gpus_text(gpus));
    if (!config.control.empty()) log.info("control over TLS on {}: {}", control->address(), keys.text());
    ::sd_notify(0, "READY=1");

    uint64_t watchdog_us = 0;
    ::sd_watchdog_enabled(0, &watchdog_us);
    timespec round{0, static_cast<long>(std::min(round_us, watchdog_us ? watchdog_us / 2 : round_us) * 1000)};
    uint64_t ticks = 0, ticked_us = clock_us();
    std::string printed;
    int signal = -1;
    while (signal < 0) {
        signal = ::sigtimedwait(&signals, nullptr, &round);
        uint64_t now = clock_us();
        if (signal == SIGHUP) {
            signal = -1;
            reload(config, path, log, *daemon, *control, next);
        }
        if (!next->name.empty() && daemon->running() == 0) {
            log.info("{} is read again", path);
            return {};
        }
        if (const Status failed = daemon->failed(); !failed.ok()) {
            log.error("{}", failed.what);
            ::sd_notify(0, fmt::format("STATUS={}", failed.what).c_str());
            ::_exit(1);   // jobs wait for the mesh, so their threads cannot be joined
        }
        if (uint64_t seen = daemon->ticks(); seen != ticks) {
            ticks = seen;
            ticked_us = now;
        }
        // The mesh's thread ticks once a second; without a tick for ten seconds it is stuck, and systemd's watchdog acts.
        if (watchdog_us && now - ticked_us < 10'000'000) ::sd_notify(0, "WATCHDOG=1");
        if (std::string summary = daemon->summary(); summary != printed) {
            ::sd_notify(0, ("STATUS=" + summary).c_str());
            printed = summary;
        }
    }
    // A second signal ends the process at once.
    ::signal(SIGTERM, SIG_DFL);
    ::signal(SIGINT, SIG_DFL);
    ::pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
    *next = {};
    ::sd_notify(0, "STOPPING=1");
    size_t jobs = daemon->running();
    log.info("{}: leaving, {} job{} to end", ::strsignal(signal), jobs, jobs == 1 ? "" : "s");
    daemon->leave(fmt::format("node {} leaves (SIG{})", config.name, ::sigabbrev_np(signal)));
    uint64_t until = clock_us() + leave_us;
    while (daemon->running() > 0 && clock_us() < until) ::usleep(20'000);
    if (daemon->running() > 0) {
        log.warn("{} jobs did not end within {} s: exiting without them", daemon->running(), leave_us / 1'000'000);
        ::_exit(0);   // their threads cannot be joined
    }
    control.reset();
    daemon.reset();
    log.info("stopped");
    return {};
}

int main_(int argc, char** argv) {
    CLI::App app{"The daemon of a gradcast node: trains with the others in its gradcastd.toml.", "gradcastd"};
    std::string path = "/etc/gradcast/gradcastd.toml";
    std::string man, shell;
    bool check = false, debug = false;
    app.add_option("-c,--config", path, "configuration file")->capture_default_str();
    app.add_flag("--check", check, "check the file, the key, the state folder and `listen`, then exit");
    app.add_flag("--debug", debug, "more lines in the log");
    LaunchOptions once;
    bool slurm = false, mpi = false;
    const std::string launcher = "One job under a launcher, without gradcastd.toml";
    auto* by_slurm = app.add_flag("--from-slurm", slurm, "the nodes are those of this step of srun, one task a node");
    auto* by_mpi = app.add_flag("--from-mpi", mpi, "the nodes are the ranks of mpirun (Open MPI, MPICH)");
    auto* by_hosts = app.add_option("--hosts", once.hosts, "the nodes, by rank: a,b:4701,c");
    auto* by_rank =
        app.add_option("--rank", once.rank, "which of --hosts this process is; default: the one with an address of this machine")
            ->check(CLI::Range(0, 4095))
            ->needs(by_hosts);
    by_slurm->excludes(by_mpi)->excludes(by_hosts);
    by_mpi->excludes(by_hosts);
    auto* job = app.add_option("job", once.job, "the job file");
    auto* work = app.add_option("--work", once.work, "folder of this run, best on a shared disk; started again with it the job goes on");
    auto* key = app.add_option("--key", once.key, "the cluster key; default: $GRADCAST_KEY, else WORK/key, which rank 0 makes");
    auto* port = app.add_option("--port", once.port, "rank K listens on this port + K")->check(CLI::Range(1, 65'535));
    auto* interface = app.add_option("--interface", once.interface, "the network interface (or an address of it) that multicast may use");
    auto* isa = app.add_option("--isa", once.isa, "instruction set of the kernels")->capture_default_str();
    auto* wait = app.add_option("--wait", once.wait_s, "seconds that the other nodes may take to start")
                     ->capture_default_str()
                     ->check(CLI::Range(1, 86'400));
    auto* anew = app.add_flag("--anew", once.anew, "begin anew where all checkpoints of the job in WORK are damaged");
    for (CLI::Option* each : {by_slurm, by_mpi, by_hosts, job, by_rank, work, key, port, interface, isa, wait, anew}) each->group(launcher);
    app.add_option("--man", man)->group("")->check(CLI::IsMember({"gradcastd", "gradcastd.toml"}));
    app.add_option("--completion", shell)->group("")->check(CLI::IsMember({"bash", "zsh", "fish"}));
    app.set_version_flag("--version", std::string("gradcastd ") + version_text);
    const std::string see_also = "gradcastctl(1), gradcastd.toml(5), gradcast-job(5)";
    app.footer("Keys of gradcastd.toml:\n" + config_help());
    cli_decimal(app);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return cli_exit(app, error);
    }
    if (man == "gradcastd") fmt::print("{}", man_page(app, 8, see_also));
    if (man == "gradcastd.toml")
        fmt::print("{}", man_page("gradcastd.toml", "configuration of the gradcast daemon",
                                  {"TOML.  All nodes may use the same file.  gradcastd --check names every mistake in it.",
                                   "The cluster key is a file of its own, mode 0600, with a line \"<id> <64 hex digits>\" for each key."},
                                  config_keys(), "gradcastd(8)"));
    if (!shell.empty()) fmt::print("{}", completion(app, shell));
    if (!man.empty() || !shell.empty()) return 0;
    once.launcher = slurm ? Launcher::slurm : mpi ? Launcher::mpi : !once.hosts.empty() ? Launcher::hosts : Launcher::none;
    if ((once.launcher == Launcher::none) != (job->count() == 0)) {
        fmt::print(stderr, "gradcastd: {}\n",
                   job->count() ? "a job file needs one of --from-slurm, --from-mpi, --hosts" : "name the job file");
        return 2;
    }
    if (debug) log_level(Level::debug);
    // Each job has threads of its own and nothing allocates in a step: few arenas, and large blocks are returned when they are freed.
    ::mallopt(M_ARENA_MAX, 2);
    ::mallopt(M_MMAP_THRESHOLD, 256 << 10);
    if (once.launcher != Launcher::none) {
        ::signal(SIGPIPE, SIG_IGN);
        ::signal(SIGXFSZ, SIG_IGN);   // a failed write returns an error
        return launch(once);
    }
    DaemonConfig config;
    Status status = config_read(path, &config);
    Keys keys;
    if (status.ok() && check) status = keys_read(config, &keys);
    if (status.ok() && check) status = state_check(config.state);
    if (status.ok() && check) status = listen_check(config);
    if (status.ok() && check) {
        fmt::print("{}: valid, as are key and state folder; node {}, {} member{}, listens on {}\n", path, config.name,
                   config.members.size(), config.members.size() == 1 ? "" : "s", config.listen);
        if (config.commands) fmt::print("{}: commands = true: {}\n", path, command_warning(config));
        return 0;
    }
    if (status.ok()) status = nn_isa(config.isa);
    // Blocked before the first thread is made: the main thread alone takes them.
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    ::signal(SIGPIPE, SIG_IGN);
    ::signal(SIGXFSZ, SIG_IGN);   // a failed write returns an error
    Log log;
    const int passed = ::sd_listen_fds(1);
    if (status.ok() && passed > 1) status = fail(Code::invalid, "{} sockets were passed on, at most one is allowed", passed);
    const Fd listen_fd(passed == 1 ? SD_LISTEN_FDS_START : -1);
    for (bool again = true; again && status.ok();) {
        DaemonConfig next;
        if (!debug) log_level(config.log);
        status = serve(config, path, signals, listen_fd, log, &next);
        again = !next.name.empty();
        if (again && status.ok() && next.isa != config.isa) status = nn_isa(next.isa);
        if (again) config = std::move(next);
    }
    if (status.ok()) return 0;
    fmt::print(stderr, "{}\n", status.what);
    ::sd_notify(0, fmt::format("STATUS={}", status.what).c_str());
    return 1;
}

}   // namespace
}   // namespace gradcast

int main(int argc, char** argv) {
    gradcast::program_begin();
    try {
        return gradcast::main_(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "gradcastd: %s\n", error.what());   // out of memory, say
        return 1;
    }
}
