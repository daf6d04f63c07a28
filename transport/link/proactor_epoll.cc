#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "runtime/core/fd.h"
#include "transport/link/proactor.h"

namespace gradcast {
namespace {

// Completions by trying: an operation is tried when it is started and again at each edge that epoll tells, until it does not say EAGAIN.
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
            attempt(op);
        }
    }
    void cancel(Op& op) override {
        if (!op.busy || std::find(ready_.begin(), ready_.end(), &op) != ready_.end()) return;
        (op.kind == Op::Kind::receive ? at(op.fd).in : at(op.fd).out) = nullptr;
        finish(op, -ECANCELED);
    }
    Status wait(uint64_t timeout_us, std::vector<Op*>* done) override {
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
            if (Op* op = at(fd).in; op && events[i].events & ~uint32_t{EPOLLOUT}) at(fd).in = nullptr, attempt(*op);
            if (Op* op = at(fd).out; op && events[i].events & ~uint32_t{EPOLLIN | EPOLLRDHUP}) {
                at(fd).out = nullptr;
                if (op->kind == Op::Kind::send) {
                    attempt(*op);
                } else {
                    int error = 0;
                    socklen_t size = sizeof error;
                    if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
                    finish(*op, -error);
                }
            }
        }
        for (Op* op : ready_) op->busy = false, done->push_back(op);
        ready_.clear();
        return {};
    }
    void wake() override {
        uint64_t one = 1;
        (void)!::write(wake_.get(), &one, sizeof one);
    }
    const char* name() const override { return "epoll_tcp"; }

private:
    struct Socket {
        Op *in = nullptr, *out = nullptr;   // those that wait for an edge
    };
    Socket& at(int fd) { return sockets_[static_cast<size_t>(fd)]; }
    void finish(Op& op, int32_t result) { op.result = result, ready_.push_back(&op); }
    void attempt(Op& op) {
        bool in = op.kind == Op::Kind::receive;
        ssize_t result;
        do result = in ? ::recvmsg(op.fd, &op.message, MSG_DONTWAIT) : ::sendmsg(op.fd, &op.message, MSG_DONTWAIT | MSG_NOSIGNAL);
        while (result < 0 && errno == EINTR);
        if (result >= 0) finish(op, static_cast<int32_t>(result));
        else if (errno != EAGAIN) finish(op, -errno);
        else (in ? at(op.fd).in : at(op.fd).out) = &op;
    }

    Fd epoll_, wake_;
    std::vector<Socket> sockets_;   // by descriptor
    std::vector<Op*> ready_;        // done, not yet returned
};

}   // namespace

Status proactor_epoll(std::unique_ptr<Proactor>* proactor) {
    auto epoll = std::make_unique<Epoll>();
    GC_TRY(epoll->open());
    *proactor = std::move(epoll);
    return {};
}

}   // namespace gradcast
