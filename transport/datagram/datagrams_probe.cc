#include <fmt/format.h>
#include <algorithm>

#include "transport/datagram/datagrams.h"

namespace gradcast {

namespace {
constexpr uint64_t verdict_us = 500'000, retry_us = 150'000;
constexpr uint8_t key_kind_here = 1, key_kind_taken = 2;
}   // namespace

void Datagrams::opened(Rank rank, uint64_t now) {
    Mate& mate = mates_[rank];
    mate.lost = false;
    if (!std::exchange(mate.up, true)) mate.up_us = now;
    send_key(rank, sealer_, 0);
    if (view_sealer_) send_key(rank, *view_sealer_, view_receiver_->view());
}

void Datagrams::send_key(Rank rank, const DatagramSealer& sealer, uint32_t view) {
    KeyBody body{};
    KeyPayload payload{sealer.key(), {}};
    body.view.set(view);
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&sockets_.own_address.storage);
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&sockets_.own_address.storage);
    body.kind = key_kind_here;
    body.family = family();
    body.port.set(sockets_.rdma ? static_cast<uint16_t>(v6->sin6_scope_id) : ntohs(body.family ? v6->sin6_port : v4->sin_port));
    body.segment_bytes.set(config_.datagrams.segment_bytes);
    body.place.set(sockets_.rdma ? v6->sin6_flowinfo : sockets_.place);
    if (body.family) std::memcpy(payload.address.data(), &v6->sin6_addr, 16);
    else std::memcpy(payload.address.data(), &v4->sin_addr, 4);
    Send send;
    send.to.rank = rank;
    send.type = PacketType::key;
    send.body = body_bytes(body);
    send.payload = {reinterpret_cast<std::byte*>(&payload), nullptr, sizeof payload};   // inline: copied at once
    owner_.send_link_packet(rank, send);
}

void Datagrams::lost(Rank rank) {
    by_streams_ -= mates_[rank].by_stream;
    mates_[rank] = {};
    mates_[rank].lost = true;
    receiver_.forget(rank);
    if (view_receiver_) view_receiver_->forget(rank);
    tend_loop();
}

/// Own multicasts are delivered in this network namespace only if another rank may live in it.
void Datagrams::tend_loop() {
    if (sockets_.rdma) return;
    bool beside = false;
    for (Rank rank = 0; rank < mates_.size(); ++rank) beside |= concerns(rank) && mates_[rank].beside;
    datagram_loop(sockets_, beside);
}

void Datagrams::link_packet_received(const Packet& packet) {
    Mate& mate = mates_[packet.sender];
    if (packet.type == PacketType::datagram) {
        const auto fault = static_cast<size_t>(take({packet.payload.host, packet.payload.bytes}));
        if (fault) add(counters_.datagrams_dropped[fault], uint64_t{1});
        return;
    }
    if (packet.type == PacketType::probe) {
        const ProbeBody body = body_of<ProbeBody>(packet);
        const uint32_t stage = body.stage.get();
        if (stage == watch_stage) return answered(packet.sender, body.count.get());
        if (body.round.get() != round_ || stage >= stages) return;
        mate.had[stage] = std::max<uint32_t>(mate.had[stage], body.count.get());
        if (body.rate_mbit.get()) mate.rate_mbit = body.rate_mbit.get();
        return;
    }
    const KeyBody body = body_of<KeyBody>(packet);
    if (body.kind == key_kind_taken && !mate.ready) {
        mate.ready = true;
        phase_ = Phase::waiting;   // probe again
    }
    if (body.kind != key_kind_here || packet.payload.bytes != sizeof(KeyPayload)) return;
    static constexpr const char* families[] = {"over IPv4", "over IPv6", "over RDMA", "?"};
    if (config_.datagrams.probe_only && body.family != family()) return;
    if (body.family != family() || body.segment_bytes.get() != config_.datagrams.segment_bytes) {
        const Status why = fail(
            Code::peer_lost, "its datagrams are {} of {} bytes, ours {} of {}: give every rank an interface of one family and MTU",
            families[std::min<uint8_t>(body.family, 3)], body.segment_bytes.get(), families[family()], config_.datagrams.segment_bytes);
        log_.error("{}: {}", owner_.label(packet.sender), why.what);
        mate.lost = true;
        owner_.unreachable(packet.sender, why);
        return;
    }
    KeyPayload payload;
    std::memcpy(&payload, packet.payload.host, sizeof payload);
    if (const uint32_t view = body.view.get()) {
        if (view < mate.key_view) return;
        mate.key_view = view;
        mate.view_key = payload.key;
        if (view_receiver_ && view_receiver_->view() == view) view_receiver_->key(packet.sender, payload.key);
        return;
    }
    mate.address = sockets_.own_address;   // sets the family, and the scope of a link-local address
    auto* v4 = reinterpret_cast<sockaddr_in*>(&mate.address.storage);
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&mate.address.storage);
    if (sockets_.rdma) {
        std::memcpy(&v6->sin6_addr, payload.address.data(), 16);
        v6->sin6_flowinfo = body.place.get();
        v6->sin6_scope_id = body.port.get();
    } else if (body.family) {
        std::memcpy(&v6->sin6_addr, payload.address.data(), 16);
        v6->sin6_port = htons(body.port.get());
    } else {
        std::memcpy(&v4->sin_addr, payload.address.data(), 4);
        v4->sin_port = htons(body.port.get());
    }
    mate.addressed = true;
    mate.beside = sockets_.rdma || body.place.get() == 0 || sockets_.place == 0 || body.place.get() == sockets_.place;
    tend_loop();
    if (receiver_.key(packet.sender, payload.key)) mate.round = 0;
    KeyBody taken{};
    taken.kind = key_kind_taken;
    Send send;
    send.to.rank = packet.sender;
    send.type = PacketType::key;
    send.body = body_bytes(taken);
    owner_.send_link_packet(packet.sender, send);
}

void Datagrams::train(uint32_t stage, Rank rank) {
    const uint32_t count = train_datagrams(stage);
    ProbeBody body{};
    body.round.set(round_);
    body.stage.set(static_cast<uint16_t>(stage));
    body.count.set(static_cast<uint16_t>(count));
    body.train.set(++trains_sent_);
    Queued queued{{}, ticket_none, false, rank == mates_.size()};
    queued.send.to.rank = rank;
    queued.send.type = PacketType::probe;
    queued.send.body = body_bytes(body);
    queued.send.payload = {blank_.data(), nullptr, sizes_[stage]};
    queued.send.channel = datagram_channel_probe;
    for (uint32_t i = 0; i < count; ++i) {
        queued.send.sequence = ++probe_sequence_;
        queued.alone =
            i <= count / 3;   // a bridge with a smaller MTU drops single datagrams and passes bursts; a third exceeds the tolerated loss
        trains_.push(queued);
    }
}

bool Datagrams::all_reached(uint32_t stage) const {
    for (Rank rank = 0; rank < mates_.size(); ++rank)
        if (concerns(rank) && !reached(mates_[rank], stage)) return false;
    return true;
}
std::vector<std::string> Datagrams::missing(uint32_t stage) const {
    std::vector<std::string> labels;
    for (Rank rank = 0; rank < mates_.size(); ++rank)
        if (concerns(rank) && !reached(mates_[rank], stage)) labels.push_back(owner_.label(rank));
    return labels;
}

uint64_t Datagrams::give_up_after_us() const { return std::max(config_.deadline_us / 4, 2 * verdict_us); }

void Datagrams::probe(uint64_t now) {
    if (phase_ == Phase::settled) {
        // Late reports correct a verdict that was too early.
        if (!multicast_ && all_reached(0)) settle(true);
        return watch(now);
    }
    if (phase_ == Phase::waiting) {
        for (Rank rank = 0; rank < mates_.size(); ++rank) {
            const Mate& mate = mates_[rank];
            if (concerns(rank) && !mate.ready && (!mate.up || now < mate.up_us + verdict_us)) return;
        }
        ++round_;
        for (Mate& mate : mates_) {
            std::fill(std::begin(mate.had), std::end(mate.had), 0);
            mate.rate_mbit = 0;
        }
        said_ = multicast_ = false;
        phase_ = Phase::multicast;
        next_try_us_ = now;
        deadline_us_ = now + verdict_us;
    }
    if (phase_ == Phase::multicast) {
        if (all_reached(0)) return settle(true);
        if (now >= deadline_us_) {
            phase_ = Phase::narrow;
            next_try_us_ = now;
            deadline_us_ = now + verdict_us;
            give_up_us_ = now + give_up_after_us();
        } else if (now >= next_try_us_) {
            train(0, static_cast<Rank>(mates_.size()));
            next_try_us_ = now + retry_us;
        }
    }
    if (phase_ == Phase::narrow) {
        if (all_reached(1)) return settle(all_reached(0));
        if (now >= deadline_us_ && needed_ && !std::exchange(said_, true)) say_unreachable();
        const bool waits = !needed_ && !config_.datagrams.probe_only;
        if (now >= give_up_us_ && (waits || stream_stands(now))) give_up_us_ = now + verdict_us;
        if (now >= give_up_us_) {
            for (Rank rank = 0; rank < mates_.size() && !config_.datagrams.probe_only; ++rank)
                if (concerns(rank) && !reached(mates_[rank], 1)) {
                    mates_[rank].lost = true;
                    owner_.unreachable(rank, unreached(rank));
                }
            return settle(all_reached(0));
        }
        if (now >= next_try_us_) {
            for (Rank rank = 0; rank < mates_.size(); ++rank)
                for (uint32_t stage = 1; concerns(rank) && stage < stages && sizes_[stage]; ++stage)
                    if (mates_[rank].addressed && !reached(mates_[rank], 1)) train(stage, rank);
            next_try_us_ = now + retry_us;
        }
    }
}

void Datagrams::watch(uint64_t now) {
    if (!sent_ || now < watch_us_ || config_.datagrams.probe_only) return;
    sent_ = false;
    watch_us_ = now + watch_every_us();
    for (Rank rank = 0; rank < mates_.size(); ++rank)
        if (concerns(rank) && mates_[rank].ready && mates_[rank].addressed && !mates_[rank].by_stream) ask(rank);
}

/// Sends some small datagrams and asks, by the stream, how many have come since the last question.  So a peer that is stopped, whose stream
/// is silent as well, is not taken for one that UDP does not reach.
void Datagrams::ask(Rank rank) {
    ProbeBody body{};
    body.stage.set(watch_stage);
    Queued queued{{}, ticket_none, false, false};
    queued.send.to.rank = rank;
    queued.send.type = PacketType::probe;
    queued.send.body = body_bytes(body);
    queued.send.channel = datagram_channel_probe;
    for (uint32_t i = 0; i < watch_datagrams; ++i) {
        queued.send.sequence = ++probe_sequence_;
        trains_.push(queued);
    }
    body.count.set(watch_question);
    Send question;
    question.to.rank = rank;
    question.type = PacketType::probe;
    question.body = body_bytes(body);
    owner_.send_link_packet(rank, question);
}

/// A question of the peer, or its answer to ours.
void Datagrams::answered(Rank rank, uint32_t count) {
    Mate& mate = mates_[rank];
    if (count == watch_question) {
        ProbeBody body{};
        body.stage.set(watch_stage);
        body.count.set(static_cast<uint16_t>(std::min(std::exchange(mate.watch_received, 0), watch_question - 1)));
        Send answer;
        answer.to.rank = rank;
        answer.type = PacketType::probe;
        answer.body = body_bytes(body);
        owner_.send_link_packet(rank, answer);
        return;
    }
    if (count > 0) mate.silent = 0;
    else if (!mate.by_stream && ++mate.silent == silent_max) {
        mate.by_stream = true;
        ++by_streams_;
        const std::string text = fmt::format(
            "{}: no datagram (UDP) from interface {} reaches {} any more, is a firewall closed on the way? What is for it goes by its "
            "stream from now on, which is slower",
            owner_.label(rank), sockets_.interface, address_text(mate.address));
        log_.warn("{}", text);
        if (config_.warn) config_.warn(text);
    }
}

uint64_t Datagrams::due_us() const {
    uint64_t due = ~uint64_t{0};
    switch (phase_) {
        case Phase::settled:
            if (sent_ && !config_.datagrams.probe_only) due = watch_us_;
            break;
        case Phase::waiting:
            for (Rank rank = 0; rank < mates_.size(); ++rank)
                if (const Mate& mate = mates_[rank]; concerns(rank) && mate.up && !mate.ready && mate.up_us + verdict_us > now_us_)
                    due = std::min(due, mate.up_us + verdict_us);   // one wake-up: another peer may be missing for long
            break;
        case Phase::multicast: due = std::min(next_try_us_, deadline_us_); break;
        case Phase::narrow: due = std::min({next_try_us_, said_ ? due : deadline_us_, give_up_us_}); break;
    }
    return due;
}

/// The stream of a peer has not brought the address of its datagrams: it stands still or is down.  Until the deadline that is the business
/// of streams.h, which knows the reason.
bool Datagrams::stream_stands(uint64_t now) const {
    for (Rank rank = 0; rank < mates_.size(); ++rank)
        if (const Mate& mate = mates_[rank]; concerns(rank) && !mate.addressed && (!mate.up || now < mate.up_us + config_.deadline_us))
            return true;
    return false;
}

void Datagrams::say_unreachable() {
    for (Rank rank = 0; rank < mates_.size(); ++rank)
        if (concerns(rank) && mates_[rank].addressed && !reached(mates_[rank], 1))
            log_.error("{}: {}", owner_.label(rank), unreached(rank).what);
}

/// Why datagrams do not reach it: the path and the way out.
Status Datagrams::unreached(Rank rank) const {
    const Mate& mate = mates_[rank];
    uint32_t smaller = 0;
    for (uint32_t stage = 2; stage < stages && sizes_[stage]; ++stage)
        if (reached(mate, stage)) smaller = std::max(smaller, sizes_[stage]);
    if (!mate.addressed) return fail(Code::peer_lost, "it has not sent an address for datagrams: its log says why");
    if (smaller)
        return fail(
            Code::peer_lost,
            "datagrams of {} bytes do not reach {}, those of {} do: raise the MTU on the way to {}, lower it here ({}, now {}), or do "
            "without datagrams (transport.kind = \"tcp\")",
            config_.datagrams.segment_bytes, address_text(mate.address), smaller, sizes_[0] + frame_bytes + (sockets_.ipv6() ? 48 : 28),
            sockets_.interface, sockets_.mtu);
    return fail(Code::peer_lost,
                "no datagram reaches {} from interface {}, neither by group {} nor alone: choose another interface, open UDP in the "
                "firewall, or do without datagrams (transport.kind = \"tcp\")",
                address_text(mate.address), sockets_.interface, config_.datagrams.group);
}

void Datagrams::settle(bool multicast) {
    uint32_t peers = 0, reach = 0, rate = ~0u;
    for (Rank rank = 0; rank < mates_.size(); ++rank) {
        const bool later = config_.first > 0 && rank >= config_.first && mates_[rank].lost;   // it has not come, or is gone again
        if (rank == config_.rank || later) continue;
        ++peers;
        reach += reached(mates_[rank], multicast ? 0 : 1);
        if (concerns(rank) && mates_[rank].rate_mbit) rate = std::min(rate, mates_[rank].rate_mbit);
    }
    {
        std::lock_guard lock(found_mutex_);
        found_.probed = true;
        found_.round = round_;
        found_.multicast = multicast;
        found_.reached = reach;
        found_.peers = peers;
        found_.rate_mbit = multicast && rate != ~0u ? rate : 0;
        found_.without_multicast = multicast ? std::vector<std::string>{} : missing(0);
    }
    if (config_.datagrams.probe_only) log_.debug("datagrams: {}", datagrams_text(found_));
    else if (multicast) log_.info("datagrams: {}", datagrams_text(found_));
    else
        log_.warn(
            "multicast {} on {} does not reach {} with {} bytes within {} ms, datagrams to one rank do: each rank gets its own copy from "
            "now on (is multicast filtered by a switch or a firewall?)",
            config_.datagrams.group, sockets_.interface, fmt::join(found_.without_multicast, ", "), config_.datagrams.segment_bytes,
            verdict_us / 1000);
    multicast_ = multicast;
    phase_ = Phase::settled;
    counters_.copies.store(!multicast, std::memory_order_relaxed);
}

}   // namespace gradcast
