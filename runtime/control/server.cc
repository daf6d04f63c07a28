// The control plane's listeners: HTTP on a Unix socket, and over TCP where gradcastd.toml says so.  Each has a gate (gate.h); all have the
// same routes (api.h).
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "runtime/control/api.h"
#include "runtime/core/clock.h"
#include "runtime/core/net/socket.h"

namespace gradcast {
namespace {

constexpr int backlog = 128;
constexpr uint32_t public_connections_max = 128;   // over TCP, watchers among them
constexpr uint32_t public_watchers_max = 96;       // the rest is for who asks once, as Prometheus does
constexpr uint32_t remote_connections_max = 192;   // with keys, strangers among them
constexpr uint32_t requests_max = 128;             // connections beside the watchers
constexpr uint64_t refused_us = 60'000'000;        // between two lines of the log about strangers

/// Makes the path free for bind(): removes a socket that nobody listens on, refuses anything else.
Status socket_clear(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.empty() || path.size() >= sizeof address.sun_path)
        return fail(Code::invalid, "the control socket's path has {} bytes, a Unix socket can have at most {}: {}", path.size(),
                    sizeof address.sun_path - 1, path);
    struct stat info;
    if (::lstat(path.c_str(), &info) != 0) return errno == ENOENT ? Status{} : fail_sys(errno, "cannot make the control socket {}", path);
    if (!S_ISSOCK(info.st_mode)) return fail(Code::invalid, "cannot make the control socket: {} exists and is not a socket", path);
    Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) return fail_sys(errno, "cannot open a Unix socket");
    std::memcpy(address.sun_path, path.data(), path.size());
    // EAGAIN: the backlog of a running daemon is full.  Only ECONNREFUSED shows that there is none.
    if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 || errno == EAGAIN)
        return fail(Code::invalid, "another gradcastd answers at {}: stop it first, or give this one another socket", path);
    if (errno == EACCES)
        return fail(Code::invalid, "the control socket {} belongs to another user: give this gradcastd another socket, or be that user",
                    path);
    if (errno != ECONNREFUSED) return fail_sys(errno, "cannot make the control socket {}", path);
    if (::unlink(path.c_str()) != 0) return fail_sys(errno, "cannot replace the stale control socket {}", path);
    return {};
}

/// key: of gradcastd.toml.  *address: with the port that was picked.
Status listen_tcp(const char* key, const std::string& where, Fd* listener, std::string* address) {
    if (const Status status = socket_listen(where, listener, address); !status.ok()) {
        const Status named = fail(status.code, "{} = \"{}\": {}", key, where, status.what);
        return {named.code, status.sys, named.what};
    }
    ::fcntl(listener->get(), F_SETFL, ::fcntl(listener->get(), F_GETFL) | O_NONBLOCK);
    return {};
}

class Server final : public ControlServer {
public:
    Server(Backend& backend, const ControlConfig& config, const Log& log) : config_(config), log_(log), api_(api_open(backend, log)) {}

    Status open() {
        GC_TRY(socket_clear(config_.socket));
        Fd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        config_.socket.copy(address.sun_path, sizeof address.sun_path - 1);
        // Before bind(), so that the socket's mode is never wider; bind() takes the umask's bits away, so once more after it.
        if (!listener || ::fchmod(listener.get(), config_.mode) != 0 ||
            ::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
            return fail_sys(errno, "cannot make the control socket {}", config_.socket);
        if (::chmod(config_.socket.c_str(), config_.mode) != 0) return fail_sys(errno, "cannot set the mode of {}", config_.socket);
        if (::listen(listener.get(), backlog) != 0) return fail_sys(errno, "cannot listen on {}", config_.socket);
        struct stat info;
        if (::stat(config_.socket.c_str(), &info) == 0) inode_ = info.st_ino;
        GC_TRY(gate_open({.connections_max = config_.watchers_max + requests_max,
                          .body_bytes_max = body_bytes_max,
                          .head_too_large = head_too_large(),
                          .role = Role::admin},
                         std::move(listener), handler(seats_, true), &gate_));
        GC_TRY(open_public());
        return open_remote();
    }

    ~Server() override {
        remote_gate_.reset();
        public_gate_.reset();
        if (!gate_) return;
        gate_.reset();
        struct stat info;   // another daemon may have replaced the socket
        if (::stat(config_.socket.c_str(), &info) == 0 && info.st_ino == inode_) ::unlink(config_.socket.c_str());
    }

    std::string address() const override { return address_; }

    void keys(std::vector<ControlKey> keys) override {
        if (remote_gate_) remote_gate_->keys(std::make_shared<const TlsKeys>(std::move(keys)));
    }

private:
    GateHandler handler(Seats& seats, bool local) {
        return {.serve = [this, &seats, local](const std::string& request,
                                               const Caller& caller) { return api_->serve(request, caller, seats, local); },
                .look = [this](const std::string& what, bool* last) { return api_->look(what, last); },
                .refused = [this](const std::string& address, const std::string& why) { refused(address, why); }};
    }

    Status open_public() {
        if (config_.tcp.empty()) return {};
        Fd listener;
        std::string address;
        GC_TRY(listen_tcp("metrics", config_.tcp, &listener, &address));
        return gate_open({.workers = 2,
                          .connections_max = public_connections_max,
                          .buffers_bytes_max = 16 << 20,
                          .watch_us = 500'000,
                          .head_too_large = head_too_large()},
                         std::move(listener), handler(public_seats_, false), &public_gate_);
    }

    Status open_remote() {
        if (config_.remote.empty()) return {};
        Fd listener;
        GC_TRY(listen_tcp("control", config_.remote, &listener, &address_));
        return gate_open({.workers = 2,
                          .connections_max = remote_connections_max,
                          .body_bytes_max = body_bytes_max,
                          .buffers_bytes_max = 32 << 20,
                          .head_too_large = head_too_large(),
                          .keys = std::make_shared<const TlsKeys>(config_.keys)},
                         std::move(listener), handler(remote_seats_, false), &remote_gate_);
    }

    /// Strangers cause these lines.
    void refused(const std::string& address, const std::string& why) {
        const uint64_t now = clock_us();
        if (refused_last_us_ != 0 && now - refused_last_us_ < refused_us) return void(++refused_silently_);
        log_.warn("control: {} is refused: {}{}", address, why,
                  refused_silently_ ? fmt::format(" ({} more since the last such line)", refused_silently_) : "");
        refused_last_us_ = now;
        refused_silently_ = 0;
    }

    const ControlConfig config_;
    const Log log_;
    const std::unique_ptr<Api> api_;
    ino_t inode_ = 0;
    std::string address_;
    Seats seats_{config_.watchers_max}, public_seats_{std::min(config_.watchers_max, public_watchers_max)},
        remote_seats_{std::min(config_.watchers_max, public_watchers_max)};
    uint64_t refused_last_us_ = 0, refused_silently_ = 0;      // the remote gate's thread
    std::unique_ptr<Gate> gate_, public_gate_, remote_gate_;   // last: they call what is above
};

}   // namespace

Status control_open(const ControlConfig& config, Backend& backend, const Log& log, std::unique_ptr<ControlServer>* server) {
    try {
        auto made = std::make_unique<Server>(backend, config, log);
        GC_TRY(made->open());
        *server = std::move(made);
        return {};
    } catch (const std::exception& error) {
        return fail(Code::node_io, "cannot start the control server: {}", error.what());
    }
}

}   // namespace gradcast
