#include "runtime/control/gate.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <vector>

#include "runtime/core/clock.h"
#include "tests/control/resident.h"

namespace gradcast {
namespace {

struct GateTest : testing::Test {
    sockaddr_un address{};
    socklen_t address_bytes = sizeof(sa_family_t);   // a name that the kernel picks
    // What handlers use outlives the gate, which calls them to its end.
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<Fd> clients;
    bool go_on = false;
    std::atomic<uint64_t> looks{0}, served{0};
    std::unique_ptr<Gate> gate;

    void open(const GateConfig& config, GateHandler handler) {
        ::signal(SIGPIPE, SIG_IGN);
        Fd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        address.sun_family = AF_UNIX;
        ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), address_bytes), 0);
        address_bytes = sizeof address;
        ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &address_bytes), 0);
        ASSERT_EQ(::listen(listener.get(), 256), 0);
        EXPECT_TRUE(gate_open(config, std::move(listener), std::move(handler), &gate).ok());
    }
    Fd ask(const std::string& request) const {
        Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), address_bytes), 0);
        for (size_t sent = 0; sent < request.size();) {
            const ssize_t put = ::send(fd.get(), request.data() + sent, request.size() - sent, MSG_NOSIGNAL);
            if (put <= 0) break;   // closed
            sent += static_cast<size_t>(put);
        }
        return fd;
    }
    static bool wait_for(const Fd& fd, short what, int wait_ms = 20'000) {
        pollfd each{fd.get(), what, 0};
        return ::poll(&each, 1, wait_ms) == 1;
    }
};

TEST_F(GateTest, AnswersThatNobodyReadsAreBounded) {
    constexpr uint64_t answer_bytes = 4 << 20, buffers_bytes = 16 << 20;
    open({.buffers_bytes_max = buffers_bytes},
         {.serve = [](const std::string&, const Caller&) { return Answer{.bytes = std::string(answer_bytes, 'x')}; }, .look = {}});
    ::mallopt(M_MMAP_THRESHOLD, 256 << 10);   // as gradcastd: what is large is returned when it is freed
    if (!resident_peak_reset()) GTEST_SKIP() << "/proc/self/clear_refs cannot be written";
    const uint64_t before = resident_bytes();
    std::vector<Fd> deaf;
    for (int i = 0; i < 200; ++i) deaf.push_back(ask("GET / HTTP/1.1\r\n\r\n"));
    for (const Fd& fd : deaf) EXPECT_TRUE(wait_for(fd, POLLIN));
    // Of four workers the gate takes up to four answers at once, while four more are made.
    constexpr uint64_t in_transit = 8 * answer_bytes, spare = 8 << 20;
    if (memory_is_judged) {
        EXPECT_LT(resident_peak_bytes(), before + buffers_bytes + in_transit + spare);
    }
}

TEST_F(GateTest, WatchersMayCloseWhileAnEventIsOnItsWay) {
    auto serve = [](const std::string&, const Caller&) { return Answer{.bytes = "HTTP/1.1 200 OK\r\n\r\n", .watch = "job"}; };
    auto look = [&](const std::string&, bool* last) {
        std::lock_guard lock(mutex);
        clients.clear();
        *last = false;
        return std::to_string(++looks);
    };
    open({.watch_us = 1000}, {.serve = serve, .look = look});
    for (int round = 0; round < 50; ++round) {
        const uint64_t before = looks;
        std::vector<Fd> made;
        for (int i = 0; i < 50; ++i) made.push_back(ask("GET / HTTP/1.1\r\n\r\n"));
        for (const Fd& fd : made) ASSERT_TRUE(wait_for(fd, POLLIN));
        {
            std::lock_guard lock(mutex);
            clients = std::move(made);
        }
        const Fd last = ask("GET / HTTP/1.1\r\n\r\n");
        while (looks < before + 2) ASSERT_TRUE(wait_for(last, POLLIN));
    }
}

TEST_F(GateTest, RequestsThatWaitForAWorkerAreBounded) {
    auto serve = [&](const std::string&, const Caller&) {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return go_on; });
        ++served;
        return Answer{.bytes = "HTTP/1.1 200 OK\r\n\r\n"};
    };
    open({.body_bytes_max = 1 << 20, .buffers_bytes_max = 8 << 20}, {.serve = serve, .look = {}});
    const std::string request = "POST / HTTP/1.1\r\nContent-Length: 1048576\r\n\r\n" + std::string(1 << 20, 'x');
    for (int i = 0; i < 20; ++i) clients.push_back(ask(request));
    auto closed = [&] { return std::count_if(clients.begin(), clients.end(), [](const Fd& fd) { return wait_for(fd, POLLRDHUP, 1); }); };
    for (uint64_t until = clock_us() + 20'000'000; closed() < 13 && clock_us() < until;) {
    }
    EXPECT_EQ(closed(), 13);   // of 1 MiB and a head each, 8 MiB do not hold 8
    {
        std::lock_guard lock(mutex);
        go_on = true;
    }
    changed.notify_all();
    for (const Fd& fd : clients) EXPECT_TRUE(wait_for(fd, POLLRDHUP));
    EXPECT_EQ(served, 7u);
}

}   // namespace
}   // namespace gradcast
