// Real gradcastd processes on loopback for tests.  Each has its own folder; tests wait for a state, never for a time.
#pragma once
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <thread>

#include "runtime/control/json.h"
#include "runtime/core/clock.h"
#include "runtime/core/crypto.h"
#include "runtime/core/fd.h"

namespace gradcast {

constexpr uint64_t patience_us = 60'000'000;   // how long to wait for a state

/// Polls until `there` is true.
inline bool eventually(const std::function<bool()>& there, uint64_t patience = patience_us) {
    for (uint64_t end = clock_us() + patience; clock_us() < end; ::usleep(20'000))
        if (there()) return true;
    return there();
}

inline std::string program(const char* name) {
    const char* build = std::getenv("GRADCAST_BUILD");
    return std::string(build ? build : "build") + "/" + name;
}

/// A CPU that this process may run on; others for the next numbers, in turn.
inline uint32_t cpu_of(uint32_t number) {
    cpu_set_t set;
    std::vector<uint32_t> all;
    if (::sched_getaffinity(0, sizeof set, &set) == 0)
        for (uint32_t cpu = 0; cpu < CPU_SETSIZE; ++cpu)
            if (CPU_ISSET(cpu, &set)) all.push_back(cpu);
    return all.empty() ? 0 : all[number % all.size()];
}

/// One gradcastd, or another program of ours.  Killed when it goes out of scope.
class ChildProcess {
public:
    struct Options {
        std::vector<std::string> arguments;
        std::string log;      // stdout and stderr
        std::string notify;   // path for NOTIFY_SOCKET; empty: none
        int listen_fd = -1;   // handed over as systemd does
        uid_t uid = 0;
        std::string directory = "";               // to work in; empty: ours
        std::function<bool()> before = nullptr;   // in the new process; false: it does not start
        const char* name = "gradcastd";           // of the program
    };
    ~ChildProcess() {
        kill(SIGKILL);
        wait();
    }

    void start(const Options& options) {
        log_ = options.log;
        if (!options.notify.empty()) {
            notify_ = Fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
            sockaddr_un address{};
            address.sun_family = AF_UNIX;
            options.notify.copy(address.sun_path, sizeof address.sun_path - 1);
            ::unlink(options.notify.c_str());
            ASSERT_EQ(::bind(notify_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0) << options.notify;
            ::chmod(options.notify.c_str(), 0777);
        }
        Fd log(::open(options.log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
        ASSERT_TRUE(log);
        std::vector<std::string> words = {std::filesystem::absolute(program(options.name))};
        words.insert(words.end(), options.arguments.begin(), options.arguments.end());
        std::vector<char*> argv;
        for (std::string& word : words) argv.push_back(word.data());
        argv.push_back(nullptr);
        const Fd file(::open(argv[0], O_PATH | O_CLOEXEC));   // another user may not have access to its path
        ASSERT_TRUE(file) << argv[0];
        pid_ = ::fork();
        ASSERT_GE(pid_, 0);
        if (pid_ > 0) {
            pidfd_ = Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
            return;
        }
        if (!options.directory.empty() && ::chdir(options.directory.c_str()) != 0) ::_exit(126);
        if (options.before && !options.before()) ::_exit(125);
        ::signal(SIGPIPE, SIG_DFL);
        ::dup2(log.get(), 1);
        ::dup2(log.get(), 2);
        if (options.listen_fd >= 0) {
            ::dup2(options.listen_fd, 3);
            ::fcntl(3, F_SETFD, 0);
            ::setenv("LISTEN_FDS", "1", 1);
            ::setenv("LISTEN_PID", std::to_string(::getpid()).c_str(), 1);
        }
        if (!options.notify.empty()) ::setenv("NOTIFY_SOCKET", options.notify.c_str(), 1);
        if (options.uid && (::setgid(options.uid) != 0 || ::setuid(options.uid) != 0)) ::_exit(126);
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);   // with the thread that started it, so a killed test leaves nothing behind
        ::fexecve(file.get(), argv.data(), environ);
        ::_exit(127);
    }
    /// Waits for READY=1.  False: it ended, or patience_us have passed.
    bool ready() {
        for (uint64_t end = clock_us() + patience_us; clock_us() < end;) {
            pollfd polls[] = {{notify_.get(), POLLIN, 0}, {pidfd_.get(), POLLIN, 0}};
            if (::poll(polls, 2, 1000) <= 0) continue;
            if (!polls[0].revents) return false;
            char text[512];
            ssize_t got = ::recv(notify_.get(), text, sizeof text, 0);
            if (got > 0 && std::string_view(text, static_cast<size_t>(got)).find("READY=1") != std::string_view::npos) return true;
        }
        return false;
    }
    void kill(int signal) {
        if (pid_ > 0) ::kill(pid_, signal);
    }
    /// The exit code, 128 + signal, or -1: it did not end.
    int wait(uint64_t patience = patience_us) {
        if (pid_ <= 0) return code_;
        pollfd poll{pidfd_.get(), POLLIN, 0};
        if (::poll(&poll, 1, static_cast<int>(patience / 1000)) != 1) return -1;
        int how = 0;
        ::waitpid(std::exchange(pid_, 0), &how, 0);
        return code_ = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
    }
    std::string output() const {
        std::string text;
        (void)file_read(log_, &text).ok();
        return text;
    }
    pid_t pid() const { return pid_; }

private:
    pid_t pid_ = 0;
    int code_ = -1;
    Fd pidfd_, notify_;
    std::string log_;
};

/// The first of `count` free ports of loopback that follow one another; others at each call, outside the kernel's range for connections.
inline uint16_t free_port(uint16_t count = 1) {
    // Test programs that run side by side take ports of different blocks: a port is free while a daemon is down that will be started again.
    // A name in the abstract namespace reserves a block until this program ends.
    constexpr uint32_t block = 100;
    static std::vector<Fd> reserved;
    static uint32_t next = 0, end = 0;
    const auto is_free = [](uint32_t port) {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        address.sin_port = htons(static_cast<uint16_t>(port));
        const Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        return ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    };
    for (;; ++next) {
        while (next + count > end) {
            uint16_t random;
            random_bytes({reinterpret_cast<uint8_t*>(&random), sizeof random});
            const uint32_t first = 10'000 + random % 200 * block;
            sockaddr_un name{};
            name.sun_family = AF_UNIX;
            const std::string text = "gradcast-test-ports-" + std::to_string(first);
            text.copy(name.sun_path + 1, sizeof name.sun_path - 1);
            const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
            Fd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
            if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&name), bytes) != 0) continue;
            reserved.push_back(std::move(fd));
            next = first, end = first + block;
        }
        uint32_t found = 0;
        while (found < count && is_free(next + found)) ++found;
        if (found == count) return static_cast<uint16_t>(std::exchange(next, next + count));
    }
}

struct Node {
    std::string name, folder, socket;
    uint16_t port = 0;
    uid_t uid = 0;
    std::unique_ptr<ChildProcess> process = std::make_unique<ChildProcess>();

    Json get(const std::string& path) { return answer(client().Get(path.c_str())); }
    Json post(const std::string& path, const Json& body) { return answer(client().Post(path.c_str(), body.dump(), "application/json")); }
    /// Waits until the job has started or could not: {"id": …} or {"error": …, "code": …}.
    Json submit(const Submission& submission) {
        const Json answer = post("/v1/jobs", Json(submission));
        if (!answer.contains("id")) return answer;
        Json seen;
        (void)eventually([&] {
            seen = job(answer["id"]);
            return seen.value("started", false) || !seen.contains("status") || seen["status"].value("state", "") != "preparing";
        });
        return seen.value("started", false) || !seen.contains("status") ? answer : seen["status"];
    }
    Json submit(const std::string& text, const std::vector<std::string>& nodes = {}) {
        return submit(Submission{text, "job.toml", folder, nodes, 0});
    }
    Json job(const std::string& id) { return get("/v1/jobs/" + id); }
    uint64_t step(const std::string& id) {
        Json json = job(id);
        return json.contains("status") ? json["status"].value("step", uint64_t{0}) : 0;
    }
    /// The status of the job when it has ended, or after `patience`.
    JobStatus ended(const std::string& id, uint64_t patience = patience_us) {
        JobStatus status;
        (void)eventually(
            [&] {
                Json json = job(id);
                if (!json.contains("status")) return false;
                json["status"].get_to(status);
                return status.state != JobState::preparing && status.state != JobState::running;
            },
            patience);
        return status;
    }
    /// The others that it sees alive, as "a b".
    std::string sees(Json* nodes = nullptr) {
        std::string names;
        Json json = get("/v1/nodes");
        for (const Json& each : json.value("nodes", Json::array()))
            if (each.value("alive", false)) names += (names.empty() ? "" : " ") + each.value("name", "");
        if (nodes) *nodes = json;
        return names;
    }
    std::string why(const std::string& other) {
        Json json = get("/v1/nodes");
        for (const Json& each : json.value("nodes", Json::array()))
            if (each.value("name", "") == other) return each.value("why", "");
        return "";
    }

private:
    httplib::Client client() {
        httplib::Client client(socket);
        client.set_address_family(AF_UNIX);
        client.set_read_timeout(60);
        return client;
    }
    static Json answer(const httplib::Result& result) {
        if (!result) return Json{{"unreachable", httplib::to_string(result.error())}};
        return Json::parse(result->body, nullptr, false);
    }
};

/// n gradcastd's on loopback, named a, b, c …, in folders below the test's own.
struct Cluster {
    std::string folder;
    std::vector<Node> nodes;
    const char* daemon = "gradcastd";   // the program
    explicit Cluster(uint32_t n) {
        ::signal(SIGPIPE, SIG_IGN);   // a daemon may die while we talk to its control socket
        static uint32_t number = 0;
        folder = ::testing::TempDir() + "gcd-" + std::to_string(::getpid()) + "-" + std::to_string(number++);
        std::filesystem::remove_all(folder);
        for (uint32_t i = 0; i < n; ++i) more();
        EXPECT_TRUE(cluster_key_create(folder + "/key").ok());
        for (Node& node : nodes) configure(node);
    }
    ~Cluster() {
        for (Node& node : nodes) node.process.reset();
        if (!::testing::Test::HasFailure()) std::filesystem::remove_all(folder);
    }
    /// One more, which is not configured.
    void more() {
        Node& node = nodes.emplace_back();
        node.name = std::string(1, static_cast<char>('a' + nodes.size() - 1));
        node.port = free_port();
        node.folder = folder + "/" + node.name;
        node.socket = node.folder + "/run/control.sock";
        std::filesystem::create_directories(node.folder);
    }
    Node& operator[](size_t i) { return nodes[i]; }
    std::string members() const {
        std::string text;
        for (const Node& node : nodes)
            text += (text.empty() ? "\"" : ", \"") + node.name + "=127.0.0.1:" + std::to_string(node.port) + "\"";
        return text;
    }
    /// Keys that `more` sets are omitted here.
    void configure(Node& node, const std::string& more = "") {
        std::string text = "name = \"" + node.name + "\"\nmembers = [" + members() + "]\n";
        auto key = [&](const std::string& name, const std::string& value) {
            if (more.find(name + " =") == std::string::npos) text += name + " = " + value + "\n";
        };
        key("key", "\"" + folder + "/key\"");
        key("state", "\"state\"");
        key("socket", "\"run/control.sock\"");
        key("cpus", fmt::format("[{}]", cpu_of(static_cast<uint32_t>(node.name[0]))));
        EXPECT_TRUE(file_write(node.folder + "/gradcastd.toml", text + more).ok());
    }
    void start(Node& node, int listen_fd = -1) {
        node.process = std::make_unique<ChildProcess>();
        node.process->start({{"--config", node.folder + "/gradcastd.toml"},
                             node.folder + "/stderr",
                             node.folder + "/n",
                             listen_fd,
                             node.uid,
                             node.folder,
                             nullptr,
                             daemon});
    }
    /// All are up and see one another.
    void up() {
        std::string all;
        for (Node& node : nodes) {
            start(node);
            all += (all.empty() ? "" : " ") + node.name;
        }
        for (Node& node : nodes) ASSERT_TRUE(node.process->ready()) << node.process->output();
        for (Node& node : nodes)
            ASSERT_TRUE(eventually([&] { return node.sees() == all; })) << node.name << " sees " << node.sees() << "\n"
                                                                        << node.process->output();
    }
    /// The output of a daemon that does not start.
    std::string refusal(Node& node) {
        start(node);
        EXPECT_EQ(node.process->wait(), 1);
        return node.process->output();
    }
};

}   // namespace gradcast
