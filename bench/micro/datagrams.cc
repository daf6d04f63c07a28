// Datagrams between two ranks on lo without repair or flow control; datagrams that the receiver drops do not count.  An iteration sends 64
// MiB of payload, 1432 bytes a datagram (1472 with header and tag).  Counters: Gbit/s of payload received; CPU seconds of sender and
// receiver per GB of it; `lost`; `x_iperf3`: CPU time of iperf3 -u in the same run divided by that.
//   datagrams/iperf3   iperf3 -u with datagrams of 1472 bytes, as fast as it can (where it is installed)
//   datagrams/bound    plain sockets with UDP_SEGMENT and UDP_GRO, no headers and no tags: the kernel's own share
//   datagrams/…        the driver, by backend and protection
// For medians: --benchmark_filter=datagrams --benchmark_repetitions=5
#include <arpa/inet.h>
#include <benchmark/benchmark.h>
#include <netinet/udp.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <thread>

#include "runtime/core/clock.h"
#include "runtime/core/fd.h"
#include "transport/link/link.h"

using namespace gradcast;

namespace {

constexpr uint32_t payload_bytes = 1432, datagram_bytes = payload_bytes + datagram_overhead_bytes, window = 256;
constexpr uint64_t iteration_datagrams = (64 << 20) / payload_bytes;
constexpr uint64_t wait_us = 30'000'000;

double cpu_seconds(int who) {
    rusage usage;
    ::getrusage(who, &usage);
    auto seconds = [](const timeval& time) { return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6; };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double iperf3_cpu = 0, iperf3_gb = 0;   // totals of this run

/// Totals of one benchmark's iterations.
struct Tally {
    double seconds = 0, cpu = 0, gb = 0;
    uint64_t sent = 0, received = 0;   // datagrams
    void report(benchmark::State& state) const {
        state.counters["Gbit/s"] = gb * 8 / seconds;
        state.counters["cpu_s/GB"] = cpu / gb;
        state.counters["lost"] = static_cast<double>(sent - std::min(sent, received)) / static_cast<double>(sent);
        if (iperf3_gb > 0) state.counters["x_iperf3"] = (iperf3_cpu / iperf3_gb) / (cpu / gb);
    }
};

// ---- the driver ----------------------------------------------------------------------------------------------------------------

class Pourer : public Protocol {
public:
    struct Go {};   // sends an iteration
    Pourer() : memory_(window * size_t{payload_bytes}) {}
    void on(std::span<const Event> events, Actions& actions) override {
        for (const Event& event : events) {
            if (event.is<Event::Command>()) {
                to_send_ = iteration_datagrams;
                under_way_ = 0;
            }
            if (event.is<Event::Sent>()) --under_way_;
            if (event.is<Event::Received>()) received.fetch_add(1, std::memory_order_relaxed);
            if (event.is<Event::Sent>() && !to_send_ && !under_way_) actions.completions.emplace_back();
        }
        for (; to_send_ && under_way_ < window; --to_send_, ++under_way_) {
            Send send;
            send.to.rank = 1;
            send.type = PacketType::words;
            send.sequence = ++sequence_;
            send.ticket = sequence_;
            send.payload = {memory_.data() + sequence_ % window * payload_bytes, nullptr, payload_bytes};
            actions.sends.push_back(send);
        }
    }
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override {
        *place = {memory_.data() + packet.sequence % window * payload_bytes, nullptr, bytes};
        return Landing::place;
    }
    std::atomic<uint64_t> received{0};

private:
    std::vector<std::byte> memory_;
    uint64_t sequence_ = 0, to_send_ = 0, under_way_ = 0;
};

void driver_run(benchmark::State& state, LinkKind kind, Protect protect) {
    LinkConfig config;
    config.kind = kind;
    config.protect = protect;
    config.job.fill(0xbe);
    const ClusterKey key{"k1", {}};
    config.keys = {key};
    config.datagrams.interface = "lo";
    config.datagrams.segment_bytes = payload_bytes;
    config.datagrams.group = multicast_group(config.job, static_cast<uint32_t>(getpid()), false, 4712);
    Log log;
    std::unique_ptr<Listener> listener;
    std::unique_ptr<Driver> drivers[2];
    std::mutex mutex;
    ListenerConfig listening;
    listening.address = "127.0.0.1:0";
    listening.self.name = "b";
    listening.keys = config.keys;
    Status status = listener_open(listening, log, &listener);
    if (status.ok())
        status = listener->start([&](const JobId&, std::unique_ptr<AcceptedStream> stream) {
            std::lock_guard lock(mutex);
            if (!drivers[1]) return false;
            drivers[1]->adopt(std::move(stream));
            return true;
        });
    if (!status.ok()) return state.SkipWithError(status.what);
    config.peers = {{{"a", {}, 0}, "127.0.0.1:1"}, {{"b", {}, 0}, listener->address()}};
    Pourer pourers[2];
    log_level(Level::warn);
    for (Rank rank : {0u, 1u}) {
        config.rank = rank;
        config.self.name = config.peers[rank].identity.name;
        std::lock_guard lock(mutex);
        status = driver_open(config, log, &drivers[rank]);
        if (!status.ok()) return state.SkipWithError(status.what);
        drivers[rank]->attach_datagrams(1, &pourers[rank]);
    }
    std::thread threads[2];
    for (Rank rank : {0u, 1u}) threads[rank] = std::thread([&, rank] { (void)drivers[rank]->run(); });
    for (uint64_t until = clock_us() + wait_us; clock_us() < until && !drivers[0]->datagrams_found()->probed;) ::usleep(1000);
    Tally tally;
    for (auto _ : state) {
        const uint64_t before = pourers[1].received, start = clock_us();
        const double cpu = cpu_seconds(RUSAGE_SELF);
        drivers[0]->host().post(1, command_event(Pourer::Go{}));
        std::vector<Completion> completions;
        status = drivers[0]->host().wait(&completions, start + wait_us);
        const uint64_t took = clock_us() - start;
        for (uint64_t seen = ~uint64_t{0}; seen != pourers[1].received;) {
            seen = pourers[1].received;
            ::usleep(5000);
        }
        const uint64_t got = pourers[1].received - before;
        tally.seconds += static_cast<double>(took) * 1e-6;
        tally.cpu += cpu_seconds(RUSAGE_SELF) - cpu;
        tally.sent += iteration_datagrams;
        tally.received += got;
        tally.gb += static_cast<double>(got) * payload_bytes * 1e-9;
        state.SetIterationTime(static_cast<double>(took) * 1e-6);
    }
    for (auto& driver : drivers) driver->stop();
    for (std::thread& thread : threads) thread.join();
    listener.reset();
    log_level(Level::info);
    if (!status.ok() || tally.gb == 0) return state.SkipWithError("nothing arrived");
    tally.report(state);
}

// ---- plain sockets -------------------------------------------------------------------------------------------------------------

void bound_run(benchmark::State& state) {
    Fd in(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)), out(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    const int on = 1, segment = datagram_bytes, room = 4 << 20;
    ::setsockopt(in.get(), SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    const timeval limit{0, 20'000};
    ::setsockopt(in.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (::bind(in.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::getsockname(in.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
        ::connect(out.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::setsockopt(in.get(), SOL_UDP, UDP_GRO, &on, sizeof on) != 0 ||
        ::setsockopt(out.get(), SOL_UDP, UDP_SEGMENT, &segment, sizeof segment) != 0)
        return state.SkipWithError("the kernel has no UDP_SEGMENT or UDP_GRO");
    Tally tally;
    for (auto _ : state) {
        const double cpu = cpu_seconds(RUSAGE_SELF);
        uint64_t got = 0;
        std::atomic<bool> done{false};
        std::thread receiver([&] {
            std::vector<std::byte> bytes(65536);
            while (!done)
                for (ssize_t count; (count = ::recv(in.get(), bytes.data(), bytes.size(), 0)) > 0;) got += static_cast<uint64_t>(count);
        });
        const std::vector<std::byte> burst(16 * size_t{datagram_bytes});
        const uint64_t start = clock_us();
        for (uint64_t sent = 0; sent < iteration_datagrams; sent += 16) (void)!::send(out.get(), burst.data(), burst.size(), 0);
        const uint64_t took = clock_us() - start;
        done = true;
        receiver.join();
        tally.seconds += static_cast<double>(took) * 1e-6;
        tally.cpu += cpu_seconds(RUSAGE_SELF) - cpu;
        tally.sent += (iteration_datagrams + 15) / 16 * 16;
        tally.received += got / datagram_bytes;
        tally.gb += static_cast<double>(got / datagram_bytes) * payload_bytes * 1e-9;
        state.SetIterationTime(static_cast<double>(took) * 1e-6);
    }
    tally.report(state);
}

// ---- iperf3 --------------------------------------------------------------------------------------------------------------------

bool listens(uint16_t port) {
    std::string table;
    return file_read("/proc/net/tcp", &table).ok() && table.find(fmt::format(":{:04X} 00000000:0000 0A", port)) != std::string::npos;
}

void iperf3_run(benchmark::State& state) {
    Tally tally;
    uint16_t port = static_cast<uint16_t>(20000 + getpid() % 20000);
    for (auto _ : state) {
        const double cpu = cpu_seconds(RUSAGE_CHILDREN);
        const std::string server = fmt::format("timeout 60 iperf3 -s -1 -B 127.0.0.1 -p {} >/dev/null 2>&1", ++port);
        const pid_t child = ::fork();
        if (child == 0) ::execl("/bin/sh", "sh", "-c", server.c_str(), nullptr), ::_exit(127);
        for (uint64_t until = clock_us() + 5'000'000; clock_us() < until && !listens(port);) ::usleep(2000);
        FILE* pipe = ::popen(fmt::format("timeout 30 iperf3 -c 127.0.0.1 -p {} -u -b 0 -l {} -w 4M -n {} --json 2>&1", port, datagram_bytes,
                                         iteration_datagrams * datagram_bytes)
                                 .c_str(),
                             "r");
        std::string out;
        char piece[4096];
        while (size_t got = std::fread(piece, 1, sizeof piece, pipe)) out.append(piece, got);
        ::pclose(pipe);
        ::waitpid(child, nullptr, 0);
        const nlohmann::json report = nlohmann::json::parse(out, nullptr, false);
        if (report.is_discarded() || !report.contains("end") || !report["end"].contains("sum")) {
            state.SkipWithError("iperf3 failed");
            break;
        }
        const nlohmann::json& sum = report["end"]["sum"];
        const uint64_t sent = sum.value("packets", uint64_t{0}), got = sent - std::min(sent, sum.value("lost_packets", uint64_t{0}));
        tally.seconds += sum.value("seconds", 0.0);
        tally.cpu += cpu_seconds(RUSAGE_CHILDREN) - cpu;
        tally.sent += sent;
        tally.received += got;
        tally.gb += static_cast<double>(got) * payload_bytes * 1e-9;
        state.SetIterationTime(sum.value("seconds", 0.0));
    }
    if (tally.gb == 0) return;
    iperf3_cpu += tally.cpu;
    iperf3_gb += tally.gb;
    tally.report(state);
}

const bool registered = [] {
    auto timed = [](benchmark::internal::Benchmark* each) { each->UseManualTime()->Unit(benchmark::kMillisecond); };
    if (std::system("command -v iperf3 >/dev/null 2>&1") == 0) timed(benchmark::RegisterBenchmark("datagrams/iperf3", iperf3_run));
    else fmt::print(stderr, "datagrams/iperf3: iperf3 is not installed (make deps-rivals)\n");
    timed(benchmark::RegisterBenchmark("datagrams/bound", bound_run));
    for (LinkKind kind : {LinkKind::uring_tcp, LinkKind::epoll_tcp})
        for (auto [protect, text] : {std::pair{Protect::auth, "auth"}, {Protect::encrypt, "encrypt"}, {Protect::none, "none"}})
            timed(benchmark::RegisterBenchmark(
                fmt::format("datagrams/{}/{}", kind == LinkKind::uring_tcp ? "uring_udp" : "epoll_udp", text).c_str(),
                [kind, protect = protect](benchmark::State& state) { driver_run(state, kind, protect); }));
    return true;
}();

}   // namespace
