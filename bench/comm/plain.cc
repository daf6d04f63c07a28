#include "bench/comm/plain.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

#include "runtime/core/clock.h"
#include "runtime/core/net/socket.h"

namespace gradcast {
namespace {

constexpr uint64_t plain_patience_us = 30'000'000;

}   // namespace

Status PlainRing::open(Bench& bench) {
    Rendezvous& rendezvous = bench.rendezvous;
    const std::string host = bench.nodes[rendezvous.rank()]["address"];
    Fd listener;
    std::string address;
    GC_TRY(socket_listen(host + ":0", &listener, &address));
    std::vector<nlohmann::json> all;
    GC_TRY(rendezvous.gather(address, &all));
    SocketAddress right;
    GC_TRY(address_resolve(all[(rendezvous.rank() + 1) % rendezvous.ranks()], false, &right));
    right_ = Fd(::socket(right.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!right_ || ::connect(right_.get(), reinterpret_cast<const sockaddr*>(&right.storage), right.bytes) != 0)
        return fail_sys(errno, "cannot connect a plain socket");
    pollfd ready{listener.get(), POLLIN, 0};
    if (::poll(&ready, 1, static_cast<int>(plain_patience_us / 1000)) <= 0) return fail(Code::deadline, "no plain connection came");
    left_ = Fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    scratch_.resize(256 * 1024);
    return left_ ? Status{} : fail_sys(errno, "cannot accept a plain connection");
}

Status PlainRing::exchange(uint64_t out, uint64_t in) {
    const int right = right_.get(), left = left_.get();
    const uint64_t end = clock_us() + plain_patience_us;
    while (out > 0 || in > 0) {
        pollfd fds[2] = {{out > 0 ? right : -1, POLLOUT, 0}, {in > 0 ? left : -1, POLLIN, 0}};
        if (::poll(fds, 2, 1000) < 0 && errno != EINTR) return fail_sys(errno, "cannot poll the plain sockets");
        if (clock_us() > end) return fail(Code::deadline, "the plain sockets moved nothing for {} s", plain_patience_us / 1'000'000);
        if (fds[0].revents) {
            ssize_t put = ::send(right, scratch_.data(), std::min<uint64_t>(out, scratch_.size() / 2), MSG_DONTWAIT | MSG_NOSIGNAL);
            if (put < 0 && errno != EAGAIN) return fail_sys(errno, "cannot send on a plain socket");
            if (put > 0) out -= static_cast<uint64_t>(put);
        }
        if (fds[1].revents) {
            ssize_t got = ::recv(left, scratch_.data() + scratch_.size() / 2, std::min<uint64_t>(in, scratch_.size() / 2), MSG_DONTWAIT);
            if (got == 0 || (got < 0 && errno != EAGAIN))
                return fail_sys(got == 0 ? ECONNRESET : errno, "cannot receive on a plain socket");
            if (got > 0) in -= static_cast<uint64_t>(got);
        }
    }
    return {};
}

}   // namespace gradcast
