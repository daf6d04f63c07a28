#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "runtime/core/clock.h"
#include "runtime/core/net/socket.h"
#include "runtime/core/short_texts.h"
#include "runtime/core/thread.h"
#include "transport/stream/accepted.h"

namespace gradcast {
namespace {

constexpr size_t half_open_max = 256;   // connections without a Hello; one more drops the oldest
constexpr size_t said_max = 64;
constexpr uint64_t accept_pause_us = 1'000'000;

class ListenerThread final : public Listener {
public:
    ListenerThread(const ListenerConfig& config, const Log& log)
        : config_(config), log_(log), ring_(config.ring ? config.ring : std::make_shared<KeyRing>(config.keys)) {}
    ~ListenerThread() override {
        if (!thread_.joinable()) return;
        uint64_t one = 1;
        (void)!::write(stop_.get(), &one, sizeof one);
        thread_.join();
    }
    Status open() {
        stop_ = Fd(::eventfd(0, EFD_CLOEXEC));
        if (!stop_) return fail_sys(errno, "cannot make an eventfd");
        SocketAddress address;
        if (config_.socket_fd >= 0) {
            socket_ = Fd(config_.socket_fd);
        } else {
            GC_TRY(socket_listen(config_.address, &socket_, &address_));
        }
        address.bytes = sizeof address.storage;
        if (::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.bytes) != 0)
            return fail_sys(errno, "the listening socket is not usable");
        ::fcntl(socket_.get(), F_SETFL, ::fcntl(socket_.get(), F_GETFL) | O_NONBLOCK);
        address_ = address_text(address);
        return {};
    }
    Status start(std::function<bool(const JobId&, std::unique_ptr<AcceptedStream>)> take) override {
        GC_ASSERT(!thread_.joinable());
        take_ = std::move(take);
        return thread_.start([this] { loop(); });
    }
    std::string address() const override { return address_; }

private:
    struct Said {
        std::string what;
        uint64_t until_us;
    };
    struct Guest {
        std::unique_ptr<Accepted> stream;
        uint64_t until_us;
    };

    void loop() {
        const ShortTexts of_strangers;
        std::vector<pollfd> polls;
        for (;;) {
            uint64_t now = clock_us();
            // In order of age.
            while (!guests_.empty() && guests_.front().until_us <= now) drop_oldest("said nothing in time");
            polls.assign({{stop_.get(), POLLIN, 0}, {accepting_at_us_ <= now ? socket_.get() : -1, POLLIN, 0}});
            for (const Guest& guest : guests_) polls.push_back({guest.stream->fd.get(), POLLIN, 0});
            uint64_t until = accepting_at_us_ > now ? accepting_at_us_ : ~uint64_t{0};
            if (!guests_.empty()) until = std::min(until, guests_.front().until_us);
            int timeout_ms = until == ~uint64_t{0} ? -1 : static_cast<int>((until - now) / 1000 + 1);
            if (::poll(polls.data(), polls.size(), timeout_ms) < 0 && errno != EINTR)
                return log_.error("the listener cannot poll: {}", std::strerror(errno));
            if (polls[0].revents) return;
            size_t guests = guests_.size();
            for (size_t i = 0; i < guests; ++i)
                if (polls[i + 2].revents && !serve(*guests_[i].stream)) guests_[i].stream = nullptr;
            std::erase_if(guests_, [](const Guest& guest) { return !guest.stream; });
            if (polls[1].revents) accept_all();
        }
    }

    void accept_all() {
        for (;;) {
            SocketAddress address;
            address.bytes = sizeof address.storage;
            Fd fd(::accept4(socket_.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.bytes, SOCK_CLOEXEC | SOCK_NONBLOCK));
            if (!fd && (errno == EINTR || errno == ECONNABORTED)) continue;
            if (!fd) {
                if (errno == EAGAIN) return;
                log_.warn("cannot accept a connection: {}", std::strerror(errno));   // out of descriptors or memory: pause
                accepting_at_us_ = clock_us() + accept_pause_us;
                return;
            }
            if (guests_.size() == half_open_max) drop_oldest("had to make room");
            auto stream = std::make_unique<Accepted>();
            stream->fd = std::move(fd);
            stream->address = address_text(address);
            stream->handshake = std::make_unique<Handshake>(ring_->now(), Handshake::Side::acceptor, own());
            guests_.push_back({std::move(stream), clock_us() + config_.handshake_us});
        }
    }

    // False if the stream is closed or passed on.
    bool serve(Accepted& stream) {
        std::byte bytes[4096];
        ssize_t got = ::recv(stream.fd.get(), bytes, sizeof bytes, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
        if (got <= 0) return false;
        stream.bytes_received += static_cast<uint64_t>(got);
        Handshake& handshake = *stream.handshake;
        size_t used = handshake.feed({bytes, static_cast<size_t>(got)});
        auto text = handshake.output();
        if (!text.empty()) {
            // a few hundred bytes into an empty socket; does not wait if they do not fit
            if (::send(stream.fd.get(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL) != static_cast<ssize_t>(text.size()))
                return false;
            stream.bytes_sent += text.size();
            handshake.wrote(text.size());
        }
        if (handshake.state() == Handshake::State::failed) {
            complain(stream, handshake.status().what);
            return false;
        }
        if (handshake.state() != Handshake::State::asked) return true;
        stream.rest.assign(bytes + used, bytes + got);
        hand_on(stream);
        return false;
    }

    void hand_on(Accepted& stream) {
        const Hello& peer = stream.handshake->peer();
        constexpr std::array<uint8_t, 16> unset{};
        if (peer.uuid == config_.self.uuid && peer.uuid != unset) {
            std::string why = fmt::format(
                "peer '{}' is our own identity: two daemons share the state directory of '{}': stop one, and remove its state/identity",
                peer.name, config_.self.name);
            complain(stream, why);
            return stream.refuse(Verdict::refuse, why);
        }
        auto owned = std::make_unique<Accepted>(std::move(stream));
        JobId job = peer.job;
        if (!take_(job, std::move(owned))) log_.debug("nobody has opened job {}", job_id_text(job));
    }

    // Unauthenticated peers cause these lines: at most one per minute and host, for at most said_max hosts.
    void complain(const Accepted& stream, std::string_view why) {
        uint64_t now = clock_us();
        std::erase_if(said_, [now](const Said& said) { return said.until_us <= now; });
        std::string what = fmt::format("{} {}", stream.address.substr(0, stream.address.rfind(':')), why);
        if (said_.size() == said_max || std::any_of(said_.begin(), said_.end(), [&](const Said& said) { return said.what == what; }))
            return;
        said_.push_back({std::move(what), now + 60'000'000});
        log_.warn("peer {} is refused: {}", stream.address, why);
    }
    void drop_oldest(std::string_view why) {
        complain(*guests_.front().stream, why);
        guests_.erase(guests_.begin());
    }
    Hello own() const {
        Hello hello;
        hello.name = config_.self.name;
        hello.uuid = config_.self.uuid;
        hello.incarnation = config_.self.incarnation;
        return hello;
    }

    const ListenerConfig config_;
    const Log log_;
    const std::shared_ptr<const KeyRing> ring_;
    Fd socket_, stop_;
    std::string address_;
    std::function<bool(const JobId&, std::unique_ptr<AcceptedStream>)> take_;
    std::vector<Guest> guests_;
    std::vector<Said> said_;
    uint64_t accepting_at_us_ = 0;
    Thread thread_;
};

}   // namespace

Status listener_open(const ListenerConfig& config, const Log& log, std::unique_ptr<Listener>* listener) {
    if (config.keys.empty() && !config.ring) return fail(Code::invalid, "a listener needs a cluster key");
    auto made = std::make_unique<ListenerThread>(config, log);
    GC_TRY(made->open());
    *listener = std::move(made);
    return {};
}

}   // namespace gradcast
