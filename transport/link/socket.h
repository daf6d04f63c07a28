// Sockets, for listener and driver.
#pragma once
#include <netinet/in.h>
#include <sys/socket.h>

#include "runtime/core/fd.h"
#include "transport/link/handshake.h"

namespace gradcast {

struct SocketAddress {
    sockaddr_storage storage{};
    socklen_t bytes = 0;
};
/// Resolves "host:port" or "[v6]:port".  May block in the resolver: not for a network thread.
Status address_resolve(const std::string& text, bool listening, SocketAddress* address);
std::string address_text(const SocketAddress& address);   // numeric
/// A listening socket on "host:port" (port 0: the kernel chooses).  *address: numeric, with the port.
Status socket_listen(const std::string& wanted, Fd* listener, std::string* address);

/// Sets TCP_NODELAY; keep-alive and user time-out, which detect a vanished machine within about half of the deadline; reno in place of
/// cubic or bbr.
void socket_tune(int fd, uint64_t deadline_us, uint32_t socket_bytes);

/// The implementation of AcceptedStream; its handshake is in state `asked`.
struct Accepted final : AcceptedStream {
    Accepted() = default;
    Accepted(Accepted&&) = default;
    ~Accepted() override;   // answers `later` to a peer that has no answer yet
    Fd fd;
    std::unique_ptr<Handshake> handshake;
    std::vector<std::byte> rest;   // bytes after the Hello
    std::string address;
    uint64_t bytes_sent = 0, bytes_received = 0;
    /// Sends the reason if the socket takes it without waiting, then closes.
    void refuse(Verdict verdict, const std::string& reason);
};

}   // namespace gradcast
