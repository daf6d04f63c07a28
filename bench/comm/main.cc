// gradcast-bench: the cost of an exchange.  The ranks are processes on this machine, or one a node: a server and its clients.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <thread>

#include "bench/comm/bench.h"
#include "bench/net/net.h"
#include "runtime/core/net/interface.h"
#include "runtime/core/net/socket.h"
#include "runtime/core/program.h"
#include "runtime/core/thread.h"

using namespace gradcast;

namespace {

int failed(const Status& status) {
    fmt::print(stderr, "gradcast-bench: {}\n", status.what);
    return status.code == Code::invalid ? 2 : 1;
}

// Runs the benchmark at one rank.  `own` has this node's places; the server's arguments name the benchmark.
Status rank_run(Rendezvous& rendezvous, const BenchOptions& own, bool* wrong) {
    Bench bench{.rendezvous = rendezvous, .options = {}, .nodes = {}};
    if (options_parse(rendezvous.arguments(), &bench.options)) return fail(Code::invalid, "the server's command line means nothing here");
    if (!own.connect.empty()) {
        bench.options.interface = own.interface;
        bench.options.rdma = own.rdma;
    }
    GC_TRY(bench_agree(bench));
    if (bench.options.command == "multicast") return multicast_run(bench, wrong);
    if (bench.options.command == "p2p") return p2p_run(bench, wrong);
    return allreduce_run(bench, wrong);
}

int rank_main(const std::string& address, const std::vector<ClusterKey>& keys, int wanted, const BenchOptions& own, bool prints_errors) {
    Rendezvous rendezvous;
    bool wrong = false;
    Status status;
    try {
        status = rendezvous.join(address, keys, wanted, uint64_t{own.wait_s} * 1'000'000);
        if (status.ok()) status = rank_run(rendezvous, own, &wrong);
    } catch (const nlohmann::json::exception& error) {   // from another build of the same version
        status = fail(Code::packet_invalid, "the other ranks say what is not understood here: {}", error.what());
    }
    rendezvous.leave(status);
    if (!status.ok()) return prints_errors ? failed(status) : 1;
    return wrong ? 1 : 0;
}

// A fresh key if all ranks are here; a server creates a missing key file.
Status keys_of(const BenchOptions& options, std::vector<ClusterKey>* keys) {
    *keys = {{"bench", {}}};
    if (options.key.empty()) return random_bytes(keys->front().secret), Status{};
    if (options.connect.empty() && ::access(options.key.c_str(), F_OK) != 0) {
        GC_TRY(cluster_key_create(options.key));
        fmt::print(stderr, "gradcast-bench: made the key {}: copy it to the other nodes\n", options.key);
    }
    return cluster_keys_read(options.key, keys);
}

// Forks the ranks of this machine and relays until all have ended.
int server_main(const BenchOptions& options) {
    const bool alone = options.server.empty();
    Fd listener;
    std::string address;
    Status status;
    if (options.listen_fd < 0) status = socket_listen(alone ? "127.0.0.1:0" : options.server, &listener, &address);
    else {
        listener = Fd(options.listen_fd);
        address = options.server;
    }
    std::vector<ClusterKey> keys;
    if (status.ok()) status = keys_of(options, &keys);
    if (!status.ok()) return failed(status);
    std::vector<pid_t> children;
    for (uint32_t rank = 0; rank < (alone ? options.nodes : 1) && status.ok(); ++rank) {
        const pid_t child = ::fork();
        if (child < 0) status = fork_failed(errno, fmt::format("rank {}", rank));
        if (child == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            listener.close();
            const int code = rank_main(address, keys, static_cast<int>(rank), options, false);
            std::fflush(stdout);
            ::_exit(code);
        }
        children.push_back(child);
    }
    if (status.ok()) status = rendezvous_relay(listener, keys, options.nodes, options.arguments, uint64_t{options.wait_s} * 1'000'000);
    // They have the error and end; a rank that hangs is killed.
    int worst = 0;
    for (int tries = 0; !children.empty(); ++tries) {
        std::erase_if(children, [&](pid_t child) {
            int code = 0;
            if (::waitpid(child, &code, WNOHANG) == 0) return false;
            if (WIFSIGNALED(code) && tries < 1000) fmt::print(stderr, "gradcast-bench: a rank ended with signal {}\n", WTERMSIG(code));
            worst = std::max(worst, WIFEXITED(code) ? WEXITSTATUS(code) : 1);
            return true;
        });
        if (tries == 1000)
            for (pid_t child : children) ::kill(child, SIGKILL);
        if (!children.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return status.ok() ? worst : failed(status);
}

int run(const BenchOptions& options) {
    if (options.command == "allreduce" || options.command == "ps")
        if (Status status = allreduce_check(options); !status.ok()) return failed(status);
    if (options.check) return 0;
    if (options.command == "layers" || options.command == "step") {
        const Status status = net_run(options);
        return status.ok() ? 0 : failed(status);
    }
    if (options.command == "simulate") {
        bool wrong = false;
        if (Status status = simulate_run(options, &wrong); !status.ok()) return failed(status);
        return wrong ? 1 : 0;
    }
    NetworkInterface found;
    for (const std::string& each : names_split(options.interface))   // before any rank waits for this one
        if (Status status = interface_find(each, &found); !status.ok()) return failed(status);
    if (options.connect.empty()) return server_main(options);
    std::vector<ClusterKey> keys;
    if (Status status = keys_of(options, &keys); !status.ok()) return failed(status);
    return rank_main(options.connect, keys, -1, options, true);
}

}   // namespace

int main(int argc, char** argv) {
    program_begin();
    BenchOptions options;
    if (auto code = options_parse({argv + 1, argv + argc}, &options)) return *code;
    log_level(Level::warn);
    try {
        return run(options);
    } catch (const nlohmann::json::exception& error) {   // as in rank_main
        return failed(fail(Code::packet_invalid, "the ranks say what is not understood here: {}", error.what()));
    }
}
