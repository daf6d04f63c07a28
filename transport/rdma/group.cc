#include "transport/rdma/group.h"

#include <netinet/udp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/core/clock.h"
#include "runtime/core/net/interface.h"

namespace gradcast::rdma {
namespace {

constexpr uint32_t grh_bytes = 40;            // before the payload of each receive
constexpr uint32_t receive_bytes = 8 << 20;   // that wait, by default
constexpr uint64_t join_limit_us = 5'000'000;
constexpr uint64_t kind_send = uint64_t{1} << 31;

ibv_ah_attr path_to(const Port& port, const uint8_t* gid, uint16_t lid) {
    ibv_ah_attr path{};
    path.port_num = static_cast<uint8_t>(port.about.port);
    path.dlid = lid;
    path.is_global = 1;
    std::memcpy(path.grh.dgid.raw, gid, 16);
    path.grh.sgid_index = static_cast<uint8_t>(port.about.gid_index);
    path.grh.hop_limit = 64;
    return path;
}

// The sender's GID.  With RoCE v2 over IPv4 the last 20 bytes of the header are an IPv4 header.
void source_of(const std::byte* header, in6_addr* gid) {
    const bool v4 = (header[0] >> 4) != std::byte{6} && (header[20] >> 4) == std::byte{4};
    if (!v4) {
        std::memcpy(gid->s6_addr, header + 8, 16);
        return;
    }
    std::memset(gid->s6_addr, 0, 10);
    gid->s6_addr[10] = gid->s6_addr[11] = 0xff;
    std::memcpy(gid->s6_addr + 12, header + 32, 4);
}

}   // namespace

uint32_t Group::receives(const Port& port, const DatagramConfig& config) {
    const uint32_t wanted = (config.socket_bytes ? config.socket_bytes : receive_bytes) / (port.about.mtu + grh_bytes);
    return std::clamp(wanted, 64u, std::min<uint32_t>(static_cast<uint32_t>(port.limits.max_qp_wr), 8192));
}

Group::~Group() {
    if (attached_) (void)ibv_detach_mcast(pair_.get(), &group_path_.grh.dgid, group_path_.dlid);
}

Status Group::open(ibv_cq* queue, const DatagramConfig& config, DatagramSockets* sockets) {
    const uint32_t mtu = port_.about.mtu, receives = Group::receives(port_, config);
    if (config.segment_bytes > rdma_segment(mtu))
        return fail(Code::invalid, "datagrams of {} bytes do not fit RDMA device {}, whose MTU is {}: give every node one MTU",
                    config.segment_bytes, port_.about.name, mtu);
    GC_TRY(join(config));
    GC_TRY(in_.open(port_, receives, mtu + grh_bytes));
    GC_TRY(out_.open(port_, sends, mtu));
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = queue;
    wanted.qp_type = IBV_QPT_UD;
    wanted.cap = {sends, receives, 1, 1, 0};
    pair_.reset(ibv_create_qp(port_.domain.get(), &wanted));
    if (!pair_) return fail_sys(errno, "RDMA device {} has no room for datagrams", port_.about.name);
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = static_cast<uint8_t>(port_.about.port);
    attributes.qkey = key_;
    int error = ibv_modify_qp(pair_.get(), &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
    attributes.qp_state = IBV_QPS_RTR;
    if (!error) error = ibv_modify_qp(pair_.get(), &attributes, IBV_QP_STATE);
    attributes.qp_state = IBV_QPS_RTS;
    if (!error) error = ibv_modify_qp(pair_.get(), &attributes, IBV_QP_STATE | IBV_QP_SQ_PSN);
    if (error) return fail_sys(error, "RDMA device {} does not open for datagrams", port_.about.name);
    works_.resize(receives_max);
    parts_.resize(receives_max);
    from_.resize(receives_max);
    taken_.reserve(receives_max);
    for (uint32_t slot = 0; slot < receives; ++slot)
        if (!post_receives({&slot, 1})) return fail_sys(errno, "RDMA device {} takes no receive", port_.about.name);
    if ((error = ibv_attach_mcast(pair_.get(), &group_path_.grh.dgid, group_path_.dlid)) != 0)
        return fail_sys(error, "RDMA device {} does not join group {}", port_.about.name, config.group);
    attached_ = true;
    group_handle_.reset(ibv_create_ah(port_.domain.get(), &group_path_));
    if (!group_handle_) return fail_sys(errno, "RDMA device {} has no path to group {}", port_.about.name, config.group);

    auto& group = reinterpret_cast<sockaddr_in6&>(sockets->group_address.storage);
    auto& own = reinterpret_cast<sockaddr_in6&>(sockets->own_address.storage);
    group.sin6_family = own.sin6_family = AF_INET6;
    sockets->group_address.bytes = sockets->own_address.bytes = sizeof own;
    std::memcpy(&group.sin6_addr, group_path_.grh.dgid.raw, 16);
    group.sin6_flowinfo = group_pair_;
    std::memcpy(&own.sin6_addr, port_.about.gid.data(), 16);
    own.sin6_flowinfo = pair_->qp_num;
    own.sin6_scope_id = port_.lid;
    sockets->interface = port_.about.name;
    sockets->mtu = mtu;
    sockets->segments = sockets->joins = true;   // bursts in one Op
    return {};
}

Status Group::join(const DatagramConfig& config) {
    NetworkInterface interface;
    SocketAddress group;
    GC_TRY(address_resolve(config.group, false, &group));
    GC_TRY(interface_find(config.interface, &interface, group.storage.ss_family));
    events_.reset(rdma_create_event_channel());
    rdma_cm_id* id = nullptr;
    if (!events_ || rdma_create_id(events_.get(), &id, nullptr, RDMA_PS_UDP) != 0)
        return fail_sys(errno, "cannot ask for a multicast group over RDMA (modprobe rdma_ucm?)");
    membership_.reset(id);
    if (rdma_bind_addr(id, reinterpret_cast<sockaddr*>(&interface.address.storage)) != 0 || !id->verbs)
        return fail_sys(errno, "interface {} belongs to no RDMA device: name the one of {} ({})", interface.name, port_.about.name,
                        port_.about.interface);
    if (ibv_get_device_name(id->verbs->device) != port_.about.name)
        return fail(Code::invalid, "interface {} belongs to RDMA device {}, not to {}: choose one of both", interface.name,
                    ibv_get_device_name(id->verbs->device), port_.about.name);
    if (rdma_join_multicast(id, reinterpret_cast<sockaddr*>(&group.storage), nullptr) != 0)
        return fail_sys(errno, "RDMA device {} cannot join group {}", port_.about.name, config.group);
    pollfd waiting{events_->fd, POLLIN, 0};
    for (const uint64_t until = clock_us() + join_limit_us;;) {
        const uint64_t now = clock_us();
        const int ready = now < until ? ::poll(&waiting, 1, static_cast<int>((until - now) / 1000 + 1)) : 0;
        if (ready > 0) break;
        if (ready == 0)
            return fail(Code::deadline, "RDMA device {} has not joined group {} within {} s: is there a subnet manager?", port_.about.name,
                        config.group, join_limit_us / 1'000'000);
    }
    rdma_cm_event* event = nullptr;
    if (rdma_get_cm_event(events_.get(), &event) != 0) return fail_sys(errno, "RDMA device {}: no answer for its group", port_.about.name);
    const bool joined = event->event == RDMA_CM_EVENT_MULTICAST_JOIN && event->status == 0;
    const int status = event->status;
    if (joined) {
        group_path_ = event->param.ud.ah_attr;
        group_pair_ = event->param.ud.qp_num;
        key_ = event->param.ud.qkey;
    }
    rdma_ack_cm_event(event);
    if (!joined)
        return fail_text(Code::node_io, status < 0 ? -status : status,
                         fmt::format("RDMA device {} is refused by group {}: see the subnet manager, or take transport.kind = \"ip\"",
                                     port_.about.name, config.group));
    group_path_.port_num = static_cast<uint8_t>(port_.about.port);
    group_path_.grh.sgid_index = static_cast<uint8_t>(port_.about.gid_index);
    return {};
}

bool Group::post_receives(std::span<const uint32_t> slots) {
    for (size_t i = 0; i < slots.size(); ++i) {
        parts_[i] = in_.part(slots[i], in_.bytes());
        works_[i] = {};
        works_[i].wr_id = slots[i];
        works_[i].sg_list = &parts_[i];
        works_[i].num_sge = 1;
        works_[i].next = i + 1 < slots.size() ? &works_[i + 1] : nullptr;
    }
    ibv_recv_wr* bad;
    return slots.empty() || (errno = ibv_post_recv(pair_.get(), works_.data(), &bad)) == 0;
}

void Group::give_back() {
    if (!broken_ && !post_receives(taken_)) broken_ = "it takes no receive";
    taken_.clear();
}

void Group::complete(const ibv_wc& done, std::vector<DatagramsReceived>* received) {
    if (done.wr_id & kind_send) ++sent_;
    if (done.status != IBV_WC_SUCCESS && !broken_) broken_ = ibv_wc_status_str(done.status);
    if (broken_ || (done.wr_id & kind_send)) return;
    const uint32_t slot = static_cast<uint32_t>(done.wr_id);
    sockaddr_storage& storage = from_[taken_.size()];
    taken_.push_back(slot);
    if (done.byte_len < grh_bytes) return;
    auto& from = reinterpret_cast<sockaddr_in6&>(storage);
    from = {};
    from.sin6_family = AF_INET6;
    from.sin6_flowinfo = done.src_qp;
    from.sin6_scope_id = done.slid;
    source_of(in_.at(slot), &from.sin6_addr);
    const uint32_t bytes = done.byte_len - grh_bytes;
    received->push_back({{in_.at(slot) + grh_bytes, bytes}, &storage, std::max(bytes, 1u), false});
}

ibv_ah* Group::route(const sockaddr_in6& to) {
    if (to.sin6_flowinfo == group_pair_ && std::memcmp(&to.sin6_addr, group_path_.grh.dgid.raw, 16) == 0) return group_handle_.get();
    const auto lid = static_cast<uint16_t>(to.sin6_scope_id);
    for (const Route& each : routes_)
        if (each.lid == lid && std::memcmp(each.gid.data(), &to.sin6_addr, 16) == 0) return each.handle.get();
    Route made{{}, lid, nullptr};
    std::memcpy(made.gid.data(), &to.sin6_addr, 16);
    ibv_ah_attr path = path_to(port_, made.gid.data(), lid);
    made.handle.reset(ibv_create_ah(port_.domain.get(), &path));
    ibv_ah* const handle = made.handle.get();
    if (handle) routes_.push_back(std::move(made));
    return handle;
}

void Group::start(Op& chain) {
    for (Op* op = &chain; op; op = op->next) {
        GC_ASSERT(!op->busy);
        op->busy = true;
    }
    GC_ASSERT(!first_);   // one chain at a time
    first_ = &chain;
    vector_ = at_ = 0;
    done_bytes_ = 0;
}

void Group::cancel(Op& op) {
    // What is not sent is dropped: advance() returns it.
    for (Op* each = first_; each; each = each->next)
        if (each == &op) error_ = ECANCELED;
}

// Sends the next datagram of an Op.  False: no room.
bool Group::send_one(Op& op) {
    if (broken_) error_ = ENETDOWN;
    if (broken_) return true;
    if (posted_ - sent_ >= sends) return false;
    msghdr& message = op.message;
    uint32_t segment = ~0u;
    for (cmsghdr* each = CMSG_FIRSTHDR(&message); each; each = CMSG_NXTHDR(&message, each))
        if (each->cmsg_level == SOL_UDP && each->cmsg_type == UDP_SEGMENT) {
            uint16_t bytes;
            std::memcpy(&bytes, CMSG_DATA(each), sizeof bytes);
            segment = bytes;
        }
    const auto& to = *static_cast<const sockaddr_in6*>(message.msg_name);
    const uint32_t slot = static_cast<uint32_t>(posted_ % sends);
    uint32_t bytes = 0;
    while (vector_ < message.msg_iovlen && bytes < segment) {
        const iovec& from = message.msg_iov[vector_];
        const size_t take = std::min<size_t>(from.iov_len - at_, segment - bytes);
        if (bytes + take > out_.bytes()) {
            error_ = EMSGSIZE;
            return true;
        }
        std::memcpy(out_.at(slot) + bytes, static_cast<std::byte*>(from.iov_base) + at_, take);
        bytes += static_cast<uint32_t>(take);
        at_ += take;
        if (at_ == from.iov_len) {
            ++vector_;
            at_ = 0;
        }
    }
    ibv_sge part = out_.part(slot, bytes);
    ibv_send_wr work{}, *bad;
    work.wr_id = kind_send;
    work.sg_list = &part;
    work.num_sge = 1;
    work.opcode = IBV_WR_SEND;
    work.send_flags = IBV_SEND_SIGNALED;
    work.wr.ud.ah = route(to);
    work.wr.ud.remote_qpn = to.sin6_flowinfo;
    work.wr.ud.remote_qkey = key_;
    const int error = work.wr.ud.ah ? ibv_post_send(pair_.get(), &work, &bad) : EHOSTUNREACH;
    if (error) {
        error_ = error;
        return true;
    }
    ++posted_;
    done_bytes_ += static_cast<int32_t>(bytes);
    return true;
}

void Group::advance(std::vector<Op*>* finished) {
    while (first_) {
        Op& op = *first_;
        while (!error_ && vector_ < op.message.msg_iovlen)
            if (!send_one(op)) return;
        op.result = error_ ? -error_ : done_bytes_;
        error_ = error_ == ECANCELED && op.next ? ECANCELED : 0;
        first_ = op.next;
        vector_ = at_ = 0;
        done_bytes_ = 0;
        finished->push_back(&op);
    }
    error_ = 0;
}

}   // namespace gradcast::rdma
