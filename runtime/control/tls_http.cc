#include "runtime/control/tls_http.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "runtime/core/clock.h"

namespace gradcast {
namespace {

/// Sends all that TLS has to say; waits as the socket's time-out allows.
bool say(int fd, TlsEnd& tls) {
    while (!tls.output().empty()) {
        const auto out = tls.output();
        const ssize_t put = ::send(fd, out.data(), out.size(), MSG_NOSIGNAL);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return false;
        tls.wrote(static_cast<size_t>(put));
    }
    return true;
}

class TlsStream final : public httplib::Stream {
public:
    TlsStream(int fd, TlsEnd& tls) : fd_(fd), tls_(tls) {}
    bool is_readable() const override { return true; }   // read() has the socket's time-out
    bool is_writable() const override { return true; }
    ssize_t read(char* to, size_t bytes) override {
        for (;;) {
            size_t plain = 0;
            if (!tls_.read({to, bytes}, &plain)) return -1;
            if (plain > 0) return static_cast<ssize_t>(plain);
            char raw[16 << 10];
            const ssize_t got = ::recv(fd_, raw, sizeof raw, 0);
            if (got < 0 && errno == EINTR) continue;
            if (got <= 0) return got;
            if (!tls_.receive({raw, static_cast<size_t>(got)})) return -1;
        }
    }
    ssize_t write(const char* from, size_t bytes) override {
        for (size_t written = 0; written < bytes;) {
            const size_t record = tls_.write({from + written, bytes - written});
            if (record == 0 || !say(fd_, tls_)) return -1;
            written += record;
        }
        return static_cast<ssize_t>(bytes);
    }
    void get_remote_ip_and_port(std::string&, int&) const override {}
    void get_local_ip_and_port(std::string&, int&) const override {}
    socket_t socket() const override { return fd_; }

private:
    const int fd_;
    TlsEnd& tls_;
};

}   // namespace

TlsHttp::TlsHttp(const std::string& host, uint16_t port, const ControlKey& key)
    : ClientImpl(host, port), keys_(std::make_shared<const TlsKeys>(std::vector<ControlKey>{key})) {
    set_tcp_nodelay(true);   // TLS writes records, and the last one waits for nothing
}

bool TlsHttp::create_and_connect_socket(Socket& socket, httplib::Error& error) {
    why_.clear();
    if (!connect(socket, error)) return false;
    if (shake_hands(socket.sock)) return true;
    error = httplib::Error::SSLConnection;
    close_socket(socket);
    return false;
}

bool TlsHttp::connect(Socket& socket, httplib::Error& error) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    if (const int code = ::getaddrinfo(host_.c_str(), nullptr, &hints, &found); code != 0) {
        why_ = fmt::format("cannot find the host {}: {}", host_, ::gai_strerror(code));
        error = httplib::Error::Connection;
        return false;
    }
    ::freeaddrinfo(found);
    if (ClientImpl::create_and_connect_socket(socket, error)) return true;
    why_ = error == httplib::Error::ConnectionTimeout
               ? fmt::format("{}:{} does not answer: is the host up, and does its firewall let this port through?", host_, port_)
               : fmt::format("nothing listens at {}:{}: is gradcastd running there, with this port as `control` in its gradcastd.toml?",
                             host_, port_);
    return false;
}

bool TlsHttp::shake_hands(int fd) {
    tls_ = std::make_unique<TlsEnd>(keys_, TlsEnd::Side::connector);
    const std::string here = fmt::format("{}:{}", host_, port_);
    const uint64_t end = clock_us() + static_cast<uint64_t>(connection_timeout_sec_) * 1'000'000;
    for (;;) {
        if (!say(fd, *tls_)) {
            why_ = here + " breaks the connection off: is this its port of `control`?";
            return false;
        }
        if (tls_->open()) return true;
        if (!tls_->why().empty()) break;
        const uint64_t now = clock_us();
        pollfd readable{fd, POLLIN, 0};
        if (now >= end || ::poll(&readable, 1, static_cast<int>((end - now + 999) / 1000)) == 0) {
            why_ = here + " accepts the connection and says nothing: is this its port of `control`?";
            return false;
        }
        char raw[4096];
        const ssize_t got = ::recv(fd, raw, sizeof raw, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            why_ = here + " breaks the connection off: is this its port of `control`?";
            return false;
        }
        (void)tls_->receive({raw, static_cast<size_t>(got)});
    }
    (void)say(fd, *tls_);   // the alert
    if (tls_->keys_differ())
        why_ = fmt::format(
            "{} does not take the key {}: it must be in the cluster's key file or in that of `clients` there, with the same "
            "digits; and is this its port of `control`, not of `members`?",
            here, keys_->keys[0].name);
    else why_ = fmt::format("{} does not speak TLS with keys: is this its port of `control`?", here);
    return false;
}

bool TlsHttp::process_socket(const Socket& socket, std::function<bool(httplib::Stream&)> callback) {
    TlsStream stream(socket.sock, *tls_);
    return callback(stream);
}

}   // namespace gradcast
