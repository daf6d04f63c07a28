// A stream from down to open: connecting, or a stream from the listener, and the handshake.
#include <algorithm>
#include <cerrno>

#include "transport/stream/streams.h"

namespace gradcast {

namespace {
constexpr uint64_t connect_limit_us_min = 200'000;
constexpr uint32_t strikes_max = 3;   // offers of keys to a peer that was never up
constexpr std::array<uint8_t, 16> unset{};
}   // namespace

// ---- from down to open ---------------------------------------------------------------------------------------------------------

Hello Streams::own_hello(const Rail& rail) const {
    const Peer& peer = rail.peer;
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
    hello.received = rail.receiver.delivered();
    hello.rail = static_cast<uint8_t>(rail.number);
    hello.rails = static_cast<uint8_t>(config_.connections());
    if (rail.pipe) hello.rdma = rail.end;
    return hello;
}

/// Where the ring was replaced its newest key comes first again.
void Streams::offer(Rail& rail) {
    Peer& peer = rail.peer;
    auto tls = ring_->now();
    if (peer.tls.lock() != tls) peer.key = 0;
    peer.tls = tls;
    rail.handshake = std::make_unique<Handshake>(std::move(tls), Handshake::Side::connector, own_hello(rail), peer.key);
}

void Streams::connect(Rail& rail, uint64_t now) {
    Peer& peer = rail.peer;
    const SocketAddress& to = this->to(rail);
    rail.fd = Fd(::socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    rail.retry_us = now + rail.backoff_us;
    if (!rail.fd) {
        peer.last = fail_sys(errno, "{}: cannot open a socket", peer.label);
        return;
    }
    if (rail.way < interfaces_.size()) {   // an address that is no more: the kernel chooses
        const SocketAddress& from = interfaces_[rail.way];
        if (from.storage.ss_family == to.storage.ss_family)
            (void)::bind(rail.fd.get(), reinterpret_cast<const sockaddr*>(&from.storage), from.bytes);
    }
    equip(rail, now);
    rail.state = Rail::State::connecting;
    // TCP sends its first packet again after 1, 3 and 7 s.  With loss a new socket connects sooner.
    rail.greet_us = now + std::clamp(config_.deadline_us / 12, connect_limit_us_min, greet_limit_us);
    rail.connect.address = &to.storage;
    rail.connect.address_bytes = to.bytes;
    proactor_->start(rail.connect);
}

void Streams::equip(Rail& rail, uint64_t now) {
    // A rail that an interface has lost is to be open again on another one well within the deadline.
    socket_tune(rail.fd.get(), ways(rail.peer) > 1 ? config_.deadline_us / 4 : config_.deadline_us, config_.socket_bytes);
    // The host's own queue has some 100 KiB of a connection's words; pfifo_fast and prio send packets of this priority before them.
    constexpr int interactive = 6;   // TC_PRIO_INTERACTIVE
    if (&rail == rail.peer.express_rail())
        (void)::setsockopt(rail.fd.get(), SOL_SOCKET, SO_PRIORITY, &interactive, sizeof interactive);   // not required
    proactor_->add(rail.fd.get());
    for (Op* op : {&rail.connect, &rail.receive, &rail.send, &rail.watch}) op->fd = rail.fd.get();
    rail.greet_us = now + greet_limit_us;
    rail.greeting_out.clear();
    rail.greeting.resize(Receiver::rest_max);
}

// Finds the peer of a stream from the listener by the name in its Hello.
void Streams::invite(std::unique_ptr<Accepted> stream) {
    const Hello& hello = stream->handshake->peer();
    add(counters_.bytes_sent, stream->bytes_sent);
    add(counters_.bytes_received, stream->bytes_received);
    std::string why;
    for (auto& peer : peers_)
        if (peer && !peer->active && !peer->final && peer->identity.name == hello.name) {
            if (const uint32_t own = config_.connections(); hello.rails != own || hello.rail >= own) {
                why = fmt::format("'{}' has {} rails to each peer, '{}' {}", hello.name, hello.rails, config_.self.name, own);
                break;
            }
            Rail& rail = *peer->rails[hello.rail];
            // A wrong peer must not replace the right one's stream.
            if (rail.state == Rail::State::open) why = conflict(*peer, hello);
            if (why.empty()) {
                rail.next = std::move(stream);
                return;
            }
        }
    if (why.empty() && hello.name == config_.self.name) why = fmt::format("'{}' is our own name: two daemons have it", hello.name);
    const auto lost = std::ranges::find_if(
        peers_, [&](const auto& peer) { return peer && !peer->active && peer->final && peer->identity.name == hello.name; });
    if (why.empty() && lost != peers_.end()) why = fmt::format("it has given up '{}': {}", hello.name, (*lost)->last.what);
    if (why.empty())
        why = config_.job == JobId{}
                  ? fmt::format("'{}' is not a member at '{}': the lists of members differ", hello.name, config_.self.name)
                  : fmt::format("job {} does not expect '{}' to connect to '{}'", job_id_text(config_.job), hello.name, config_.self.name);
    if (stranger_ != why) log_.warn("peer {} is refused: {}", stream->address, why);
    stranger_ = why;
    stream->refuse(Verdict::refuse, why);
}

void Streams::take_up(Rail& rail, uint64_t now) {
    std::unique_ptr<Accepted> stream = std::move(rail.next);
    rail.fd = std::move(stream->fd);
    rail.handshake = std::move(stream->handshake);
    equip(rail, now);
    rail.state = Rail::State::greeting;
    greet(rail, stream->rest, now);
}

void Streams::greet(Rail& rail, std::span<const std::byte> bytes, uint64_t now) {
    Handshake& handshake = *rail.handshake;
    bytes = bytes.subspan(handshake.feed(bytes));
    if (handshake.state() == Handshake::State::asked) {
        hello_received(rail);
        bytes = bytes.subspan(handshake.feed(bytes));
    }
    if (rail.state != Rail::State::greeting) return;
    if (handshake.state() == Handshake::State::failed) return turned_away(rail);
    if (handshake.state() == Handshake::State::done) opened(rail, bytes, now);
}

void Streams::turned_away(Rail& rail) {
    Peer& peer = rail.peer;
    const Handshake& handshake = *rail.handshake;
    Code code = handshake.verdict() == Verdict::later ? Code::peer_lost : handshake.status().code;
    Status why = fail(code, "{}: {}", peer.label, handshake.status().what);
    // The peer has ended the job already, for this reason: handshakes pass and probes do not.
    if (handshake.verdict() == Verdict::later && !peer.small_only.ok()) why = peer.small_only;
    if (handshake.keys_differ()) {
        // An unauthenticated refusal: a peer that was up keeps its deadline.
        const auto keys = static_cast<uint32_t>(ring_->now()->keys.size());
        peer.key = (peer.key + 1) % keys;
        if (peer.active && !peer.peer_stream && ++peer.strikes >= strikes_max * keys) peer.losing = true;
    } else if (peer.active && handshake.verdict() == Verdict::refuse) {
        peer.losing = true;   // authenticated, so final.  For an acceptor the right peer may still come
    }
    fall(rail, why);
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
void Streams::hello_received(Rail& rail) {
    Peer& peer = rail.peer;
    Handshake& handshake = *rail.handshake;
    const Hello hello = handshake.peer();
    auto refuse = [&](Verdict verdict, const std::string& why) {
        handshake.refuse(verdict, why);
        auto text = handshake.output();
        ssize_t put = rail.send.busy ? 0 : ::send(rail.fd.get(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (put > 0) add(counters_.bytes_sent, static_cast<uint64_t>(put));
    };
    if (std::string why = conflict(peer, hello); !why.empty()) return refuse(Verdict::refuse, why);
    if (hello.view != config_.view) return refuse(Verdict::later, fmt::format("'{}' is in view {}", config_.self.name, config_.view));
    bool restarted = peer.identity.incarnation && hello.incarnation != peer.identity.incarnation;
    if (restarted || (peer.peer_stream && hello.stream != peer.peer_stream)) {
        refuse(Verdict::later, fmt::format("'{}' must give up the former stream first", config_.self.name));
        peer.losing = true;
        return fall(rail, fail(Code::peer_lost, "{}: {}", peer.label, restarted ? "it has restarted" : "it had given us up"));
    }
    // Counts are valid only if both sides know each other's stream numbers.  The answer tells a peer that knows another one.
    bool known = hello.peer_stream == peer.stream;
    if (known ? !acked(rail, hello.received) : hello.peer_stream == 0 && hello.received != 0)
        return refuse(Verdict::refuse, fmt::format("'{}' has received packets that were never sent", hello.name));
    // The connector's ask offers an end, the acceptor's answer has its own, and the connector's answer repeats the offer: then both use
    // them.
    if (!peer.active && hello.rdma.queue) open_pipe(rail, hello.rdma.device);
    if (rail.pipe && !connect_pipe(rail, hello.rdma)) {
        drop_pipe(rail);
        if (peer.active && device_of(rail) < rdma_->devices()) return fall(rail, {});   // to offer that one
    }
    handshake.accept(own_hello(rail));
}

// A pipe that does not open is no reason to do without the stream.
void Streams::open_pipe(Rail& rail, uint32_t device) {
    if (!rdma_ || device >= rdma_->devices() || rail.failed_devices >> device & 1) return;
    const Status status = rdma_->pipe_open(device, &rail.pipe, &rail.end);
    rail.end.device = static_cast<uint8_t>(device);
    if (!status.ok()) leave_device(rail, status.what);
}

bool Streams::connect_pipe(Rail& rail, const RdmaEnd& end) {
    if (end.queue == 0) {
        leave_device(rail, fmt::format("it has no RDMA to {}", rdma_->device(rail.end.device).name));
        return false;
    }
    const Status status = end.device == rail.end.device ? rdma_->pipe_connect(*rail.pipe, end)
                                                        : fail(Code::packet_invalid, "it answers for another RDMA device");
    if (!status.ok()) leave_device(rail, status.what);
    return status.ok();
}

// The device for the next attempt of a rail: its own, or another one that works; devices(): none does.
uint32_t Streams::device_of(const Rail& rail) const {
    const uint32_t all = rdma_ ? rdma_->devices() : 0;
    for (uint32_t i = 0; i < all; ++i)
        if (const uint32_t device = (rail.number + i) % all; !(rail.failed_devices >> device & 1)) return device;
    return all;
}

void Streams::leave_device(Rail& rail, std::string_view why) {
    rail.failed_devices |= 1u << rail.end.device;
    const uint32_t next = device_of(rail);
    log_.warn("{}: {}: its stream goes over {}", rail.peer.label, why,
              next < rdma_->devices() ? "RDMA device " + rdma_->device(next).name : "TCP");
}

void Streams::drop_pipe(Rail& rail) {
    rail.send.pipe = rail.receive.pipe = nullptr;
    rail.pipe = nullptr;
    rail.end = {};
    rail.ended = {};
}

void Streams::opened(Rail& rail, std::span<const std::byte> rest, uint64_t now) {
    Peer& peer = rail.peer;
    Key to_acceptor, to_connector;
    rail.handshake->keys(&to_acceptor, &to_connector);
    const Hello& hello = rail.handshake->peer();
    if (rail.pipe && (hello.rdma.queue == 0 || !rest.empty())) {
        if (hello.rdma.queue) return fall(rail, fail(Code::packet_invalid, "{}: bytes came beside its RDMA connection", peer.label));
        drop_pipe(rail);
    }
    rail.state = Rail::State::open;
    if (rail.pipe) {
        add(counters_.rdma_streams, 1u);
        proactor_->start(rail.watch);
    }
    peer.peer_stream = hello.stream;
    peer.identity.uuid = hello.uuid;
    peer.identity.incarnation = hello.incarnation;
    rail.backoff_us = backoff_us_min;
    peer.strikes = 0;
    rail.ack_us = 0;
    rail.unacknowledged_bytes = 0;
    rail.memory_waits = false;
    rail.sender.restart(peer.active ? to_acceptor : to_connector, rail.receiver.delivered());
    rail.receiver.restart(peer.active ? to_connector : to_acceptor, rest);
    rail.probe_us = now + config_.deadline_us / probe_parts;
    peer.last = {};
    if (peer.up) {
        add(counters_.reconnects, uint64_t{1});
        log_.info("{}: the stream is open again", peer.label);
        probe(peer, now);
        owner_.opened(peer.rank, false, now);
        return parse(rail, now);
    }
    // A rail that opens before the others is blocked by what has come with its handshake: a receive into its staging memory must not be
    // under way when that is taken.
    parse(rail, now);
    for (const auto& each : peer.rails)
        if (each->state != Rail::State::open) return;
    peer.lost = false;
    peer.up = true;
    probe(peer, now);
    owner_.opened(peer.rank, true, now);
    for (const auto& each : peer.rails)
        if (each->receiver.blocked()) parse(*each, now);
}

}   // namespace gradcast
