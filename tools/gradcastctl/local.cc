#include "tools/gradcastctl/local.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "datasets/verified.h"
#include "runtime/control/json.h"
#include "runtime/core/clock.h"
#include "runtime/core/crypto.h"
#include "runtime/core/fd.h"
#include "runtime/core/program.h"
#include "runtime/core/run_folder.h"
#include "runtime/core/thread.h"

namespace gradcast {
namespace {

constexpr uint64_t ready_us_max = 60'000'000;   // for all daemons to be up and to see each other
constexpr uint64_t stop_us_max = 10'000'000;    // between SIGTERM and SIGKILL
constexpr auto poll_period = std::chrono::milliseconds(20);

volatile sig_atomic_t interrupt_count = 0;

/// gradcastd beside this program (the build folder), in its sbin, or where the system has it.
Status daemon_find(std::string* path) {
    *path = program_file("gradcastd", {".", "../sbin"}, X_OK);
    if (!path->empty()) return {};
    std::vector<std::string> folders;
    const char* path_set = std::getenv("PATH");
    std::string all = path_set ? path_set : "";
    for (size_t at = 0; at < all.size();) {
        size_t end = std::min(all.find(':', at), all.size());
        if (end > at) folders.push_back(all.substr(at, end - at));
        at = end + 1;
    }
    folders.insert(folders.end(), {"/usr/sbin", "/usr/local/sbin"});
    for (const std::string& folder : folders)
        if (::access((*path = folder + "/gradcastd").c_str(), X_OK) == 0) return {};
    return fail(Code::invalid, "gradcastd is not beside gradcastctl ({}) and not in PATH: build or install it", program_folder());
}

/// A listening socket on a free port of 127.0.0.1.  The daemon inherits it, so the port stays reserved.
Status listener_make(Fd* listener, uint16_t* port) {
    Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    socklen_t bytes = sizeof address;
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (!fd || ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), bytes) != 0 || ::listen(fd.get(), 128) != 0 ||
        ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &bytes) != 0)
        return fail_sys(errno, "cannot listen on 127.0.0.1");
    // Above the numbers that a child gives to its own descriptors.
    *listener = Fd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 16));
    *port = ntohs(address.sin_port);
    if (*listener) return {};
    return fail_sys(errno == EINVAL ? EMFILE : errno, "cannot listen on 127.0.0.1");   // EINVAL: the limit of descriptors is 16 or less
}

std::vector<uint32_t> cpus_allowed() {
    cpu_set_t set;
    CPU_ZERO(&set);
    std::vector<uint32_t> cpus;
    if (::sched_getaffinity(0, sizeof set, &set) == 0)
        for (uint32_t cpu = 0; cpu < CPU_SETSIZE; ++cpu)
            if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
    if (cpus.empty()) cpus.push_back(0);
    return cpus;
}

std::vector<std::string> tail(const std::string& path, uint32_t lines) {
    std::string text;
    if (!file_read(path, &text).ok()) return {};
    std::vector<std::string> result;
    while (!text.empty() && result.size() < lines) {
        if (text.back() == '\n') text.pop_back();
        size_t at = text.rfind('\n') + 1;   // npos + 1 is 0
        result.insert(result.begin(), text.substr(at));
        text.resize(at);
    }
    return result;
}

void catch_interrupts(void (*handler)(int)) {
    for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
        struct sigaction action {};
        if (::sigaction(signal, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) continue;
        action = {};
        action.sa_handler = handler;
        ::sigaction(signal, &action, nullptr);
    }
}

}   // namespace

void interrupts_end() {
    catch_interrupts([](int) {
        auto say = [](int fd, std::string_view text) { (void)!::write(fd, text.data(), text.size()); };
        say(STDERR_FILENO, "gradcastctl: interrupted\n");
        if (errors_as_json) say(STDOUT_FILENO, "{\n  \"error\": \"interrupted\",\n  \"exit\": 1\n}\n");
        ::_exit(exit_failed);
    });
}

int interrupts() {
    static const bool caught = [] {
        catch_interrupts([](int) { interrupt_count = interrupt_count + 1; });
        return true;
    }();
    (void)caught;
    return interrupt_count;
}

Status Cluster::prepare(uint32_t nodes, const std::string& isa, bool commands) {
    GC_TRY(run_folder_make(&folder_));
    GC_TRY(cluster_key_create(folder_ + "/key"));
    std::string members;
    for (uint32_t i = 0; i < nodes; ++i) {
        Node node;
        node.name = fmt::format("node-{:0{}}", i + 1, std::to_string(nodes).size());   // zeros in front: sorted by name is sorted by number
        node.folder = folder_ + "/" + node.name;
        node.socket = node.folder + "/control.sock";
        node.log = node.folder + "/stderr";
        uint16_t port = 0;
        GC_TRY(listener_make(&node.listener, &port));
        members += fmt::format("{}\"{}=127.0.0.1:{}\"", i ? ", " : "", node.name, port);
        nodes_.push_back(std::move(node));
    }
    std::vector<uint32_t> cpus = cpus_allowed();
    const std::string record = verified_path_of_user();   // the state folders go with the cluster
    const std::string verified = record.empty() ? "" : fmt::format("verified = {}\n", json_text(Json(record)));
    for (uint32_t i = 0; i < nodes; ++i) {
        const Node& node = nodes_[i];
        GC_TRY(make_directories(node.folder));
        // The CPUs are divided among the daemons; each has one lane where there are fewer CPUs.
        std::vector<uint32_t> own;
        for (size_t at = i; at < cpus.size(); at += nodes) own.push_back(cpus[at]);
        if (own.empty()) own.push_back(cpus[i % cpus.size()]);
        GC_TRY(
            file_write(node.folder + "/gradcastd.toml",
                       fmt::format("name = \"{}\"\nmembers = [{}]\ninterface = \"127.0.0.1\"\nkey = \"{}/key\"\nstate = "
                                   "\"{}/state\"\nsocket = \"{}\"\ncpus = [{}]\nisa = \"{}\"\ncommands = {}\n{}",
                                   node.name, members, folder_, node.folder, node.socket, fmt::join(own, ", "), isa, commands, verified)));
    }
    return {};
}

Status Cluster::spawn(const std::string& program, Node& node) {
    Fd log(::open(node.log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    Fd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!log || !nothing) return fail_sys(errno, "cannot open {}", node.log);
    std::string config = node.folder + "/gradcastd.toml";
    const pid_t parent = ::getpid();
    pid_t pid = ::fork();
    if (pid < 0) return fork_failed(errno, program);
    if (pid == 0) {
        ::setpgid(0, 0);   // Ctrl-C reaches gradcastctl alone, which stops its daemons
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (::getppid() != parent) ::_exit(1);
        ::signal(SIGPIPE, SIG_DFL);
        ::dup2(nothing.get(), 0);
        ::dup2(log.get(), 1);
        ::dup2(log.get(), 2);
        ::dup2(node.listener.get(), 3);   // as systemd passes a socket
        ::setenv("LISTEN_FDS", "1", 1);
        ::setenv("LISTEN_PID", std::to_string(::getpid()).c_str(), 1);
        ::execl(program.c_str(), program.c_str(), "--config", config.c_str(), nullptr);
        ::dprintf(2, "cannot run %s: %s\n", program.c_str(), std::strerror(errno));
        ::_exit(127);
    }
    node.pid = pid;
    node.listener.close();
    return {};
}

Status Cluster::ready() {
    for (uint64_t end = clock_us() + ready_us_max;;) {
        GC_TRY(check());
        std::string missing;
        for (uint32_t i = 0; i < count() && missing.empty(); ++i) {
            NodeList seen;
            const Reply reply = client(i).ask(routes::nodes, {}, {}, &seen);
            if (reply.exit != exit_done) missing = fmt::format("{} does not answer", nodes_[i].name);
            for (const NodeInfo& other : seen.nodes)
                if (!other.alive && !other.self && missing.empty())
                    missing = fmt::format("{} does not see {}{}{}", nodes_[i].name, other.name, other.why.empty() ? "" : ": ", other.why);
        }
        if (missing.empty()) return {};
        if (clock_us() > end) return fail(Code::deadline, "the daemons were not ready in {} s: {}", ready_us_max / 1'000'000, missing);
        std::this_thread::sleep_for(poll_period);
    }
}

Status Cluster::start(uint32_t nodes, const std::string& isa, bool commands) {
    interrupts();   // counted before anything is created
    std::string program;
    GC_TRY(daemon_find(&program));
    GC_TRY(prepare(nodes, isa, commands));
    // The daemons share the CPUs: their libraries must not start threads or spin.
    ::setenv("OMP_NUM_THREADS", "1", 1);
    ::setenv("OMP_WAIT_POLICY", "passive", 1);
    for (Node& node : nodes_) GC_TRY(spawn(program, node));
    return ready();
}

Status Cluster::check() {
    for (Node& node : nodes_) {
        int how = 0;
        if (node.pid < 0 || ::waitpid(node.pid, &how, WNOHANG) != node.pid) continue;
        pid_t pid = std::exchange(node.pid, -1);
        std::vector<std::string> last = tail(node.log, 1);
        std::string what = WIFSIGNALED(how) ? fmt::format("was ended by signal {} ({})", WTERMSIG(how), ::strsignal(WTERMSIG(how)))
                                            : fmt::format("ended with status {}", WEXITSTATUS(how));
        return fail(Code::peer_lost, "{} (gradcastd, process {}) {}{}", node.name, pid, what, last.empty() ? "" : ": " + last.back());
    }
    return interrupts() ? fail(Code::cancelled, "interrupted") : Status{};
}

bool Cluster::stopped(uint32_t node) const {
    std::string text;
    if (!alive(node) || !file_read(fmt::format("/proc/{}/stat", nodes_[node].pid), &text).ok()) return false;
    const size_t at = text.rfind(") ");   // "pid (name) state …"
    return at != std::string::npos && at + 2 < text.size() && text[at + 2] == 'T';
}

void Cluster::halt() {
    for (uint32_t i = 0; i < count(); ++i)
        if (alive(i)) ::kill(nodes_[i].pid, stopped(i) ? SIGKILL : SIGTERM);
    const int before = interrupts();
    uint64_t end = clock_us() + stop_us_max;
    for (bool killed = false;;) {
        bool running = false;
        for (Node& node : nodes_)
            if (node.pid > 0 && ::waitpid(node.pid, nullptr, WNOHANG) == 0) running = true;
            else node.pid = -1;
        if (!running) break;
        if (!killed && (clock_us() > end || interrupts() != before)) {
            killed = true;
            for (const Node& node : nodes_)
                if (node.pid > 0) ::kill(node.pid, SIGKILL);
        }
        std::this_thread::sleep_for(poll_period);   // a killed process ends, so this loop does
    }
}

void Cluster::stop(bool leave) {
    halt();
    nodes_.clear();
    std::error_code error;
    if (leave) folder_.clear();
    if (!folder_.empty()) std::filesystem::remove_all(std::exchange(folder_, {}), error);
}

std::string Cluster::last_lines(uint32_t lines) const {
    std::string text;
    for (const Node& node : nodes_)
        for (const std::string& line : tail(node.log, lines)) text += fmt::format("  {}: {:.160}\n", node.name, line);
    return text.empty() ? text : "the daemons' last lines:\n" + text;
}

}   // namespace gradcast
