// Messages between daemons: cut into packets and put together again, and who takes each kind.
#include <algorithm>

#include "runtime/mesh/membership.h"
#include "runtime/mesh/membership_messages.h"
#include "transport/wire/packet.h"

namespace gradcast {
namespace {

constexpr uint32_t message_max = 2 << 20;   // a plan: the job file, and at most 700 bytes a member
constexpr uint32_t fragment_bytes = lease_bytes_max;

}   // namespace

void Membership::packet(const Packet& packet, Actions& actions) {
    if (packet.type != PacketType::job || packet.sender >= peers_.size() || packet.sender == config_.self) return;
    JobBody body = body_of<JobBody>(packet);
    Kind kind = static_cast<Kind>(body.kind.get());
    uint64_t offset = body.value.get() >> 32, total = body.value.get() & UINT32_MAX, bytes = packet.payload.bytes;
    Peer& peer = peers_[packet.sender];
    if (offset == 0) {   // also when the one before was cut off by a restart
        peer.kind = kind;
        peer.message.clear();
    }
    if (total > message_max || offset != peer.message.size() || kind != peer.kind || offset + bytes > total || (bytes == 0 && total != 0)) {
        peer.message.clear();
        return;
    }
    peer.message.insert(peer.message.end(), packet.payload.host, packet.payload.host + bytes);
    if (peer.message.size() != total) return;
    std::vector<std::byte> whole = std::exchange(peer.message, {});
    message(packet.sender, kind, whole, actions);
}

uint64_t Membership::send(Rank peer, Kind kind, std::vector<std::byte> bytes, Actions& actions) {
    GC_ASSERT(bytes.size() <= message_max && !bytes.empty());
    auto shared = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
    for (uint64_t offset = 0; offset < shared->size(); offset += fragment_bytes) {
        JobBody body{};
        body.kind.set(static_cast<uint32_t>(kind));
        body.value.set(offset << 32 | shared->size());
        // The link only reads what it sends.
        Buffer payload{const_cast<std::byte*>(shared->data()) + offset, nullptr,
                       std::min<uint64_t>(fragment_bytes, shared->size() - offset)};
        flights_[++ticket_] = shared;
        actions.sends.push_back({.to = {peer}, .type = PacketType::job, .body = body_bytes(body), .payload = payload, .ticket = ticket_});
    }
    return ticket_;
}

/// Also to nodes that another one may have invited.
void Membership::send_all(const Session& session, Kind kind, const std::vector<std::byte>& bytes, Actions& actions) {
    for (const Part& part : session.parts)
        if (part.peer != config_.self && (part.incarnation > 0 || peers_[part.peer].alive)) send(part.peer, kind, bytes, actions);
}

void Membership::message(Rank from, Kind kind, std::span<const std::byte> bytes, Actions& actions) {
    if (kind == Kind::hello) return hello(from, bytes, actions);
    if (kind == Kind::prepare) return prepare(from, bytes, actions);
    if (kind == Kind::invite) return invited(from, bytes, actions);
    if (kind == Kind::drain) {
        if (Drain order; drain_parse(bytes, &order)) drain_here(order.on, order.cancel);
        return;
    }
    MessageReader reader{bytes};
    const JobId id = reader.id();
    if (kind == Kind::find) {
        const uint64_t request = reader.number();
        if (reader.whole()) look(from, id, request);
        return;
    }
    if (kind == Kind::found) {
        if (peers_[from].finds == 0) return;   // nobody has asked
        --peers_[from].finds;
        uint64_t request = 0;
        Found found;
        if (found_parse(reader, &request, &found)) notice(id, Notice::Answer{from, request, std::move(found)});
        return;
    }
    if (kind == Kind::done) {
        if (reader.whole()) done_elsewhere(id, actions.now_us);
        return;
    }
    auto at = sessions_.find(id);
    if (!reader.good || at == sessions_.end()) return;
    Session& session = at->second;
    Rank rank = rank_of(session, from);
    if (rank == session.parts.size()) return;
    const std::string& name = session.plan->members[rank].name;
    bool preparing = session.state == State::opening || session.state == State::ready;
    const bool prepares = preparing && !session.plan->joins;   // with the others: who joins opens its engine alone
    if (kind == Kind::ready && session.self == 0 && prepares) {
        ComputesWith with = computes_with_read(reader);
        const uint64_t deadline_us = reader.number();
        if (reader.whole() && deadline_us <= deadline_us_max) ready(at, rank, std::move(with), deadline_us, actions);
    } else if (kind == Kind::refused && session.self == 0 && prepares) {
        std::string why = reader.text(reason_max), code = reader.text(reason_max);
        // Code::invalid is a fault of the job, the same at every node, so it stays Code::invalid, not peer_refused.
        if (reader.whole())
            give_up(at,
                    fail(code == code_name(Code::invalid)     ? Code::invalid
                         : code == code_name(Code::cancelled) ? Code::cancelled
                                                              : Code::peer_refused,
                         "node {}: {}", name, why),
                    actions);
    } else if (kind == Kind::start && rank == 0 && session.state == State::ready) {
        const uint64_t deadline_us = reader.number();
        if (reader.whole() && deadline_us >= session.plan->deadline_us && deadline_us <= deadline_us_max) start(at, deadline_us);
    } else if (kind == Kind::abort && rank == 0 && prepares) {
        std::string why = reader.text(reason_max);
        if (!reader.whole()) return;
        notice(at->first, Notice::Abort{fail(Code::cancelled, "{}", why)});
        sessions_.erase(at);
    } else if (kind == Kind::refused && session.state == State::running) {
        const std::string why = reader.text(reason_max), code = reader.text(reason_max);
        if (reader.whole()) notice(id, Notice::Warning{fail(Code::peer_refused, "node {} does not join: {}", name, why)});
    } else if (kind == Kind::add && session.state == State::running) {
        const std::string node = reader.text(64);
        if (reader.whole()) add_here(session, node);
    } else if (kind == Kind::ended) {
        session.parts[rank].ended = session.parts[rank].said_ended = true;
        notice_if_ended_elsewhere(session);
        close_if_ended(at);
    }
}

}   // namespace gradcast
