#include "runtime/attach/channel.h"

#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/core/clock.h"
#include "runtime/core/nearest.h"

namespace gradcast {
namespace {

constexpr uint64_t wait_look_us = 50'000;   // between two looks at what may end a wait
constexpr uint64_t end_us = 2'000'000;      // that a process has to end by itself
constexpr size_t fds_max = 2, said_max = 8192;

/// At most said_max bytes, without control characters but spaces.
std::string said(std::string_view text) {
    std::string all(text.substr(0, said_max));
    for (char& c : all)
        if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = ' ';
    return all;
}

}   // namespace

Status ProcessChannel::start(ProcessConfig config) {
    name_ = fmt::format("the process of {} ({})", config.name, one_line(fmt::format("{}", fmt::join(config.command, " "))));
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return fail_sys(errno, "cannot make a socket for {}", name_);
    socket_ = Fd(ends[0]);
    const Fd theirs(ends[1]);
    config.socket = theirs.get();
    return Process::start(config, &process_);
}

void ProcessChannel::close() {
    socket_.close();
    closed_us_ = clock_us();
}

void ProcessChannel::end() {
    if (closed_us_ == 0) close();
    const uint64_t waited_us = clock_us() - closed_us_;
    if (process_) process_->end(end_us - std::min(waited_us, end_us));
    process_.reset();
}

Status ProcessChannel::wrong(std::string_view what) { return failure(Code::invalid, "{} sent what it may not: {}", name_, what); }

Status ProcessChannel::ended() {
    const std::string death = process_->death();
    const bool fault = death.find("signal 11") != std::string::npos || death.find("signal 7 ") != std::string::npos;
    return failure(Code::invalid, "{} {}{}", name_, death.empty() ? "has closed its socket" : death,
                   fault ? "; a write to a parameter ends a process so: gradcast is the optimiser, and the job's log has the line" : "");
}

Status ProcessChannel::send_packet(std::span<const std::byte> head, std::string_view text, const Wait& wait, std::span<const int> fds) {
    iovec parts[2] = {{const_cast<std::byte*>(head.data()), head.size()}, {const_cast<char*>(text.data()), text.size()}};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * fds_max)] = {};
    msghdr packet{};
    packet.msg_iov = parts;
    packet.msg_iovlen = 2;
    if (!fds.empty()) {
        GC_ASSERT(fds.size() <= fds_max);
        packet.msg_control = control;
        packet.msg_controllen = CMSG_SPACE(fds.size_bytes());
        cmsghdr* const rights = CMSG_FIRSTHDR(&packet);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(fds.size_bytes());
        std::memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
    }
    asked_us_ = clock_us();
    for (;;) {
        if (::sendmsg(socket_.get(), &packet, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return {};
        if (errno == EPIPE || errno == ECONNRESET) return ended();
        if (errno != EAGAIN && errno != EINTR && errno != ENOBUFS) return fail_sys(errno, "cannot send to {}", name_);
        if (wait.stopped && wait.stopped()) return fail(Code::cancelled, "stopped while {} was asked", name_);
        if (clock_us() >= wait.until_us) return failure(Code::deadline, "{} does not read its socket", name_);
        pollfd ready{socket_.get(), POLLOUT, 0};
        ::poll(&ready, 1, static_cast<int>(wait_look_us / 1000));
    }
}

Status ProcessChannel::send(const gc_attach_compute& message) {
    return send_packet(std::as_bytes(std::span(&message, 1)), {}, {.until_us = 0}, {});
}

Status ProcessChannel::send_text(gc_attach_kind kind, std::string_view text, const Wait& wait, std::span<const int> fds) {
    for (bool more = true; more;) {
        const std::string_view piece = text.substr(0, GC_ATTACH_TEXT_MAX);
        text.remove_prefix(piece.size());
        more = !text.empty();
        const gc_attach_text head{static_cast<uint32_t>(kind), more};
        GC_TRY(send_packet(std::as_bytes(std::span(&head, 1)), piece, wait, more ? std::span<const int>() : fds));
    }
    return {};
}

Status ProcessChannel::receive(const Wait& wait, AttachMessage* message, size_t* bytes) {
    for (;;) {
        if (wait.stopped && wait.stopped()) return fail(Code::cancelled, "stopped while {} computed", name_);
        const uint64_t now_us = clock_us();
        if (now_us >= wait.until_us)
            return failure(Code::deadline, "{} has not answered for {:.1f} s, which is as long as it may take (job.deadline)", name_,
                           static_cast<double>(now_us - asked_us_) / 1e6);
        // What comes with a message of a process, as descriptors, is dropped by the kernel.
        const ssize_t got = ::recv(socket_.get(), message, sizeof *message, MSG_DONTWAIT | MSG_TRUNC);
        if (got == 0) return ended();
        if (got < 0 && errno == ECONNRESET) return ended();
        if (got < 0 && errno != EAGAIN && errno != EINTR) return fail_sys(errno, "cannot receive from {}", name_);
        if (got < 0) {
            pollfd ready{socket_.get(), POLLIN, 0};
            ::poll(&ready, 1, static_cast<int>(std::min(wait_look_us, wait.until_us - now_us) / 1000 + 1));
            continue;
        }
        const auto size = static_cast<size_t>(got);
        if (size > sizeof *message) return wrong(fmt::format("a message of {} bytes, at most {}", size, sizeof *message));
        size_t least = sizeof(gc_attach_text);
        if (size >= sizeof message->kind && message->kind == GC_ATTACH_LOSS) least = sizeof(gc_attach_loss);
        if (size < least) return wrong(fmt::format("a message of {} bytes, which is too short", size));
        *bytes = size - sizeof(gc_attach_text);
        if (message->kind != GC_ATTACH_FAIL) return {};
        return failure(Code::invalid, "{}: {}", name_, said({message->text.text, *bytes}));
    }
}

Status ProcessChannel::receive_text(gc_attach_kind kind, const Wait& wait, std::string* text) {
    text->clear();
    AttachMessage message;
    size_t bytes;
    do {
        GC_TRY(receive(wait, &message, &bytes));
        if (message.kind != static_cast<uint32_t>(kind))
            return wrong(fmt::format("message {} instead of {}", message.kind, static_cast<int>(kind)));
        if (text->size() + bytes > GC_ATTACH_WHOLE_MAX) return wrong(fmt::format("a text of more than {} bytes", GC_ATTACH_WHOLE_MAX));
        if (bytes == 0 && message.text.head.more != 0) return wrong("an empty piece of a text");
        text->append(message.text.text, bytes);
    } while (message.text.head.more != 0);
    return {};
}

}   // namespace gradcast
