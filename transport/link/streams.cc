#include "transport/link/streams.h"

#include <algorithm>
#include <bit>
#include <cerrno>

#include "runtime/core/clock.h"

namespace gradcast {

namespace {
constexpr uint64_t drain_parts = 8;   // of the deadline, after which a stream is broken that holds an ended view's memory
constexpr uint64_t backoff_us_max = 200'000, backoff_us_lost = 2'000'000;
constexpr uint64_t ack_wait_us = 5'000;   // acknowledge after this time,
constexpr uint64_t ack_bytes = 1 << 20;   // after this many bytes, or with the next packet to the peer
constexpr uint32_t strikes_max = 3;       // offers of keys to a peer that was never up

bool in_use(const Peer& peer) { return peer.connect.busy || peer.receive.busy || peer.send.busy || peer.watch.busy; }
}   // namespace

// ---- all peers -----------------------------------------------------------------------------------------------------------------

Status Streams::open(Proactor& proactor, Rdma* rdma) {
    proactor_ = &proactor;
    rdma_ = rdma;
    const LinkConfig& c = config_;
    ring_ = c.ring ? c.ring : std::make_shared<KeyRing>(c.keys);
    StreamConfig stream;
    std::memcpy(&stream.job, c.job.data(), sizeof stream.job);
    stream.view = c.view;
    stream.self = c.rank;
    stream.ranks = static_cast<uint32_t>(c.peers.size());
    stream.segment_bytes = c.segment_bytes;
    stream.protect = c.protect;
    stream.packets_per_key = c.packets_per_key;
    for (Rank rank = 0; rank < c.peers.size(); ++rank) {
        peers_.emplace_back();
        if (rank == c.rank) continue;
        stream.peer = rank;
        peers_.back() = std::make_unique<Peer>(stream, pool_);
        Peer& peer = *peers_.back();
        peer.identity = c.peers[rank].identity;
        peer.active = c.rank < rank;
        peer.label = fmt::format("peer '{}' (rank {}, {})", peer.identity.name, rank, c.peers[rank].address);
        if (Status status = address_resolve(c.peers[rank].address, false, &peer.address); peer.active) GC_TRY(status);
        for (Op* op : {&peer.connect, &peer.receive, &peer.send, &peer.watch}) {
            op->link = this;
            op->owner = &peer;
        }
        peer.connect.kind = Op::Kind::connect;
        peer.receive.kind = Op::Kind::receive;
        peer.send.kind = Op::Kind::send;
        peer.watch.kind = Op::Kind::receive;
        peer.watch.message.msg_iov = &peer.watch_to;
        peer.watch.message.msg_iovlen = 1;
        begin_anew(peer);
    }
    return {};
}

void Streams::begin(uint64_t now) {
    for (auto& peer : peers_)
        if (peer) peer->down_us = now;
}

void Streams::tend(uint64_t now, bool again) {
    for (auto& peer : peers_)
        if (peer) tend(*peer, now);
    if (!again) return;
    for (auto& peer : peers_)
        if (peer && peer->state == Peer::State::open && peer->receiver.blocked()) parse(*peer, now);
}

void Streams::pump(uint64_t now) {
    for (auto& peer : peers_)
        if (peer) pump(*peer, now);
}

uint64_t Streams::due_us() const {
    uint64_t due = break_us_ > 0 ? break_us_ : ~uint64_t{0};
    for (const auto& peer : peers_)
        if (peer) due = std::min(due, due_us(*peer));
    return due;
}

bool Streams::idle() const {
    return std::all_of(peers_.begin(), peers_.end(), [](const std::unique_ptr<Peer>& peer) {
        if (!peer || peer->lost) return true;
        if (peer->send.busy || !peer->sender.acknowledged() || (peer->pipe && !peer->pipe->sent())) return false;
        return peer->state != Peer::State::open || peer->sender.told() == peer->receiver.delivered();
    });
}

void Streams::close() {
    for (auto& peer : peers_)
        if (peer) {
            peer->final = true;
            fall(*peer, {});
        }
}

bool Streams::busy() const {
    return std::any_of(peers_.begin(), peers_.end(), [](const std::unique_ptr<Peer>& peer) { return peer && in_use(*peer); });
}

// ---- completions ---------------------------------------------------------------------------------------------------------------

void Streams::complete(Op& op, uint64_t now) {
    Peer& peer = *static_cast<Peer*>(op.owner);
    uint64_t bytes = op.result > 0 ? static_cast<uint64_t>(op.result) : 0;
    if (op.kind == Op::Kind::receive) add(counters_.bytes_received, bytes);
    if (op.kind == Op::Kind::send) add(counters_.bytes_sent, bytes);
    if (peer.state == Peer::State::closing) return;
    if (op.pipe && op.result < 0) {
        peer.rdma_failed = true;
        log_.warn("{}: RDMA does not carry its stream any more ({}): TCP does from now on", peer.label, peer.pipe->broken());
        return fall(peer, fail(Code::peer_lost, "{}: the RDMA connection broke", peer.label));
    }
    if (&op == &peer.watch) {   // tend() breaks the stream when all that has come is taken
        peer.ended = op.result == 0  ? fail(Code::peer_lost, "{}: it has closed the stream", peer.label)
                     : op.result > 0 ? fail(Code::packet_invalid, "{}: bytes came beside its RDMA connection", peer.label)
                                     : fail_text(Code::peer_lost, -op.result, fmt::format("{}: the stream broke", peer.label));
        return;
    }
    if (op.result < 0) {
        if (op.kind == Op::Kind::connect && op.result == -ECONNREFUSED && provable(peer)) peer.losing = true;
        const char* what = op.kind == Op::Kind::connect ? "cannot connect" : "the stream broke";
        return fall(peer, fail_text(Code::peer_lost, -op.result, fmt::format("{}: {}", peer.label, what)));
    }
    switch (op.kind) {
        case Op::Kind::connect:
            if (!peer.active) return fall(peer, {});   // it is alive and will connect
            peer.state = Peer::State::greeting;
            peer.greet_us = now + greet_limit_us;
            open_pipe(peer);
            offer(peer);
            break;
        case Op::Kind::receive:
            if (bytes == 0) return fall(peer, fail(Code::peer_lost, "{}: it has closed the stream", peer.label));
            if (peer.state == Peer::State::greeting) return greet(peer, std::span(peer.greeting).first(bytes), now);
            peer.unacknowledged_bytes += bytes;
            heard_us_[peer.rank] = now;
            peer.receiver.received(bytes);
            parse(peer, now);
            break;
        case Op::Kind::send:
            if (!peer.telling.empty()) peer.telling.erase(peer.telling.begin(), peer.telling.begin() + op.result);
            else peer.sender.wrote(bytes);
            break;
        case Op::Kind::send_datagrams:
        case Op::Kind::poll: break;
    }
}

void Streams::parse(Peer& peer, uint64_t now) {
    receiving_ = &peer;
    const char* why = peer.receiver.parse(*this);
    add(counters_.packets_received, peer.receiver.packets() - std::exchange(peer.counted_received, peer.receiver.packets()));
    if (why) {
        add(counters_.packets_refused, uint64_t{1});
        return fall(peer, fail(Code::packet_invalid, "{}: {} came, the stream is begun again", peer.label, why));
    }
    if (!peer.ack_us && peer.receiver.delivered() != peer.sender.told()) peer.ack_us = now + ack_wait_us;
}
Landing Streams::land(const Packet& packet, uint64_t bytes, Buffer* place) {
    return link_packet(packet.type) ? Landing::lease : owner_.land(packet, bytes, place);
}
void Streams::packet(const Packet& packet) { link_packet(packet.type) ? owner_.told(packet) : owner_.packet(packet); }
bool Streams::ack(uint64_t received) {
    return receiving_->sender.acked(received, [this](uint32_t ticket) { owner_.done(ticket, {}); });
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
        if (!peer.lost && peer.sender.push(send, ticket)) return;
        if (!peer.lost) {
            peer.losing = true;
            fall(peer, fail(Code::peer_lost, "{}: it does not take what we send, {} packets wait", peer.label, Sender::queue_max));
        }
        if (ticket != ticket_none) owner_.done(ticket, peer.last);
    };
    if (!send.to.bits) return queue(send.to.rank);
    for (Rank first = 0; first < peers_.size(); first += 64)
        for (uint64_t word = send.to.bits[first / 64]; word; word &= word - 1) queue(first + static_cast<Rank>(std::countr_zero(word)));
}

void Streams::tell(Rank rank, const Send& send) {
    Peer& peer = *peers_[rank];
    if (peer.lost) return;
    Send of_link = send;
    of_link.view = config_.view;
    (void)peer.sender.push(of_link, ticket_none);   // a full queue: the missing answer is noticed
}

void Streams::give_up(Rank rank, Status why) {
    Peer& peer = *peers_[rank];
    if (peer.lost) return;
    peer.losing = true;
    fall(peer, why);
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
    for (const auto& peer : peers_) {
        if (!peer) continue;
        if (!peer->send.busy) peer->sender.own(closing_view_);
        // Between two streams the receiver reads a handshake, into memory of its own.
        const bool receives = peer->state == Peer::State::open || (peer->state == Peer::State::closing && peer->receive.busy);
        const bool holds = (peer->pipe && peer->pipe->borrows()) || (peer->send.busy && peer->sender.borrows(closing_view_)) ||
                           (receives && peer->receiver.placing(closing_));
        drained &= !holds;
        if (holds && clock_us() >= break_us_)
            fall(*peer, fail(Code::peer_lost, "{}: it was in the middle of a packet when the view ended", peer->label));
    }
    if (drained) break_us_ = 0;
    return drained;
}

// ---- from open to down ---------------------------------------------------------------------------------------------------------

/// Where the ring was replaced its newest key comes first again.
void Streams::offer(Peer& peer) {
    auto tls = ring_->now();
    if (peer.tls.lock() != tls) peer.key = 0;
    peer.tls = tls;
    peer.handshake = std::make_unique<Handshake>(std::move(tls), Handshake::Side::connector, own_hello(peer), peer.key);
}

void Streams::turned_away(Peer& peer) {
    const Handshake& handshake = *peer.handshake;
    Code code = handshake.verdict() == Verdict::later ? Code::peer_lost : handshake.status().code;
    Status why = fail(code, "{}: {}", peer.label, handshake.status().what);
    if (handshake.keys_differ()) {
        // An unauthenticated refusal: a peer that was up keeps its deadline.
        const auto keys = static_cast<uint32_t>(ring_->now()->keys.size());
        peer.key = (peer.key + 1) % keys;
        if (peer.active && !peer.peer_stream && ++peer.strikes >= strikes_max * keys) peer.losing = true;
    } else if (peer.active && handshake.verdict() == Verdict::refuse) {
        peer.losing = true;   // authenticated, so final.  For an acceptor the right peer may still come
    }
    fall(peer, why);
}

void Streams::fall(Peer& peer, Status why) {
    if (!why.ok()) {
        if (why.what != peer.last.what) why.code == Code::peer_lost ? log_.debug("{}", why.what) : log_.warn("{}", why.what);
        peer.last = why;
    }
    if (peer.state == Peer::State::down || peer.state == Peer::State::closing) return;
    if (peer.state == Peer::State::open) {
        peer.down_us = clock_us();
        if (peer.pipe) counters_.rdma_streams.fetch_sub(1, std::memory_order_relaxed);
    }
    peer.state = Peer::State::closing;
    ::shutdown(peer.fd.get(), SHUT_RDWR);
    for (Op* op : {&peer.connect, &peer.receive, &peer.send, &peer.watch}) proactor_->cancel(*op);
}

void Streams::begin_anew(Peer& peer) {
    random_bytes({reinterpret_cast<uint8_t*>(&peer.stream), sizeof peer.stream});
    peer.stream |= 1;   // never 0
    peer.peer_stream = 0;
    peer.strikes = 0;
    peer.backoff_us = std::max(peer.backoff_us, backoff_us_min);
    peer.receiver.forget();
}

void Streams::lose(Peer& peer) {
    const Identity& expected = config_.peers[peer.rank].identity;
    if (peer.last.ok())
        peer.last = fail(Code::peer_lost, "{}: it did not come within {} s: is gradcastd running there? Its log says why it cannot come",
                         peer.label, static_cast<double>(config_.deadline_us) * 1e-6);
    const bool again = std::exchange(peer.lost, true);   // lost before and not up since: fall() has logged the news
    peer.losing = peer.up = false;
    peer.final = expected.incarnation != 0 && !config_.peers_return;   // without an expected incarnation the next one may come
    peer.identity = expected;
    if (config_.peers_return) peer.identity.incarnation = 0;   // that or a later one
    peer.sender.clear([&](uint32_t ticket) { owner_.done(ticket, peer.last); });
    begin_anew(peer);
    if (!again) log_.warn("lost {}", peer.last.what);
    owner_.lost(peer.rank, peer.last);
}

// Handles the times of a peer.
void Streams::tend(Peer& peer, uint64_t now) {
    if (peer.state == Peer::State::closing && !in_use(peer)) {
        proactor_->remove(peer.fd.get());
        peer.fd.close();
        drop_pipe(peer);
        peer.handshake = nullptr;
        peer.state = Peer::State::down;
        peer.retry_us = now + peer.backoff_us;
        peer.backoff_us = std::min(2 * peer.backoff_us, peer.lost ? backoff_us_lost : backoff_us_max);
    }
    bool late = !peer.lost && peer.state != Peer::State::open && now >= peer.down_us + config_.deadline_us;
    if (late) peer.losing = true;
    switch (peer.state) {
        case Peer::State::down:
            if (peer.losing) lose(peer);
            if (peer.final) return;
            if (peer.next) take_up(peer, now);
            else if ((peer.active || provable(peer)) && now >= peer.retry_us) connect(peer, now);
            break;
        case Peer::State::connecting:
        case Peer::State::greeting:
            if (now >= peer.greet_us && peer.state == Peer::State::connecting) fall(peer, {});
            else if (now >= peer.greet_us)
                fall(peer, fail(Code::peer_lost, "{}: no handshake within {} s", peer.label, greet_limit_us / 1'000'000));
            else if (late || peer.next) fall(peer, peer.last);
            break;
        case Peer::State::open:
            // An authenticated peer that connects again has given the old stream up, even if it still looks alive here.
            if (peer.next) fall(peer, fail(Code::peer_lost, "{}: it connects again", peer.label));
            else if (!peer.ended.ok() && !peer.pipe->readable()) fall(peer, peer.ended);
            break;
        case Peer::State::closing: break;
    }
}

/// The peer was here with a known incarnation: if nobody listens at its address any more, that incarnation is dead.  So the accepting side
/// tries to connect, too.
bool Streams::provable(const Peer& peer) const {
    return peer.up && config_.peers[peer.rank].identity.incarnation != 0 && peer.address.bytes != 0;
}

// The latest time of the next tend() or pump().
uint64_t Streams::due_us(const Peer& peer) const {
    constexpr uint64_t never = ~uint64_t{0};
    uint64_t lost_us = peer.lost ? never : peer.down_us + config_.deadline_us;
    switch (peer.state) {
        case Peer::State::down:
            if (peer.losing || peer.next) return 0;
            if (peer.final) return never;
            return peer.active || provable(peer) ? std::min(peer.retry_us, lost_us) : lost_us;
        case Peer::State::connecting:
        case Peer::State::greeting: return peer.next ? 0 : std::min(peer.greet_us, lost_us);
        case Peer::State::open: return peer.next ? 0 : peer.ack_us && !peer.send.busy ? peer.ack_us : never;
        case Peer::State::closing: return in_use(peer) ? never : 0;
    }
    return never;
}

// Starts sends and receives.
void Streams::pump(Peer& peer, uint64_t now) {
    if (peer.state != Peer::State::greeting && peer.state != Peer::State::open) return;
    if (!peer.send.busy) {
        std::span<iovec> vectors;
        if (peer.handshake && peer.telling.empty()) {
            auto text = peer.handshake->output();
            peer.telling.assign(text.begin(), text.end());   // a copy: the handshake may add output while this is sent
            peer.handshake->wrote(text.size());
            if (text.empty() && peer.state == Peer::State::open) peer.handshake = nullptr;
        }
        if (!peer.telling.empty()) {
            peer.telling_vector = {peer.telling.data(), peer.telling.size()};
            vectors = {&peer.telling_vector, 1};
        } else if (peer.state == Peer::State::open) {
            uint64_t delivered = peer.receiver.delivered();
            bool ack = delivered != peer.sender.told() && (peer.unacknowledged_bytes >= ack_bytes || now >= peer.ack_us || finishing_);
            if (!peer.sender.idle()) {
                const Span span(config_.profile, Profile::network, StepPhase::send, "packets");   // includes tags or encryption
                vectors = peer.sender.batch(delivered);
            } else if (ack) {
                vectors = peer.sender.batch(delivered);
            }
            if (peer.sender.told() == delivered) {
                peer.ack_us = 0;
                peer.unacknowledged_bytes = 0;
            }
            add(counters_.packets_sent, peer.sender.packets() - std::exchange(peer.counted_sent, peer.sender.packets()));
        }
        if (!vectors.empty()) {
            peer.send.pipe = peer.telling.empty() ? peer.pipe.get() : nullptr;   // the handshake is on the socket
            peer.send.message.msg_iov = vectors.data();
            peer.send.message.msg_iovlen = vectors.size();
            proactor_->start(peer.send);
        }
    }
    if (!peer.receive.busy && !(peer.state == Peer::State::open && peer.receiver.blocked())) {
        uint32_t count = 1;
        if (peer.state == Peer::State::open) count = peer.receiver.space(peer.receive_to);
        else peer.receive_to[0] = {peer.greeting.data(), peer.greeting.size()};
        peer.receive.pipe = peer.state == Peer::State::open ? peer.pipe.get() : nullptr;
        peer.receive.message.msg_iov = peer.receive_to;
        peer.receive.message.msg_iovlen = count;
        proactor_->start(peer.receive);
    }
}

}   // namespace gradcast
