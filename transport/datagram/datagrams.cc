#include "transport/datagram/datagrams.h"

#include <fmt/format.h>
#include <netinet/udp.h>

#include <algorithm>
#include <bit>
#include <cerrno>

#include "runtime/core/bits.h"
#include "runtime/core/net/interface.h"

namespace gradcast {

namespace {
constexpr uint32_t burst_bytes_max = 63'000;     // above it shapers segment a burst in software (veth: above 65490)
constexpr uint32_t flight_bytes_max = 160'000;   // in the kernel at a time: about the default send buffer
constexpr uint64_t queue_max = 65536;
constexpr uint64_t minute_us = 60'000'000;
constexpr uint64_t suspicious = 100;   // bad datagrams from one address in a minute

uint16_t route_of(const LinkConfig& config, uint32_t view) {
    uint32_t job;
    std::memcpy(&job, config.job.data(), sizeof job);
    return datagram_route(job, view);
}
DatagramShape shape_of(const LinkConfig& config, uint32_t view) {
    DatagramShape shape;
    shape.route = route_of(config, view);
    shape.view = view;
    shape.ranks = static_cast<uint32_t>(config.peers.size());
    shape.segment_bytes = config.datagrams.segment_bytes;
    shape.self = config.rank;
    shape.protect = config.protect;
    shape.packets_per_key = config.packets_per_key;
    return shape;
}
bool same_host(const sockaddr_storage& a, const sockaddr_storage& b) {
    if (a.ss_family != b.ss_family) return false;
    if (a.ss_family == AF_INET)
        return reinterpret_cast<const sockaddr_in&>(a).sin_addr.s_addr == reinterpret_cast<const sockaddr_in&>(b).sin_addr.s_addr;
    return std::memcmp(&reinterpret_cast<const sockaddr_in6&>(a).sin6_addr, &reinterpret_cast<const sockaddr_in6&>(b).sin6_addr, 16) == 0;
}
bool same_address(const SocketAddress& a, const sockaddr_storage& b) {
    const auto port = [](const sockaddr_storage& s) {   // the same offset in both families
        return reinterpret_cast<const sockaddr_in&>(s).sin_port;
    };
    // With RDMA the flow label is the queue pair; else it is 0.
    const bool flow = a.storage.ss_family != AF_INET6 || reinterpret_cast<const sockaddr_in6&>(a.storage).sin6_flowinfo ==
                                                             reinterpret_cast<const sockaddr_in6&>(b).sin6_flowinfo;
    return flow && same_host(a.storage, b) && port(a.storage) == port(b);
}
}   // namespace

Datagrams::Datagrams(const LinkConfig& config, const Log& log, LinkCounters& counters, InlinePool& pool, LinkOwner& owner)
    : config_(config),
      log_(log),
      counters_(counters),
      pool_(pool),
      owner_(owner),
      sealer_(shape_of(config, config.view)),
      receiver_(shape_of(config, config.view)),
      mates_(config.peers.size()),
      blank_(config.datagrams.segment_bytes) {
    receiver_.attach(datagram_channel_probe);
}

Status Datagrams::open(Proactor& proactor, Rdma* rdma) {
    proactor_ = &proactor;
    GC_TRY(rdma ? rdma->datagrams_open(config_.datagrams, &sockets_) : datagram_sockets_open(config_.datagrams, log_, &sockets_));
    sockets_.rdma = rdma;
    if (!sockets_.segments)
        log_.warn("the kernel cannot cut datagrams itself (UDP_SEGMENT, Linux 4.18): each is sent by itself, which costs more CPU");
    for (Fd* fd : {&sockets_.group, &sockets_.own}) {
        if (rdma) continue;
        proactor.add(fd->get());
        GC_TRY(proactor.receive_datagrams(fd->get()));
    }
    for (Burst& burst : bursts_) {
        burst.frames = std::make_unique_for_overwrite<std::byte[]>(burst_max * frame_bytes);
        if (config_.protect == Protect::encrypt) burst.cipher = std::make_unique_for_overwrite<std::byte[]>(burst_bytes_max);
        bursts_free_.push_back(&burst);
    }
    for (Shot& shot : shots_) {
        shot.op.kind = Op::Kind::send_datagrams;
        shot.op.link = this;
        shot.op.owner = &shot;
        shot.op.fd = sockets_.own.get();
    }
    sizes_[0] = sizes_[1] = config_.datagrams.segment_bytes;
    uint32_t stage = 2;
    for (uint32_t mtu : {1500u, 1400u, 1280u})
        if (uint32_t bytes = datagram_segment(mtu, sockets_.ipv6()); bytes < config_.datagrams.segment_bytes) sizes_[stage++] = bytes;
    found_.group = config_.datagrams.group;
    found_.interface = sockets_.interface;
    found_.bytes = config_.datagrams.segment_bytes;
    found_.gso = sockets_.segments;
    found_.gro = sockets_.joins;
    return {};
}

void Datagrams::add_peer() {
    mates_.emplace_back();
    receiver_.add();
    if (view_receiver_) view_receiver_->add();
}

void Datagrams::Queue::push(const Queued& queued) {
    if (size() == ring_.size()) {
        std::vector<Queued> larger(2 * ring_.size());
        for (uint64_t i = first_; i < end_; ++i) larger[i & (larger.size() - 1)] = ring_[i & (ring_.size() - 1)];
        ring_ = std::move(larger);
    }
    ring_[end_++ & (ring_.size() - 1)] = queued;
}

// ---- views ---------------------------------------------------------------------------------------------------------------------

void Datagrams::open_view(uint32_t number, std::span<const uint16_t> channels) {
    if (channels.empty()) return;
    if (!std::exchange(needed_, true)) give_up_us_ = now_us_ + give_up_after_us();
    view_sealer_ = std::make_unique<DatagramSealer>(shape_of(config_, number));
    view_receiver_ = std::make_unique<DatagramReceiver>(shape_of(config_, number));
    for (const uint16_t channel : channels) view_receiver_->attach(channel);
    for (Rank rank = 0; rank < mates_.size(); ++rank) {
        const Mate& mate = mates_[rank];
        if (mate.key_view == number) view_receiver_->key(rank, mate.view_key);
        if (mate.up && !mate.lost) send_key(rank, *view_sealer_, number);
    }
}

void Datagrams::close_view(uint32_t, std::span<const uint16_t>) {
    if (!view_sealer_) return;
    past_view_ = view_receiver_->view();
    for (uint64_t rest = data_.size(); rest > 0; --rest) {
        const Queued queued = data_.front();
        data_.pop();
        if (!in_view(queued.send.channel)) {
            data_.push(queued);
            continue;
        }
        if (queued.inlined) pool_.give(queued.send.payload.host);
        if (queued.ticket != ticket_none) owner_.done(queued.ticket, {});
    }
    for (Burst& burst : bursts_) {
        if (burst.open == 0 || burst.closing) continue;
        burst.closing = true;
        ++closing_bursts_;
    }
    view_sealer_ = nullptr;
    view_receiver_ = nullptr;
}

/// Takes a datagram of the open view or of the link itself.
DatagramFault Datagrams::take(std::span<std::byte> bytes) {
    if (view_receiver_) {
        const DatagramFault fault = view_receiver_->take(bytes, *this);
        if (fault != DatagramFault::route && fault != DatagramFault::type) return fault;
    }
    const DatagramFault fault = receiver_.take(bytes, *this);
    if (fault != DatagramFault::route) return fault;
    DatagramHeader header;
    std::memcpy(&header, bytes.data(), sizeof header);
    auto is_of = [&](uint32_t view) { return view && header.route.get() == route_of(config_, view); };
    if (is_of(past_view_)) return DatagramFault::view;
    return header.sender.get() < mates_.size() && is_of(mates_[header.sender.get()].key_view) ? DatagramFault::view : fault;
}

// ---- sending -------------------------------------------------------------------------------------------------------------------

void Datagrams::send(const Send& send, uint32_t ticket) {
    GC_ASSERT(send.payload.bytes <= config_.datagrams.segment_bytes && send.channel != datagram_channel_probe);
    if (data_.size() == queue_max) {
        add(counters_.datagrams_unsent, uint64_t{1});
        if (ticket != ticket_none) owner_.done(ticket, {});
        return;
    }
    Queued queued{send, ticket, send.payload.bytes != 0 && send.payload.bytes <= inline_bytes_max, false};
    if (queued.inlined) {
        queued.send.payload.host = pool_.take();
        std::memcpy(queued.send.payload.host, send.payload.host, send.payload.bytes);
    }
    data_.push(queued);
    sent_ = true;
}

void Datagrams::append(Burst& burst, std::byte* bytes, size_t count) {
    if (count == 0) return;
    if (burst.vectors_used) {
        iovec& last = burst.vectors[burst.vectors_used - 1];
        if (static_cast<std::byte*>(last.iov_base) + last.iov_len == bytes) {
            last.iov_len += count;
            return;
        }
    }
    burst.vectors[burst.vectors_used++] = {bytes, count};
}

// Takes datagrams from the queue that can share a burst, and seals them.
Datagrams::Burst* Datagrams::next_burst() {
    Queue& queue = !trains_.empty() ? trains_ : data_;
    if (queue.empty() || (&queue == &data_ && phase_ != Phase::settled)) return nullptr;
    Burst& burst = *bursts_free_.back();
    bursts_free_.pop_back();
    burst.vectors_used = burst.count = burst.bytes = burst.next = 0;
    burst.open = 1;
    burst.aimed = false;
    burst.closing = false;
    burst.probes = &queue == &trains_;
    burst.to = queue.front().send.to;
    burst.to_group = queue.front().to_group;
    burst.copies = queue.front().send.copies;
    burst.segment_bytes = static_cast<uint32_t>(queue.front().send.payload.bytes) + frame_bytes;
    const uint32_t count_max = sockets_.segments && !queue.front().alone ? burst_max : 1;
    for (uint32_t bytes = burst.segment_bytes; !queue.empty() && burst.count < count_max && bytes == burst.segment_bytes; queue.pop()) {
        const Queued& queued = queue.front();
        const Send& send = queued.send;
        bytes = static_cast<uint32_t>(send.payload.bytes) + frame_bytes;
        if (bytes > burst.segment_bytes || burst.bytes + bytes > burst_bytes_max || queued.to_group != burst.to_group ||
            (queued.alone && burst.count > 0) || send.to.bits != burst.to.bits || send.copies != burst.copies ||
            (!send.to.bits && send.to.rank != burst.to.rank))
            break;
        std::byte* header = burst.frames.get() + burst.count * frame_bytes;
        std::byte* payload = send.payload.host;
        if (burst.cipher) payload = burst.cipher.get() + burst.bytes;
        (in_view(send.channel) ? *view_sealer_ : sealer_).seal(send, header, payload);
        append(burst, header, frame_bytes);
        append(burst, payload, send.payload.bytes);
        burst.tickets[burst.count] = queued.ticket;
        burst.inlined[burst.count++] = queued.inlined ? send.payload.host : nullptr;
        burst.bytes += bytes;
    }
    if (burst.to.bits && multicast_ && !burst.to_group && !burst.copies) {
        uint32_t receivers = 0;
        for (size_t word = 0; word < bit_words(mates_.size()); ++word)
            receivers += static_cast<uint32_t>(std::popcount(burst.to.bits[word]));
        burst.to_group = receivers > 1;
    }
    return &burst;
}

// The burst's next address; null: none remains.
const SocketAddress* Datagrams::aim(Burst& burst) {
    if (burst.to_group) return burst.next++ == 0 ? &sockets_.group_address : nullptr;
    while (burst.next < mates_.size()) {
        const Rank rank = burst.next;
        if (!burst.to.bits) {
            burst.next = static_cast<Rank>(mates_.size());
            const Mate& mate = mates_[burst.to.rank];
            if (mate.addressed && (burst.probes || !mate.by_stream)) return &mate.address;
            break;
        }
        ++burst.next;
        const Mate& mate = mates_[rank];
        if (bit(burst.to.bits, rank) && mate.addressed && (burst.probes || !mate.by_stream)) return &mate.address;
    }
    return nullptr;
}

void Datagrams::load(Shot& shot, Burst& burst, const SocketAddress& to) {
    shot.burst = &burst;
    ++burst.open;
    burst.aimed = true;
    shot.op.next = nullptr;
    msghdr& message = shot.op.message;
    message = {};
    message.msg_name = const_cast<sockaddr_storage*>(&to.storage);   // not written
    message.msg_namelen = to.bytes;
    message.msg_iov = burst.vectors;
    message.msg_iovlen = burst.vectors_used;
    if (burst.count == 1) return;
    message.msg_control = shot.control;
    message.msg_controllen = sizeof shot.control;
    cmsghdr* control = CMSG_FIRSTHDR(&message);
    control->cmsg_level = SOL_UDP;
    control->cmsg_type = UDP_SEGMENT;
    control->cmsg_len = CMSG_LEN(sizeof(uint16_t));
    const uint16_t segment = static_cast<uint16_t>(burst.segment_bytes);
    std::memcpy(CMSG_DATA(control), &segment, sizeof segment);
}

// One chain of sends at a time: datagrams leave in order of their sequence numbers, because a receiver takes gaps for losses.  The kernel's
// send buffer keeps the link busy until the next chain.
void Datagrams::pump(uint64_t now) {
    probe(now);
    if (flying_) return;
    uint64_t bytes = 0;
    while (flying_ < shots_max && bytes < flight_bytes_max) {
        if (!current_) {
            if (!(current_ = next_burst())) break;
            if (by_streams_ > 0 && !current_->probes) detour(*current_);
        }
        if (const SocketAddress* to = aim(*current_)) {
            load(shots_[flying_], *current_, *to);
            if (flying_) shots_[flying_ - 1].op.next = &shots_[flying_].op;
            ++flying_;
            bytes += current_->bytes;
        } else {
            if (!current_->aimed) add(counters_.datagrams_unsent, uint64_t{current_->count});   // no receiver has an address
            release(*std::exchange(current_, nullptr));
        }
    }
    if (flying_) proactor_->start(shots_[0].op);
}

void Datagrams::detour(Burst& burst) {
    flat_.clear();
    for (uint32_t i = 0; i < burst.vectors_used; ++i) {
        const auto* bytes = static_cast<const std::byte*>(burst.vectors[i].iov_base);
        flat_.insert(flat_.end(), bytes, bytes + burst.vectors[i].iov_len);
    }
    for (Rank rank = 0; rank < mates_.size(); ++rank) {
        const bool wanted = burst.to.bits ? bit(burst.to.bits, rank) : burst.to.rank == rank;
        if (!wanted || !mates_[rank].by_stream) continue;
        burst.aimed = true;
        for (size_t at = 0; at < flat_.size(); at += burst.segment_bytes) {
            Send send;
            send.to.rank = rank;
            send.type = PacketType::datagram;
            send.payload = {flat_.data() + at, nullptr, std::min<size_t>(burst.segment_bytes, flat_.size() - at)};   // the stream copies it
            owner_.send_link_packet(rank, send);
        }
    }
}

void Datagrams::release(Burst& burst) {
    if (--burst.open) return;
    for (uint32_t i = 0; i < burst.count; ++i) {
        if (burst.inlined[i]) pool_.give(burst.inlined[i]);
        if (burst.tickets[i] != ticket_none) owner_.done(burst.tickets[i], {});
    }
    closing_bursts_ -= burst.closing;
    burst.closing = false;
    bursts_free_.push_back(&burst);
}

void Datagrams::complete(Op& op, uint64_t now) {
    Shot& shot = *static_cast<Shot*>(op.owner);
    --flying_;
    if (op.result >= 0) {
        add(counters_.bytes_sent, static_cast<uint64_t>(op.result));
        add(counters_.packets_sent, uint64_t{shot.burst->count});
    } else failed(shot, -op.result, now);
    release(*shot.burst);
}

void Datagrams::failed(const Shot& shot, int error, uint64_t now) {
    const Burst& burst = *shot.burst;
    add(counters_.datagrams_unsent, uint64_t{burst.count});
    if (error == ECANCELED) return;
    const uint32_t mtu = interface_mtu(sockets_.interface), needed = burst.segment_bytes + (sockets_.ipv6() ? 48 : 28);
    if (error == EINVAL && mtu < needed) error = EMSGSIZE;   // the kernel's error for UDP_SEGMENT above the MTU
    if ((error == EIO || error == EINVAL) && burst.count > 1) {
        if (sockets_.segments)
            log_.warn("interface {} does not take datagrams to be cut (UDP_SEGMENT: {}): each is sent by itself, which costs more CPU",
                      sockets_.interface, std::strerror(error));
        sockets_.segments = false;
        return;
    }
    if (complained_us_ && now < complained_us_ + minute_us) return;
    complained_us_ = now;
    SocketAddress to;
    to.bytes = shot.op.message.msg_namelen;
    std::memcpy(&to.storage, shot.op.message.msg_name, to.bytes);
    if (error == EMSGSIZE)
        log_.error("datagrams of {} bytes to {} do not fit interface {} any more, whose MTU is now {}: set it to {} or more",
                   burst.segment_bytes - frame_bytes, address_text(to), sockets_.interface, mtu, needed);
    else log_.warn("datagrams to {} by interface {} are not sent: {}", address_text(to), sockets_.interface, std::strerror(error));
}

void Datagrams::close() {
    for (Shot& shot : shots_) proactor_->cancel(shot.op);
    proactor_->stop_datagrams();
}

// ---- receiving -----------------------------------------------------------------------------------------------------------------

void Datagrams::receive(uint64_t now) {
    now_us_ = now;
    uint64_t bytes = 0, packets = 0;
    auto own = [this](const DatagramsReceived& each) { return same_address(sockets_.own_address, *each.from); };
    for (const DatagramsReceived& each : proactor_->received())
        if (!own(each)) bytes += each.bytes.size();
    if (bytes) add(counters_.bytes_received, bytes);   // before the protocols see the datagrams: they may read the counters
    std::array<uint64_t, static_cast<size_t>(DatagramFault::kinds)> faults{};
    for (const DatagramsReceived& each : proactor_->received()) {
        if (own(each)) {
            faults[static_cast<size_t>(DatagramFault::own)] += (each.bytes.size() + each.segment_bytes - 1) / each.segment_bytes;
            continue;
        }
        for (std::span<std::byte> rest = each.bytes; !rest.empty() || each.bytes.empty();) {
            const std::span one = rest.first(std::min<size_t>(rest.size(), each.segment_bytes));
            rest = rest.subspan(one.size());
            const DatagramFault fault = each.truncated && rest.empty() ? DatagramFault::truncated : take(one);
            ++faults[static_cast<size_t>(fault)];
            if (fault == DatagramFault::magic || fault == DatagramFault::route || fault == DatagramFault::sender ||
                fault == DatagramFault::tag)
                suspect(*each.from, now);
            if (each.bytes.empty()) break;
        }
    }
    for (size_t fault = 0; fault < faults.size(); ++fault) {
        if (fault != static_cast<size_t>(DatagramFault::own)) packets += faults[fault];
        if (fault && faults[fault]) add(counters_.datagrams_dropped[fault], faults[fault]);
    }
    if (packets) add(counters_.packets_received, packets);
    if (std::exchange(reporting_, false)) report();
}

// Finds the address with most bad datagrams by majority vote: a count that those of other addresses lower.
void Datagrams::suspect(const sockaddr_storage& from, uint64_t now) {
    if (suspect_count_ == 0 || now > suspect_since_us_ + minute_us) {
        suspect_ = from;
        suspect_count_ = 0;
        suspect_since_us_ = now;
    }
    same_host(suspect_, from) ? ++suspect_count_ : --suspect_count_;
    if (suspect_count_ < suspicious || (suspect_said_us_ && now < suspect_said_us_ + minute_us)) return;
    suspect_said_us_ = now;
    suspect_count_ = 0;
    if (config_.datagrams.probe_only) return;
    SocketAddress address{from, static_cast<socklen_t>(from.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in))};
    log_.warn("group {} is also used by {} (another cluster?), which costs time alone: a job that is submitted again gets another group",
              config_.datagrams.group, address_text(address));
}

Landing Datagrams::land(const Packet& packet, uint64_t bytes, Buffer* place) {
    return packet.type == PacketType::probe ? Landing::lease : owner_.land(packet, bytes, place);
}

void Datagrams::packet(const Packet& packet) {
    if (packet.type != PacketType::probe) return owner_.packet(packet);
    const ProbeBody body = body_of<ProbeBody>(packet);
    Mate& mate = mates_[packet.sender];
    const uint32_t stage = body.stage.get();
    if (stage == watch_stage) return void(++mate.watch_received);
    if (stage >= stages) return;
    if (body.round.get() != mate.round) {
        mate.round = body.round.get();
        std::fill(std::begin(mate.received), std::end(mate.received), 0);
        std::fill(std::begin(mate.train), std::end(mate.train), 0);
    }
    if (stage == 0) {
        if (now_us_ > arriving_.last_us + pause_us) arriving_ = {};
        arriving_.last_us = now_us_;
        const uint64_t bytes = packet.payload.bytes + datagram_wire_bytes;
        if (arriving_.first_bytes < burst_bytes) {
            arriving_.first_bytes += bytes;
            arriving_.from_us = now_us_;
        } else arriving_.later_bytes += bytes;
    }
    if (body.train.get() < mate.train[stage]) return;   // packets of an older train
    if (std::exchange(mate.train[stage], body.train.get()) != body.train.get()) mate.received[stage] = 0;
    ++mate.received[stage];
    mate.reports |= 1u << stage;
    reporting_ = true;
}

void Datagrams::report() {
    for (Rank rank = 0; rank < mates_.size(); ++rank) {
        Mate& mate = mates_[rank];
        for (uint32_t stage = 0; mate.reports; ++stage, mate.reports >>= 1) {
            if (!(mate.reports & 1)) continue;
            ProbeBody body{};
            body.round.set(mate.round);
            body.stage.set(static_cast<uint16_t>(stage));
            body.count.set(static_cast<uint16_t>(std::min(mate.received[stage], train_datagrams(stage))));
            if (stage == 0 && arriving_.later_bytes && arriving_.last_us > arriving_.from_us)
                body.rate_mbit.set(static_cast<uint32_t>(arriving_.later_bytes * 8 / (arriving_.last_us - arriving_.from_us)));
            Send send;
            send.to.rank = rank;
            send.type = PacketType::probe;
            send.body = body_bytes(body);
            owner_.send_link_packet(rank, send);
        }
    }
}

DatagramsFound Datagrams::found() const {
    std::lock_guard lock(found_mutex_);
    return found_;
}

}   // namespace gradcast
