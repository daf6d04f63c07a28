#include "transport/bulk/receiver.h"

#include <algorithm>
#include <utility>

namespace gradcast::bulk {

Receiver::Receiver(const BulkConfig& config, Protocol& user, Arena& arena, BulkCounters* counters)
    : config_(config), user_(user), counters_(counters), peers_(config.ranks), parity_(config.segment_bytes, arena) {
    for (Rank r = 0; r < config.ranks; ++r) {
        if (r == config.self) continue;
        peers_[r].pieces.resize(slots_max);
        peers_[r].opens.resize(std::clamp(2048u / config.ranks, 4u, 32u));
        peers_[r].window_sent = window_first(config);
        arena.plan("bulk feedback", inline_bytes_max, &peers_[r].out);
    }
    kept_.resize(std::clamp(64 * config.ranks, 256u, std::max(parity_bytes_max / config.segment_bytes, 256u)));
    arena.plan("bulk parity", uint64_t{kept_.size()} * config.segment_bytes, &parity_in_);
    for (uint32_t i = 0; i < kept_.size(); ++i) kept_[i].next = i + 1 < kept_.size() ? static_cast<uint16_t>(i + 1) : no_parity;
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
    rate_bytes_ += bytes;
    if (bytes) peer.last_packet_us = now_us_;
    // After a third of the window; of small windows less often, as each feedback is a packet.
    const uint64_t packets = 4 * (config_.segment_bytes + config_.header_bytes);
    if (peer.owed >= std::min(std::max(peer.window_sent / 3, packets), peer.window_sent / 2)) peer.credit = true;
}

/// The packet belongs to a transfer that is not for this rank.  Its sender does not expect us to finish it, so a piece kept of it would
/// flip its slot's bit once too often.
bool Receiver::foreign(const Packet& packet, PacketType type, const DataBody& name) {
    const Piece& piece = peers_[packet.sender].pieces[name.reserved];
    DataBody first = name, whole = name;
    first.reserved = whole.reserved = 0;
    first.index.set(name.index.get() / piece_segments * piece_segments);
    if (packet.sequence < piece.newest || piece.is(type, first)) return false;
    Packet asked = packet;
    asked.type = type;
    asked.body = body_bytes(whole);
    Buffer place;
    return user_.land(asked, packet.payload.bytes, &place) == Landing::foreign;
}

/// The piece that a packet of this name belongs to, begun if it is new; null if the packet is of an older one.
Receiver::Piece* Receiver::piece_of(Peer& peer, const Packet& packet, PacketType type, const DataBody& body) {
    DataBody name = body;
    const uint32_t slot = name.reserved, first = name.index.get() / piece_segments * piece_segments;
    name.reserved = 0;
    name.index.set(first);
    Piece& piece = peer.pieces[slot];
    if (piece.is(type, name)) {
        piece.newest = std::max(piece.newest, packet.sequence);
        return &piece;
    }
    if (packet.sequence < piece.newest) return nullptr;
    if (piece.state == Piece::State::going) hole(peer);   // its sender has given it up: it counts this rank as lost, or is faulty
    for (uint32_t b = 0; b < piece.blocks; ++b)
        if (Open* open = open_of(peer, piece, b)) close(*open);
    piece = {};
    piece.name = name;
    piece.type = type;
    piece.state = Piece::State::going;
    piece.newest = packet.sequence;
    piece.blocks = static_cast<uint8_t>((std::min(name.count.get() - first, piece_segments) + block_segments - 1) / block_segments);
    const bool others = std::any_of(std::begin(peer.known), std::end(peer.known), [](uint64_t bits) { return bits != 0; });
    if (others) hole(peer);   // their last packets may be lost
    set_bit(peer.known, slot);
    peer.slots = std::max(peer.slots, slot + 1);
    return &piece;
}

Receiver::Open* Receiver::open_of(Peer& peer, const Piece& piece, uint32_t block) {
    return piece.block[block] == unseen || piece.block[block] == done ? nullptr : &peer.opens[piece.block[block] - 1u];
}

/// Null: too many blocks are open, and the packet counts as lost.
Receiver::Open* Receiver::open_new(Peer& peer, uint32_t slot, uint32_t block) {
    for (uint32_t i = 0; i < peer.opens.size(); ++i) {
        Open& open = peer.opens[i];
        if (open.used) continue;
        Piece& piece = peer.pieces[slot];
        open = {};
        open.used = true;
        open.epoch = peer.epoch;
        open.slot = static_cast<uint8_t>(slot);
        open.block = static_cast<uint8_t>(block);
        open.segments =
            static_cast<uint8_t>(std::min(piece.name.count.get() - piece.name.index.get() - block * block_segments, block_segments));
        piece.block[block] = static_cast<uint8_t>(i + 1);
        return &open;
    }
    hole(peer);
    return nullptr;
}

void Receiver::close(Open& open) {
    spoil(open);
    open.used = false;
}

/// Drops its parity packets: from now on its segments must be sent again.
void Receiver::spoil(Open& open) {
    while (open.parity != no_parity) {
        const uint16_t kept = open.parity;
        open.parity = kept_[kept].next;
        kept_[kept].next = parity_free_;
        parity_free_ = kept;
    }
    open.have = static_cast<uint8_t>(open.have - open.parities);
    open.parities = 0;
    open.newer = std::min(open.newer, open.have);
    open.plain = true;
}

/// Counts a packet of the block.
void Receiver::count(Peer& peer, Open& open, uint64_t sequence) {
    ++open.have;
    if (open.epoch != peer.epoch) {
        open.epoch = peer.epoch;
        open.newer = 0;
    }
    if (sequence > peer.snapshot) ++open.newer;
}

void Receiver::block_done(Peer& peer, uint32_t slot, uint32_t block) {
    Piece& piece = peer.pieces[slot];
    if (Open* open = open_of(peer, piece, block)) close(*open);
    piece.block[block] = done;
    if (++piece.blocks_done < piece.blocks) return;
    piece.state = Piece::State::finished;
    clear_bit(peer.known, slot);
    flip_bit(peer.finished, slot);
    peer.report = true;
}

/// Packets may have been lost: after reorder_us the sender gets a report with the present horizon.
void Receiver::hole(Peer& peer) {
    if (peer.hole_us != never) {
        peer.again = true;
        return;
    }
    peer.hole_us = now_us_ + reorder_us;
    peer.snapshot = peer.highest;
    peer.again = false;
    ++peer.epoch;
}

// ---- packets -------------------------------------------------------------------------------------------------------------------

Landing Receiver::land(const Packet& packet, uint64_t bytes, Buffer* place) {
    if (packet.type == PacketType::feedback) return bytes <= inline_bytes_max ? Landing::lease : Landing::drop;
    if (packet.type == PacketType::parity) {
        DataBody name;
        return bytes == config_.segment_bytes && parity_name(packet, &name) ? Landing::lease : Landing::drop;
    }
    if (packet.type != PacketType::words && packet.type != PacketType::record) return Landing::drop;
    if (!plausible(packet, bytes)) return Landing::drop;
    Peer& peer = peers_[packet.sender];
    if (peer.lost || !fresh(peer, packet.sequence)) return Landing::drop;
    Packet asked = packet;
    DataBody body = body_of<DataBody>(packet);
    const uint32_t slot = body.reserved, index = body.index.get(), within = index % piece_segments;
    body.reserved = 0;
    asked.body = body_bytes(body);
    const Piece& piece = peer.pieces[slot];
    body.index.set(index - within);
    if (piece.is(packet.type, body)) {
        if (piece.state == Piece::State::finished || piece.block[within / block_segments] == done) return Landing::lease;
        const Open* open = open_of(peer, piece, within / block_segments);
        if (open && bit(open->bits, within % block_segments)) return Landing::lease;
    } else if (packet.sequence < piece.newest) {
        return Landing::drop;   // of an older piece in this slot, which is finished
    }
    return user_.land(asked, bytes, place) == Landing::place ? Landing::place : Landing::lease;   // take() asks again
}

void Receiver::take(const Packet& packet, uint64_t now_us, std::vector<Packet>* given) {
    now_us_ = now_us;
    view_ = packet.view;
    channel_ = packet.channel;
    if (packet.type == PacketType::parity) return take_parity(packet, given);
    if (!plausible(packet, packet.payload.bytes)) return;
    Peer& peer = peers_[packet.sender];
    if (peer.lost || !fresh(peer, packet.sequence)) return;
    const bool newest = packet.sequence > peer.highest;
    see(peer, packet.sequence, packet.payload.bytes + config_.header_bytes);
    const DataBody body = body_of<DataBody>(packet);
    if (foreign(packet, packet.type, body)) return;
    Piece* piece = piece_of(peer, packet, packet.type, body);
    if (!piece) return;
    const uint32_t slot = body.reserved, within = body.index.get() % piece_segments, b = within / block_segments,
                   i = within % block_segments;
    const bool in_order = within == piece->next;
    if (within < piece->next && newest) counters_->lost.fetch_add(1, std::memory_order_relaxed);
    piece->next = std::max(piece->next, within + 1);
    if (body.index.get() + 1 == body.count.get() && !ends(*piece, packet.payload.bytes)) return;
    Open* open = open_of(peer, *piece, b);
    if (piece->block[b] == done || (open && bit(open->bits, i))) {
        counters_->duplicates.fetch_add(1, std::memory_order_relaxed);
        return;
    }
    Packet asked;
    Buffer place;
    const Landing landing = ask(packet.sender, *piece, within, &asked, &place);
    if (landing == Landing::later) return hold(peer, *piece, within);
    if (!open) open = open_new(peer, slot, b);
    if (!open) return;
    counters_->packets_received.fetch_add(1, std::memory_order_relaxed);
    if (landing != Landing::place) spoil(*open);
    else if (place.host != packet.payload.host && place.bytes) std::memcpy(place.host, packet.payload.host, place.bytes);
    if (landing != Landing::drop) {
        asked.sequence = packet.sequence;
        asked.payload = landing == Landing::place ? place : packet.payload;
        given->push_back(asked);
    }
    set_bit(open->bits, i);
    open->place[i] = place.host;
    count(peer, *open, packet.sequence);
    if (open->have >= open->segments) decode(packet.sender, peer, *open, given);
    else if (!in_order || !newest) hole(peer);
}

/// The name of the first segment of a parity packet's block, with the slot in `reserved`.  False: the packet is invalid.
bool Receiver::parity_name(const Packet& packet, DataBody* name) const {
    const ParityBody body = body_of<ParityBody>(packet);
    if (packet.sender >= config_.ranks || packet.sender == config_.self || packet.sequence == 0 || packet.sequence > sequence_mask)
        return false;
    const uint32_t count = body.count.get(), rest = body.block.get() & 0x7fff;
    const bool last = body.block.get() & 0x8000;
    if (count < 2 || count > count_max || (body.row & 0x7f) >= parity_rows) return false;
    if (last ? rest == 0 || rest > config_.segment_bytes : rest >= (count - 1) / block_segments) return false;
    *name = {body.step, body.bucket, body.part, body.phase, body.slot, {}, body.count};
    name->index.set((last ? (count - 1) / block_segments : rest) * block_segments);
    return true;
}

void Receiver::take_parity(const Packet& packet, std::vector<Packet>* given) {
    const ParityBody body = body_of<ParityBody>(packet);
    const uint32_t row = body.row & 0x7f;
    DataBody name;
    if (packet.payload.bytes != config_.segment_bytes || !parity_name(packet, &name)) return;
    Peer& peer = peers_[packet.sender];
    if (peer.lost || !fresh(peer, packet.sequence)) return;
    see(peer, packet.sequence, packet.payload.bytes + config_.header_bytes);
    const PacketType type = body.row & 0x80 ? PacketType::record : PacketType::words;
    DataBody first = name;
    first.index.set(name.index.get() / piece_segments * piece_segments);
    if (foreign(packet, type, first)) return;
    Piece* piece = piece_of(peer, packet, type, name);
    if (!piece) return;
    const uint32_t b = name.index.get() % piece_segments / block_segments;
    if (piece->block[b] == done) return;
    if (body.block.get() & 0x8000 && !ends(*piece, body.block.get() & 0x7fff)) return;
    Open* open = open_of(peer, *piece, b);
    if (!open) open = open_new(peer, body.slot, b);
    if (!open || open->plain || open->have >= open->segments) return;
    for (uint16_t kept = open->parity; kept != no_parity; kept = kept_[kept].next)
        if (kept_[kept].row == row) return;
    hole(peer);
    if (parity_free_ == no_parity) return spoil(*open);
    const uint16_t kept = parity_free_;
    parity_free_ = kept_[kept].next;
    kept_[kept] = {open->parity, static_cast<uint8_t>(row)};
    open->parity = kept;
    ++open->parities;
    std::memcpy(parity_in_.host + uint64_t{kept} * config_.segment_bytes, packet.payload.host, config_.segment_bytes);
    count(peer, *open, packet.sequence);
    if (open->have >= open->segments) decode(packet.sender, peer, *open, given);
}

/// The transfer's last segment has this many bytes.  False: earlier packets say otherwise.
bool Receiver::ends(Piece& piece, uint64_t bytes) {
    if (piece.last_bytes == 0) piece.last_bytes = static_cast<uint16_t>(bytes);
    return piece.last_bytes == bytes;
}

/// Asks the user about a segment.  *packet: its event, without payload.
Landing Receiver::ask(Rank rank, const Piece& piece, uint32_t within, Packet* packet, Buffer* place) {
    *packet = {};
    packet->type = piece.type;
    packet->sender = rank;
    packet->view = view_;
    packet->channel = channel_;
    DataBody body = piece.name;
    const uint32_t index = body.index.get() + within;
    body.index.set(index);
    packet->body = body_bytes(body);
    return user_.land(*packet, index + 1 == body.count.get() ? piece.last_bytes : config_.segment_bytes, place);
}

void Receiver::hold(Peer& peer, Piece& piece, uint32_t within) {
    piece.held = within + 1;
    peer.held_us = std::min(peer.held_us, now_us_ + held_us);
}

/// All segments of the block have arrived or can be computed from parity.
void Receiver::decode(Rank rank, Peer& peer, Open& open, std::vector<Packet>* given) {
    const uint8_t slot = open.slot, b = open.block;
    if (open.parities == 0) return block_done(peer, slot, b);
    Piece& piece = peer.pieces[slot];
    uint8_t there[block_segments], missing[block_segments], rows[block_segments];
    std::byte *sources[block_segments], *out[block_segments];
    Packet packets[block_segments];
    uint32_t have = 0, lack = 0;
    Buffer last;   // the transfer's last segment, if it is shorter than its parity
    for (uint32_t i = 0; i < open.segments; ++i) {
        const bool is_last = piece.name.index.get() + b * block_segments + i + 1 == piece.name.count.get();
        if (bit(open.bits, i)) {
            there[have] = static_cast<uint8_t>(i);
            sources[have++] = parity_.padded({open.place[i], nullptr, is_last ? piece.last_bytes : config_.segment_bytes});
            continue;
        }
        Buffer place;
        const Landing landing = ask(rank, piece, b * block_segments + i, &packets[lack], &place);
        if (landing == Landing::later) return hold(peer, piece, b * block_segments + i);
        if (landing == Landing::lease) {   // there is no place to decode it into: it must be sent itself
            spoil(open);
            return hole(peer);
        }
        packets[lack].payload = place;
        out[lack] = landing == Landing::drop ? nullptr : place.host;
        if (out[lack] && place.bytes < config_.segment_bytes) {
            last = place;
            out[lack] = parity_.spare();
        }
        missing[lack++] = static_cast<uint8_t>(i);
    }
    uint16_t kept = open.parity;
    for (uint32_t r = 0; r < lack; ++r, kept = kept_[kept].next) {
        rows[r] = kept_[kept].row;
        sources[have + r] = parity_in_.host + uint64_t{kept} * config_.segment_bytes;
    }
    parity_.decode({there, have}, {missing, lack}, {rows, lack}, {sources, have + lack}, {out, lack});
    if (last.bytes) std::memcpy(last.host, parity_.spare(), last.bytes);
    for (uint32_t i = 0; i < lack; ++i)
        if (out[i]) given->push_back(packets[i]);
    counters_->repaired.fetch_add(lack, std::memory_order_relaxed);
    counters_->lost.fetch_add(lack, std::memory_order_relaxed);
    block_done(peer, slot, b);
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
    peer.lost = true;
    peer.hole_us = peer.held_us = never;
    peer.report = peer.credit = false;
    for (Open& open : peer.opens)
        if (open.used) close(open);
}

/// Asks the user again about segments that it had no memory for.
void Receiver::unhold(Rank rank, Peer& peer, std::vector<Packet>* given) {
    peer.held_us = never;
    for (uint32_t slot = 0; slot < peer.slots; ++slot) {
        Piece& piece = peer.pieces[slot];
        if (!bit(peer.known, slot) || piece.held == 0) continue;
        if (given->capacity() < given->size() + given_max) return void(peer.held_us = now_us_);   // the rest in the next round
        Packet packet;
        Buffer place;
        const uint32_t within = std::exchange(piece.held, 0) - 1;
        if (ask(rank, piece, within, &packet, &place) == Landing::later) {
            hold(peer, piece, within);
            continue;
        }
        hole(peer);
        for (uint32_t b = 0; b < piece.blocks && piece.held == 0; ++b) {
            Open* open = open_of(peer, piece, b);
            if (!open || open->have < open->segments) continue;
            if (given->capacity() < given->size() + given_max) {
                piece.held = within + 1;
                return void(peer.held_us = now_us_);
            }
            decode(rank, peer, *open, given);
        }
    }
}

/// Asks the user whether missing segments are still wanted.
void Receiver::forgo(Rank rank, Peer& peer) {
    for (Open& open : peer.opens) {
        if (!open.used) continue;
        Piece& piece = peer.pieces[open.slot];
        if (piece.held) continue;
        for (uint32_t i = 0; i < open.segments && open.have < open.segments; ++i) {
            const uint32_t within = open.block * block_segments + i;
            if (bit(open.bits, i)) continue;
            if (within >= piece.next) break;
            if (piece.name.index.get() + within + 1 == piece.name.count.get() && piece.last_bytes == 0) break;
            Packet packet;
            Buffer place;
            if (ask(rank, piece, within, &packet, &place) != Landing::drop) continue;
            spoil(open);
            set_bit(open.bits, i);
            ++open.have;
        }
        if (open.have >= open.segments && open.parities == 0) block_done(peer, open.slot, open.block);
    }
}

// ---- feedback to the senders ---------------------------------------------------------------------------------------------------

/// The arrival rate of all senders together: the largest one lately, because senders may send less than the link can carry.
void Receiver::measure() {
    if (now_us_ - rate_from_us_ < rate_us) return;
    const uint64_t rate = rate_bytes_ * 1'000'000 / (now_us_ - rate_from_us_);
    if (rate_bytes_) rate_ = std::max(rate, rate_ - rate_ / 16);
    rate_from_us_ = now_us_;
    rate_bytes_ = 0;
}

/// All senders together may have in flight what arrives within ahead_us: longer queues would delay feedback.
uint64_t Receiver::window(const Peer& peer) const {
    const uint64_t packet = config_.segment_bytes + config_.header_bytes, least = window_least * packet;
    if (peer.held_us != never) return least;
    if (rate_ == 0) return window_first(config_);
    uint64_t share = std::min(rate_ * ahead_us / 1'000'000, config_.window_bytes) / std::max(active_, 1u);
    if (share < window_good * packet) share = std::min(2 * share, window_good * packet);   // fewer feedbacks, for a longer queue
    return std::max(share, least);
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
        if (at + sizeof(PieceItem) + opens * sizeof(BlockItem) > most) continue;   // in a later report
        at += sizeof(PieceItem);
        uint16_t mask_done = 0, mask_open = 0;
        for (uint32_t b = 0; b < piece.blocks; ++b) {
            if (piece.block[b] == done) mask_done |= static_cast<uint16_t>(1u << b);
            const Open* open = open_of(peer, piece, b);
            if (!open) continue;
            mask_open |= static_cast<uint16_t>(1u << b);
            BlockItem* block = peer.out.part(at, 0).as<BlockItem>();
            at += sizeof(BlockItem);
            const uint32_t newer = peer.hole_us != never && open->epoch == peer.epoch ? open->newer : 0;
            block->lacks = static_cast<uint8_t>(open->segments - std::min<uint32_t>(open->have - newer, open->segments));
            block->plain = open->plain;
            for (uint32_t w = 0; w < 2; ++w) block->have[w].set(open->bits[w]);
        }
        item->slot = static_cast<uint8_t>(slot);
        item->held = piece.held != 0;
        item->done.set(mask_done);
        item->open.set(mask_open);
    }
    return peer.out.part(0, at);
}

void Receiver::emit(Sender& sender, Actions& actions, std::vector<Packet>* given) {
    now_us_ = actions.now_us;
    due_us_ = never;
    measure();
    active_ = 0;
    for (const Peer& peer : peers_) active_ += peer.last_packet_us + active_us > now_us_;
    const bool sure = actions.drained || now_us_ >= sure_us_ + unsure_us;
    if (sure) sure_us_ = now_us_;
    for (Rank r = 0; r < config_.ranks; ++r) {
        Peer& peer = peers_[r];
        if (r == config_.self || peer.lost) continue;
        if (now_us_ >= peer.held_us) unhold(r, peer, given);
        if (sure) peer.sure = peer.highest;
        else if (peer.hole_us != never) peer.hole_us = std::max(peer.hole_us, now_us_ + 1);
        if (now_us_ >= peer.hole_us) {
            peer.report = true;
            peer.horizon = std::max(peer.horizon, peer.snapshot);
        }
        if (peer.report) forgo(r, peer);
        if (peer.report && peer.reported_us == now_us_) due_us_ = now_us_;   // the last report may still be in that memory
        else if (peer.report || peer.credit) send_feedback(r, peer, sender, actions);
        if (now_us_ >= peer.hole_us) {
            peer.hole_us = never;
            if (peer.again) hole(peer);
        }
        due_us_ = std::min({due_us_, peer.hole_us, peer.held_us});
    }
}

void Receiver::send_feedback(Rank rank, Peer& peer, Sender& sender, Actions& actions) {
    FeedbackBody body{};
    Buffer payload;
    peer.window_sent = window(peer);
    peer.owed = 0;
    body.window.set(static_cast<uint32_t>(peer.window_sent));
    Feedback kind = Feedback::credit;
    if (peer.report) {
        kind = Feedback::report;
        if (peer.hole_us == never) peer.horizon = std::max(peer.horizon, peer.sure);
        body.behind.set(static_cast<uint32_t>(std::min<uint64_t>(peer.highest - peer.horizon, UINT32_MAX)));
        payload = report(peer);
        peer.reported_us = now_us_;
    }
    body.highest.set(peer.highest | static_cast<uint64_t>(kind) << 48);
    sender.send_feedback(rank, body, payload, actions);
    peer.report = peer.credit = false;
}

}   // namespace gradcast::bulk
