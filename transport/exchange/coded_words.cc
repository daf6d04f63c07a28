// Coded: the words of a part, from the accumulators to the sum.
#include <cstring>
#include <utility>

#include "transport/exchange/coded.h"

namespace gradcast {

// ---- in ------------------------------------------------------------------------------------------------------------------------

bool Coded::wants(const Arrival& a) {
    const SlotState& slot = memory_[a.slot];
    if (a.record && a.phase == Phase::want) return !slot.asked[a.bucket * n() + a.part];
    if (a.record && a.phase == Phase::complete) return !slot.complete[a.sender];
    if (a.record) return true;
    const Cut& cut = cuts_[a.bucket];
    const Part& part = part_of(a.slot, a.bucket, a.part);
    if (part.done || part.reduced) return false;
    if (a.phase == Phase::gather) return !slot.gathered[gather_index(cut, a.part, a.index)];
    if (!reduces(a.part)) {
        if (a.phase == Phase::again && !take_room(a.slot, a.bucket, reducer_of(a.part), false)) return false;
        const Room& room = room_of(a.slot, a.bucket, reducer_of(a.part));
        if (room.number == 0 || room.replies != (a.phase == Phase::reply)) return false;
    }
    const uint64_t have = have_index(a.slot, a.bucket, a.part, a.index);
    return !slot.have[have * n() + a.sender] && (!combines() || slot.senders[have] < needed() || disputed(a.slot, a.bucket) != none);
}

Landing Coded::wanted(const Arrival& a, Buffer* place) {
    if (a.record && a.phase == Phase::reduce) return record_wanted(a, place);
    if (!wants(a)) return Landing::drop;
    const uint64_t at = uint64_t{a.index} * config_.segment_bytes;
    if (a.record) *place = memory_[a.slot].asking.part(a.sender * sizeof(Le64), sizeof(Le64));
    else if (a.phase == Phase::gather) *place = sum_of(a.slot, a.bucket, a.part).part(at, a.bytes);
    else *place = words_of(a.slot, a.bucket, a.part, a.sender).part(at, a.bytes);
    return Landing::place;
}

void Coded::take(const Arrival& a, Buffer payload, Actions& actions) {
    Buffer place;
    if (wanted(a, &place) != Landing::place || place.host != payload.host) return;
    SlotState& slot = memory_[a.slot];
    const Cut& cut = cuts_[a.bucket];
    if (a.record && a.phase == Phase::reduce) return record_taken(a, actions);
    if (a.record && a.phase == Phase::complete) return complete_at(a.slot, a.sender);
    if (a.record) {
        ask(a.slot, a.bucket, a.part, actions);
        if (a.phase == Phase::want_reply) reply(a.slot, a.bucket, a.part, a.sender, actions);
        return;
    }
    if (a.phase == Phase::gather) {
        slot.gathered[gather_index(cut, a.part, a.index)] = 1;
        if (--part_of(a.slot, a.bucket, a.part).gather_remaining == 0) done(a.slot, a.bucket, a.part, actions);
        return;
    }
    slot.have[uint64_t{have_index(a.slot, a.bucket, a.part, a.index)} * n() + a.sender] = 1;
    if (record_counts(a.slot, a.bucket, a.sender)) counts(a.slot, a.bucket, a.part, a.index, actions);
    // The room may have been taken just now.
    if (!reduces(a.part) && part_of(a.slot, a.bucket, a.part).encoded &&
        !slot.have[uint64_t{have_index(a.slot, a.bucket, a.part, 0)} * n() + config_.self])
        own_come(a.slot, a.bucket, a.part, actions);
}

// The packet of one more sender, whose record counts, is there.
void Coded::counts(uint32_t s, uint32_t b, uint32_t p, uint32_t index, Actions& actions) {
    Part& part = part_of(s, b, p);
    if (combines() && ++memory_[s].senders[have_index(s, b, p, index)] != needed()) return;
    if (--part.waiting == 0) reduce_next(s, b, actions);
}

// ---- own words -----------------------------------------------------------------------------------------------------------------

void Coded::contributed(uint32_t s, uint32_t b, Actions& actions) {
    work_of(s, b).ready_us = actions.now_us;
    record_own(s, b, actions);
    encode_next(s, b, actions);
}

void Coded::abandoned(uint32_t s, uint32_t b, Actions& actions) {
    reduce_next(s, b, actions);
    late(s, b, actions);
}

// Each rank begins with the part of its successor and ends with its own, so that reducers receive from different senders at a time.
void Coded::encode_next(uint32_t s, uint32_t b, Actions& actions) {
    Work& work = work_of(s, b);
    const Cut& cut = cuts_[b];
    while (!work.encoding && work.encoded < cut.parts) {
        const uint32_t round = work.encoded / reducers(), p = round * reducers() + (config_.self + 1 + work.encoded) % reducers();
        if (!combines()) {
            ++work.encoded;
            encoded(s, b, p, actions);
            continue;
        }
        work.encoding = true;
        const uint64_t bytes = cut.coded_words * width(config_.self);
        for (uint32_t t = 0; t < targets(); ++t)
            for (uint32_t u = 0; u < m(); ++u) work.encode.in[t * m() + u] = acc_of(s, b, p, t).part(u * bytes, bytes);
        work.encode.out[0] = words_of(s, b, p, config_.self);
        work.encode_part = p;
        combine(s, b * ids + encode_id, &work.encode.combine, cut.coded_words, actions);
    }
}

void Coded::encoded(uint32_t s, uint32_t b, uint32_t p, Actions& actions) {
    Part& part = part_of(s, b, p);
    part.encoded = true;
    const Rank reducer = reducer_of(p);
    const Buffer words = words_of(s, b, p, config_.self);
    if (local()) {
        part.waiting = 0;
    } else if (contributes(config_.self)) {
        if (!scatters()) {
            if (n() > 1) send(s, PacketType::words, Phase::reduce, {b, p, 0}, words, others(), actions);
        } else if (reducer != config_.self && !lost_[reducer]) {
            send(s, PacketType::words, Phase::reduce, {b, p, 0}, words, {reducer}, actions);
        }
        if (spare() && lost_[reducer]) (void)take_room(s, b, reducer, true);
        if (spare() && (lost_[reducer] || memory_[s].asked[b * n() + reducer])) send_again(s, b, p, actions);
        for (const Reply& each : memory_[s].replies)
            if (each.bucket == b && each.reducer == reducer) send(s, PacketType::words, Phase::reply, {b, p, 0}, words, {each.to}, actions);
        own_come(s, b, p, actions);
    }
    if (work_of(s, b).encoded < cuts_[b].parts) return;
    reduce_next(s, b, actions);
    late(s, b, actions);
}

// ---- reducing ------------------------------------------------------------------------------------------------------------------

// One part and one compute at a time, so that the network thread handles other events in between.
void Coded::reduce_next(uint32_t s, uint32_t b, Actions& actions) {
    Work& work = work_of(s, b);
    if (work.reducing != Work::Reducing::none || failed(s, b) || state(s, b).complete) return;
    for (uint32_t p = 0; p < cuts_[b].parts; ++p) {
        const Part& part = part_of(s, b, p);
        if (part.waiting > 0 || part.reduced || part.done || !(reduces(p) || free_of_lanes(s, b))) continue;
        if (!local() && !receives(s, b, p)) continue;
        work.part = p;
        work.at = 0;
        work.reducing = combines() ? Work::Reducing::combine : Work::Reducing::add;
        return reduce_more(s, b, actions);
    }
}

void Coded::reduce_more(uint32_t s, uint32_t b, Actions& actions) {
    Work& work = work_of(s, b);
    const Cut& cut = cuts_[b];
    if (work.reducing == Work::Reducing::combine) return work.at < cut.segments ? decode_run(s, b, actions) : reduced(s, b, actions);
    // Without a code: the words of one rank after the other.
    while (work.at < n() && !contributes(work.at)) ++work.at;
    if (work.at == n() || local()) return reduced(s, b, actions);
    const Buffer src = words_of(s, b, work.part, work.at);
    const bool first = work.added == 0, widen = src.bytes < cut.words * sum_width();
    Kernel kernel = widen ? (first ? Kernel::copy_i32_to_i64 : Kernel::add_i32_to_i64) : Kernel::copy;
    if (!widen && !first) kernel = sum_word_ == Word::i16 ? Kernel::add_i16 : sum_word_ == Word::i32 ? Kernel::add_i32 : Kernel::add_i64;
    ++work.at;
    ++work.added;
    compute(s, b * ids + reduce_id, kernel, sum_of(s, b, work.part), src, kernel == Kernel::copy ? src.bytes : cut.words, actions);
}

// Decodes the packet indexes from work.at on that have the same n-s senders.
void Coded::decode_run(uint32_t s, uint32_t b, Actions& actions) {
    Work& work = work_of(s, b);
    const SlotState& slot = memory_[s];
    const Cut& cut = cuts_[b];
    auto has = [&](uint32_t index, Rank r) {
        return slot.have[uint64_t{have_index(s, b, work.part, index)} * n() + r] && record_counts(s, b, r);
    };
    const uint32_t first = work.at;
    uint32_t found = 0;
    for (Rank r = 0; r < n() && found < needed(); ++r)
        if (has(first, r)) work.decode.senders[found++] = r;
    GC_ASSERT(found == needed());
    auto all = [&](uint32_t index) {
        for (Rank r : work.decode.senders)
            if (!has(index, r)) return false;
        return true;
    };
    do ++work.at;
    while (work.at < cut.segments && all(work.at));

    const std::span<const uint32_t> weights = weights_of(work.decode.senders);
    std::copy(weights.begin(), weights.end(), work.decode.weights.begin());
    const uint64_t whole = cut.coded_words * sum_width(), from = uint64_t{first} * config_.segment_bytes;
    const uint64_t bytes = std::min(whole, uint64_t{work.at} * config_.segment_bytes) - from;
    const Buffer sum = reduces(work.part) ? sum_of(s, b, work.part) : acc_of(s, b, work.part, 0);
    for (uint32_t i = 0; i < needed(); ++i) work.decode.in[i] = words_of(s, b, work.part, work.decode.senders[i]).part(from, bytes);
    for (uint32_t u = 0; u < m(); ++u) work.decode.out[u] = sum.part(u * whole + from, bytes);
    combine(s, b * ids + reduce_id, &work.decode.combine, bytes / sum_width(), actions);
}

std::span<const uint32_t> Coded::weights_of(std::span<const Rank> senders) {
    for (const Weights& each : cache_)
        if (std::equal(senders.begin(), senders.end(), each.senders.begin())) return each.weights;
    Weights& oldest = cache_[cached_++ % cache_.size()];
    std::copy(senders.begin(), senders.end(), oldest.senders.begin());
    code_.decode_weights(senders, oldest.weights);
    return oldest.weights;
}

void Coded::computed(uint32_t s, uint32_t id, Actions& actions) {
    const uint32_t b = id / ids;
    Work& work = work_of(s, b);
    if (id % ids == encode_id) {
        work.encoding = false;
        ++work.encoded;
        encoded(s, b, work.encode_part, actions);
        return encode_next(s, b, actions);
    }
    if (work.reducing == Work::Reducing::copy) {
        part_of(s, b, work.part).aside = true;
        work.reducing = Work::Reducing::none;
        return settle(s, b, actions);
    }
    if (work.reducing == Work::Reducing::combine && work.decode.combine.refused) return refused(s, b, actions);
    reduce_more(s, b, actions);
}

// Finds the sender of a word that is not below the prime.  It ends the job, so it may be slow.
void Coded::refused(uint32_t s, uint32_t b, Actions& actions) {
    Work& work = work_of(s, b);
    set_failed(s, b);
    for (uint32_t i = 0; i < needed(); ++i) {
        const Buffer& in = work.decode.in[i];
        for (uint64_t at = 0; at < in.bytes; at += sum_width()) {
            uint32_t word = 0;   // both widths are little-endian
            std::memcpy(&word, in.host + at, sum_width());
            if (word >= code_.prime)
                return refuse(s, b,
                              fail(Code::conflict,
                                   "step {}, bucket {}: {} sent a word of part {} that is not below {}: it computes or stores wrongly",
                                   slots_[s].step + 1, b, name(work.decode.senders[i]), work.part, code_.prime),
                              actions);
        }
    }
    GC_ASSERT(false && "the kernel refused a word that is none");
}

void Coded::reduced(uint32_t s, uint32_t b, Actions& actions) {
    Work& work = work_of(s, b);
    const uint32_t p = work.part;
    Part& part = part_of(s, b, p);
    work.reducing = Work::Reducing::none;
    work.added = 0;
    part.reduced = true;
    if (reduces(p) && scatters() && n() > 1) send(s, PacketType::words, Phase::gather, {b, p, 0}, sum_of(s, b, p), others(), actions);
    if (!part.done) {   // the sum may have come from the reducer meanwhile
        part.aside = !reduces(p);
        done(s, b, p, actions);
    } else if (work.parts_remaining == 0) {
        settle(s, b, actions);
    }
    reduce_next(s, b, actions);
}

void Coded::done(uint32_t s, uint32_t b, uint32_t p, Actions& actions) {
    Work& work = work_of(s, b);
    part_of(s, b, p).done = true;
    if (--memory_[s].remaining[b * reducers() + reducer_of(p)] == 0) --work.reducers_remaining;
    if (--work.parts_remaining == 0) settle(s, b, actions);
    else late(s, b, actions);
}

// All parts are there.  If the sum of one is aside, the others are copied to it.
void Coded::settle(uint32_t s, uint32_t b, Actions& actions) {
    Work& work = work_of(s, b);
    if (work.reducing != Work::Reducing::none) return;   // a decode into the first accumulator is under way, whose result is not needed
    bool aside = false;
    for (uint32_t p = 0; p < cuts_[b].parts; ++p) aside |= part_of(s, b, p).aside;
    for (uint32_t p = 0; aside && p < cuts_[b].parts; ++p) {
        if (part_of(s, b, p).aside) continue;
        const Buffer src = sum_of(s, b, p);
        work.part = p;
        work.reducing = Work::Reducing::copy;
        return compute(s, b * ids + reduce_id, Kernel::copy, acc_of(s, b, p, 0), src, src.bytes, actions);
    }
    if (!work.settled) {
        work.settled = true;
        count_down(s, b, actions);
    }
}

void Coded::count_down(uint32_t s, uint32_t b, Actions& actions) {
    arrived(s, b, actions);
    const uint64_t since = work_of(s, b).ready_us;
    if (!state(s, b).complete || since == 0) return;
    const uint64_t took = actions.now_us - since;
    usual_us_ = usual_us_ == 0     ? took
                : took < usual_us_ ? (usual_us_ + took) / 2
                                   : (7 * usual_us_ + took) / 8;   // one slow step counts little
}

void Coded::all_complete(uint32_t s, Actions& actions) {
    if (tolerated() == 0) return not_needed(s);
    const Buffer nothing = memory_[s].asking.part(config_.self * sizeof(Le64), sizeof(Le64));
    if (n() > 1) send(s, PacketType::record, Phase::complete, {0, 0, 0}, nothing, others(), actions);
    complete_at(s, config_.self);
}

void Coded::complete_at(uint32_t s, Rank rank) {
    std::vector<uint8_t>& complete = memory_[s].complete;
    complete[rank] = 1;
    for (Rank r = 0; r < n(); ++r)
        if (!complete[r] && !lost_[r]) return;
    not_needed(s);
}

// ---- a reducer is late or lost ---------------------------------------------------------------------------------------------------

void Coded::late(uint32_t s, uint32_t b, Actions& actions) {
    Work& work = work_of(s, b);
    if (!spare() || work.late_us != 0 || failed(s, b) || work.reducers_remaining == 0 || work.reducers_remaining > tolerated() ||
        !free_of_lanes(s, b))
        return;
    work.late_us = actions.now_us + std::max(wait_us_min, std::min(usual_us_ / 2, config_.deadline_us / wait_share));
    actions.timers.push_back({s * cuts_.size() + b, work.late_us});
}

void Coded::timer(uint64_t id, Actions& actions) {
    const auto s = static_cast<uint32_t>(id / cuts_.size()), b = static_cast<uint32_t>(id % cuts_.size());
    const Work& work = work_of(s, b);
    if (work.late_us == 0 || actions.now_us < work.late_us || work.parts_remaining == 0)
        return;           // another step has the slot, or nothing is missing
    uint32_t asked = 0;   // where more are late than there is room for, this rank is cut off, or the step ends otherwise
    for (Rank k = 0; k < reducers(); ++k) asked += memory_[s].wanted[b * n() + k] && !lost_[k];
    for (Rank k = 0; k < reducers(); ++k) {
        uint8_t& wanted = memory_[s].wanted[b * n() + k];
        if (k == config_.self || wanted || memory_[s].remaining[b * reducers() + k] == 0) continue;
        if (!lost_[k] && rooms_max() < reducers() - 1 && asked++ >= tolerated()) continue;
        wanted = 1;
        need(s, b, k, actions);
        want(s, b, k, room_of(s, b, k).replies ? Phase::want_reply : Phase::want, actions);
        ask(s, b, k, actions);
    }
}

/// False: there is no room for words of the reducer's parts.
bool Coded::take_room(uint32_t s, uint32_t b, Rank reducer, bool needed) {
    Room& room = memory_[s].rooms[b * reducers() + reducer];
    if (room.number > 0) return true;
    Work& work = work_of(s, b);
    if (needed || lost_[reducer]) {
        if (work.rooms == rooms_max()) {   // more are lost than this exchange tolerates: its view is about to end
            GC_ASSERT(losses_ > tolerated());
            return false;
        }
        room.replies = room.dropped;
    } else if (rooms_max() < reducers() - 1 && work.rooms_unasked == tolerated()) {
        room.dropped = true;
        return false;
    } else {
        ++work.rooms_unasked;
    }
    room.number = ++work.rooms;
    return true;
}

void Coded::reply(uint32_t s, uint32_t b, Rank reducer, Rank to, Actions& actions) {
    std::vector<Reply>& replies = memory_[s].replies;
    const Reply asked{b, reducer, to};
    if (std::find(replies.begin(), replies.end(), asked) != replies.end()) return;
    replies.push_back(asked);
    for (uint32_t p = reducer; p < cuts_[b].parts; p += reducers())
        if (part_of(s, b, p).encoded) send(s, PacketType::words, Phase::reply, {b, p, 0}, words_of(s, b, p, config_.self), {to}, actions);
}

// Counts the rank's own words of an encoded part, if this rank receives the part.
void Coded::own_come(uint32_t s, uint32_t b, uint32_t p, Actions& actions) {
    const uint32_t segments = segments_of(cuts_[b].coded_words * width(config_.self));
    for (uint32_t i = 0; receives(s, b, p) && i < segments; ++i) {
        uint8_t& have = memory_[s].have[uint64_t{have_index(s, b, p, i)} * n() + config_.self];
        if (std::exchange(have, uint8_t{1})) continue;
        if (record_counts(s, b, config_.self)) counts(s, b, p, i, actions);   // not if this rank has been outvoted
    }
}

/// This rank decodes the reducer's parts.
void Coded::need(uint32_t s, uint32_t b, Rank reducer, Actions& actions) {
    (void)take_room(s, b, reducer, true);
    for (uint32_t p = reducer; p < cuts_[b].parts; p += reducers())
        if (part_of(s, b, p).encoded) own_come(s, b, p, actions);
}

void Coded::want(uint32_t s, uint32_t b, Rank reducer, Phase phase, Actions& actions) {
    const Buffer nothing = memory_[s].asking.part(config_.self * sizeof(Le64), sizeof(Le64));
    send(s, PacketType::record, phase, {b, reducer, 0}, nothing, others(), actions);
}

void Coded::ask(uint32_t s, uint32_t b, Rank reducer, Actions& actions) {
    memory_[s].asked[b * n() + reducer] = 1;
    for (uint32_t p = reducer; p < cuts_[b].parts; p += reducers())
        if (part_of(s, b, p).encoded) send_again(s, b, p, actions);
}

void Coded::send_again(uint32_t s, uint32_t b, uint32_t p, Actions& actions) {
    if (std::exchange(part_of(s, b, p).sent_again, true)) return;
    send(s, PacketType::words, Phase::again, {b, p, 0}, words_of(s, b, p, config_.self), others(), actions);
}

bool Coded::goes_on_without(Rank rank, Actions& actions) {
    if (!std::exchange(lost_[rank], 1)) ++losses_;
    if (losses_ > tolerated()) return false;
    for (uint32_t s = 0; s < step_slots; ++s) complete_at(s, rank);
    for (uint32_t s = 0; s < step_slots; ++s)
        for (uint32_t b = 0; b < cuts_.size(); ++b) {
            if (spare() && !state(s, b).complete) {
                need(s, b, rank, actions);
                if (room_of(s, b, rank).replies) want(s, b, rank, Phase::want_reply, actions);
                ask(s, b, rank, actions);
            }
            if (disputed(s, b) == none) continue;
            if (audited()) read_again(s, b, actions);
            else judge(s, b, disputed(s, b), actions);
        }
    return true;
}

}   // namespace gradcast
