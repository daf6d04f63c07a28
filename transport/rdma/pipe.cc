#include "transport/rdma/pipe.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/core/crypto.h"

namespace gradcast::rdma {
namespace {

// A lost packet is sent again after 4 us * 2^timeout, the connection breaks after retries + 1 of these: two seconds.  7 would mean for
// ever with soft-RoCE.
constexpr uint8_t timeout = 16, retries = 6;
constexpr uint32_t inline_bytes = 220;
constexpr uint32_t parts_most = 4, borrow_least = 4096;
constexpr uint64_t kind_send = uint64_t{1} << 31;   // a work request with the count of messages; else: a receive's slot
constexpr uint64_t count_mask = (uint64_t{1} << 30) - 1;

}   // namespace

Status Pipe::open(ibv_cq* sent, ibv_cq* received, uint32_t slot_bytes, RdmaEnd* end) {
    slot_bytes_ = slot_bytes;
    arrived_.resize(slots + spare);
    GC_TRY(in_.open(port_, slots + spare, slot_bytes));
    GC_TRY(out_.open(port_, slots, slot_bytes));
    parts_max_ = std::min(static_cast<uint32_t>(port_.limits.max_sge), parts_most);
    ibv_qp_init_attr wanted{};
    wanted.send_cq = sent;
    wanted.recv_cq = received;
    wanted.qp_type = IBV_QPT_RC;
    wanted.cap = {slots, slots + spare, parts_max_, 1, inline_bytes};
    pair_.reset(ibv_create_qp(port_.domain.get(), &wanted));
    if (!pair_) return fail_sys(errno, "RDMA device {} has no room for a connection", port_.about.name);
    inline_max_ = std::min(wanted.cap.max_inline_data, inline_bytes);
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = static_cast<uint8_t>(port_.about.port);
    if (int error = ibv_modify_qp(pair_.get(), &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS); error)
        return fail_sys(error, "RDMA device {} does not prepare a connection", port_.about.name);
    for (uint32_t slot = 0; slot < slots + spare; ++slot)
        if (!post_receive(slot)) return fail_sys(errno, "RDMA device {} takes no receive", port_.about.name);
    random_bytes({reinterpret_cast<uint8_t*>(&first_packet_), 3});
    end->queue = pair_->qp_num;
    end->first = first_packet_;
    end->slots = slots;
    end->slot_bytes = slot_bytes_;
    end->lid = port_.lid;
    end->mtu = static_cast<uint8_t>(port_.mtu);
    end->gid = port_.about.gid;
    return {};
}

Status Pipe::connect(const RdmaEnd& peer) {
    if (peer.slots != slots || peer.slot_bytes != slot_bytes_ || peer.mtu < IBV_MTU_256 || peer.mtu > IBV_MTU_4096)
        return fail(Code::peer_refused, "it has {} RDMA receives of {} bytes, we have {} of {}: run one version of gradcast", peer.slots,
                    peer.slot_bytes, slots, slot_bytes_);
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = std::min(port_.mtu, static_cast<ibv_mtu>(peer.mtu));
    attributes.dest_qp_num = peer.queue;
    attributes.rq_psn = peer.first;
    attributes.min_rnr_timer = 12;
    ibv_ah_attr& path = attributes.ah_attr;
    path.port_num = static_cast<uint8_t>(port_.about.port);
    path.dlid = peer.lid;
    path.is_global = 1;
    std::memcpy(path.grh.dgid.raw, peer.gid.data(), peer.gid.size());
    path.grh.sgid_index = static_cast<uint8_t>(port_.about.gid_index);
    path.grh.hop_limit = 64;
    int error = ibv_modify_qp(
        pair_.get(), &attributes,
        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    if (error) return fail_sys(error, "RDMA device {} has no path to the peer", port_.about.name);
    attributes.qp_state = IBV_QPS_RTS;
    attributes.timeout = timeout;
    attributes.retry_cnt = retries;
    attributes.rnr_retry = 0;   // a receive always waits
    attributes.sq_psn = first_packet_;
    error = ibv_modify_qp(pair_.get(), &attributes,
                          IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    if (error) return fail_sys(error, "RDMA device {} does not open a connection", port_.about.name);
    credits_ = slots;
    return {};
}

bool Pipe::post_receive(uint32_t slot) {
    ibv_sge part = in_.part(slot, slot_bytes_);
    ibv_recv_wr work{}, *bad;
    work.wr_id = uint64_t{number_} << 32 | slot;
    work.sg_list = &part;
    work.num_sge = 1;
    return (errno = ibv_post_recv(pair_.get(), &work, &bad)) == 0;
}

struct Pipe::Message {
    ibv_send_wr work;
    ibv_sge parts[parts_most];
    uint32_t bytes, copied;   // in all; in the slot
    bool borrows;
};

// Posts messages in one go, with all credits that are owed.
bool Pipe::post(std::span<Message> chain) {
    for (size_t i = 0; i < chain.size(); ++i) {
        Message& message = chain[i];
        const bool last = i + 1 == chain.size();
        ibv_send_wr& work = message.work;
        work.wr_id = uint64_t{number_} << 32 | kind_send | ((posted_ + i + 1) & count_mask);
        work.next = last ? nullptr : &chain[i + 1].work;
        work.sg_list = message.parts;
        work.opcode = IBV_WR_SEND_WITH_IMM;
        work.send_flags = message.bytes <= inline_max_ ? IBV_SEND_INLINE : 0;
        if (last || i % 4 == 3) work.send_flags |= IBV_SEND_SIGNALED | IBV_SEND_SOLICITED;
        work.imm_data = htonl(i == 0 ? owed_ : 0);
        if (message.borrows) borrowed_ = posted_ + i + 1;
        if (message.bytes) --credits_;
    }
    ibv_send_wr* bad;
    if (ibv_post_send(pair_.get(), &chain[0].work, &bad) != 0) {
        broken_ = "the device takes no message";
        return false;
    }
    owed_ = 0;
    posted_ += chain.size();
    return true;
}

void Pipe::start(Op& op) {
    GC_ASSERT(!op.busy);
    op.busy = true;
    (op.kind == Op::Kind::send ? sending_ : receiving_) = &op;
    settle();
}

void Pipe::cancel(Op& op) {
    if (!op.busy || (&op != sending_ && &op != receiving_)) return;
    (&op == sending_ ? sending_ : receiving_) = nullptr;
    owner_.finished(op, -ECANCELED);
}

void Pipe::fail_all(const char* why) {
    if (!broken_) broken_ = why;
    for (Op** op : {&receiving_, &sending_})
        if (*op) owner_.finished(*std::exchange(*op, nullptr), -EIO);
}

void Pipe::complete(const ibv_wc& done) {
    if (done.status != IBV_WC_SUCCESS) {
        if (!broken_) broken_ = ibv_wc_status_str(done.status);
        return;
    }
    if (done.wr_id & kind_send) {   // and those before it
        sent_ += (done.wr_id - sent_) & count_mask;
        return;
    }
    const uint32_t credits = ntohl(done.imm_data), slot = static_cast<uint32_t>(done.wr_id);
    if (!(done.wc_flags & IBV_WC_WITH_IMM) || credits > slots - credits_ || last_ - first_ == arrived_.size()) {
        broken_ = "a message that is not ours";
        return;
    }
    credits_ += credits;
    if (done.byte_len) arrived_[last_++ % arrived_.size()] = {slot, done.byte_len};
    else if (!post_receive(slot)) broken_ = "no receive can be posted";
}

// Posts bytes of sending_.  True: it is done, with at least one byte.
bool Pipe::transmit() {
    const msghdr& whole = sending_->message;
    Message chain[slots];
    uint32_t count = 0;
    int32_t total = 0;
    size_t vector = 0, at = 0;
    for (; vector < whole.msg_iovlen && count < credits_ && posted_ + count - sent_ < slots; ++count) {
        const auto slot = static_cast<uint32_t>((posted_ + count) % slots);
        Message& message = chain[count];
        message = {};
        int& parts = message.work.num_sge;
        bool in_slot = false;   // the last part is
        while (vector < whole.msg_iovlen && message.bytes < slot_bytes_) {
            const iovec& from = whole.msg_iov[vector];
            std::byte* const bytes = static_cast<std::byte*>(from.iov_base) + at;
            const auto take = static_cast<uint32_t>(std::min<size_t>(from.iov_len - at, slot_bytes_ - message.bytes));
            const ibv_mr* const memory = take < borrow_least ? nullptr : port_.memory_of(bytes, take);
            if ((memory || !in_slot) && parts == static_cast<int>(parts_max_)) break;
            if (memory) {
                message.parts[parts++] = {reinterpret_cast<uintptr_t>(bytes), take, memory->lkey};
                message.borrows = true;
            } else {
                std::memcpy(out_.at(slot) + message.copied, bytes, take);
                if (in_slot) message.parts[parts - 1].length += take;
                else message.parts[parts++] = out_.part(slot, take, message.copied);
                message.copied += take;
            }
            in_slot = !memory;
            message.bytes += take;
            at += take;
            if (at == from.iov_len) {
                ++vector;
                at = 0;
            }
        }
        total += static_cast<int32_t>(message.bytes);
    }
    if (count == 0 || !post({chain, count})) return false;
    owner_.finished(*std::exchange(sending_, nullptr), total);
    return true;
}

bool Pipe::take() {
    const msghdr& message = receiving_->message;
    int32_t total = 0;
    for (size_t vector = 0; vector < message.msg_iovlen; ++vector) {
        const iovec& to = message.msg_iov[vector];
        for (size_t at = 0; at < to.iov_len && readable();) {
            const Arrived& first = arrived_[first_ % arrived_.size()];
            const size_t bytes = std::min<size_t>(to.iov_len - at, first.bytes - at_);
            std::memcpy(static_cast<std::byte*>(to.iov_base) + at, in_.at(first.slot) + at_, bytes);
            at += bytes;
            total += static_cast<int32_t>(bytes);
            at_ += static_cast<uint32_t>(bytes);
            if (at_ < first.bytes) continue;
            at_ = 0;
            ++first_;
            ++owed_;
            if (!broken_ && !post_receive(first.slot)) broken_ = "no receive can be posted";
        }
    }
    if (total) owner_.finished(*std::exchange(receiving_, nullptr), total);
    return total != 0;
}

void Pipe::settle() {
    if (receiving_ && readable()) take();
    if (sending_ && !broken_) transmit();
    if (owed_ >= slots / 4 && posted_ - sent_ < slots && !broken_) {
        Message empty{};
        (void)post({&empty, 1});
    }
    if (broken_ && !readable()) fail_all(broken_);
}

}   // namespace gradcast::rdma
