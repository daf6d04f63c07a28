// How a stream falls, when it is opened again, and when its peer is lost: the times of rails.
#include <algorithm>

#include "runtime/core/clock.h"
#include "runtime/core/crypto.h"
#include "transport/stream/streams.h"

namespace gradcast {
namespace {

constexpr uint64_t backoff_us_max = 200'000, backoff_us_lost = 2'000'000;

}   // namespace

void Streams::fall(Rail& rail, Status why) {
    Peer& peer = rail.peer;
    if (rail.state == Rail::State::open && rail.probe > 0 && !why.ok() && !peer.losing) why = unanswered(rail, why);
    if (!why.ok()) {
        if (why.what != peer.last.what) why.code == Code::peer_lost ? log_.debug("{}", why.what) : log_.warn("{}", why.what);
        peer.last = why;
    }
    if (rail.state == Rail::State::down || rail.state == Rail::State::closing) return;
    if (rail.state == Rail::State::open) {
        rail.down_us = clock_us();
        if (rail.pipe) counters_.rdma_streams.fetch_sub(1, std::memory_order_relaxed);
    }
    rail.state = Rail::State::closing;
    ::shutdown(rail.fd.get(), SHUT_RDWR);
    for (Op* op : {&rail.connect, &rail.receive, &rail.send, &rail.watch}) proactor_->cancel(*op);
}

void Streams::begin_anew(Peer& peer) {
    random_bytes({reinterpret_cast<uint8_t*>(&peer.stream), sizeof peer.stream});
    peer.stream |= 1;   // never 0
    peer.peer_stream = 0;
    peer.strikes = 0;
    for (auto& rail : peer.rails) {
        answered(*rail);
        rail->backoff_us = std::max(rail->backoff_us, backoff_us_min);
        rail->receiver.forget();
        rail->dealt_bytes = rail->taken_bytes = 0;
    }
}

/// The next attempt goes over another interface, and to the next address there.
void Streams::next_way(Rail& rail) const {
    rail.way = (rail.way + 1) % ways(rail.peer);
    ++rail.turn;
}

const SocketAddress& Streams::to(const Rail& rail) const {
    static const SocketAddress none;
    const std::vector<SocketAddress>& all = rail.peer.addresses[rail.way];
    return all.empty() ? none : all[rail.turn / ways(rail.peer) % all.size()];
}

/// " to 10.0.0.2:4700", where the label of the peer does not say so.
std::string Streams::to_text(const Rail& rail) const {
    const std::string text = address_text(to(rail));
    return rail.peer.label.find(text) == std::string::npos ? " to " + text : "";
}

void Streams::lose(Peer& peer) {
    const Identity& expected = config_.peers[peer.rank].identity;
    if (peer.last.ok())
        peer.last = fail(Code::peer_lost, "{}: it did not come within {} s: is gradcastd running there? Its log says why it cannot come",
                         peer.label, static_cast<double>(config_.deadline_us) * 1e-6);
    const bool again = std::exchange(peer.lost, true);   // lost before and not up since: fall() has logged the news
    peer.losing = peer.up = false;
    peer.final = expected.incarnation != 0 && !config_.survive;   // without an expected incarnation the next one may come
    peer.identity = expected;
    if (config_.survive) peer.identity.incarnation = 0;   // that or a later one
    for (auto& rail : peer.rails) rail->sender.clear([&](uint32_t ticket) { owner_.done(ticket, peer.last); });
    begin_anew(peer);
    if (!again && peer.narrow < 2) log_.warn("lost {}", peer.last.what);
    owner_.lost(peer.rank, peer.last);
}

void Streams::tend(Peer& peer, uint64_t now) {
    for (auto& rail : peer.rails) tend(*rail, now);
    if (!peer.losing) return;
    for (auto& rail : peer.rails) fall(*rail, peer.last);
    if (std::all_of(peer.rails.begin(), peer.rails.end(), [](const auto& rail) { return rail->state == Rail::State::down; })) lose(peer);
}

// Handles the times of a rail.
void Streams::tend(Rail& rail, uint64_t now) {
    Peer& peer = rail.peer;
    if (rail.state == Rail::State::closing && !rail.in_use()) {
        proactor_->remove(rail.fd.get());
        rail.fd.close();
        drop_pipe(rail);
        rail.handshake = nullptr;
        rail.state = Rail::State::down;
        rail.retry_us = now + rail.backoff_us;
        rail.backoff_us = std::min(2 * rail.backoff_us, peer.lost ? backoff_us_lost : backoff_us_max);
    }
    bool late = !peer.lost && rail.state != Rail::State::open && now >= rail.down_us + config_.deadline_us;
    if (late) peer.losing = true;
    switch (rail.state) {
        case Rail::State::down:
            if (peer.losing || peer.final) return;
            if (rail.next) take_up(rail, now);
            else if ((peer.active || provable(peer)) && now >= rail.retry_us) connect(rail, now);
            break;
        case Rail::State::connecting:
        case Rail::State::greeting:
            if (now >= rail.greet_us && rail.state == Rail::State::connecting) {
                const std::string where = to_text(rail);
                next_way(rail);
                fall(rail, fail(Code::peer_lost, "{}: no answer{}: is its host up, and does a firewall let this port through?", peer.label,
                                where.empty() ? "" : " from" + where.substr(3)));
            } else if (now >= rail.greet_us) {
                next_way(rail);
                fall(rail, fail(Code::peer_lost, "{}: no handshake within {} s", peer.label, greet_limit_us / 1'000'000));
            } else if (late || rail.next) {
                fall(rail, peer.last);
            }
            break;
        case Rail::State::open:
            // An authenticated peer that connects again has given the old stream up, even if it still looks alive here.
            if (rail.next) fall(rail, fail(Code::peer_lost, "{}: it connects again", peer.label));
            else if (!rail.ended.ok() && !rail.pipe->readable()) fall(rail, rail.ended);
            else if (now >= rail.look_us) look_for_repeats(rail, now);
            break;
        case Rail::State::closing: break;
    }
}

/// The peer was here with a known incarnation: if nobody listens at its address any more, that incarnation is dead.  So the accepting side
/// tries to connect, too.
bool Streams::provable(const Peer& peer) const {
    return peer.up && config_.peers[peer.rank].identity.incarnation != 0 && !peer.addresses[0].empty();
}

// The latest time of the next tend() or pump().
uint64_t Streams::due_us(const Rail& rail) const {
    constexpr uint64_t never = ~uint64_t{0};
    const Peer& peer = rail.peer;
    uint64_t lost_us = peer.lost ? never : rail.down_us + config_.deadline_us;
    switch (rail.state) {
        case Rail::State::down:
            if (peer.losing || rail.next) return 0;
            if (peer.final) return never;
            return peer.active || provable(peer) ? std::min(rail.retry_us, lost_us) : lost_us;
        case Rail::State::connecting:
        case Rail::State::greeting: return rail.next ? 0 : std::min(rail.greet_us, lost_us);
        case Rail::State::open: {
            if (rail.next) return 0;
            // What is not acknowledged may never be.
            const uint64_t look_us = (rail.repeats && rail.probe == 0) || rail.sender.acknowledged() ? never : rail.look_us;
            return std::min(look_us, rail.ack_us && !rail.send.busy ? rail.ack_us : never);
        }
        case Rail::State::closing: return rail.in_use() ? never : 0;
    }
    return never;
}

}   // namespace gradcast
