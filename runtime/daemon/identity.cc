#include "runtime/daemon/identity.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>

#include "runtime/core/clock.h"
#include "runtime/core/crypto.h"
#include "runtime/core/net/socket.h"
#include "transport/stream/handshake.h"

namespace gradcast {
namespace {

constexpr uint64_t name_check_us = 1'000'000;
constexpr uint32_t state_format = 1;   // of the folders and files below `state`; a state folder without the file has 1

Status lock_take(const std::string& path, const std::string& state, const std::string& setting, Fd* lock) {
    Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    if (!fd) return fail_sys(errno, "cannot create {}: let this user write to the state folder, or choose another {}", path, setting);
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK) return fail_sys(errno, "cannot lock {}", path);
        char pid[32] = "";
        ssize_t got = ::pread(fd.get(), pid, sizeof pid - 1, 0);
        std::string holder(pid, got > 0 ? static_cast<size_t>(got) : 0);
        while (!holder.empty() && holder.back() == '\n') holder.pop_back();
        return fail(Code::invalid, "{} is used by another gradcastd (pid {}): stop it, or choose another {}", state,
                    holder.empty() ? "?" : holder, setting);
    }
    std::string pid = fmt::format("{}\n", ::getpid());
    if (::ftruncate(fd.get(), 0) != 0 || ::pwrite(fd.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size()))
        return fail_sys(errno, "cannot write {}", path);
    *lock = std::move(fd);
    return {};
}

/// A file's one line; empty if there is no file yet.
Status line_read(const std::string& path, std::string* line) {
    line->clear();
    if (::access(path.c_str(), F_OK) != 0 && errno == ENOENT) return {};
    GC_TRY(file_read(path, line));
    while (!line->empty() && line->back() == '\n') line->pop_back();
    return {};
}

/// Refuses a state folder that a newer gradcastd has changed.
Status format_check(const std::string& state, const std::string& setting) {
    const std::string path = state + "/format";
    std::string line;
    GC_TRY(line_read(path, &line));
    if (line.empty()) return file_write(path, fmt::format("{}\n", state_format));
    uint32_t format = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), format);
    if (error != std::errc() || end != line.data() + line.size())
        return fail(Code::data, "{} is not a number: write {} into it", path, state_format);
    if (format > state_format)
        return fail(Code::data,
                    "{} was last used by a newer gradcast: format {}, this one reads {}: install the newer one, or choose another {}",
                    state, format, state_format, setting);
    return {};
}

/// As name_check(), at one address of the host.
Status name_check_at(const SocketAddress& to, const std::string& address, const Identity& self, const std::vector<ClusterKey>& keys,
                     const std::string& setting) {
    const uint64_t end = clock_us() + name_check_us;
    auto ready = [&](const Fd& fd, short events) {
        pollfd poll{fd.get(), events, 0};
        const uint64_t now = clock_us();
        return now < end && ::poll(&poll, 1, static_cast<int>((end - now + 999) / 1000)) == 1;
    };
    const auto tls = std::make_shared<TlsContext>(keys);
    for (uint32_t key = 0; key < keys.size(); ++key) {
        const Fd fd(::socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to.storage), to.bytes) != 0 && errno != EINPROGRESS) return {};
        if (!ready(fd, POLLOUT)) return {};
        Hello own;
        own.name = self.name;
        own.uuid = self.uuid;
        own.incarnation = self.incarnation;
        own.stream = 1;
        Handshake handshake(tls, Handshake::Side::connector, own, key);
        while (handshake.state() == Handshake::State::negotiating) {
            const auto text = handshake.output();
            if (!text.empty()) {   // a few hundred bytes, which an empty socket buffer takes
                if (::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(text.size())) return {};
                handshake.wrote(text.size());
            }
            std::byte bytes[4096];
            if (!ready(fd, POLLIN)) return {};
            const ssize_t got = ::recv(fd.get(), bytes, sizeof bytes, 0);
            if (got <= 0) return {};
            (void)handshake.feed({bytes, static_cast<size_t>(got)});
        }
        if (handshake.keys_differ()) continue;
        const Hello& peer = handshake.peer();
        if (peer.name == self.name)
            return fail(Code::conflict,
                        "another gradcastd is named {}: it answers at {}, uuid {}, incarnation {}: stop it, or give this one another {}",
                        self.name, address, uuid_text(peer.uuid), peer.incarnation >> 32, setting);
        return {};
    }
    return {};
}

}   // namespace

std::string uuid_text(const std::array<uint8_t, 16>& uuid) {
    std::string text;
    for (size_t i = 0; i < uuid.size(); ++i) text += fmt::format("{}{:02x}", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
    return text;
}

bool uuid_parse(std::string_view text, std::array<uint8_t, 16>* uuid) {
    if (text.size() != 36) return false;
    std::array<uint8_t, 16> result{};
    size_t byte = 0;
    for (size_t at = 0; at < text.size();) {
        if (at == 8 || at == 13 || at == 18 || at == 23) {
            if (text[at++] != '-') return false;
            continue;
        }
        auto [end, error] = std::from_chars(text.data() + at, text.data() + at + 2, result[byte++], 16);
        if (error != std::errc() || end != text.data() + at + 2) return false;
        at += 2;
    }
    *uuid = result;
    return true;
}

Status state_check(const std::string& state) {
    std::string at = state;
    while (at.size() > 1 && ::access(at.c_str(), F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR))
        at = at.substr(0, std::max<size_t>(at.rfind('/'), 1));
    struct stat info;
    if (::stat(at.c_str(), &info) == 0 && !S_ISDIR(info.st_mode))
        return fail(Code::invalid, "{} is not a folder: choose another `state`", at);
    if (::access(at.c_str(), W_OK | X_OK) != 0)
        return fail_sys(errno, "cannot use the state folder {}: let this user write to {}, or choose another `state`", state, at);
    return {};
}

bool state_locked(const std::string& state) {
    const Fd fd(::open((state + "/lock").c_str(), O_RDONLY | O_CLOEXEC));
    return fd && ::flock(fd.get(), LOCK_SH | LOCK_NB) != 0;
}

Status name_check(const std::string& address, const Identity& self, const std::vector<ClusterKey>& keys, const std::string& setting) {
    std::vector<SocketAddress> all;
    if (address.ends_with(":0") || !addresses_resolve(address, false, &all).ok()) return {};
    for (const SocketAddress& each : all) GC_TRY(name_check_at(each, address, self, keys, setting));
    return {};
}

Status identity_open(const std::string& state, const std::string& name, Identity* identity, Fd* lock, const std::string& setting) {
    if (Status status = make_directories(state); !status.ok())
        return fail(status.code, "{}: create it for this user, or choose another {}", status.what, setting);
    GC_TRY(lock_take(state + "/lock", state, setting, lock));
    GC_TRY(format_check(state, setting));
    Identity result{name, {}, 0};
    std::string path = state + "/identity", line;
    GC_TRY(line_read(path, &line));
    if (line.empty()) {
        random_bytes(result.uuid);
        result.uuid[6] = static_cast<uint8_t>((result.uuid[6] & 0x0f) | 0x40);   // RFC 4122, version 4
        result.uuid[8] = static_cast<uint8_t>((result.uuid[8] & 0x3f) | 0x80);
        GC_TRY(file_write(path, uuid_text(result.uuid) + "\n"));
    } else if (!uuid_parse(line, &result.uuid)) {
        return fail(Code::data, "{} is not a UUID: remove it, and this node becomes a new one", path);
    }
    path = state + "/incarnation";
    GC_TRY(line_read(path, &line));
    uint32_t starts = 0;
    if (!line.empty()) {
        auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), starts);
        if (error != std::errc() || end != line.data() + line.size())
            return fail(Code::data, "{} is not a number: remove {} and it, and this node becomes a new one", path, state + "/identity");
    }
    GC_TRY(file_write(path, fmt::format("{}\n", ++starts)));
    // The count orders the starts; random bits tell two copies of one state folder apart; the lowest byte counts the runs of one job.
    std::array<uint8_t, 3> random;
    random_bytes(random);
    result.incarnation = uint64_t{starts} << 32 | uint32_t{random[0]} << 24 | uint32_t{random[1]} << 16 | uint32_t{random[2]} << 8;
    *identity = std::move(result);
    return {};
}

}   // namespace gradcast
