#include "transport/stream/streams.h"

#include <algorithm>
#include <bit>
#include <cerrno>

#include "runtime/core/clock.h"
#include "runtime/core/net/interface.h"

namespace gradcast {

namespace {
constexpr uint64_t drain_parts = 8;       // of the deadline, after which a stream is broken that holds an ended view's memory
constexpr uint64_t ack_wait_us = 5'000;   // acknowledge after this time,
constexpr uint64_t ack_bytes = 1 << 20;   // after this many bytes, or with the next packet to the peer

/// Whoever is not here from the start connects: nobody knocks at nodes that may never come.
bool connects(const LinkConfig& config, Rank to) {
    const bool later = config.first > 0 && std::max(config.rank, to) >= config.first;
    return later ? config.rank > to : config.rank < to;
}
}   // namespace

// ---- all peers -----------------------------------------------------------------------------------------------------------------

Status Streams::open(Proactor& proactor, Rdma* rdma) {
    proactor_ = &proactor;
    rdma_ = rdma;
    const LinkConfig& c = config_;
    if (c.rails == 0 || c.rails > rails_max) return fail(Code::invalid, "{} rails to each peer: 1 to {} are possible", c.rails, rails_max);
    for (const std::string& each : c.interfaces) {
        NetworkInterface found;
        GC_TRY(interface_find(each, &found));
        interfaces_.push_back(found.address);
    }
    ring_ = c.ring ? c.ring : std::make_shared<KeyRing>(c.keys);
    while (peers_.size() < c.peers.size()) GC_TRY(make_peer());
    return {};
}

Status Streams::make_peer() {
    const LinkConfig& c = config_;
    const auto rank = static_cast<Rank>(peers_.size());
    peers_.emplace_back();
    if (rank == c.rank) return {};
    StreamConfig stream;
    std::memcpy(&stream.job, c.job.data(), sizeof stream.job);
    stream.view = c.view;
    stream.self = c.rank;
    stream.ranks = static_cast<uint32_t>(c.peers.size());
    stream.segment_bytes = c.segment_bytes;
    stream.protect = c.protect;
    stream.packets_per_key = c.packets_per_key;
    stream.peer = rank;
    peers_.back() = std::make_unique<Peer>(rank);
    Peer& peer = *peers_.back();
    peer.identity = c.peers[rank].identity;
    peer.active = connects(c, rank);
    peer.express = c.express;
    // Between daemons, which have no job, the order of names makes the ranks: they are not those of any job.
    const std::string by_rank = c.job == JobId{} ? "" : fmt::format("rank {}, ", rank);
    peer.label = fmt::format("peer '{}' ({}{})", peer.identity.name, by_rank, c.peers[rank].address);
    Status resolved;
    const std::vector<std::string>& more = c.peers[rank].rails;
    for (const std::string& address : more.empty() ? std::vector{c.peers[rank].address} : more)
        if (Status status = addresses_resolve(address, false, &peer.addresses.emplace_back()); peer.active && resolved.ok())
            resolved = status;
    for (uint32_t number = 0; number < c.connections(); ++number) {
        Rail& rail = *peer.rails.emplace_back(std::make_unique<Rail>(peer, number, stream, pool_));
        rail.way = number % ways(peer);
        for (Op* op : {&rail.connect, &rail.receive, &rail.send, &rail.watch}) {
            op->link = this;
            op->owner = &rail;
        }
        rail.connect.kind = Op::Kind::connect;
        rail.receive.kind = Op::Kind::receive;
        rail.send.kind = Op::Kind::send;
        rail.watch.kind = Op::Kind::receive;
        rail.watch.message.msg_iov = &rail.watch_to;
        rail.watch.message.msg_iovlen = 1;
    }
    begin_anew(peer);
    if (!resolved.ok()) peer.active = false;   // nothing to connect to
    return resolved;
}

void Streams::begin(uint64_t now) {
    for (const auto& peer : peers_)
        if (peer) begin(*peer, now, config_.first == 0 || peer->rank < config_.first);
}

Status Streams::add_peer(uint64_t now) {
    const Status status = make_peer();
    begin(*peers_.back(), now, false);
    return status;
}

void Streams::begin(Peer& peer, uint64_t now, bool here) {
    for (const auto& rail : peer.rails) rail->down_us = now;
    if (here) return;
    peer.lost = true;
    peer.last = fail(Code::peer_lost, "{}: it has not come yet", peer.label);
    owner_.lost(peer.rank, peer.last);
}

void Streams::tend(uint64_t now, bool again) {
    for (auto& peer : peers_)
        if (peer) tend(*peer, now);
    if (!again) return;
    each_rail([this, now](Rail& rail) {
        if (rail.state == Rail::State::open && rail.receiver.blocked()) parse(rail, now);
    });
}

void Streams::pump(uint64_t now) {
    each_rail([this, now](Rail& rail) { pump(rail, now); });
}

uint64_t Streams::due_us() const {
    uint64_t due = break_us_ > 0 ? break_us_ : ~uint64_t{0};
    each_rail([&](const Rail& rail) { due = std::min(due, due_us(rail)); });
    return due;
}

bool Streams::idle() const {
    bool idle = true;
    each_rail([&](const Rail& rail) {
        if (rail.peer.lost) return;
        idle &= !rail.send.busy && rail.sender.acknowledged() && !(rail.pipe && !rail.pipe->sent());
        idle &= rail.state != Rail::State::open || rail.sender.ack_sent() == rail.receiver.delivered();
    });
    return idle;
}

void Streams::close() {
    each_rail([this](Rail& rail) {
        rail.peer.final = true;
        fall(rail, {});
    });
}

bool Streams::busy() const {
    bool busy = false;
    each_rail([&](const Rail& rail) { busy |= rail.in_use(); });
    return busy;
}

// ---- completions ---------------------------------------------------------------------------------------------------------------

void Streams::complete(Op& op, uint64_t now) {
    Rail& rail = *static_cast<Rail*>(op.owner);
    const Peer& peer = rail.peer;
    uint64_t bytes = op.result > 0 ? static_cast<uint64_t>(op.result) : 0;
    if (op.kind == Op::Kind::receive) add(counters_.bytes_received, bytes);
    if (op.kind == Op::Kind::send) add(counters_.bytes_sent, bytes);
    if (rail.state == Rail::State::closing) return;
    if (op.pipe && op.result < 0) {
        leave_device(rail, fmt::format("RDMA device {} does not carry its stream any more ({})", rdma_->device(rail.end.device).name,
                                       rail.pipe->broken()));
        return fall(rail, fail(Code::peer_lost, "{}: the RDMA connection broke", peer.label));
    }
    if (&op == &rail.watch) {   // tend() breaks the stream when all that has come is taken
        rail.ended = op.result == 0  ? fail(Code::peer_lost, "{}: it has closed the stream", peer.label)
                     : op.result > 0 ? fail(Code::packet_invalid, "{}: bytes came beside its RDMA connection", peer.label)
                                     : fail_text(Code::peer_lost, -op.result, fmt::format("{}: the stream broke", peer.label));
        return;
    }
    if (op.result < 0) {
        std::string what = "the stream broke";
        if (op.kind == Op::Kind::connect) {
            rail.refused = op.result == -ECONNREFUSED ? rail.refused + 1 : 0;
            if (rail.refused >= peer.addresses[rail.way].size() && provable(peer)) rail.peer.losing = true;
            what = "cannot connect" + to_text(rail);
            next_way(rail);
        }
        return fall(rail, fail_text(Code::peer_lost, -op.result, fmt::format("{}: {}", peer.label, what)));
    }
    switch (op.kind) {
        case Op::Kind::connect:
            rail.refused = 0;
            if (!peer.active) return fall(rail, {});   // it is alive and will connect
            rail.state = Rail::State::greeting;
            rail.greet_us = now + greet_limit_us;
            open_pipe(rail, device_of(rail));
            offer(rail);
            break;
        case Op::Kind::receive:
            if (bytes == 0) return fall(rail, fail(Code::peer_lost, "{}: it has closed the stream", peer.label));
            if (rail.state == Rail::State::greeting) return greet(rail, std::span(rail.greeting).first(bytes), now);
            rail.unacknowledged_bytes += bytes;
            received_us_[peer.rank] = now;
            rail.receiver.received(bytes);
            parse(rail, now);
            break;
        case Op::Kind::send:
            if (!rail.greeting_out.empty()) {
                rail.greeting_out.erase(rail.greeting_out.begin(), rail.greeting_out.begin() + op.result);
                rail.small_bytes = std::max(rail.small_bytes, static_cast<uint32_t>(bytes));
            } else {
                rail.sender.wrote(bytes);
            }
            break;
        case Op::Kind::send_datagrams:
        case Op::Kind::poll: break;
    }
}

// What comes next may wait in another rail.
void Streams::parse(Rail& rail, uint64_t now) {
    for (Rail* at = &rail; take(*at, now);) {
        Rail& next = rail.peer.rail(&Rail::taken_bytes);
        if (&next == at || next.state != Rail::State::open || !next.receiver.blocked()) return;
        at = &next;
    }
}

// True if a packet was taken.
bool Streams::take(Rail& rail, uint64_t now) {
    GC_ASSERT(!rail.receive.busy);   // it writes where the receiver has said before
    receiving_ = &rail;
    const uint64_t before = rail.receiver.delivered();
    const char* why = rail.receiver.parse(*this);
    add(counters_.packets_received, rail.receiver.packets() - std::exchange(rail.counted_received, rail.receiver.packets()));
    if (why) {
        add(counters_.packets_refused, uint64_t{1});
        fall(rail, fail(Code::packet_invalid, "{}: {} came, the stream is begun again", rail.peer.label, why));
        return false;
    }
    if (std::exchange(rail.memory_waits, false)) rail.ack_us = now;
    else if (!rail.ack_us && rail.receiver.delivered() != rail.sender.ack_sent()) rail.ack_us = now + ack_wait_us;
    return rail.receiver.delivered() != before;
}
bool Streams::turn() const {
    const Peer& peer = receiving_->peer;
    return peer.up && (receiving_ == peer.express_rail() || receiving_ == &peer.rail(&Rail::taken_bytes));
}
void Streams::delivered(uint64_t bytes) { receiving_->taken_bytes += packet_cost(bytes); }
Landing Streams::land(const Packet& packet, uint64_t bytes, Buffer* place) {
    if (packet.type == PacketType::probe && bytes > 0) return Landing::drop;   // its acknowledgement is the answer
    return link_packet(packet.type) ? Landing::lease : owner_.land(packet, bytes, place);
}
void Streams::packet(const Packet& packet) {
    // The peer computes an edge's memory anew once it is acknowledged.
    receiving_->memory_waits |= packet.type == PacketType::edge;
    link_packet(packet.type) ? owner_.link_packet_received(packet) : owner_.packet(packet);
}
bool Streams::ack(uint64_t received) { return acked(*receiving_, received); }
bool Streams::acked(Rail& rail, uint64_t received) {
    if (!rail.sender.acked(received, [this](uint32_t ticket) { owner_.done(ticket, {}); })) return false;
    if (rail.probe > 0 && received >= rail.probe) {
        rail.peer.narrow = 0;
        answered(rail);
    }
    return true;
}

// ---- sending -------------------------------------------------------------------------------------------------------------------

void Streams::send(const Send& send, uint32_t ticket) {
    cut(send, config_.segment_bytes, [&](const Send& piece) { send_piece(piece, piece.ticket ? ticket : ticket_none); });
    if (ticket != ticket_none) owner_.done(ticket, {});   // all pieces are queued
}

void Streams::send_piece(const Send& send, uint32_t ticket) {
    auto queue = [&](Rank rank) {
        GC_ASSERT(rank < peers_.size() && rank != config_.rank);
        Peer& peer = *peers_[rank];
        if (ticket != ticket_none) owner_.hold(ticket);
        if (!peer.lost && push(peer, send, ticket)) return;
        if (!peer.lost) give_up(rank, fail(Code::peer_lost, "it does not take what we send, {} packets wait", Sender::queue_max));
        if (ticket != ticket_none) owner_.done(ticket, peer.last);
    };
    if (!send.to.bits) return queue(send.to.rank);
    for (Rank first = 0; first < peers_.size(); first += 64)
        for (uint64_t word = send.to.bits[first / 64]; word; word &= word - 1) queue(first + static_cast<Rank>(std::countr_zero(word)));
}

void Streams::send_link_packet(Rank rank, const Send& send) {
    Peer& peer = *peers_[rank];
    if (peer.lost) return;
    Send of_link = send;
    of_link.view = config_.view;
    (void)push(peer, of_link, ticket_none);   // a full queue: the missing answer is noticed
}

/// LinkConfig::express does not carry it.
bool Streams::shares_rails(const Send& send) {
    if (send.type == PacketType::mail) return reinterpret_cast<const MailBody*>(send.body.data())->total.get() > mail_early_bytes;
    return send.type == PacketType::words || send.type == PacketType::record || link_packet(send.type);
}

bool Streams::push(Peer& peer, const Send& send, uint32_t ticket) {
    const bool shared = shares_rails(send);
    Rail& rail = peer.express && !shared ? *peer.express_rail() : peer.rail(&Rail::dealt_bytes);
    if (!rail.sender.push(send, ticket)) return false;
    rail.dealt_bytes += packet_cost(send.payload.bytes);
    return true;
}

void Streams::give_up(Rank rank, Status why) {
    Peer& peer = *peers_[rank];
    if (peer.lost) return;
    peer.losing = true;
    const Status named = fail(why.code, "{}: {}", peer.label, why.what);
    for (auto& rail : peer.rails) fall(*rail, named);
}

void Streams::close_view(uint32_t number, std::span<const uint16_t> channels) {
    closing_view_ = number;
    closing_.assign(channels.begin(), channels.end());
    if (!channels.empty()) break_us_ = clock_us() + config_.deadline_us / drain_parts;   // else view_drained() is not asked
}

// Unacknowledged payloads are copied: a peer that is ahead may send its acknowledgements behind packets of the next view, which wait until
// that view is open here.
bool Streams::view_drained() {
    bool drained = true;
    each_rail([&](Rail& rail) {
        if (!rail.send.busy) rail.sender.own(closing_view_);
        // Between two streams the receiver reads a handshake, into memory of its own.
        const bool receives = rail.state == Rail::State::open || (rail.state == Rail::State::closing && rail.receive.busy);
        const bool holds = (rail.pipe && rail.pipe->borrows()) || (rail.send.busy && rail.sender.borrows(closing_view_)) ||
                           (receives && rail.receiver.placing(closing_));
        drained &= !holds;
        if (holds && clock_us() >= break_us_)
            fall(rail, fail(Code::peer_lost, "{}: it was in the middle of a packet when the view ended", rail.peer.label));
    });
    if (drained) break_us_ = 0;
    return drained;
}

// Starts sends and receives.
void Streams::pump(Rail& rail, uint64_t now) {
    if (rail.state != Rail::State::greeting && rail.state != Rail::State::open) return;
    if (!rail.send.busy) {
        std::span<iovec> vectors;
        if (rail.handshake && rail.greeting_out.empty()) {
            auto text = rail.handshake->output();
            rail.greeting_out.assign(text.begin(), text.end());   // a copy: the handshake may add output while this is sent
            rail.handshake->wrote(text.size());
            if (text.empty() && rail.state == Rail::State::open) rail.handshake = nullptr;
        }
        if (!rail.greeting_out.empty()) {
            rail.greeting_out_vector = {rail.greeting_out.data(), rail.greeting_out.size()};
            vectors = {&rail.greeting_out_vector, 1};
        } else if (rail.state == Rail::State::open) {
            uint64_t delivered = rail.receiver.delivered();
            bool ack = delivered != rail.sender.ack_sent() && (rail.unacknowledged_bytes >= ack_bytes || now >= rail.ack_us || finishing_);
            if (!rail.sender.idle()) {
                const Span span(config_.profile, Profile::network, StepPhase::send, "packets");   // includes tags or encryption
                vectors = rail.sender.batch(delivered);
            } else if (ack) {
                vectors = rail.sender.batch(delivered);
            }
            if (rail.sender.ack_sent() == delivered) {
                rail.ack_us = 0;
                rail.unacknowledged_bytes = 0;
            }
            add(counters_.packets_sent, rail.sender.packets() - std::exchange(rail.counted_sent, rail.sender.packets()));
        }
        if (!vectors.empty()) {
            rail.send.pipe = rail.greeting_out.empty() ? rail.pipe.get() : nullptr;   // the handshake is on the socket
            rail.send.message.msg_iov = vectors.data();
            rail.send.message.msg_iovlen = vectors.size();
            proactor_->start(rail.send);
        }
    }
    if (!rail.receive.busy && !(rail.state == Rail::State::open && rail.receiver.blocked())) {
        uint32_t count = 1;
        if (rail.state == Rail::State::open) count = rail.receiver.space(rail.receive_to);
        else rail.receive_to[0] = {rail.greeting.data(), rail.greeting.size()};
        rail.receive.pipe = rail.state == Rail::State::open ? rail.pipe.get() : nullptr;
        rail.receive.message.msg_iov = rail.receive_to;
        rail.receive.message.msg_iovlen = count;
        proactor_->start(rail.receive);
    }
}

}   // namespace gradcast
