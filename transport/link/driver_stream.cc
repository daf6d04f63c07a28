#include <algorithm>
#include <cerrno>

#include "transport/link/driver.h"

namespace gradcast {

namespace {
constexpr uint64_t backoff_us_min = 5'000, backoff_us_max = 200'000, backoff_us_lost = 2'000'000;
constexpr uint64_t connect_limit_us_min = 200'000;
constexpr uint64_t greet_limit_us = 5'000'000;   // for the handshake
constexpr uint64_t ack_wait_us = 5'000;          // acknowledge after this time,
constexpr uint64_t ack_bytes = 1 << 20;          // after this many bytes, or with the next packet to the peer
constexpr uint32_t strikes_max = 3;              // offers of keys to a peer that was never up

constexpr std::array<uint8_t, 16> unset{};

template <typename Number>
void add(std::atomic<Number>& counter, Number by) {
    counter.fetch_add(by, std::memory_order_relaxed);   // relaxed: a statistic
}
bool busy(const Peer& peer) { return peer.connect.busy || peer.receive.busy || peer.send.busy; }
}   // namespace

// ---- completions ---------------------------------------------------------------------------------------------------------------

void TcpDriver::complete(Op& op, uint64_t now) {
    if (op.kind == Op::Kind::send_datagrams) return datagrams_->complete(op, now);
    Peer& peer = *static_cast<Peer*>(op.owner);
    uint64_t bytes = op.result > 0 ? static_cast<uint64_t>(op.result) : 0;
    if (op.kind == Op::Kind::receive) add(counters_.bytes_received, bytes);
    if (op.kind == Op::Kind::send) add(counters_.bytes_sent, bytes);
    if (peer.state == Peer::State::closing) return;
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
            peer.handshake = std::make_unique<Handshake>(tls_, Handshake::Side::connector, own_hello(peer), peer.key);
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
        case Op::Kind::send_datagrams: break;
    }
}

void TcpDriver::parse(Peer& peer, uint64_t now) {
    receiving_ = &peer;
    const char* why = peer.receiver.parse(*this);
    add(counters_.packets_received, peer.receiver.packets() - std::exchange(peer.counted_received, peer.receiver.packets()));
    if (why) {
        add(counters_.packets_refused, uint64_t{1});
        return fall(peer, fail(Code::packet_invalid, "{}: {} came, the stream is begun again", peer.label, why));
    }
    if (!peer.ack_us && peer.receiver.delivered() != peer.sender.told()) peer.ack_us = now + ack_wait_us;
}
void TcpDriver::packet(const Packet& packet) {
    if (link_packet(packet.type)) {
        if (datagrams_) datagrams_->told(packet);
        return;
    }
    heard_us_[packet.sender] = turn_us_;
    if (!receiver_of(packet.channel, packet.view)) return;                 // its view has ended after land()
    happened_.push_back({packet.channel, packet_event(packet), packet});   // dispatch() points the event to the copy
}
void TcpDriver::tell(Rank rank, const Send& send) {
    Peer& peer = *peers_[rank];
    if (peer.lost) return;
    Send of_link = send;
    of_link.view = config_.view;
    (void)peer.sender.push(of_link, ticket_none);   // a full queue: the missing answer is noticed
}
void TcpDriver::unreachable(Rank rank, Status why) {
    Peer& peer = *peers_[rank];
    peer.losing = true;
    fall(peer, why);
}
bool TcpDriver::ack(uint64_t received) {
    return receiving_->sender.acked(received, [this](uint32_t ticket) { ticket_done(ticket, {}); });
}

// ---- from down to open ---------------------------------------------------------------------------------------------------------

Hello TcpDriver::own_hello(const Peer& peer) const {
    Hello hello;
    hello.protect = config_.protect;
    hello.job = config_.job;
    hello.view = config_.view;
    hello.rank = config_.rank;
    hello.segment_bytes = config_.segment_bytes;
    hello.name = config_.self.name;
    hello.uuid = config_.self.uuid;
    hello.incarnation = config_.self.incarnation;
    hello.stream = peer.stream;
    hello.peer_stream = peer.peer_stream;
    hello.received = peer.receiver.delivered();
    return hello;
}

void TcpDriver::connect(Peer& peer, uint64_t now) {
    peer.fd = Fd(::socket(peer.address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    peer.retry_us = now + peer.backoff_us;
    if (!peer.fd) {
        peer.last = fail_sys(errno, "{}: cannot open a socket", peer.label);
        return;
    }
    equip(peer, now);
    peer.state = Peer::State::connecting;
    // TCP sends its first packet again after 1, 3 and 7 s.  With loss a new socket connects sooner.
    peer.greet_us = now + std::clamp(config_.deadline_us / 12, connect_limit_us_min, greet_limit_us);
    peer.connect.address = &peer.address.storage;
    peer.connect.address_bytes = peer.address.bytes;
    proactor_->start(peer.connect);
}

void TcpDriver::equip(Peer& peer, uint64_t now) {
    socket_tune(peer.fd.get(), config_.deadline_us, config_.socket_bytes);
    proactor_->add(peer.fd.get());
    for (Op* op : {&peer.connect, &peer.receive, &peer.send}) op->fd = peer.fd.get();
    peer.greet_us = now + greet_limit_us;
    peer.telling.clear();
    peer.greeting.resize(Receiver::rest_max);
}

// Finds the peer of a stream from the listener by the name in its Hello.
void TcpDriver::invite(std::unique_ptr<Accepted> stream) {
    const Hello& hello = stream->handshake->peer();
    add(counters_.bytes_sent, stream->bytes_sent);
    add(counters_.bytes_received, stream->bytes_received);
    std::string why;
    for (auto& peer : peers_)
        if (peer && !peer->active && !peer->final && peer->identity.name == hello.name) {
            // A wrong peer must not replace the right one's stream.
            if (peer->state == Peer::State::open) why = conflict(*peer, hello);
            if (why.empty()) {
                peer->next = std::move(stream);
                return;
            }
        }
    if (why.empty() && hello.name == config_.self.name) why = fmt::format("'{}' is our own name: two daemons have it", hello.name);
    if (why.empty())
        why = config_.job == JobId{}
                  ? fmt::format("'{}' is not a member at '{}': the lists of members differ", hello.name, config_.self.name)
                  : fmt::format("job {} does not expect '{}' to connect to '{}'", job_id_text(config_.job), hello.name, config_.self.name);
    if (stranger_ != why) log_.warn("peer {} is refused: {}", stream->address, why);
    stranger_ = why;
    stream->refuse(Verdict::refuse, why);
}

void TcpDriver::take_up(Peer& peer, uint64_t now) {
    std::unique_ptr<Accepted> stream = std::move(peer.next);
    peer.fd = std::move(stream->fd);
    peer.handshake = std::move(stream->handshake);
    equip(peer, now);
    peer.state = Peer::State::greeting;
    greet(peer, stream->rest, now);
}

void TcpDriver::greet(Peer& peer, std::span<const std::byte> bytes, uint64_t now) {
    Handshake& handshake = *peer.handshake;
    bytes = bytes.subspan(handshake.feed(bytes));
    if (handshake.state() == Handshake::State::asked) {
        meet(peer);
        bytes = bytes.subspan(handshake.feed(bytes));
    }
    if (peer.state != Peer::State::greeting) return;
    if (handshake.state() == Handshake::State::failed) return turned_away(peer);
    if (handshake.state() == Handshake::State::done) opened(peer, bytes, now);
}

// Why the sender of `hello` is not the expected peer; "": it is.
std::string TcpDriver::conflict(const Peer& peer, const Hello& hello) const {
    const Identity& self = config_.self;
    static constexpr const char* protects[] = {"none", "auth", "encrypt"};
    if (hello.uuid == self.uuid && hello.uuid != unset)
        return fmt::format(
            "peer '{}' is our own identity: two daemons share the state directory of '{}': stop one, and remove its state/identity",
            hello.name, self.name);
    if (hello.name != peer.identity.name) return fmt::format("'{}' answers where '{}' is expected", hello.name, peer.identity.name);
    if (peer.identity.uuid != unset && hello.uuid != peer.identity.uuid)
        return fmt::format("two daemons are named '{}' ({} and {}): rename one", hello.name, hex(peer.identity.uuid), hex(hello.uuid));
    if (hello.incarnation < peer.identity.incarnation) return fmt::format("'{}' is an earlier incarnation of itself", hello.name);
    if (hello.job != config_.job) return fmt::format("'{}' is of another job", hello.name);
    if (hello.rank != rank_any && hello.rank != peer.rank)
        return fmt::format("'{}' takes itself for rank {}, '{}' for rank {}: the lists of members differ", hello.name, hello.rank,
                           self.name, peer.rank);
    if (hello.protect != config_.protect)
        return fmt::format("'{}' has protect = \"{}\", '{}' has \"{}\": set one value", hello.name,
                           protects[static_cast<int>(hello.protect)], self.name, protects[static_cast<int>(config_.protect)]);
    if (hello.segment_bytes != config_.segment_bytes)
        return fmt::format("'{}' sends segments of {} bytes, '{}' of {}", hello.name, hello.segment_bytes, self.name,
                           config_.segment_bytes);
    return "";
}

// Answers the peer's Hello: accepts it, or refuses it and breaks the stream.
void TcpDriver::meet(Peer& peer) {
    Handshake& handshake = *peer.handshake;
    const Hello hello = handshake.peer();
    auto refuse = [&](Verdict verdict, const std::string& why) {
        handshake.refuse(verdict, why);
        auto text = handshake.output();
        ssize_t put = peer.send.busy ? 0 : ::send(peer.fd.get(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (put > 0) add(counters_.bytes_sent, static_cast<uint64_t>(put));
    };
    if (std::string why = conflict(peer, hello); !why.empty()) return refuse(Verdict::refuse, why);
    if (hello.view != config_.view) return refuse(Verdict::later, fmt::format("'{}' is in view {}", config_.self.name, config_.view));
    bool restarted = peer.identity.incarnation && hello.incarnation != peer.identity.incarnation;
    if (restarted || (peer.peer_stream && hello.stream != peer.peer_stream)) {
        refuse(Verdict::later, fmt::format("'{}' must give up the former stream first", config_.self.name));
        peer.losing = true;
        return fall(peer, fail(Code::peer_lost, "{}: {}", peer.label, restarted ? "it has restarted" : "it had given us up"));
    }
    // Counts are valid only if both sides know each other's stream numbers.  The answer tells a peer that knows another one.
    bool known = hello.peer_stream == peer.stream;
    if (known ? !peer.sender.acked(hello.received, [this](uint32_t ticket) { ticket_done(ticket, {}); })
              : hello.peer_stream == 0 && hello.received != 0)
        return refuse(Verdict::refuse, fmt::format("'{}' has received packets that were never sent", hello.name));
    handshake.accept(own_hello(peer));
}

void TcpDriver::opened(Peer& peer, std::span<const std::byte> rest, uint64_t now) {
    Key to_acceptor, to_connector;
    peer.handshake->keys(&to_acceptor, &to_connector);
    const Hello& hello = peer.handshake->peer();
    peer.state = Peer::State::open;
    peer.peer_stream = hello.stream;
    peer.identity.uuid = hello.uuid;
    peer.identity.incarnation = hello.incarnation;
    peer.backoff_us = backoff_us_min;
    peer.strikes = 0;
    peer.ack_us = 0;
    peer.unacknowledged_bytes = 0;
    peer.lost = false;
    peer.sender.restart(peer.active ? to_acceptor : to_connector, peer.receiver.delivered());
    peer.receiver.restart(peer.active ? to_connector : to_acceptor, rest);
    if (peer.up) {
        add(counters_.reconnects, uint64_t{1});
        log_.info("{}: the stream is open again", peer.label);
    } else {
        peer.up = true;
        tell_all(up_event(peer.rank));
    }
    peer.last = {};
    if (datagrams_) datagrams_->opened(peer.rank, now);
    parse(peer, now);
}

// ---- from open to down ---------------------------------------------------------------------------------------------------------

void TcpDriver::turned_away(Peer& peer) {
    const Handshake& handshake = *peer.handshake;
    Code code = handshake.verdict() == Verdict::later ? Code::peer_lost : handshake.status().code;
    Status why = fail(code, "{}: {}", peer.label, handshake.status().what);
    if (handshake.keys_differ()) {
        // An unauthenticated refusal: a peer that was up keeps its deadline.
        peer.key = (peer.key + 1) % static_cast<uint32_t>(tls_->keys.size());
        if (peer.active && !peer.peer_stream && ++peer.strikes == strikes_max * tls_->keys.size()) peer.losing = true;
    } else if (peer.active && handshake.verdict() == Verdict::refuse) {
        peer.losing = true;   // authenticated, so final.  For an acceptor the right peer may still come
    }
    fall(peer, why);
}

void TcpDriver::fall(Peer& peer, Status why) {
    if (!why.ok()) {
        if (why.what != peer.last.what) why.code == Code::peer_lost ? log_.debug("{}", why.what) : log_.warn("{}", why.what);
        peer.last = why;
    }
    if (peer.state == Peer::State::down || peer.state == Peer::State::closing) return;
    if (peer.state == Peer::State::open) peer.down_us = clock_us();
    peer.state = Peer::State::closing;
    ::shutdown(peer.fd.get(), SHUT_RDWR);
    for (Op* op : {&peer.connect, &peer.receive, &peer.send}) proactor_->cancel(*op);
}

void TcpDriver::begin_anew(Peer& peer) {
    random_bytes({reinterpret_cast<uint8_t*>(&peer.stream), sizeof peer.stream});
    peer.stream |= 1;   // never 0
    peer.peer_stream = 0;
    peer.strikes = 0;
    peer.backoff_us = std::max(peer.backoff_us, backoff_us_min);
    peer.receiver.forget();
}

void TcpDriver::lose(Peer& peer) {
    const Identity& expected = config_.peers[peer.rank].identity;
    if (peer.last.ok())
        peer.last = fail(Code::peer_lost, "{}: it did not come within {} s", peer.label, static_cast<double>(config_.deadline_us) * 1e-6);
    const bool again = std::exchange(peer.lost, true);   // lost before and not up since: fall() has logged the news
    peer.losing = peer.up = false;
    peer.final = expected.incarnation != 0;   // without an expected incarnation the next one may come
    peer.identity = expected;
    peer.sender.clear([&](uint32_t ticket) { ticket_done(ticket, peer.last); });
    begin_anew(peer);
    if (datagrams_) datagrams_->lost(peer.rank);
    if (!again) log_.warn("lost {}", peer.last.what);
    tell_all(lost_event(peer.rank, peer.last));
}

// Handles the times of a peer.
void TcpDriver::tend(Peer& peer, uint64_t now) {
    if (peer.state == Peer::State::closing && !busy(peer)) {
        proactor_->remove(peer.fd.get());
        peer.fd.close();
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
            break;
        case Peer::State::closing: break;
    }
}

/// The peer was here with a known incarnation: if nobody listens at its address any more, that incarnation is dead.  So the accepting side
/// tries to connect, too.
bool TcpDriver::provable(const Peer& peer) const {
    return peer.up && config_.peers[peer.rank].identity.incarnation != 0 && peer.address.bytes != 0;
}

// The latest time of the next tend() or pump().
uint64_t TcpDriver::due_us(const Peer& peer) const {
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
        case Peer::State::closing: return busy(peer) ? never : 0;
    }
    return never;
}

// Starts sends and receives.
void TcpDriver::pump(Peer& peer, uint64_t now) {
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
            bool ack = delivered != peer.sender.told() && (peer.unacknowledged_bytes >= ack_bytes || now >= peer.ack_us || stopping_us_);
            if (!peer.sender.idle()) {
                const Span span(config_.profile, Profile::network, "send", "packets");   // includes tags or encryption
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
            peer.send.message.msg_iov = vectors.data();
            peer.send.message.msg_iovlen = vectors.size();
            proactor_->start(peer.send);
        }
    }
    if (!peer.receive.busy && !(peer.state == Peer::State::open && peer.receiver.blocked())) {
        uint32_t count = 1;
        if (peer.state == Peer::State::open) count = peer.receiver.space(peer.receive_to);
        else peer.receive_to[0] = {peer.greeting.data(), peer.greeting.size()};
        peer.receive.message.msg_iov = peer.receive_to;
        peer.receive.message.msg_iovlen = count;
        proactor_->start(peer.receive);
    }
}

}   // namespace gradcast
