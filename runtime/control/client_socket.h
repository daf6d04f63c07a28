// A connection of the gate: what travels on its socket is plain, or TLS.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/control/tls.h"
#include "runtime/core/fd.h"

namespace gradcast {

/// Calls never wait, and return as recv() and send() do: -1 with errno EAGAIN where the socket is not ready, 0 from receive() at the end.
class ClientSocket {
public:
    ClientSocket() = default;
    /// keys: of the clients that it takes; null: bytes are plain.
    ClientSocket(Fd fd, std::shared_ptr<const TlsKeys> keys);
    int fd() const { return fd_.get(); }
    ssize_t receive(std::span<char> to);
    /// In TLS what is taken may stay here until flush().
    ssize_t send(std::span<const char> bytes);
    ssize_t send_file(int file, off_t* offset, uint64_t bytes);
    /// False: the connection has broken.
    bool flush();
    bool unsent() const { return tls_ && !tls_->output().empty(); }
    /// The client has not shown a key yet.
    bool stranger() const { return tls_ && !tls_->open(); }
    /// The client's; null where bytes are plain.
    const ControlKey* key() const { return tls_ && tls_->open() ? &tls_->key() : nullptr; }
    /// Why TLS has failed; "": it has not.
    std::string why() const { return tls_ ? tls_->why() : ""; }
    /// Memory beside the socket's, about.
    uint64_t bytes() const;
    void shut() const;   // for writing

private:
    Fd fd_;
    std::unique_ptr<TlsEnd> tls_;
};

}   // namespace gradcast
