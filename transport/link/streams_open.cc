// A stream from down to open: connecting, or a stream from the listener, and the handshake.
#include <algorithm>
#include <cerrno>

#include "transport/link/streams.h"

namespace gradcast {

namespace {
constexpr uint64_t connect_limit_us_min = 200'000;
constexpr std::array<uint8_t, 16> unset{};
}   // namespace

// ---- from down to open ---------------------------------------------------------------------------------------------------------

Hello Streams::own_hello(const Peer& peer) const {
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
    if (peer.pipe) hello.rdma = peer.end;
    return hello;
}

void Streams::connect(Peer& peer, uint64_t now) {
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

void Streams::equip(Peer& peer, uint64_t now) {
    socket_tune(peer.fd.get(), config_.deadline_us, config_.socket_bytes);
    proactor_->add(peer.fd.get());
    for (Op* op : {&peer.connect, &peer.receive, &peer.send, &peer.watch}) op->fd = peer.fd.get();
    peer.greet_us = now + greet_limit_us;
    peer.telling.clear();
    peer.greeting.resize(Receiver::rest_max);
}

// Finds the peer of a stream from the listener by the name in its Hello.
void Streams::invite(std::unique_ptr<Accepted> stream) {
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

void Streams::take_up(Peer& peer, uint64_t now) {
    std::unique_ptr<Accepted> stream = std::move(peer.next);
    peer.fd = std::move(stream->fd);
    peer.handshake = std::move(stream->handshake);
    equip(peer, now);
    peer.state = Peer::State::greeting;
    greet(peer, stream->rest, now);
}

void Streams::greet(Peer& peer, std::span<const std::byte> bytes, uint64_t now) {
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
std::string Streams::conflict(const Peer& peer, const Hello& hello) const {
    const Identity& self = config_.self;
    static constexpr const char* protects[] = {"none", "auth", "encrypt"};
    if (hello.uuid == self.uuid && hello.uuid != unset)
        return fmt::format(
            "peer '{}' is our own identity: two daemons share the state directory of '{}': stop one, and remove its state/identity",
            hello.name, self.name);
    if (hello.name != peer.identity.name) return fmt::format("'{}' answers where '{}' is expected", hello.name, peer.identity.name);
    if (peer.identity.uuid != unset && hello.uuid != peer.identity.uuid)
        return fmt::format("two daemons are named '{}' ({} and {}): rename one", hello.name, hex(peer.identity.uuid), hex(hello.uuid));
    if (hello.incarnation < std::max(peer.identity.incarnation, config_.peers[peer.rank].identity.incarnation))
        return fmt::format("'{}' is an earlier incarnation of itself", hello.name);
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
void Streams::meet(Peer& peer) {
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
    if (known ? !peer.sender.acked(hello.received, [this](uint32_t ticket) { owner_.done(ticket, {}); })
              : hello.peer_stream == 0 && hello.received != 0)
        return refuse(Verdict::refuse, fmt::format("'{}' has received packets that were never sent", hello.name));
    // The connector's ask offers an end, the acceptor's answer has its own, and the connector's answer repeats the offer: then both use
    // them.
    if (!peer.active && hello.rdma.queue) open_pipe(peer);
    if (peer.pipe && !connect_pipe(peer, hello.rdma)) drop_pipe(peer);
    handshake.accept(own_hello(peer));
}

// A pipe that does not open is no reason to do without the stream.
void Streams::open_pipe(Peer& peer) {
    if (!rdma_ || peer.rdma_failed) return;
    if (Status status = rdma_->pipe_open(&peer.pipe, &peer.end); !status.ok()) {
        peer.rdma_failed = true;
        log_.warn("{}: its stream goes over TCP: {}", peer.label, status.what);
    }
}

bool Streams::connect_pipe(Peer& peer, const RdmaEnd& end) {
    if (end.queue == 0) {
        if (!std::exchange(peer.rdma_failed, true)) log_.info("{}: it has no RDMA, so its stream goes over TCP", peer.label);
        return false;
    }
    const Status status = rdma_->pipe_connect(*peer.pipe, end);
    if (!status.ok()) {
        peer.rdma_failed = true;
        log_.warn("{}: its stream goes over TCP: {}", peer.label, status.what);
    }
    return status.ok();
}

void Streams::drop_pipe(Peer& peer) {
    peer.send.pipe = peer.receive.pipe = nullptr;
    peer.pipe = nullptr;
    peer.end = {};
    peer.ended = {};
}

void Streams::opened(Peer& peer, std::span<const std::byte> rest, uint64_t now) {
    Key to_acceptor, to_connector;
    peer.handshake->keys(&to_acceptor, &to_connector);
    const Hello& hello = peer.handshake->peer();
    if (peer.pipe && (hello.rdma.queue == 0 || !rest.empty())) {
        if (hello.rdma.queue) return fall(peer, fail(Code::packet_invalid, "{}: bytes came beside its RDMA connection", peer.label));
        drop_pipe(peer);
    }
    peer.state = Peer::State::open;
    if (peer.pipe) {
        add(counters_.rdma_streams, 1u);
        proactor_->start(peer.watch);
    }
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
    const bool first = !std::exchange(peer.up, true);
    if (!first) {
        add(counters_.reconnects, uint64_t{1});
        log_.info("{}: the stream is open again", peer.label);
    }
    peer.last = {};
    owner_.opened(peer.rank, first, now);
    parse(peer, now);
}

}   // namespace gradcast
