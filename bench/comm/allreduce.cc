#include "bench/comm/allreduce.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "runtime/core/clock.h"
#include "runtime/core/isa.h"
#include "runtime/core/rng.h"

namespace gradcast {

Status allreduce_sizes(const std::string& text, std::vector<uint64_t>* sizes) {
    auto one = [&](std::string_view word, uint64_t* bytes) -> Status {
        uint64_t value = 0, unit = 1;
        auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
        std::string_view rest(end, static_cast<size_t>(word.data() + word.size() - end));
        if (rest == "K") unit = 1 << 10;
        else if (rest == "M") unit = 1 << 20;
        else if (rest == "G") unit = 1 << 30;
        else if (!rest.empty()) error = std::errc::invalid_argument;
        if (error != std::errc() || value == 0 || value > (1u << 30) / unit || value * unit % 4 != 0)
            return fail(Code::invalid, "--size {}: '{}' is not a multiple of 4 bytes up to 1G, like 64K or 16M", text, word);
        *bytes = value * unit;
        return {};
    };
    std::vector<uint64_t> result;
    if (size_t dots = text.find(".."); dots != text.npos) {
        uint64_t from = 0, to = 0;
        GC_TRY(one(std::string_view(text).substr(0, dots), &from));
        GC_TRY(one(std::string_view(text).substr(dots + 2), &to));
        if (from > to) return fail(Code::invalid, "--size {}: the range is empty", text);
        for (; from <= to; from *= 4) result.push_back(from);
    } else {
        for (size_t at = 0; at <= text.size();) {
            size_t comma = std::min(text.find(',', at), text.size());
            uint64_t bytes = 0;
            GC_TRY(one(std::string_view(text).substr(at, comma - at), &bytes));
            result.push_back(bytes);
            at = comma + 1;
        }
    }
    *sizes = std::move(result);
    return {};
}

namespace {

constexpr uint64_t deadline_us = 30'000'000;   // of one repetition
constexpr uint64_t seed = 1;

// Element i of a rank's gradient: a function of (seed, rank, i), so that each rank can check the sum alone.
float element(Rank rank, uint64_t i) { return 2 * uniform(random4(Purpose::test, seed, i / 4, rank)[i % 4]) - 1; }

// What the ranks share: a barrier, and a row a repetition.
struct Shared {
    std::atomic<uint32_t> arrived, round;
    std::atomic<bool> failed;
    char error[512];
};
struct Row {   // one rank, one repetition
    uint64_t exchange_us, raw_us, sent, received, wrong;
};

// False when somebody failed or did not come: the caller ends.
bool barrier(Shared& shared, uint32_t ranks) {
    uint32_t round = shared.round.load(std::memory_order_acquire);
    if (shared.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == ranks) {
        shared.arrived.store(0, std::memory_order_relaxed);
        shared.round.fetch_add(1, std::memory_order_release);
        return !shared.failed;
    }
    for (uint64_t end = clock_us() + deadline_us; shared.round.load(std::memory_order_acquire) == round && !shared.failed;) {
        if (clock_us() > end) return false;
        std::this_thread::yield();
    }
    return !shared.failed;
}

// `bytes` to the right neighbour and as many from the left over plain sockets: the bound on this machine.
Status raw_exchange(int right, int left, uint64_t bytes, std::vector<char>& scratch) {
    uint64_t out = bytes, in = bytes, end = clock_us() + deadline_us;
    while (out > 0 || in > 0) {
        pollfd fds[2] = {{out > 0 ? right : -1, POLLOUT, 0}, {in > 0 ? left : -1, POLLIN, 0}};
        if (::poll(fds, 2, 1000) < 0 && errno != EINTR) return fail_sys(errno, "cannot poll the plain sockets");
        if (clock_us() > end) return fail(Code::deadline, "the plain sockets moved nothing for 30 s");
        if (fds[0].revents) {
            ssize_t put = ::send(right, scratch.data(), std::min<uint64_t>(out, scratch.size() / 2), MSG_DONTWAIT | MSG_NOSIGNAL);
            if (put < 0 && errno != EAGAIN) return fail_sys(errno, "cannot send on a plain socket");
            if (put > 0) out -= static_cast<uint64_t>(put);
        }
        if (fds[1].revents) {
            ssize_t got = ::recv(left, scratch.data() + scratch.size() / 2, std::min<uint64_t>(in, scratch.size() / 2), MSG_DONTWAIT);
            if (got == 0 || (got < 0 && errno != EAGAIN))
                return fail_sys(got == 0 ? ECONNRESET : errno, "cannot receive on a plain socket");
            if (got > 0) in -= static_cast<uint64_t>(got);
        }
    }
    return {};
}

struct RankConfig {
    const AllreduceConfig& bench;
    const ExchangeKind& kind;
    Rank rank;
    std::vector<int> listeners;   // of all ranks; this one takes its own
    std::vector<PeerAddress> peers;
    std::vector<ClusterKey> keys;
    int right, left;   // plain sockets; -1 alone
    Shared& shared;
    uint64_t bound;   // bytes that rank 0 must send: all move as many over the plain sockets
    Row* rows;        // [runs]
};

// One size at one rank: opens everything, warms up, measures, closes.
Status rank_run(const RankConfig& config, uint64_t bytes) {
    const AllreduceConfig& bench = config.bench;
    uint64_t count = bytes / 4;
    Layout layout{count, {{0, count, "all"}}, {{0, count, 0, 1}}};
    auto exchange = config.kind.create({&layout, config.rank, bench.ranks, bench.quantiser, segment_bytes_stream});
    auto codec = codec_cpu(layout, {bench.quantiser, bench.ranks, bench.ranks});
    Arena arena;
    Buffer gradient, result;
    arena.plan("gradient", bytes, &gradient);
    arena.plan("result", bytes, &result);
    View view;
    for (const PeerAddress& peer : config.peers) view.members.push_back({peer.identity.name, peer.identity.uuid, 0});
    GC_TRY(exchange->install(view, arena));
    GC_TRY(arena.seal());
    for (uint64_t i = 0; i < count; ++i) gradient.as<float>()[i] = element(0, i);
    codec->probe(gradient.as<float>());   // the same scale at every rank
    for (uint64_t i = 0; i < count; ++i) gradient.as<float>()[i] = element(config.rank, i);

    LinkConfig link;
    link.kind = bench.link;
    link.job[0] = 1;
    link.self = config.peers[config.rank].identity;
    link.rank = config.rank;
    link.peers = config.peers;
    link.keys = config.keys;
    link.protect = bench.protect;
    link.deadline_us = deadline_us;
    Log log;
    std::unique_ptr<Driver> driver;
    GC_TRY(driver_open(link, log, &driver));
    driver->attach(1, exchange.get());
    driver->register_memory(arena.whole());
    std::unique_ptr<Listener> listener;
    GC_TRY(listener_open({"", ::dup(config.listeners[config.rank]), link.self, config.keys}, log, &listener));
    GC_TRY(listener->start([&](const JobId&, std::unique_ptr<AcceptedStream> stream) {
        driver->adopt(std::move(stream));
        return true;
    }));
    Status network_status;
    std::thread network([&] { network_status = driver->run(); });

    auto measure = [&]() -> Status {
        std::vector<Completion> completions;
        std::vector<char> scratch(256 * 1024);
        // Repetition -1 - warmup opens the streams, whose handshakes are not part of the figures.
        for (int64_t run = -1 - static_cast<int64_t>(bench.warmup); run < bench.runs; ++run) {
            StepId step = static_cast<StepId>(run + 1 + bench.warmup);
            uint64_t sent = driver->counters().bytes_sent, received = driver->counters().bytes_received;
            if (!barrier(config.shared, bench.ranks)) return fail(Code::peer_lost, "another rank failed");
            uint64_t start = clock_us();
            Plan plan = exchange->plan(step, 0);
            Fence fence;
            GC_TRY(codec->add(0, {step, config.rank}, 0, gradient, plan, &fence));
            plan.record->state = 0, plan.record->loss = 0;
            Event ready;
            ready.kind = Event::Kind::ready;
            ready.step = step, ready.fence = fence;
            driver->host().post(1, ready);
            completions.clear();
            GC_TRY(driver->host().wait(&completions, start + deadline_us));
            GC_TRY(completions.front().status);
            const Sum& sum = *completions.front().sum;
            double unit = codec->units(0)[0] * bench.ranks;   // units are those of a mean over a batch of n samples; this is the sum
            float* out = result.as<float>();
            if (sum.word == Word::i32)
                for (uint64_t i = 0; i < count; ++i) out[i] = static_cast<float>(sum.words.as<int32_t>()[i] * unit);
            else
                for (uint64_t i = 0; i < count; ++i) out[i] = static_cast<float>(static_cast<double>(sum.words.as<int64_t>()[i]) * unit);
            uint64_t took = clock_us() - start;
            if (!barrier(config.shared, bench.ranks)) return fail(Code::peer_lost, "another rank failed");
            Row row{took, 0, driver->counters().bytes_sent - sent, driver->counters().bytes_received - received, 0};
            // Each word is the sum of what every rank's element is quantised to (spec/coded-sgd.md section 2; nothing is clipped here).
            const bool fixed = bench.quantiser == Quantiser::fixed;
            const double per_unit = std::ldexp(1.0, -codec->exponents()[0]);
            if (run < 0 || run + 1 == bench.runs)
                for (uint64_t i = 0; i < count; ++i) {
                    int64_t expected = 0, word = sum.word == Word::i32 ? sum.words.as<int32_t>()[i] : sum.words.as<int64_t>()[i];
                    for (Rank rank = 0; rank < bench.ranks; ++rank) {
                        const double x = element(rank, i);
                        expected += std::llrint(fixed ? x / 10.0 * 2147483647.0 : x * per_unit);
                    }
                    row.wrong += word != expected;
                }
            Event release;
            release.kind = Event::Kind::command;
            release.id = static_cast<uint64_t>(ExchangeCommand::release);
            release.step = step;
            driver->host().post(1, release);
            if (bench.ranks > 1) {
                if (!barrier(config.shared, bench.ranks)) return fail(Code::peer_lost, "another rank failed");
                start = clock_us();
                GC_TRY(raw_exchange(config.right, config.left, config.bound, scratch));
                row.raw_us = clock_us() - start;
            }
            if (run >= 0) config.rows[run] = row;
            else if (row.wrong) config.rows[0].wrong += row.wrong;
        }
        return {};
    };
    Status status = measure();
    if (status.ok() && !barrier(config.shared, bench.ranks)) status = fail(Code::peer_lost, "another rank failed");
    driver->stop();
    network.join();
    return status.ok() ? network_status : status;
}

uint64_t percentile(std::vector<uint64_t> values, double share) {
    std::sort(values.begin(), values.end());
    return values[std::min(values.size() - 1, static_cast<size_t>(share * static_cast<double>(values.size())))];
}

Status tcp_pair(int* one, int* other) {
    Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* any = reinterpret_cast<sockaddr*>(&address);
    if (!listener || ::bind(listener.get(), any, size) != 0 || ::listen(listener.get(), 1) != 0 ||
        ::getsockname(listener.get(), any, &size) != 0)
        return fail_sys(errno, "cannot listen on loopback");
    *one = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*one < 0 || ::connect(*one, any, size) != 0) return fail_sys(errno, "cannot connect over loopback");
    *other = ::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC);
    return *other < 0 ? fail_sys(errno, "cannot accept over loopback") : Status{};
}

Status listen_loopback(int* fd, uint16_t* port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* any = reinterpret_cast<sockaddr*>(&address);
    *fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd < 0 || ::bind(*fd, any, size) != 0 || ::listen(*fd, 128) != 0 || ::getsockname(*fd, any, &size) != 0)
        return fail_sys(errno, "cannot listen on loopback");
    *port = ntohs(address.sin_port);
    return {};
}

std::string cpu_name() {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);)
        if (line.starts_with("model name")) return line.substr(line.find(": ") + 2);
    return "unknown";
}

// One size: forks the ranks, waits for all, fills rows [ranks][runs].
Status size_run(const AllreduceConfig& config, const ExchangeKind& kind, uint64_t bytes, uint64_t bound, Shared& shared, Row* rows) {
    std::vector<int> listeners(config.ranks), right(config.ranks, -1), left(config.ranks, -1);
    std::vector<PeerAddress> peers(config.ranks);
    for (Rank rank = 0; rank < config.ranks; ++rank) {
        uint16_t port = 0;
        GC_TRY(listen_loopback(&listeners[rank], &port));
        peers[rank].identity.name = fmt::format("rank-{}", rank);
        random_bytes(peers[rank].identity.uuid);
        peers[rank].identity.incarnation = 1;
        peers[rank].address = fmt::format("127.0.0.1:{}", port);
        if (config.ranks > 1) GC_TRY(tcp_pair(&right[rank], &left[(rank + 1) % config.ranks]));
    }
    std::vector<ClusterKey> keys{{"bench", {}}};
    random_bytes(keys[0].secret);
    std::vector<pid_t> children;
    for (Rank rank = 0; rank < config.ranks; ++rank) {
        pid_t child = ::fork();
        if (child < 0) return fail_sys(errno, "cannot start rank {}", rank);
        if (child == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            log_level(Level::warn);
            Status status = rank_run(
                {config, kind, rank, listeners, peers, keys, right[rank], left[rank], shared, bound, rows + rank * config.runs}, bytes);
            if (!status.ok() && !shared.failed.exchange(true))
                fmt::format_to_n(shared.error, sizeof shared.error - 1, "rank {}: {}", rank, status.what);
            ::_exit(status.ok() ? 0 : 1);
        }
        children.push_back(child);
    }
    for (int fd : listeners) ::close(fd);
    for (int fd : right) ::close(fd);
    for (int fd : left) ::close(fd);
    bool bad = false;
    for (Rank rank = 0; rank < config.ranks; ++rank) {
        int status = 0;
        while (::waitpid(children[rank], &status, 0) < 0 && errno == EINTR) {
        }
        if (status == 0) continue;
        bad = true;
        if (!shared.failed.exchange(true))
            fmt::format_to_n(shared.error, sizeof shared.error - 1, "rank {} ended with signal {}", rank, WTERMSIG(status));
    }
    return bad ? fail(Code::peer_lost, "size {}: {}", bytes, shared.error) : Status{};
}

}   // namespace

Status allreduce_run(const AllreduceConfig& config, const ExchangeKind& kind, bool* wrong) {
    size_t shared_bytes = sizeof(Shared) + sizeof(Row) * config.ranks * config.runs;
    void* memory = ::mmap(nullptr, shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return fail_sys(errno, "cannot take shared memory");
    const char* protects[] = {"none", "auth", "encrypt"};
    utsname system{};
    ::uname(&system);
    nlohmann::json report{{"bench", "allreduce"},
                          {"exchange", config.exchange},
                          {"nodes", config.ranks},
                          {"quantiser", quantiser_name(config.quantiser)},
                          {"link", link_name(config.link)},
                          {"protect", protects[static_cast<int>(config.protect)]},
                          {"segment_bytes", segment_bytes_stream},
                          {"runs", config.runs},
                          {"warmup", config.warmup},
                          {"network", "loopback"},
                          {"cpu", cpu_name()},
                          {"cores", std::thread::hardware_concurrency()},
                          {"kernel", system.release},
                          {"isa", isa_name(isa_best())},
                          {"rows", nlohmann::json::array()}};
    if (!config.json) {
        fmt::print(
            "# allreduce: exchange {}, {} nodes, quantiser {}, link {} over loopback, protect {}, segments of {} KiB, {} runs after {}\n",
            config.exchange, config.ranks, quantiser_name(config.quantiser), link_name(config.link), report["protect"].get<std::string>(),
            segment_bytes_stream / 1024, config.runs, config.warmup);
        fmt::print("# {} cores of {}, kernel {}, kernels {}\n", std::thread::hardware_concurrency(), cpu_name(), system.release,
                   isa_name(isa_best()));
        fmt::print(
            "# time: slowest rank; raw: the bound's bytes over plain TCP sockets round the same ring, this run; % of bound = raw / p50\n");
        fmt::print("{:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>10} {:>10} {:>10} {:>8} {:>8} {:>10} {:>6}\n", "size B", "p50 ms", "p99 ms",
                   "max ms", "algbw MB/s", "busbw MB/s", "sent B", "recv B", "bound B", "% bytes", "raw ms", "% of bound", "wrong");
    }
    Status status;
    for (uint64_t bytes : config.sizes) {
        std::memset(memory, 0, shared_bytes);
        Shared& shared = *new (memory) Shared{};
        Row* rows = reinterpret_cast<Row*>(static_cast<std::byte*>(memory) + sizeof(Shared));
        Layout layout{bytes / 4, {{0, bytes / 4, "all"}}, {{0, bytes / 4, 0, 1}}};
        auto exchange = kind.create({&layout, 0, config.ranks, config.quantiser, segment_bytes_stream});
        View view;
        view.members.resize(config.ranks);
        Arena arena;
        if (status = exchange->install(view, arena); !status.ok()) break;
        uint64_t bound = exchange->bytes_bound();
        status = size_run(config, kind, bytes, bound, shared, rows);
        if (!status.ok()) break;
        std::vector<uint64_t> times, raws;
        uint64_t sent = 0, received = 0, bad = 0;
        for (uint32_t run = 0; run < config.runs; ++run) {
            uint64_t time = 0, raw = 0;
            for (Rank rank = 0; rank < config.ranks; ++rank) {
                const Row& row = rows[rank * config.runs + run];
                time = std::max(time, row.exchange_us), raw = std::max(raw, row.raw_us);
                sent = std::max(sent, row.sent), received = std::max(received, row.received);
                bad += row.wrong;
            }
            times.push_back(std::max<uint64_t>(time, 1)), raws.push_back(raw);
        }
        double p50 = static_cast<double>(percentile(times, 0.5)), size = static_cast<double>(bytes), n = config.ranks;
        nlohmann::json row{{"size_bytes", bytes},
                           {"p50_us", p50},
                           {"p99_us", percentile(times, 0.99)},
                           {"max_us", percentile(times, 1)},
                           {"algbw_bytes_per_s", size / p50 * 1e6},
                           {"busbw_bytes_per_s", size / p50 * 1e6 * 2 * (n - 1) / n},
                           {"sent_bytes", sent},
                           {"received_bytes", received},
                           {"bound_bytes", bound},
                           {"bytes_percent_of_bound", sent ? 100.0 * static_cast<double>(bound) / static_cast<double>(sent) : 100.0},
                           {"raw_us", percentile(raws, 0.5)},
                           {"percent_of_bound", config.ranks > 1 ? 100.0 * static_cast<double>(percentile(raws, 0.5)) / p50 : 100.0},
                           {"wrong_elements", bad}};
        if (!config.json)
            fmt::print("{:>10} {:>9.3f} {:>9.3f} {:>9.3f} {:>10.1f} {:>10.1f} {:>10} {:>10} {:>10} {:>8.1f} {:>8.3f} {:>10.1f} {:>6}\n",
                       bytes, p50 / 1e3, row["p99_us"].get<double>() / 1e3, row["max_us"].get<double>() / 1e3,
                       row["algbw_bytes_per_s"].get<double>() / 1e6, row["busbw_bytes_per_s"].get<double>() / 1e6, sent, received, bound,
                       row["bytes_percent_of_bound"].get<double>(), row["raw_us"].get<double>() / 1e3,
                       row["percent_of_bound"].get<double>(), bad);
        std::fflush(stdout);
        report["rows"].push_back(row);
        *wrong |= bad > 0;
    }
    ::munmap(memory, shared_bytes);
    if (!status.ok()) return status;
    report["exact"] = !*wrong;
    if (config.json) fmt::print("{}\n", report.dump(2));
    else fmt::print("# {}\n", *wrong ? "WRONG: sums differ from the reference" : "exact: every element of every rank is right");
    return {};
}

}   // namespace gradcast
