// Addresses and sockets.
#pragma once
#include <netinet/in.h>
#include <sys/socket.h>

#include <string_view>
#include <vector>

#include "runtime/core/fd.h"

namespace gradcast {

struct SocketAddress {
    sockaddr_storage storage{};
    socklen_t bytes = 0;
};
/// Resolves "host:port" or "[v6]:port" to all addresses of the host, in the resolver's order.  May block in the resolver: not for a
/// network thread.
Status addresses_resolve(const std::string& text, bool listening, std::vector<SocketAddress>* addresses);
/// The first of them.
Status address_resolve(const std::string& text, bool listening, SocketAddress* address);
std::string address_text(const SocketAddress& address);   // numeric
bool address_loopback(const SocketAddress& address);
/// Whether a host's text means the machine that reads it: "localhost", "127.0.0.1", "[::1]".  Resolves nothing.
bool host_loopback(std::string_view host);
/// "[::]:port", or "0.0.0.0:port" where the kernel has no IPv6.
std::string address_any(std::string_view port);
/// A listening socket on "host:port" (port 0: the kernel chooses), on the first address of the host that can be bound.  *address: numeric,
/// with the port.
Status socket_listen(const std::string& wanted, Fd* listener, std::string* address);

/// Sets TCP_NODELAY; keep-alive and user time-out, which detect a vanished machine within about half of the deadline; reno in place of
/// cubic or bbr.
void socket_tune(int fd, uint64_t deadline_us, uint32_t socket_bytes);

}   // namespace gradcast
