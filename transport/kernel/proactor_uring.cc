#include <liburing.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "runtime/core/fd.h"
#include "transport/kernel/proactor.h"

namespace gradcast {
namespace {

constexpr unsigned ring_entries = 256;   // operations between two waits; more are submitted early

// Does not use registered memory: a TCP receive copies from socket buffers in any case, and IORING_OP_READ_FIXED takes one range where a
// receive needs two (payload; tag and next header).
class Uring final : public Proactor {
public:
    ~Uring() override {
        if (open_) io_uring_queue_exit(&ring_);
    }
    Status open() {
        wake_ = Fd(::eventfd(0, EFD_CLOEXEC));
        if (!wake_) return fail_sys(errno, "cannot make an eventfd");
        // Disabled until the first wait(): SINGLE_ISSUER binds the ring to the thread that enables it.
        int error = io_uring_queue_init(
            ring_entries, &ring_,
            IORING_SETUP_R_DISABLED | IORING_SETUP_SUBMIT_ALL | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
        if (error == -EINVAL)
            error = io_uring_queue_init(ring_entries, &ring_, IORING_SETUP_R_DISABLED | IORING_SETUP_SUBMIT_ALL);   // Linux before 6.1
        if (error) return fail_text(Code::unsupported, -error, "io_uring is refused here");
        open_ = true;
        return {};
    }
    void add(int) override {}   // sockets stay blocking: io_uring waits in the kernel, non-blocking ones would give EAGAIN
    void remove(int) override {}
    void start(Op& first) override {
        for (Op* op = &first; op; op = op->next) start_one(*op);
    }
    void start_one(Op& op) {
        GC_ASSERT(!op.busy);
        op.busy = true;
        io_uring_sqe* entry = next();
        switch (op.kind) {
            case Op::Kind::connect:
                io_uring_prep_connect(entry, op.fd, reinterpret_cast<const sockaddr*>(op.address), op.address_bytes);
                break;
            case Op::Kind::poll: io_uring_prep_poll_add(entry, op.fd, POLLIN); break;
            case Op::Kind::receive: io_uring_prep_recvmsg(entry, op.fd, &op.message, 0); break;
            case Op::Kind::send:
            case Op::Kind::send_datagrams: io_uring_prep_sendmsg(entry, op.fd, &op.message, MSG_NOSIGNAL); break;
        }
        if (op.next) entry->flags |= IOSQE_IO_HARDLINK;
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
        GC_TRY(listen());
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
        // The kernel reads a few datagrams of one socket, then of the other, so collect until there are no more completions.
        while (take(done) && receiving()) (void)io_uring_get_events(&ring_);
        drained_ =
            std::all_of(std::begin(intakes_), std::end(intakes_), [](const Intake& intake) { return intake.fd < 0 || intake.armed; });
        return {};
    }
    void wake() override {
        uint64_t one = 1;
        (void)!::write(wake_.get(), &one, sizeof one);
    }
    // A multishot receive takes its memory from a buffer ring, which user and kernel share.
    Status receive_datagrams(int fd) override {
        Intake& intake = intakes_[0].fd < 0 ? intakes_[0] : intakes_[1];
        GC_ASSERT(intake.fd < 0);
        if (!intake.slots) GC_TRY(make_slots(intake));
        intake.fd = fd;
        return {};
    }
    void stop_datagrams() override {
        for (Intake& intake : intakes_) {
            intake.fd = -1;
            if (!intake.armed) continue;
            io_uring_sqe* entry = next();
            io_uring_prep_cancel(entry, &intake, 0);
            io_uring_sqe_set_data(entry, nullptr);
        }
    }
    bool receiving() const override { return intakes_[0].armed || intakes_[1].armed; }
    const char* name() const override { return "uring_tcp"; }

private:
    struct Free {
        void operator()(io_uring_buf_ring* ring) const { std::free(ring); }
    };
    struct Intake {
        std::unique_ptr<io_uring_buf_ring, Free> ring;
        std::unique_ptr<std::byte[]> slots;
        std::vector<uint16_t> taken;   // slots in received_
        int fd = -1;
        bool armed = false;
        int error = 0;
        msghdr shape{};   // sizes of address and control data
    };
    static constexpr size_t slot_bytes = sizeof(io_uring_recvmsg_out) + sizeof(sockaddr_storage) + CMSG_SPACE(sizeof(int)) + 65536;
    static_assert(receives_max <= 64 && (receives_max & (receives_max - 1)) == 0);

    /// Each socket has its own buffers, so that traffic at one does not block the other.
    Status make_slots(Intake& intake) {
        intake.ring.reset(static_cast<io_uring_buf_ring*>(std::aligned_alloc(4096, 4096)));
        intake.slots = std::make_unique_for_overwrite<std::byte[]>(receives_max * slot_bytes);
        received_.reserve(2 * receives_max);
        intake.taken.reserve(receives_max);
        io_uring_buf_reg reg{};
        reg.ring_addr = reinterpret_cast<uint64_t>(intake.ring.get());
        reg.ring_entries = receives_max;
        reg.bgid = group(intake);
        if (int error = io_uring_register_buf_ring(&ring_, &reg, 0); error)
            return fail_text(Code::unsupported, -error, "io_uring cannot share buffers for datagrams here (needs kernel 6.0)");
        io_uring_buf_ring_init(intake.ring.get());
        for (uint16_t i = 0; i < receives_max; ++i) intake.taken.push_back(i);
        intake.shape.msg_namelen = sizeof(sockaddr_storage);
        intake.shape.msg_controllen = CMSG_SPACE(sizeof(int));
        return {};
    }
    uint16_t group(const Intake& intake) const { return static_cast<uint16_t>(&intake - intakes_); }
    /// Returns the number of completions.
    unsigned take(std::vector<Op*>* done) {
        unsigned head, count = 0;
        io_uring_cqe* entry;
        io_uring_for_each_cqe(&ring_, head, entry) {
            ++count;
            void* data = io_uring_cqe_get_data(entry);
            if (data == this) waking_ = false;
            if (data == this || !data) continue;
            if (data == &intakes_[0] || data == &intakes_[1]) {
                receive_entry(*static_cast<Intake*>(data), *entry);
                continue;
            }
            Op* op = static_cast<Op*>(data);
            op->busy = false;
            op->result = entry->res;
            done->push_back(op);
        }
        io_uring_cq_advance(&ring_, count);
        return count;
    }
    // Returns the buffers of the last turn and restarts a receive that the kernel has ended for lack of buffers.
    Status listen() {
        received_.clear();
        for (Intake& intake : intakes_) {
            int offset = 0;
            for (uint16_t slot : intake.taken)
                io_uring_buf_ring_add(intake.ring.get(), intake.slots.get() + slot * slot_bytes, slot_bytes, slot,
                                      io_uring_buf_ring_mask(receives_max), offset++);
            if (offset) io_uring_buf_ring_advance(intake.ring.get(), offset);
            intake.taken.clear();
            if (intake.fd < 0 || intake.armed) continue;
            if (intake.error == EINVAL)
                return fail(Code::unsupported, "io_uring of this kernel cannot receive datagrams (needs 6.0): choose the link epoll_tcp");
            intake.armed = true;
            io_uring_sqe* entry = next();
            io_uring_prep_recvmsg_multishot(entry, intake.fd, &intake.shape, 0);
            entry->flags |= IOSQE_BUFFER_SELECT;
            entry->buf_group = group(intake);
            io_uring_sqe_set_data(entry, &intake);
        }
        return {};
    }
    void receive_entry(Intake& intake, const io_uring_cqe& entry) {
        if (!(entry.flags & IORING_CQE_F_MORE)) {
            intake.armed = false;
            intake.error = entry.res < 0 ? -entry.res : 0;
        }
        if (!(entry.flags & IORING_CQE_F_BUFFER)) return;
        const uint16_t slot = static_cast<uint16_t>(entry.flags >> IORING_CQE_BUFFER_SHIFT);
        intake.taken.push_back(slot);
        io_uring_recvmsg_out* out = io_uring_recvmsg_validate(intake.slots.get() + slot * slot_bytes, entry.res, &intake.shape);
        if (!out) return;
        const uint32_t bytes = io_uring_recvmsg_payload_length(out, entry.res, &intake.shape);
        uint32_t segment = 0;
        for (cmsghdr* each = io_uring_recvmsg_cmsg_firsthdr(out, &intake.shape); each;
             each = io_uring_recvmsg_cmsg_nexthdr(out, &intake.shape, each))
            if (each->cmsg_level == SOL_UDP && each->cmsg_type == UDP_GRO) std::memcpy(&segment, CMSG_DATA(each), sizeof segment);
        received_.push_back({{static_cast<std::byte*>(io_uring_recvmsg_payload(out, &intake.shape)), bytes},
                             static_cast<const sockaddr_storage*>(io_uring_recvmsg_name(out)),
                             segment ? segment : std::max(bytes, 1u),
                             (out->flags & MSG_TRUNC) != 0});
    }
    void enable() {
        if (enabled_) return;
        enabled_ = true;
        // liburing 2.3 does not export io_uring_enable_rings().
        GC_ASSERT(::syscall(__NR_io_uring_register, ring_.ring_fd, IORING_REGISTER_ENABLE_RINGS, nullptr, 0) == 0);
    }
    io_uring_sqe* next() {
        enable();
        io_uring_sqe* entry = io_uring_get_sqe(&ring_);
        while (!entry) {
            io_uring_submit(&ring_);
            entry = io_uring_get_sqe(&ring_);
        }
        return entry;
    }

    Fd wake_;
    uint64_t wakes_ = 0;
    io_uring ring_{};
    Intake intakes_[2];
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
