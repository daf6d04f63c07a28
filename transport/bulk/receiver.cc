#include "transport/bulk/receiver.h"

#include <algorithm>

namespace gradcast::bulk {
namespace {

bool same(const DataBody& a, const DataBody& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

}   // namespace

Receiver::Receiver(const BulkConfig& config, Protocol& user, Arena& arena, BulkCounters* counters)
    : config_(config), user_(user), counters_(counters), peers_(config.ranks) {
    for (Rank r = 0; r < config.ranks; ++r) {
        if (r == config.self) continue;
        peers_[r].pieces.resize(slots_max);
        peers_[r].opens.resize(std::clamp(2048u / config.ranks, 4u, 32u));
        peers_[r].told = config.window_bytes / std::max(config.ranks - 1, 1u);
        arena.plan("bulk feedback", inline_bytes_max, &peers_[r].out);
    }
}

bool Receiver::plausible(const Packet& packet, uint64_t bytes) const {
    if (packet.sender >= config_.ranks || packet.sender == config_.self || packet.sequence == 0 || packet.sequence > sequence_mask)
        return false;
    const DataBody body = body_of<DataBody>(packet);
    const uint32_t count = body.count.get(), index = body.index.get();
    if (count == 0 || count > count_max || index >= count) return false;
    return index + 1 < count ? bytes == config_.segment_bytes : bytes <= config_.segment_bytes && (bytes > 0 || count == 1);
}

bool Receiver::fresh(const Peer& peer, uint64_t sequence) const {
    if (sequence > peer.highest) return true;
    return peer.highest - sequence < seen_numbers && !bit(peer.seen, sequence % seen_numbers);
}

void Receiver::see(Peer& peer, uint64_t sequence, uint64_t bytes) {
    if (sequence > peer.highest) {
        if (sequence - peer.highest >= seen_numbers) std::fill(std::begin(peer.seen), std::end(peer.seen), 0);
        else
            for (uint64_t s = peer.highest + 1; s < sequence; ++s) clear_bit(peer.seen, s % seen_numbers);
        peer.highest = sequence;
    }
    set_bit(peer.seen, sequence % seen_numbers);
    peer.owed += bytes;
    if (peer.owed * 2 >= peer.told) peer.credit = true;
}

/// The piece that the packet belongs to, begun if it is new; null if the packet is of an older one.
Receiver::Piece* Receiver::piece_of(Peer& peer, const Packet& packet) {
    DataBody name = body_of<DataBody>(packet);
    const uint32_t slot = name.reserved, first = name.index.get() / piece_segments * piece_segments;
    name.reserved = 0, name.index.set(first);
    Piece& piece = peer.pieces[slot];
    if (piece.state != Piece::State::none && same(piece.name, name) && piece.type == packet.type) return &piece;
    if (packet.sequence < piece.newest) return nullptr;
    for (uint32_t b = 0; b < piece.blocks; ++b)
        if (piece.block[b] != unseen && piece.block[b] != done) peer.opens[piece.block[b] - 1u].used = false;
    piece = {};
    piece.name = name, piece.type = packet.type, piece.state = Piece::State::going;
    piece.blocks = static_cast<uint8_t>((std::min(name.count.get() - first, piece_segments) + block_segments - 1) / block_segments);
    set_bit(peer.known, slot);
    peer.slots = std::max(peer.slots, slot + 1);
    for (uint32_t w = 0; w < slots_max / 64; ++w)
        if (uint64_t others = peer.known[w] & ~(w == slot / 64 ? uint64_t{1} << slot % 64 : 0)) {
            (void)others, hole(peer);   // their tails may be lost
            break;
        }
    return &piece;
}

const Receiver::Open* Receiver::open_of(const Peer& peer, const Piece& piece, uint32_t block) const {
    return piece.block[block] == unseen || piece.block[block] == done ? nullptr : &peer.opens[piece.block[block] - 1u];
}

/// Null: too many are open already, the packet counts as lost.
Receiver::Open* Receiver::open_new(Peer& peer, uint32_t slot, uint32_t block) {
    for (uint32_t i = 0; i < peer.opens.size(); ++i) {
        Open& open = peer.opens[i];
        if (open.used) continue;
        Piece& piece = peer.pieces[slot];
        open.used = true, open.plain = false, open.have = open.newer = 0, open.bits[0] = open.bits[1] = 0;
        open.slot = static_cast<uint8_t>(slot), open.block = static_cast<uint8_t>(block);
        const uint32_t from = piece.name.index.get() + block * block_segments;
        open.segments = static_cast<uint8_t>(std::min(piece.name.count.get() - from, block_segments));
        piece.block[block] = static_cast<uint8_t>(i + 1);
        return &open;
    }
    return nullptr;
}

void Receiver::block_done(Peer& peer, uint32_t slot, uint32_t block) {
    Piece& piece = peer.pieces[slot];
    if (piece.block[block] != unseen) peer.opens[piece.block[block] - 1u].used = false;
    piece.block[block] = done;
    if (++piece.blocks_done < piece.blocks) return;
    piece.state = Piece::State::finished;
    clear_bit(peer.known, slot), flip_bit(peer.finished, slot);
    peer.report = true;
}

void Receiver::hole(Peer& peer) {
    if (peer.hole_us != never) {
        peer.again = true;
        return;
    }
    peer.hole_us = now_us_ + reorder_us, peer.snapshot = peer.highest, peer.again = false;
    ++peer.epoch;
}

Landing Receiver::land(const Packet& packet, uint64_t bytes, Buffer* place) {
    if (packet.type == PacketType::feedback) return bytes <= inline_bytes_max ? Landing::lease : Landing::drop;
    if (packet.type != PacketType::words && packet.type != PacketType::record) return Landing::drop;
    if (!plausible(packet, bytes)) return Landing::drop;
    const Peer& peer = peers_[packet.sender];
    if (peer.lost || !fresh(peer, packet.sequence)) return Landing::drop;
    Packet asked = packet;
    DataBody body = body_of<DataBody>(packet);
    const uint32_t slot = body.reserved, index = body.index.get(), within = index % piece_segments;
    body.reserved = 0;
    asked.body = body_bytes(body);
    const Piece& piece = peer.pieces[slot];
    body.index.set(index - within);
    if (piece.state != Piece::State::none && same(piece.name, body)) {
        if (piece.state == Piece::State::finished || piece.block[within / block_segments] == done) return Landing::lease;
        const Open* open = open_of(peer, piece, within / block_segments);
        if (open && bit(open->bits, within % block_segments)) return Landing::lease;
    }
    return user_.land(asked, bytes, place) == Landing::place ? Landing::place : Landing::lease;   // take() asks again
}

bool Receiver::take(const Packet& packet, uint64_t now_us, Packet* given) {
    now_us_ = now_us;
    if (!plausible(packet, packet.payload.bytes)) return false;
    Peer& peer = peers_[packet.sender];
    if (peer.lost || !fresh(peer, packet.sequence)) {
        counters_->duplicates.fetch_add(1, std::memory_order_relaxed);
        return false;
    }
    const bool newest = packet.sequence > peer.highest;
    see(peer, packet.sequence, packet.payload.bytes + wire_bytes);
    Piece* piece = piece_of(peer, packet);
    if (!piece) return false;
    piece->newest = std::max(piece->newest, packet.sequence);
    DataBody body = body_of<DataBody>(packet);
    const uint32_t slot = body.reserved, within = body.index.get() % piece_segments, b = within / block_segments,
                   i = within % block_segments;
    const bool in_order = within == piece->next;
    piece->next = std::max(piece->next, within + 1);
    Open* open = const_cast<Open*>(open_of(peer, *piece, b));
    if (piece->state == Piece::State::finished || piece->block[b] == done || (open && bit(open->bits, i))) {
        peer.report = true;   // it does not know yet
        counters_->duplicates.fetch_add(1, std::memory_order_relaxed);
        return false;
    }
    *given = packet;
    body.reserved = 0;
    given->body = body_bytes(body);
    given->payload = {};
    Buffer place;
    const Landing landing = user_.land(*given, packet.payload.bytes, &place);
    given->payload = packet.payload;
    if (landing == Landing::later) {
        piece->held = within + 1, piece->held_bytes = static_cast<uint32_t>(packet.payload.bytes);
        peer.held_us = std::min(peer.held_us, now_us + held_us);
        return false;
    }
    if (!open) open = open_new(peer, slot, b);
    if (!open) {
        hole(peer);
        return false;
    }
    if (landing == Landing::place && place.host != packet.payload.host) {   // there was none when it came
        if (place.bytes) std::memcpy(place.host, packet.payload.host, place.bytes);
        given->payload = place;
    }
    if (landing == Landing::drop || landing == Landing::lease) open->plain = true;
    set_bit(open->bits, i), ++open->have;
    open->place[i] = place.host;
    if (open->epoch != peer.epoch) open->epoch = peer.epoch, open->newer = 0;
    if (packet.sequence > peer.snapshot) ++open->newer;
    if (open->have == open->segments) block_done(peer, slot, b);
    else if (!in_order || !newest) hole(peer);
    counters_->packets_received.fetch_add(1, std::memory_order_relaxed);
    return landing != Landing::drop;
}

bool Receiver::feedback(const Packet& packet, uint64_t now_us) {
    now_us_ = now_us;
    Peer& peer = peers_[packet.sender];
    if (peer.lost || !fresh(peer, packet.sequence)) return false;
    see(peer, packet.sequence, 0);
    if (static_cast<Feedback>(body_of<FeedbackBody>(packet).highest.get() >> 48) != Feedback::query) return true;
    peer.credit = true;
    hole(peer);
    return false;
}

void Receiver::peer_lost(Rank rank) {
    if (rank >= config_.ranks || rank == config_.self) return;
    Peer& peer = peers_[rank];
    peer.lost = true, peer.hole_us = peer.held_us = never, peer.report = peer.credit = false;
    for (Open& open : peer.opens) open.used = false;
}

/// Asks the user again about what it had no room for.
void Receiver::unhold(Rank rank, Peer& peer) {
    bool held = false;
    for (uint32_t slot = 0; slot < peer.slots; ++slot) {
        Piece& piece = peer.pieces[slot];
        if (!bit(peer.known, slot) || piece.held == 0) continue;
        Packet packet;
        packet.type = piece.type, packet.sender = rank;
        DataBody body = piece.name;
        body.index.set(piece.name.index.get() + piece.held - 1);
        packet.body = body_bytes(body);
        Buffer place;
        if (user_.land(packet, piece.held_bytes, &place) == Landing::later) held = true;
        else piece.held = 0, hole(peer);
    }
    peer.held_us = held ? now_us_ + held_us : never;
}

uint64_t Receiver::window(const Peer&) const {
    const uint64_t packet = config_.segment_bytes + wire_bytes;
    return std::clamp<uint64_t>(config_.window_bytes / std::max(config_.ranks - 1, 1u), 3 * packet, config_.window_bytes);
}

Buffer Receiver::report(Peer& peer) {
    const uint64_t slot_bytes = (peer.slots + 7) / 8;
    uint64_t at = sizeof(ReportHeader) + 2 * slot_bytes;
    const uint64_t most = std::min<uint64_t>(peer.out.bytes, config_.segment_bytes);
    peer.out.as<ReportHeader>()->slot_bytes = static_cast<uint8_t>(slot_bytes);
    std::memcpy(peer.out.host + sizeof(ReportHeader), peer.finished, slot_bytes);
    std::memcpy(peer.out.host + sizeof(ReportHeader) + slot_bytes, peer.known, slot_bytes);
    for (uint32_t slot = 0; slot < peer.slots; ++slot) {
        const Piece& piece = peer.pieces[slot];
        if (!bit(peer.known, slot)) continue;
        PieceItem* item = peer.out.part(at, 0).as<PieceItem>();
        uint32_t opens = 0;
        for (uint32_t b = 0; b < piece.blocks; ++b) opens += open_of(peer, piece, b) != nullptr;
        if (at + sizeof(PieceItem) + opens * sizeof(BlockItem) > most) continue;   // another time
        at += sizeof(PieceItem);
        uint16_t mask_done = 0, mask_open = 0;
        for (uint32_t b = 0; b < piece.blocks; ++b) {
            if (piece.block[b] == done) mask_done |= static_cast<uint16_t>(1u << b);
            const Open* open = open_of(peer, piece, b);
            if (!open) continue;
            mask_open |= static_cast<uint16_t>(1u << b);
            BlockItem* block = peer.out.part(at, 0).as<BlockItem>();
            at += sizeof(BlockItem);
            const uint32_t newer = open->epoch == peer.epoch ? open->newer : 0;
            block->lacks = static_cast<uint8_t>(open->segments - (open->have - newer));
            block->plain = open->plain;
            for (uint32_t w = 0; w < 2; ++w) block->have[w].set(open->bits[w]);
        }
        item->slot = static_cast<uint8_t>(slot), item->held = piece.held != 0;
        item->done.set(mask_done), item->open.set(mask_open);
    }
    return peer.out.part(0, at);
}

void Receiver::emit(Sender& sender, Actions& actions) {
    now_us_ = actions.now_us, due_us_ = never;
    for (Rank r = 0; r < config_.ranks; ++r) {
        Peer& peer = peers_[r];
        if (r == config_.self || peer.lost) continue;
        if (now_us_ >= peer.held_us) unhold(r, peer);
        if (now_us_ >= peer.hole_us) peer.report = true, peer.horizon = std::max(peer.horizon, peer.snapshot);
        if (peer.report || peer.credit) {
            FeedbackBody body{};
            Buffer payload;
            peer.told = window(peer), peer.owed = 0;
            body.window.set(static_cast<uint32_t>(peer.told));
            Feedback kind = Feedback::credit;
            if (peer.report) {
                kind = Feedback::report;
                if (peer.hole_us == never) peer.horizon = peer.highest;
                body.behind.set(static_cast<uint32_t>(std::min<uint64_t>(peer.highest - peer.horizon, UINT32_MAX)));
                payload = report(peer);
            }
            body.highest.set(peer.highest | static_cast<uint64_t>(kind) << 48);
            sender.send_feedback(r, body, payload, actions);
            peer.report = peer.credit = false;
        }
        if (now_us_ >= peer.hole_us) {
            peer.hole_us = never;
            if (peer.again) hole(peer);
        }
        due_us_ = std::min({due_us_, peer.hole_us, peer.held_us});
    }
}

}   // namespace gradcast::bulk
