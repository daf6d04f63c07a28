#include "runtime/control/gate.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <csignal>
#include <mutex>
#include <vector>

namespace gradcast {
namespace {

struct GateTest : testing::Test {
    sockaddr_un address{};
    socklen_t address_bytes = sizeof(sa_family_t);   // a name that the kernel picks
    std::unique_ptr<Gate> gate;

    void open(const GateConfig& config, GateHandler handler) {
        ::signal(SIGPIPE, SIG_IGN);
        Fd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        address.sun_family = AF_UNIX;
        ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), address_bytes), 0);
        address_bytes = sizeof address;
        ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &address_bytes), 0);
        ASSERT_EQ(::listen(listener.get(), 256), 0);
        gate = gate_open(config, std::move(listener), std::move(handler));
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

TEST_F(GateTest, WatchersMayCloseWhileAnEventIsOnItsWay) {
    std::mutex mutex;
    std::vector<Fd> clients;
    std::atomic<uint64_t> looks{0};
    open({.watch_us = 1000}, {.serve = [](const std::string&) { return Answer{.bytes = "HTTP/1.1 200 OK\r\n\r\n", .watch = "job"}; },
                              .look =
                                  [&](const std::string&, bool* last) {
                                      std::lock_guard lock(mutex);
                                      clients.clear();
                                      *last = false;
                                      return std::to_string(++looks);
                                  }});
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

}   // namespace
}   // namespace gradcast
