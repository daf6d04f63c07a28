#include "runtime/control/client_socket.h"

#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace gradcast {
namespace {

constexpr size_t raw_bytes = 4096;   // that are read at once of TLS
constexpr uint64_t tls_bytes = 24 << 10;

}   // namespace

ClientSocket::ClientSocket(Fd fd, std::shared_ptr<const TlsKeys> keys)
    : fd_(std::move(fd)), tls_(keys ? std::make_unique<TlsEnd>(std::move(keys), TlsEnd::Side::acceptor) : nullptr) {}

ssize_t ClientSocket::receive(std::span<char> to) {
    if (!tls_) return ::recv(fd_.get(), to.data(), to.size(), 0);
    for (;;) {
        size_t bytes = 0;
        if (!tls_->read(to, &bytes)) return 0;
        if (bytes > 0) return static_cast<ssize_t>(bytes);
        char raw[raw_bytes];
        const ssize_t got = ::recv(fd_.get(), raw, sizeof raw, 0);
        if (got <= 0) return got;
        const bool good = tls_->receive({raw, static_cast<size_t>(got)});
        if (!flush() || !good) return 0;   // an alert that the socket does not take is lost
    }
}

ssize_t ClientSocket::send(std::span<const char> bytes) {
    if (!tls_) return ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    errno = EPIPE;
    if (!flush()) return -1;
    errno = EAGAIN;
    if (unsent()) return -1;
    size_t taken = 0;
    while (taken < bytes.size() && !unsent()) {
        const size_t record = tls_->write(bytes.subspan(taken));
        errno = EPIPE;
        if (record == 0 || !flush()) return -1;
        taken += record;
    }
    return static_cast<ssize_t>(taken);
}

ssize_t ClientSocket::send_file(int file, off_t* offset, uint64_t bytes) {
    if (!tls_) return ::sendfile(fd_.get(), file, offset, bytes);
    char piece[16 << 10];
    const ssize_t got = ::pread(file, piece, std::min<uint64_t>(bytes, sizeof piece), *offset);
    if (got <= 0) return got;
    const ssize_t put = send({piece, static_cast<size_t>(got)});
    if (put > 0) *offset += put;
    return put;
}

bool ClientSocket::flush() {
    while (unsent()) {
        const auto out = tls_->output();
        const ssize_t put = ::send(fd_.get(), out.data(), out.size(), MSG_NOSIGNAL);
        if (put < 0) return errno == EAGAIN || errno == EINTR;
        tls_->wrote(static_cast<size_t>(put));
    }
    return true;
}

uint64_t ClientSocket::bytes() const { return tls_ ? tls_bytes + tls_->output().size() : 0; }

void ClientSocket::shut() const { ::shutdown(fd_.get(), SHUT_WR); }

}   // namespace gradcast
