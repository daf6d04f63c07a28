#include "runtime/core/net/socket.h"

#include <netdb.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

namespace gradcast {

namespace {
constexpr int backlog = 1024;   // all nodes may connect at once
}

Status addresses_resolve(const std::string& text, bool listening, std::vector<SocketAddress>* addresses) {
    size_t colon = text.rfind(':');
    std::string host = text.substr(0, colon), port = colon == text.npos ? "" : text.substr(colon + 1);
    if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
    else if (host.find(':') != host.npos) port.clear();   // an IPv6 address without brackets
    if (host.empty() || port.empty()) return fail(Code::invalid, "'{}' is not an address: write host:port or [v6]:port", text);
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV | (listening ? AI_PASSIVE : 0);
    int error = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
    if (error) return fail(Code::invalid, "cannot resolve '{}': {}", text, ::gai_strerror(error));
    addresses->clear();
    for (const addrinfo* each = found; each; each = each->ai_next) {
        SocketAddress& address = addresses->emplace_back();
        std::memcpy(&address.storage, each->ai_addr, each->ai_addrlen);
        address.bytes = each->ai_addrlen;
    }
    ::freeaddrinfo(found);
    return {};
}

Status address_resolve(const std::string& text, bool listening, SocketAddress* address) {
    std::vector<SocketAddress> all;
    GC_TRY(addresses_resolve(text, listening, &all));
    *address = all[0];
    return {};
}

bool address_loopback(const SocketAddress& address) {
    if (address.storage.ss_family == AF_INET)
        return ntohl(reinterpret_cast<const sockaddr_in&>(address.storage).sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    return address.storage.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr);
}

bool host_loopback(std::string_view host) {
    return host == "localhost" || host.ends_with(".localhost") || host == "[::1]" || host == "::1" ||
           (host.starts_with("127.") && host.find_first_not_of("0123456789.") == host.npos);
}

std::string address_any(std::string_view port) {
    const Fd six(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
    return fmt::format("{}:{}", six ? "[::]" : "0.0.0.0", port);
}

std::string address_text(const SocketAddress& address) {
    char host[NI_MAXHOST], port[NI_MAXSERV];
    if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address.storage), address.bytes, host, sizeof host, port, sizeof port,
                      NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return "?";
    if (address.storage.ss_family == AF_INET6) return fmt::format("[{}]:{}", host, port);
    return fmt::format("{}:{}", host, port);
}

Status socket_listen(const std::string& wanted, Fd* listener, std::string* address) {
    std::vector<SocketAddress> all;
    GC_TRY(addresses_resolve(wanted, true, &all));
    Status status;
    for (SocketAddress& own : all) {
        const std::string numeric = address_text(own);
        Fd fd(::socket(own.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
        const int on = 1;
        if (fd) ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        auto* any = reinterpret_cast<sockaddr*>(&own.storage);
        if (fd && ::bind(fd.get(), any, own.bytes) == 0 && ::listen(fd.get(), backlog) == 0 &&
            ::getsockname(fd.get(), any, &own.bytes) == 0) {
            *address = address_text(own);
            *listener = std::move(fd);
            return {};
        }
        status = fail_sys(errno, "cannot listen on {}{}", wanted, numeric == wanted ? "" : fmt::format(" ({})", numeric));
    }
    return status;
}

void socket_tune(int fd, uint64_t deadline_us, uint32_t socket_bytes) {
    auto set = [fd](int level, int option, uint64_t value) {
        int number = static_cast<int>(std::min<uint64_t>(value, 0x7fffffff));
        (void)::setsockopt(fd, level, option, &number, sizeof number);   // none of them is required
    };
    uint64_t seconds = std::max<uint64_t>(deadline_us / 8'000'000, 1);
    set(IPPROTO_TCP, TCP_NODELAY, 1);
    set(SOL_SOCKET, SO_KEEPALIVE, 1);
    set(IPPROTO_TCP, TCP_KEEPIDLE, seconds);
    set(IPPROTO_TCP, TCP_KEEPINTVL, seconds);
    set(IPPROTO_TCP, TCP_KEEPCNT, 3);
    set(IPPROTO_TCP, TCP_USER_TIMEOUT, deadline_us / 2000);
    // Without a bound the time between retransmissions doubles: with heavy loss it exceeds the deadline.
    constexpr int tcp_rto_max_ms = 44;   // Linux 6.15
    set(IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1);
    set(IPPROTO_TCP, tcp_rto_max_ms, std::max<uint64_t>(deadline_us / 8000, 1000));
    if (socket_bytes) {
        set(SOL_SOCKET, SO_SNDBUF, socket_bytes);
        set(SOL_SOCKET, SO_RCVBUF, socket_bytes);
    }
    // The usual defaults, cubic and bbr, leave the links of a ring partly idle; reno does not.  Anything else (dctcp) is the operator's
    // choice and stays.
    char name[16] = {};
    socklen_t bytes = sizeof name - 1;
    const bool known = ::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &bytes) == 0;
    if (known && (std::string_view(name) == "cubic" || std::string_view(name) == "bbr"))
        (void)::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
}

}   // namespace gradcast
