#include <fcntl.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/core/fd.h"
#include "transport/kernel/proactor.h"

namespace gradcast {
namespace {

// An operation is tried when it is started, and again at each edge that epoll reports, until the result is not EAGAIN.
class Epoll final : public Proactor {
public:
    Status open() {
        epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
        wake_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        epoll_event event{EPOLLIN, {.fd = wake_.get()}};
        if (!epoll_ || !wake_ || ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) != 0)
            return fail_sys(errno, "cannot set up epoll");
        return {};
    }
    void add(int fd) override {
        GC_ASSERT(::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK) == 0);
        if (sockets_.size() <= static_cast<size_t>(fd)) sockets_.resize(static_cast<size_t>(fd) + 1);
        at(fd) = {};
        epoll_event event{EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, {.fd = fd}};
        GC_ASSERT(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0);
    }
    void remove(int fd) override {
        GC_ASSERT(!at(fd).in && !at(fd).out);
        ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
    }
    void start(Op& op) override {
        GC_ASSERT(!op.busy);
        op.busy = true;
        if (op.kind == Op::Kind::connect) {
            int error = ::connect(op.fd, reinterpret_cast<const sockaddr*>(op.address), op.address_bytes) == 0 ? 0 : errno;
            if (error == EINPROGRESS || error == EINTR) at(op.fd).out = &op;
            else finish(op, -error);
        } else {
            start_all(&op);
        }
    }
    void cancel(Op& op) override {
        if (!op.busy || std::find(ready_.begin(), ready_.end(), &op) != ready_.end()) return;
        for (Op* later = op.next; later; later = later->next) finish(*later, -ECANCELED);
        (op.kind == Op::Kind::receive || op.kind == Op::Kind::poll ? at(op.fd).in : at(op.fd).out) = nullptr;
        finish(op, -ECANCELED);
    }
    Status wait(uint64_t timeout_us, std::vector<Op*>* done) override {
        received_.clear();
        for (int fd : intakes_)
            if (at(fd).full) timeout_us = 0;
        epoll_event events[64];
        uint64_t timeout_ms = std::min<uint64_t>((timeout_us + 999) / 1000, 1'000'000);
        int count = ::epoll_wait(epoll_.get(), events, 64, ready_.empty() ? static_cast<int>(timeout_ms) : 0);
        if (count < 0 && errno != EINTR) return fail_sys(errno, "epoll cannot wait for the network");
        for (int i = 0; i < count; ++i) {
            int fd = events[i].data.fd;
            if (fd == wake_.get()) {
                uint64_t wakes;
                (void)!::read(fd, &wakes, sizeof wakes);
                continue;
            }
            if (events[i].events & ~uint32_t{EPOLLOUT}) at(fd).full = true;
            if (Op* op = at(fd).in; op && events[i].events & ~uint32_t{EPOLLOUT}) {
                at(fd).in = nullptr;
                attempt(*op);
            }
            if (Op* op = at(fd).out; op && events[i].events & ~uint32_t{EPOLLIN | EPOLLRDHUP}) {
                at(fd).out = nullptr;
                if (op->kind != Op::Kind::connect) {
                    start_all(op);
                } else {
                    int error = 0;
                    socklen_t size = sizeof error;
                    if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
                    finish(*op, -error);
                }
            }
        }
        drained_ = true;
        for (int fd : intakes_)
            if (at(fd).full) drained_ &= listen(fd);
        for (Op* op : ready_) {
            op->busy = false;
            done->push_back(op);
        }
        ready_.clear();
        return {};
    }
    void wake() override {
        uint64_t one = 1;
        (void)!::write(wake_.get(), &one, sizeof one);
    }
    Status receive_datagrams(int fd) override {
        if (!slots_) {
            slots_ = std::make_unique_for_overwrite<Slot[]>(2 * receives_max);
            messages_.resize(receives_max);
            vectors_.resize(receives_max);
            received_.reserve(2 * receives_max);
        }
        intakes_.push_back(fd);
        at(fd).full = true;   // maybe: try once
        return {};
    }
    void stop_datagrams() override { intakes_.clear(); }
    bool receiving() const override { return false; }   // no receive is in flight
    const char* name() const override { return "epoll_tcp"; }

private:
    struct Socket {
        Op *in = nullptr, *out = nullptr;   // waiting for an edge
        bool full = false;                  // datagrams may be waiting
    };
    struct Slot {
        sockaddr_storage from;
        alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int))];
        std::byte bytes[65536];
    };
    Socket& at(int fd) { return sockets_[static_cast<size_t>(fd)]; }
    void finish(Op& op, int32_t result) { op.result = result, ready_.push_back(&op); }
    void start_all(Op* op) {
        for (; op; op = op->next) {
            op->busy = true;
            if (!attempt(*op)) break;
        }
        for (; op; op = op->next) op->busy = true;
    }
    // Receives up to receives_max datagrams in one call.  True: the socket is empty.
    bool listen(int fd) {
        const size_t first = received_.size();
        for (size_t i = 0; i < receives_max; ++i) {
            Slot& slot = slots_[first + i];
            vectors_[i] = {slot.bytes, sizeof slot.bytes};
            messages_[i].msg_hdr = {&slot.from, sizeof slot.from, &vectors_[i], 1, slot.control, sizeof slot.control, 0};
        }
        const int count = ::recvmmsg(fd, messages_.data(), receives_max, MSG_DONTWAIT, nullptr);
        if (count < 0 && errno != EINTR) at(fd).full = false;   // EAGAIN, or an error, which a later call reports
        for (int i = 0; i < count; ++i) {
            Slot& slot = slots_[first + static_cast<size_t>(i)];
            msghdr& message = messages_[static_cast<size_t>(i)].msg_hdr;
            const uint32_t bytes = messages_[static_cast<size_t>(i)].msg_len;
            uint32_t segment = 0;
            for (cmsghdr* each = CMSG_FIRSTHDR(&message); each; each = CMSG_NXTHDR(&message, each))
                if (each->cmsg_level == SOL_UDP && each->cmsg_type == UDP_GRO) std::memcpy(&segment, CMSG_DATA(each), sizeof segment);
            received_.push_back(
                {{slot.bytes, bytes}, &slot.from, segment ? segment : std::max(bytes, 1u), (message.msg_flags & MSG_TRUNC) != 0});
        }
        return count < static_cast<int>(receives_max);
    }
    bool attempt(Op& op) {
        const bool poll = op.kind == Op::Kind::poll, in = poll || op.kind == Op::Kind::receive;
        pollfd one{op.fd, POLLIN, 0};
        ssize_t result;
        do
            result = poll ? (::poll(&one, 1, 0) == 0 ? (errno = EAGAIN, -1) : 0)
                     : in ? ::recvmsg(op.fd, &op.message, MSG_DONTWAIT)
                          : ::sendmsg(op.fd, &op.message, MSG_DONTWAIT | MSG_NOSIGNAL);
        while (result < 0 && errno == EINTR);
        if (result >= 0) finish(op, static_cast<int32_t>(result));
        else if (errno != EAGAIN) finish(op, -errno);
        else {
            (in ? at(op.fd).in : at(op.fd).out) = &op;
            return false;
        }
        return true;
    }

    Fd epoll_, wake_;
    std::vector<Socket> sockets_;   // by descriptor
    std::vector<Op*> ready_;        // done, not yet returned
    std::vector<int> intakes_;
    std::unique_ptr<Slot[]> slots_;   // received_[i] is in slots_[i]
    std::vector<mmsghdr> messages_;
    std::vector<iovec> vectors_;
};

}   // namespace

Status proactor_epoll(std::unique_ptr<Proactor>* proactor) {
    auto epoll = std::make_unique<Epoll>();
    GC_TRY(epoll->open());
    *proactor = std::move(epoll);
    return {};
}

}   // namespace gradcast
