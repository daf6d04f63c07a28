#include "transport/bulk/sender.h"

#include <algorithm>
#include <utility>

namespace gradcast::bulk {
namespace {

constexpr uint64_t gather_us = 200;   // a repair waits so long for reports of other ranks
constexpr uint64_t timeout_least_us = 1000, timeout_first_us = 5000;

}   // namespace

Sender::Sender(const BulkConfig& config, Arena& arena, BulkCounters* counters)
    : config_(config),
      counters_(counters),
      words_(bit_words(config.ranks)),
      parity_(config.segment_bytes, arena),
      pieces_(slots_max),
      remaining_(slots_max * words_),
      expected_(slots_max * words_),
      mended_(slots_max * words_),
      peers_(config.ranks),
      log_(log_entries) {
    arena.plan("bulk parity", uint64_t{link_max} * config.segment_bytes, &parity_out_);
    for (Peer& peer : peers_) peer.window = window_first(config);
    transfers_.reserve(256);
    transfers_free_.reserve(256);
    closing_.reserve(256);
    done_.reserve(256);
    lines_.reserve(16);
}

/// Records and words for reducers go first.
uint32_t Sender::class_of(const Send& send) {
    return send.type == PacketType::record || std::bit_cast<DataBody>(send.body).phase == static_cast<uint8_t>(Phase::reduce) ? 0 : 1;
}

Sender::Line& Sender::line_of(const Send& send) {
    const uint32_t step = std::bit_cast<DataBody>(send.body).step.get();
    auto at = std::ranges::lower_bound(lines_, step, {}, &Line::step);
    if (at == lines_.end() || at->step != step) at = lines_.insert(at, {step, {}, {}});
    return *at;
}

template <typename Each>
void Sender::each_rank(const RankSet& set, Each each) {
    if (!set.bits) return each(set.rank);
    for (uint32_t w = 0; w < words_; ++w)
        for (uint64_t bits = set.bits[w]; bits; bits &= bits - 1) each(static_cast<Rank>(w * 64 + std::countr_zero(bits)));
}

Buffer Sender::segment_of(const Transfer& transfer, uint32_t index) const {
    const uint64_t at = uint64_t{index} * config_.segment_bytes;
    return transfer.send.payload.part(at, std::min<uint64_t>(config_.segment_bytes, transfer.send.payload.bytes - at));
}

void Sender::enqueue(const Send& send) {
    GC_ASSERT(send.type == PacketType::words || send.type == PacketType::record);
    const uint64_t count = std::max<uint64_t>((send.payload.bytes + config_.segment_bytes - 1) / config_.segment_bytes, 1);
    GC_ASSERT(count <= count_max);
    uint32_t index = static_cast<uint32_t>(transfers_.size());
    if (transfers_free_.empty()) transfers_.emplace_back();
    else {
        index = transfers_free_.back();
        transfers_free_.pop_back();
    }
    Transfer& t = transfers_[index];
    t = {send, static_cast<uint32_t>(count), 0, 0, none, 0, {}};
    DataBody body = std::bit_cast<DataBody>(send.body);
    body.reserved = 0;
    body.index.set(0);
    body.count.set(t.count);
    t.send.body = body_bytes(body);
    Queue& queue = line_of(send).waiting[class_of(send)];
    (queue.head == none ? queue.head : transfers_[queue.tail].next) = index;
    queue.tail = index;
}

// ---- out -----------------------------------------------------------------------------------------------------------------------

/// Bytes that all of `to` have credit for.
uint64_t Sender::room(const RankSet& to) {
    uint64_t least = never;
    each_rank(to, [&](Rank r) {
        const Peer& peer = peers_[r];
        if (peer.lost || (peer.lagging && to.bits)) return;
        least = std::min(least, peer.flight >= peer.window || peer.awaited < line_ ? 0 : peer.window - peer.flight);
    });
    return least;
}

void Sender::push(const RankSet& to, PacketType type, const std::array<std::byte, 16>& body, Buffer payload, Logged::What what,
                  uint8_t slot, uint32_t index, Actions& actions) {
    Send send;
    send.to = to;
    send.type = type;
    send.body = body;
    send.payload = payload;
    send.sequence = next_;
    send.copies = copies_;
    actions.sends.push_back(send);
    const uint64_t bytes = what == Logged::What::other ? 0 : payload.bytes + config_.header_bytes;
    Logged& entry = log_[next_ % log_entries];
    entry = {to.bits, to.rank, static_cast<uint32_t>(now_us_), static_cast<uint16_t>(bytes), static_cast<uint16_t>(index), slot,
             what,    false};
    ++next_;
    if (bytes == 0) return;
    if (to.bits && !copies_) {
        int receivers = 0;
        for (uint32_t w = 0; w < words_; ++w) receivers += std::popcount(to.bits[w]);
        entry.group = receivers > 1;   // a Send to one rank does not use the group
    }
    const bool again = what != Logged::What::data;
    each_rank(to, [&](Rank r) {
        peers_[r].flight += bytes;
        if (again) set_bit(mended(slot), r);
        if (!again) peers_[r].allowance = std::min<uint64_t>(peers_[r].allowance + repairs_a_packet, repairs_max);
    });
    if (entry.group)
        for (Rank r = 0; r < config_.ranks; ++r)
            if (peers_[r].overhears && !bit(to.bits, r)) peers_[r].flight += bytes;
    ++burst_count_;
    if (config_.rate_bytes_per_s) pace_us_ += bytes * 1'000'000 / config_.rate_bytes_per_s;
    counters_->packets_sent.fetch_add(1, std::memory_order_relaxed);
    if (!again) return;
    counters_->repairs_sent.fetch_add(1, std::memory_order_relaxed);
    counters_->repairs_bytes.fetch_add(bytes, std::memory_order_relaxed);
}

void Sender::send_feedback(Rank to, const FeedbackBody& body, Buffer payload, Actions& actions) {
    push({to}, PacketType::feedback, body_bytes(body), payload, Logged::What::other, 0, 0, actions);
    counters_->feedback_sent.fetch_add(1, std::memory_order_relaxed);
    counters_->feedback_bytes.fetch_add(config_.header_bytes + payload.bytes, std::memory_order_relaxed);
}

void Sender::push_segment(uint32_t slot, uint32_t index, const RankSet& to, bool again, Actions& actions) {
    Piece& piece = pieces_[slot];
    Transfer& transfer = transfers_[piece.transfer];
    DataBody body = std::bit_cast<DataBody>(transfer.send.body);
    body.reserved = static_cast<uint8_t>(slot);
    body.index.set(piece.first + index);
    transfer.last_burst = burst_;
    push(to, transfer.send.type, body_bytes(body), segment_of(transfer, piece.first + index),
         again ? Logged::What::resend : Logged::What::data, static_cast<uint8_t>(slot), index, actions);
}

/// The transfer's next piece gets a slot.
uint32_t Sender::begin(uint32_t index) {
    uint32_t slot = 0;
    while (bit(active_, slot)) ++slot;
    set_bit(active_, slot);
    ++active_count_;
    Transfer& transfer = transfers_[index];
    Piece& piece = pieces_[slot];
    piece = {};
    piece.transfer = index;
    piece.first = transfer.started;
    piece.count = std::min(transfer.count - transfer.started, piece_segments);
    piece.next = none;
    transfer.started += piece.count;
    ++transfer.open;
    std::fill_n(remaining(slot), words_, 0);
    std::fill_n(mended(slot), words_, 0);
    each_rank(transfer.send.to, [&](Rank r) {
        if (r == config_.self || peers_[r].lost) return;
        set_bit(remaining(slot), r);
        flip_bit(expected(slot), r);
        ++piece.receivers_remaining;
        Peer& peer = peers_[r];
        if (peer.open++ == 0) {
            peer.last_feedback_us = now_us_;
            peer.poll_us = now_us_ + timeout_us(peer);
            peer.polls = 0;
        }
        due(peer.poll_us);
    });
    return slot;
}

void Sender::emit(Actions& actions, std::vector<Event>* done) {
    now_us_ = actions.now_us;
    due_us_ = never;
    pace_us_ = std::max(pace_us_, now_us_ < 1000 ? 0 : now_us_ - 1000);   // unused pace of more than 1 ms expires
    polls(actions);
    const size_t first = actions.sends.size();
    burst_count_ = 0;
    emit_repairs(actions);
    for (Peer& peer : peers_) peer.awaited = none;
    for (line_ = 0; line_ < lines_.size(); ++line_)
        for (uint32_t cls : {0u, 1u}) emit_new(lines_[line_], cls, actions);
    line_ = 0;
    std::erase_if(lines_, [](const Line& line) { return line.empty(); });
    if (burst_count_) {
        GC_ASSERT(actions.sends.size() > first);
        actions.sends.back().ticket = burst_;
        in_link_ += burst_count_;
        burst_sizes_[burst_ % burst_sizes_.size()] = static_cast<uint8_t>(burst_count_);
        ++burst_;
        if (burst_count_ >= burst_max && in_link_ < link_max) due(now_us_);
    }
    burst_count_ = 0;
    if (config_.rate_bytes_per_s && pace_us_ > now_us_) due(pace_us_);
    done->insert(done->end(), done_.begin(), done_.end());
    done_.clear();
}

void Sender::emit_new(Line& line, uint32_t cls, Actions& actions) {
    Queue &sending = line.sending[cls], &waiting = line.waiting[cls];
    for (uint32_t *link = &sending.head, last = none; *link != none && !full();) {
        const uint32_t slot = *link;
        if (send_piece(slot, actions)) {
            *link = pieces_[slot].next;
            if (sending.tail == slot) sending.tail = last;
        } else {
            last = slot;
            link = &pieces_[slot].next;
        }
    }
    while (waiting.head != none && !full()) {
        // A quarter of the slots is kept for the first class.
        if (active_count_ >= (cls == 0 ? slots_max : slots_max / 4 * 3)) return;
        const uint32_t index = waiting.head;
        const uint32_t slot = begin(index);
        if (transfers_[index].started == transfers_[index].count) {
            waiting.head = transfers_[index].next;
            if (waiting.head == none) waiting.tail = none;
        }
        if (pieces_[slot].receivers_remaining == 0) {
            finish(slot);
            continue;
        }
        if (send_piece(slot, actions)) continue;
        pieces_[slot].next = none;
        (sending.head == none ? sending.head : pieces_[sending.tail].next) = slot;
        sending.tail = slot;
        if (transfers_[index].started < transfers_[index].count) return;   // a piece at a time
    }
}

/// True: all its segments have been sent once.
bool Sender::send_piece(uint32_t slot, Actions& actions) {
    Piece& piece = pieces_[slot];
    const Transfer& transfer = transfers_[piece.transfer];
    uint64_t budget = room(transfer.send.to);
    while (piece.sent < piece.count && !full()) {
        const uint64_t bytes = segment_of(transfer, piece.first + piece.sent).bytes + config_.header_bytes;
        if (bytes > budget) {
            // Credit comes from one receiver after the other: newer steps must leave it.
            each_rank(transfer.send.to, [&](Rank r) { peers_[r].awaited = std::min(peers_[r].awaited, line_); });
            return false;
        }
        budget -= bytes;
        if (piece.begin == 0) piece.begin = next_;
        push_segment(slot, piece.sent++, transfer.send.to, false, actions);
    }
    return piece.sent == piece.count;
}

void Sender::emit_repairs(Actions& actions) {
    for (uint32_t w = 0; w < slots_max / 64; ++w)
        for (uint64_t slots = repairing_[w]; slots && !full(); slots &= slots - 1) {
            const uint32_t slot = w * 64 + static_cast<uint32_t>(std::countr_zero(slots));
            Piece& piece = pieces_[slot];
            for (uint32_t blocks = piece.repair; blocks && !full(); blocks &= blocks - 1)
                if (repair_block(slot, static_cast<uint32_t>(std::countr_zero(blocks)), actions))
                    piece.repair &= static_cast<uint16_t>(~(blocks & -blocks));
            if (piece.repair == 0) clear_bit(repairing_, slot);
        }
}

/// True: all repairs of the block have been sent.
bool Sender::repair_block(uint32_t slot, uint32_t b, Actions& actions) {
    Block& block = pieces_[slot].blocks[b];
    const RankSet& all = transfers_[pieces_[slot].transfer].send.to;
    if (!block.several) {
        if (all.bits && now_us_ < block.since_us + gather_us) return due(block.since_us + gather_us), false;
        return resend(slot, b, block.resend, {block.sole}, actions);
    }
    return resend(slot, b, block.plain, all, actions) && push_parity(slot, b, actions);
}

bool Sender::resend(uint32_t slot, uint32_t b, uint64_t (&segments)[2], const RankSet& to, Actions& actions) {
    Piece& piece = pieces_[slot];
    uint64_t budget = room(to);
    for (uint32_t w = 0; w < 2; ++w)
        for (; segments[w]; segments[w] &= segments[w] - 1) {
            const uint32_t index = b * block_segments + w * 64 + static_cast<uint32_t>(std::countr_zero(segments[w]));
            const uint64_t bytes = segment_of(transfers_[piece.transfer], piece.first + index).bytes + config_.header_bytes;
            if (full() || bytes > budget) return false;
            budget -= bytes;
            push_segment(slot, index, to, true, actions);
        }
    return true;
}

bool Sender::push_parity(uint32_t slot, uint32_t b, Actions& actions) {
    Piece& piece = pieces_[slot];
    Block& block = piece.blocks[b];
    Transfer& transfer = transfers_[piece.transfer];
    while (block.parity) {
        const uint64_t bytes = config_.segment_bytes + config_.header_bytes;
        const uint32_t link =
            std::min(burst_max - std::min(burst_count_, burst_max), link_max - std::min(in_link_ + burst_count_, link_max));
        const uint32_t count = static_cast<uint32_t>(std::min<uint64_t>({block.parity, link, room(transfer.send.to) / bytes}));
        if (count == 0 || full()) return false;
        const uint32_t from = piece.first + b * block_segments, segments = std::min(transfer.count - from, block_segments);
        std::byte *in[block_segments], *out[Parity::rows_at_once];
        for (uint32_t i = 0; i < segments; ++i) in[i] = parity_.padded(segment_of(transfer, from + i));
        for (uint32_t i = 0; i < count; ++i) out[i] = parity_out_.host + (parity_sent_ + i) % link_max * config_.segment_bytes;
        parity_.encode({in, segments}, block.next_row, {out, count});
        const DataBody name = std::bit_cast<DataBody>(transfer.send.body);
        ParityBody body{name.step, name.bucket, name.part, name.phase, static_cast<uint8_t>(slot), 0, name.count, {}};
        const uint32_t number = from / block_segments;
        const bool last = from + segments == transfer.count;
        body.block.set(static_cast<uint16_t>(last ? 0x8000 | segment_of(transfer, transfer.count - 1).bytes : number));
        transfer.last_burst = burst_;
        for (uint32_t i = 0; i < count; ++i) {
            body.row = static_cast<uint8_t>(block.next_row | (transfer.send.type == PacketType::record ? 0x80 : 0));
            ++block.next_row;
            push(transfer.send.to, PacketType::parity, body_bytes(body), {out[i], nullptr, config_.segment_bytes}, Logged::What::parity,
                 static_cast<uint8_t>(slot), b * block_segments, actions);
        }
        parity_sent_ += count;
        block.parity = static_cast<uint8_t>(block.parity - count);
    }
    return true;
}

uint64_t Sender::timeout_us(const Peer& peer) const {
    uint64_t once = peer.rtt_us ? std::max(timeout_least_us, peer.rtt_us + 4 * peer.rtt_spread_us) : timeout_first_us;
    if (peer.flight == 0) once = std::max(once, config_.stall_us / 2);   // it has seen everything: at most its report of a gap is lost
    return std::min(once << std::min(peer.polls, 10u), std::max<uint64_t>(config_.stall_us, once));
}

/// Asks receivers for a report that have not sent one although they have open pieces or packets in flight.
void Sender::polls(Actions& actions) {
    for (Rank r = 0; r < config_.ranks; ++r) {
        Peer& peer = peers_[r];
        if (peer.lost || (peer.open == 0 && peer.flight == 0)) continue;
        if (now_us_ >= peer.poll_us) {
            if (peer.polls >= 2 && now_us_ > peer.last_feedback_us + config_.stall_us && last_feedback_any_us_ + config_.stall_us > now_us_)
                peer.lagging = true;
            ++peer.polls;
            peer.poll_us = now_us_ + timeout_us(peer);
            FeedbackBody body{};
            body.highest.set(static_cast<uint64_t>(Feedback::query) << 48);
            send_feedback(r, body, {}, actions);
        }
        due(peer.poll_us);
    }
}

// ---- back ----------------------------------------------------------------------------------------------------------------------

void Sender::feedback(const Packet& packet, uint64_t now_us) {
    const FeedbackBody body = body_of<FeedbackBody>(packet);
    const uint64_t highest = body.highest.get() & sequence_mask;
    Peer& peer = peers_[packet.sender];
    if (peer.lost || highest >= next_ || packet.sequence <= peer.newest) return;   // of a number never sent, or older than what was read
    now_us_ = now_us;
    peer.newest = packet.sequence;
    peer.allowance = std::min<uint64_t>(peer.allowance + (now_us - peer.allowed_us) / repair_us, repairs_max);
    peer.allowed_us = now_us;
    peer.window = std::min<uint64_t>(body.window.get(), config_.window_bytes);
    peer.last_feedback_us = last_feedback_any_us_ = now_us;
    peer.lagging = false;
    peer.polls = 0;
    if (highest > peer.highest) {
        const uint64_t oldest = next_ > log_entries ? next_ - log_entries : 1;
        if (highest >= oldest && !peer.overhears && !reaches(log_[highest % log_entries], packet.sender)) {
            peer.overhears = true;
            peer.flight = bytes_to(packet.sender, highest + 1, next_);
        } else if (peer.highest + 1 >= oldest) {
            peer.flight -= bytes_to(packet.sender, peer.highest + 1, highest + 1);
        } else {
            peer.flight = bytes_to(packet.sender, std::max(highest + 1, oldest), next_);
        }
        if (highest >= oldest) watch_multicast(packet.sender, std::max(peer.highest + 1, oldest), highest);
        peer.highest = highest;
        if (highest >= oldest) {
            const uint64_t rtt = std::max<uint32_t>(static_cast<uint32_t>(now_us) - log_[highest % log_entries].at_us, 1);
            const uint64_t off = rtt > peer.rtt_us ? rtt - peer.rtt_us : peer.rtt_us - rtt;
            peer.rtt_spread_us = peer.rtt_us ? (3 * peer.rtt_spread_us + off) / 4 : rtt / 2;
            peer.rtt_us = peer.rtt_us ? (7 * peer.rtt_us + rtt) / 8 : rtt;
        }
    }
    peer.poll_us = now_us + timeout_us(peer);
    const uint64_t behind = body.behind.get();
    if (static_cast<Feedback>(body.highest.get() >> 48) == Feedback::report && behind <= highest)
        report(packet.sender, highest - behind, packet.payload);
}

uint64_t Sender::bytes_to(Rank rank, uint64_t from, uint64_t to) const {
    uint64_t sum = 0;
    for (uint64_t s = from; s < to; ++s)
        if (const Logged& entry = log_[s % log_entries]; entry.bytes && reaches(entry, rank)) sum += entry.bytes;
    return sum;
}

/// Finds out whether multicast still reaches rank `from`, which has received `highest` and perhaps others of first .. highest.  No
/// multicast reaches it any more if deaf_feedbacks times in a row there were multicasts among them but `highest` was to it alone.
void Sender::watch_multicast(Rank from, uint64_t first, uint64_t highest) {
    Peer& peer = peers_[from];
    if (log_[highest % log_entries].bits) {
        peer.in_vain = 0;
        return;
    }
    for (uint64_t s = first; s < highest; ++s) {
        const Logged& entry = log_[s % log_entries];
        if (!entry.bits || !bit(entry.bits, from) || s < pieces_[entry.slot].begin || !bit(remaining(entry.slot), from)) continue;
        if (++peer.in_vain < deaf_feedbacks || copies_) return;
        copies_ = true;
        counters_->deaf.store(from + 1, std::memory_order_relaxed);
        return;
    }
}

void Sender::report(Rank from, uint64_t horizon, Buffer payload) {
    if (payload.bytes < sizeof(ReportHeader)) return;
    const uint64_t slot_bytes = payload.as<ReportHeader>()->slot_bytes;
    uint64_t at = sizeof(ReportHeader) + 2 * slot_bytes;
    if (slot_bytes > slots_max / 8 || payload.bytes < at) return;
    uint64_t finished[slots_max / 64] = {}, known[slots_max / 64] = {};
    std::memcpy(finished, payload.host + sizeof(ReportHeader), slot_bytes);
    std::memcpy(known, payload.host + sizeof(ReportHeader) + slot_bytes, slot_bytes);
    std::array<uint16_t, slots_max> items{};
    while (at + sizeof(PieceItem) <= payload.bytes) {
        const PieceItem* item = payload.part(at, sizeof(PieceItem)).as<PieceItem>();
        items[item->slot] = static_cast<uint16_t>(at);
        at += sizeof(PieceItem) + static_cast<uint64_t>(std::popcount(item->open.get())) * sizeof(BlockItem);
        if (at > payload.bytes) return;   // cut off
    }
    ++mark_;
    for (uint64_t s = next_ - 1; s > horizon && s + log_entries >= next_; --s) {
        const Logged& entry = log_[s % log_entries];
        if (entry.what == Logged::What::other || !addressed(entry.bits, entry.rank, from)) continue;
        if (!bit(active_, entry.slot) || s < pieces_[entry.slot].begin) continue;   // of an earlier piece in this slot
        Block& block = pieces_[entry.slot].blocks[entry.index / block_segments];
        if (block.mark != mark_) {
            block.mark = mark_;
            block.after_data = block.after_repair = 0;
        }
        uint8_t& after = entry.what == Logged::What::data ? block.after_data : block.after_repair;
        if (after < UINT8_MAX) ++after;
    }
    for (uint32_t w = 0; w < slots_max / 64; ++w)
        for (uint64_t slots = active_[w]; slots; slots &= slots - 1) {
            const uint32_t slot = w * 64 + static_cast<uint32_t>(std::countr_zero(slots));
            Piece& piece = pieces_[slot];
            if (!bit(remaining(slot), from) || piece.begin == 0) continue;
            if (bit(finished, slot) == bit(expected(slot), from)) {   // valid whatever the horizon is
                if (!bit(mended(slot), from) && transfers_[piece.transfer].send.to.bits) peers_[from].in_vain = 0;
                settle(slot, from);
                continue;
            }
            if (piece.begin > horizon) continue;
            const PieceItem* item = items[slot] ? payload.part(items[slot], sizeof(PieceItem)).as<PieceItem>() : nullptr;
            if (bit(known, slot) && (!item || item->held)) continue;
            const BlockItem* next = item ? reinterpret_cast<const BlockItem*>(item + 1) : nullptr;
            for (uint32_t b = 0; b * block_segments < piece.sent; ++b) {
                const BlockItem* open = item && item->open.get() >> b & 1 ? next++ : nullptr;
                if (item && item->done.get() >> b & 1) forget_repairs(piece, slot, b, from);
                else report_block(from, slot, b, open, horizon);
            }
        }
}

/// `item` null: nothing of the block has arrived.
void Sender::report_block(Rank from, uint32_t slot, uint32_t b, const BlockItem* item, uint64_t horizon) {
    Piece& piece = pieces_[slot];
    Block& block = piece.blocks[b];
    const uint32_t segments = std::min(piece.count - b * block_segments, block_segments);
    const uint32_t sent = std::min(piece.sent - b * block_segments, block_segments);
    const uint32_t after_data = block.mark == mark_ ? block.after_data : 0, after_repair = block.mark == mark_ ? block.after_repair : 0;
    const uint32_t before = sent - std::min(sent, after_data);   // transmitted up to the horizon: the first ones
    const uint32_t lacks = item ? std::min<uint32_t>(item->lacks, segments) : segments;
    const uint32_t excused = segments - before + after_repair;
    if (lacks <= excused) return;
    uint32_t lost = lacks - excused;
    uint64_t missing[2];
    for (uint32_t w = 0; w < 2; ++w) {
        const uint64_t first = before >= w * 64 + 64 ? ~uint64_t{0} : before > w * 64 ? (uint64_t{1} << (before - w * 64)) - 1 : 0;
        missing[w] = first & ~(item ? item->have[w].get() : 0);
    }
    if (after_repair)   // these are in flight
        for (uint64_t s = next_ - 1; s > horizon && s + log_entries >= next_; --s) {
            const Logged& entry = log_[s % log_entries];
            if (entry.what == Logged::What::resend && entry.slot == slot && s >= piece.begin && entry.index / block_segments == b &&
                addressed(entry.bits, entry.rank, from))
                clear_bit(missing, entry.index % block_segments);
        }
    uint64_t again[2] = {};
    uint32_t count = 0;
    for (uint32_t i = 0; i < before && count < lost; ++i) {
        if (!bit(missing, i)) continue;
        set_bit(again, i);
        ++count;
    }
    if (count == 0) return;
    const bool waits = piece.repair >> b & 1;
    const uint32_t asked = !waits               ? 0
                           : block.several      ? block.parity
                           : block.sole == from ? static_cast<uint32_t>(std::popcount(block.resend[0]) + std::popcount(block.resend[1]))
                                                : 0;
    Peer& peer = peers_[from];
    if (count > asked && peer.allowance < count - asked) return;
    if (count > asked) peer.allowance -= count - asked;
    const uint32_t parity = std::max<uint32_t>(waits ? block.parity : 0, count);
    const bool plain = segments == 1 || (item && item->plain) || block.next_row + parity > parity_rows;   // no row is sent twice
    if (!waits) {
        piece.repair |= static_cast<uint16_t>(1u << b);
        set_bit(repairing_, slot);
        block.sole = from;
        block.several = false;
        block.since_us = now_us_;
    }
    if (block.sole != from) block.several = true;
    if (!block.several) block.resend[0] = block.resend[1] = block.plain[0] = block.plain[1] = block.parity = 0;
    for (uint32_t w = 0; w < 2; ++w) {
        block.resend[w] |= again[w];
        if (plain) block.plain[w] |= again[w];
    }
    if (!plain) block.parity = static_cast<uint8_t>(std::max<uint32_t>(block.parity, count));
}

void Sender::forget_repairs(Piece& piece, uint32_t slot, uint32_t b, Rank rank) {
    Block& block = piece.blocks[b];
    if (!(piece.repair >> b & 1) || block.several || block.sole != rank) return;
    piece.repair &= static_cast<uint16_t>(~(1u << b));
    if (piece.repair == 0) clear_bit(repairing_, slot);
}

/// `rank` has finished the piece, or is lost.
void Sender::settle(uint32_t slot, Rank rank) {
    Piece& piece = pieces_[slot];
    clear_bit(remaining(slot), rank);
    --peers_[rank].open;
    for (uint32_t b = 0; b < piece_blocks; ++b) forget_repairs(piece, slot, b, rank);
    if (--piece.receivers_remaining == 0) finish(slot);
}

void Sender::finish(uint32_t slot) {
    Piece& piece = pieces_[slot];
    if (piece.sent < piece.count)   // its last receiver was lost
        for (Queue& queue : line_of(transfers_[piece.transfer].send).sending)
            for (uint32_t *link = &queue.head, last = none; *link != none; last = *link, link = &pieces_[*link].next)
                if (*link == slot) {
                    *link = piece.next;
                    if (queue.tail == slot) queue.tail = last;
                    break;
                }
    clear_bit(active_, slot);
    clear_bit(repairing_, slot);
    --active_count_;
    Transfer& transfer = transfers_[piece.transfer];
    if (--transfer.open || transfer.started < transfer.count) return;
    if (transfer.last_burst > burst_done_) closing_.push_back(piece.transfer);
    else complete(piece.transfer);
}

void Sender::complete(uint32_t index) {
    Transfer& transfer = transfers_[index];
    if (transfer.send.ticket) done_.push_back({Event::Sent{transfer.send.ticket, transfer.status}});
    transfers_free_.push_back(index);
}

void Sender::sent(uint64_t burst) {
    for (; burst_done_ < burst && burst_done_ + 1 < burst_; ++burst_done_)
        in_link_ -= burst_sizes_[(burst_done_ + 1) % burst_sizes_.size()];
    std::erase_if(closing_, [&](uint32_t index) {
        if (transfers_[index].last_burst > burst_done_) return false;
        complete(index);
        return true;
    });
}

void Sender::peer_lost(Rank rank, const Status& status) {
    if (rank >= config_.ranks || peers_[rank].lost) return;
    peers_[rank].lost = true;
    for (uint32_t slot = 0; slot < slots_max; ++slot) {
        if (!bit(active_, slot) || !bit(remaining(slot), rank)) continue;
        transfers_[pieces_[slot].transfer].status = status;
        settle(slot, rank);
    }
}

}   // namespace gradcast::bulk
