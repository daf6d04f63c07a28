// What listener and driver share about sockets.
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
/// "host:port" or "[v6]:port".  May ask the resolver, so not on a network thread.
Status address_resolve(const std::string& text, bool listening, SocketAddress* address);
std::string address_text(const SocketAddress& address);   // numeric
/// A listening socket on "host:port" (port 0 picks one).  *address: the same with its port, numeric.
Status socket_listen(const std::string& wanted, Fd* listener, std::string* address);

/// No delay; keep-alive and user time-out, so that a peer whose machine vanished is noticed within about half of the deadline; reno where
/// the system says cubic.
void socket_tune(int fd, uint64_t deadline_us, uint32_t socket_bytes);

/// The listener's side of AcceptedStream: its handshake is in state `asked` when it is handed on.
struct Accepted final : AcceptedStream {
    Accepted() = default;
    Accepted(Accepted&&) = default;
    ~Accepted() override;   // a peer that was not answered is told to come again later
    Fd fd;
    std::unique_ptr<Handshake> handshake;
    std::vector<std::byte> rest;   // that came behind the Hello
    std::string address;
    uint64_t bytes_sent = 0, bytes_received = 0;
    /// Tells the peer why, as far as its socket takes it at once, and closes.
    void refuse(Verdict verdict, const std::string& reason);
};

}   // namespace gradcast
