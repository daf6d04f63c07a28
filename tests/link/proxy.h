// A TCP proxy that cuts connections after a number of bytes, holds them there, pauses there, or flips a bit of one byte.
#pragma once
#include <poll.h>

#include <atomic>
#include <list>
#include <thread>

#include "runtime/core/clock.h"
#include "runtime/core/net/socket.h"

namespace gradcast {

struct Harm {
    uint64_t cut_after = ~uint64_t{0}, flip_at = ~uint64_t{0};   // positions in a connection's bytes, both directions together
    uint64_t hold_after = ~uint64_t{0};                          // likewise: the connection stays, and nothing comes any more
    uint64_t pause_at = ~uint64_t{0};                            // likewise: nothing comes for a while, and again after each piece
    std::vector<uint64_t> pauses_us = {};
};

class Proxy {
public:
    /// Connection number i gets harm(i).
    Proxy(const std::string& target, std::function<Harm(uint64_t)> harm) : harm_(std::move(harm)) {
        EXPECT_TRUE(address_resolve(target, false, &target_).ok());
        SocketAddress any;
        EXPECT_TRUE(address_resolve("127.0.0.1:0", true, &any).ok());
        listener_ = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&any.storage), any.bytes), 0);
        EXPECT_EQ(::listen(listener_.get(), 64), 0);
        any.bytes = sizeof any.storage;
        EXPECT_EQ(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&any.storage), &any.bytes), 0);
        address_ = address_text(any);
        thread_ = std::thread([this] { loop(); });
    }
    ~Proxy() { stop_ = true, thread_.join(); }
    const std::string& address() const { return address_; }
    uint64_t connections() const { return connections_; }
    uint64_t forward() const { return forward_; }   // bytes from the connecting side
    uint64_t backward() const { return backward_; }
    uint64_t held() const { return held_; }   // connections

private:
    struct Pipe {
        Fd near, far;
        Harm harm;
        uint64_t carried = 0, until_us = 0;   // of a pause
        size_t pauses = 0;
        bool held() const { return carried >= harm.hold_after; }
        bool quiet() const { return held() || clock_us() < until_us; }
    };
    void loop() {
        while (!stop_) {
            std::vector<pollfd> polls{{listener_.get(), POLLIN, 0}};
            for (Pipe& pipe : pipes_)
                for (const Fd* end : {&pipe.near, &pipe.far}) polls.push_back({pipe.quiet() ? -1 : end->get(), POLLIN, 0});
            ::poll(polls.data(), polls.size(), 5);
            size_t at = 1;
            for (auto pipe = pipes_.begin(); pipe != pipes_.end(); at += 2) {
                bool alive = (!polls[at].revents || carry(*pipe, true)) && (!polls[at + 1].revents || carry(*pipe, false));
                pipe = alive ? std::next(pipe) : pipes_.erase(pipe);
            }
            if (polls[0].revents) {
                Pipe pipe;
                pipe.near = Fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
                pipe.far = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
                pipe.harm = harm_(connections_++);
                if (::connect(pipe.far.get(), reinterpret_cast<const sockaddr*>(&target_.storage), target_.bytes) == 0) {
                    pipes_.push_back(std::move(pipe));
                    held_ += pipes_.back().held();
                }
            }
        }
    }
    bool carry(Pipe& pipe, bool forth) {
        char bytes[16384];
        ssize_t got = ::recv((forth ? pipe.near : pipe.far).get(), bytes, sizeof bytes, MSG_DONTWAIT);
        if (got < 0) return errno == EAGAIN;
        uint64_t count = std::min({static_cast<uint64_t>(got), pipe.harm.cut_after - pipe.carried, pipe.harm.hold_after - pipe.carried});
        if (count == 0) return false;
        if (pipe.harm.flip_at - pipe.carried < count) bytes[pipe.harm.flip_at - pipe.carried] ^= 4;
        pipe.carried += count;
        if (pipe.carried >= pipe.harm.pause_at && pipe.pauses < pipe.harm.pauses_us.size())
            pipe.until_us = clock_us() + pipe.harm.pauses_us[pipe.pauses++];
        (forth ? forward_ : backward_) += count;
        held_ += pipe.held();
        return ::send((forth ? pipe.far : pipe.near).get(), bytes, count, MSG_NOSIGNAL) == static_cast<ssize_t>(count) &&
               pipe.carried < pipe.harm.cut_after;
    }

    SocketAddress target_;
    std::function<Harm(uint64_t)> harm_;
    Fd listener_;
    std::string address_;
    std::list<Pipe> pipes_;
    std::atomic<uint64_t> connections_{0}, forward_{0}, backward_{0}, held_{0};
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

}   // namespace gradcast
