#include <liburing.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "runtime/core/fd.h"
#include "transport/link/proactor.h"

namespace gradcast {
namespace {

constexpr unsigned ring_entries = 256;   // operations started between two waits; more are submitted early

// Memory registered with the ring is not used here: a TCP receive copies out of socket buffers whatever the target is, and
// IORING_OP_READ_FIXED takes one range where a receive wants two (payload, then tag and next header).
class Uring final : public Proactor {
public:
    ~Uring() override {
        if (open_) io_uring_queue_exit(&ring_);
    }
    Status open() {
        wake_ = Fd(::eventfd(0, EFD_CLOEXEC));
        if (!wake_) return fail_sys(errno, "cannot make an eventfd");
        // Disabled until the first wait(), because SINGLE_ISSUER binds the ring to the thread that enables it.
        int error = io_uring_queue_init(
            ring_entries, &ring_,
            IORING_SETUP_R_DISABLED | IORING_SETUP_SUBMIT_ALL | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
        if (error == -EINVAL)
            error = io_uring_queue_init(ring_entries, &ring_, IORING_SETUP_R_DISABLED | IORING_SETUP_SUBMIT_ALL);   // before 6.1
        if (error) return fail_text(Code::unsupported, -error, "io_uring is refused here");
        open_ = true;
        return {};
    }
    void add(int) override {}   // blocking sockets: io_uring waits in the kernel, a non-blocking one would answer EAGAIN
    void remove(int) override {}
    void start(Op& op) override {
        GC_ASSERT(!op.busy);
        op.busy = true;
        io_uring_sqe* entry = next();
        switch (op.kind) {
            case Op::Kind::connect:
                io_uring_prep_connect(entry, op.fd, reinterpret_cast<const sockaddr*>(op.address), op.address_bytes);
                break;
            case Op::Kind::receive: io_uring_prep_recvmsg(entry, op.fd, &op.message, 0); break;
            case Op::Kind::send: io_uring_prep_sendmsg(entry, op.fd, &op.message, MSG_NOSIGNAL); break;
        }
        io_uring_sqe_set_data(entry, &op);
    }
    void cancel(Op& op) override {
        if (!op.busy) return;
        io_uring_sqe* entry = next();
        io_uring_prep_cancel(entry, &op, 0);
        io_uring_sqe_set_data(entry, nullptr);
    }
    Status wait(uint64_t timeout_us, std::vector<Op*>* done) override {
        enable();
        if (!waking_) {
            waking_ = true;
            io_uring_sqe* entry = next();
            io_uring_prep_read(entry, wake_.get(), &wakes_, sizeof wakes_, 0);
            io_uring_sqe_set_data(entry, this);
        }
        __kernel_timespec limit{static_cast<long long>(timeout_us / 1'000'000), static_cast<long long>(timeout_us % 1'000'000) * 1000};
        io_uring_cqe* first = nullptr;
        int error = io_uring_submit_and_wait_timeout(&ring_, &first, 1, &limit, nullptr);
        if (error < 0 && error != -ETIME && error != -EINTR && error != -EAGAIN && error != -EBUSY)
            return fail_sys(-error, "io_uring cannot wait for the network");
        unsigned head, count = 0;
        io_uring_cqe* entry;
        io_uring_for_each_cqe(&ring_, head, entry) {
            ++count;
            void* data = io_uring_cqe_get_data(entry);
            if (data == this) waking_ = false;
            if (data == this || !data) continue;
            Op* op = static_cast<Op*>(data);
            op->busy = false;
            op->result = entry->res;
            done->push_back(op);
        }
        io_uring_cq_advance(&ring_, count);
        return {};
    }
    void wake() override {
        uint64_t one = 1;
        (void)!::write(wake_.get(), &one, sizeof one);
    }
    const char* name() const override { return "uring_tcp"; }

private:
    void enable() {
        if (enabled_) return;
        enabled_ = true;
        // liburing 2.3 declares io_uring_enable_rings() and does not export it.
        GC_ASSERT(::syscall(__NR_io_uring_register, ring_.ring_fd, IORING_REGISTER_ENABLE_RINGS, nullptr, 0) == 0);
    }
    io_uring_sqe* next() {
        enable();
        io_uring_sqe* entry = io_uring_get_sqe(&ring_);
        while (!entry) io_uring_submit(&ring_), entry = io_uring_get_sqe(&ring_);
        return entry;
    }

    Fd wake_;
    uint64_t wakes_ = 0;
    io_uring ring_{};
    bool open_ = false, enabled_ = false, waking_ = false;
};

}   // namespace

Status proactor_uring(std::unique_ptr<Proactor>* proactor) {
    auto uring = std::make_unique<Uring>();
    GC_TRY(uring->open());
    *proactor = std::move(uring);
    return {};
}

}   // namespace gradcast
