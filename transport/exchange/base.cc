#include "transport/exchange/base.h"

#include <algorithm>
#include <cmath>

namespace gradcast {
namespace {

// A record in wire form.
RecordHeader& header_of(const Buffer& record) {
    GC_ASSERT(record.host);   // the arena has been sealed
    return *record.as<RecordHeader>();
}
float* maxima_of(const Buffer& record) { return record.part(sizeof(RecordHeader), record.bytes - sizeof(RecordHeader)).as<float>(); }

}   // namespace

Placement ExchangeBase::place(const View& view, std::span<const uint32_t> samples_of_block) const {
    const uint64_t blocks = samples_of_block.size(), ranks = view.n();
    Placement placement;
    placement.bounds.push_back(0);
    for (Rank k = 0; k < ranks; ++k) {
        placement.bounds.push_back(static_cast<uint32_t>((k + 1) * blocks / ranks));
        placement.holders.push_back({k});
    }
    return placement;
}

uint32_t ExchangeBase::blocks_of(Rank rank) const {
    const uint64_t blocks = config_.blocks;
    return static_cast<uint32_t>((rank + 1) * blocks / n() - rank * blocks / n());
}

Status ExchangeBase::install(const View& view, Arena& arena) {
    GC_ASSERT(config_.self < view.n() && view.n() <= ranks_max && config_.blocks >= 1 && config_.segment_bytes >= 8);
    if (layout_.buckets.size() > UINT16_MAX)
        return fail(Code::invalid, "{} buckets of gradient are more than a packet can name ({}): make them larger", layout_.buckets.size(),
                    UINT16_MAX);
    view_ = view;
    lost_ = {};
    plan_memory(arena);   // sets parts_, words and missing_

    segments_.clear(), first_.clear(), record_offset_.clear();
    uint64_t records = 0;
    for (uint32_t b = 0; b < layout_.buckets.size(); ++b) {
        const uint64_t count = layout_.buckets[b].count;
        for (uint32_t p = 0; p < parts_; ++p) {
            first_.push_back(static_cast<uint32_t>(segments_.size()));
            const uint64_t end = (p + 1) * count / parts_;
            uint32_t index = 0;
            for (uint64_t at = p * count / parts_; at < end; at += segment_words_)
                segments_.push_back({b, p, index++, static_cast<uint32_t>(std::min<uint64_t>(segment_words_, end - at)), at});
        }
        record_offset_.push_back(records);
        records += (n() + 1) * ((record_bytes(b) + 7) / 8 * 8);
    }
    first_.push_back(static_cast<uint32_t>(segments_.size()));

    for (uint32_t s = 0; s < step_slots; ++s) {
        Slot& slot = slots_[s];
        arena.plan("own words", layout_.elements * word_bytes(acc_word_), &slot.acc);
        // A single rank's own words are the sum.
        if (n() > 1) arena.plan("sums", layout_.elements * word_bytes(sum_word_), &slot.sum);
        arena.plan("records", records, &slot.records);
        slot.buckets = std::vector<BucketState>(layout_.buckets.size());
        for (uint32_t b = 0; b < layout_.buckets.size(); ++b) {
            slot.buckets[b].own_maxima.resize(layout_.buckets[b].group_count);
            slot.buckets[b].own.maxima = slot.buckets[b].own_maxima;
        }
        slot.busy = 0;
        begin(s, s);
    }
    return {};
}

void ExchangeBase::begin(uint32_t s, StepId step) {
    Slot& slot = slots_[s];
    slot.step = step, slot.released = false, slot.complete = 0;
    slot.recorded.assign(layout_.buckets.size() * n(), 0);
    for (uint32_t b = 0; b < layout_.buckets.size(); ++b) {
        BucketState& bucket = slot.buckets[b];
        bucket.ready = bucket.complete = bucket.told = false;
        bucket.own.blocks = 0;
        bucket.missing = first_[(b + 1) * parts_] - first_[b * parts_] + missing_;
    }
    cleared(s);
}

Buffer ExchangeBase::words_of(const Buffer& whole, Word word, const Segment& segment) const {
    return whole.part((layout_.buckets[segment.bucket].offset + segment.offset) * word_bytes(word),
                      uint64_t{segment.words} * word_bytes(word));
}

Buffer ExchangeBase::record_of(uint32_t slot, uint32_t bucket, uint32_t index) const {
    const uint64_t bytes = record_bytes(bucket);
    return slots_[slot].records.part(record_offset_[bucket] + index * ((bytes + 7) / 8 * 8), bytes);
}

Plan ExchangeBase::plan(StepId step, uint32_t bucket, uint32_t) {
    Slot& slot = slots_[step % step_slots];
    const Bucket& range = layout_.buckets[bucket];
    return {acc_word_, slot.acc.part(range.offset * word_bytes(acc_word_), range.count * word_bytes(acc_word_)), &slot.buckets[bucket].own};
}

const Sum* ExchangeBase::sum(StepId step, uint32_t bucket) const {
    const Slot& slot = slots_[step % step_slots];
    return slot.step == step && slot.buckets[bucket].complete ? &slot.buckets[bucket].sum : nullptr;
}

// ---- in ------------------------------------------------------------------------------------------------------------------------

Landing ExchangeBase::find(const Packet& packet, uint64_t bytes, Arrival* arrival) const {
    const DataBody body = body_of<DataBody>(packet);
    const uint32_t bucket = body.bucket.get(), part = body.part.get(), index = body.index.get();
    const StepId step = body.step.get();
    const uint32_t s = step % step_slots;
    if (packet.view != view_.number || packet.sender >= n() || packet.sender == config_.self) return Landing::drop;
    if (body.reserved != 0) return Landing::drop;
    if (bucket >= layout_.buckets.size()) return Landing::drop;
    *arrival = {packet.sender, packet.type == PacketType::record, static_cast<Phase>(body.phase), s, bucket, part, 0};
    if (packet.type == PacketType::record) {
        if (part >= parts_ || index != 0 || arrival->phase != Phase::reduce || bytes != record_bytes(bucket)) return Landing::drop;
    } else if (packet.type == PacketType::words) {
        if (part >= parts_ || (arrival->phase != Phase::reduce && arrival->phase != Phase::gather)) return Landing::drop;
        const uint32_t first = first_[bucket * parts_ + part], end = first_[bucket * parts_ + part + 1];
        if (index >= end - first || bytes == 0 || bytes != uint64_t{segments_[first + index].words} * width(packet.sender))
            return Landing::drop;
        arrival->segment = first + index;
    } else {
        return Landing::drop;
    }
    if (step == slots_[s].step) return Landing::place;
    return step == slots_[s].step + step_slots ? Landing::later : Landing::drop;
}

Landing ExchangeBase::land(const Packet& packet, uint64_t bytes, Buffer* place) {
    Arrival arrival;
    const Landing landing = find(packet, bytes, &arrival);
    return landing == Landing::place ? wanted(arrival, place) : landing;
}

void ExchangeBase::on(std::span<const Event> events, Actions& actions) {
    for (const Event& event : events) {
        switch (event.kind) {
            case Event::Kind::packet: {
                Arrival arrival;
                if (find(*event.packet, event.packet->payload.bytes, &arrival) == Landing::place)
                    take(arrival, event.packet->payload, actions);
                break;
            }
            case Event::Kind::sent: finished(event.id % step_slots, actions); break;
            case Event::Kind::computed: {
                const auto slot = static_cast<uint32_t>((event.id - 1) % step_slots);
                computed(slot, static_cast<uint32_t>((event.id - 1) / step_slots), actions);
                finished(slot, actions);
                break;
            }
            case Event::Kind::ready: ready(event, actions); break;
            case Event::Kind::peer_lost:
                if (lost_.ok()) lost_ = event.status.ok() ? fail(Code::peer_lost, "rank {} is lost", event.rank) : event.status;
                tell_lost(actions);
                break;
            case Event::Kind::command:
                if (event.id == static_cast<uint64_t>(ExchangeCommand::release)) {
                    release(event.step);
                } else {
                    GC_ASSERT(event.id == static_cast<uint64_t>(ExchangeCommand::explain));
                    const Slot& slot = slots_[event.step % step_slots];
                    for (uint32_t b = 0; b < slot.buckets.size(); ++b) {
                        if (slot.step != event.step || slot.buckets[b].told) continue;
                        actions.completions.push_back(
                            {0, b, event.step, nullptr, fail(Code::deadline, "{}", missing_text(event.step % step_slots, b))});
                        break;
                    }
                }
                break;
            case Event::Kind::timer:
            case Event::Kind::peer_up:
            case Event::Kind::view: break;
        }
    }
}

void ExchangeBase::ready(const Event& event, Actions& actions) {
    const uint32_t s = event.step % step_slots;
    Slot& slot = slots_[s];
    GC_ASSERT(event.fence.timeline == 0 && slot.step == event.step && event.bucket < slot.buckets.size());
    BucketState& bucket = slot.buckets[event.bucket];
    GC_ASSERT(!bucket.ready);
    bucket.ready = true;

    Buffer own = record_of(s, event.bucket, n());
    RecordHeader& header = header_of(own);
    header.state.set(bucket.own.state), header.loss.set(static_cast<uint64_t>(bucket.own.loss)), header.clipped.set(bucket.own.clipped);
    std::copy(bucket.own_maxima.begin(), bucket.own_maxima.end(), maxima_of(own));

    if (n() == 1) {
        bucket.missing = 1;
        arrived(s, event.bucket, own, actions);
    } else {
        started(s, event.bucket, actions);
    }
    if (!lost_.ok()) tell_lost(actions);
}

// ---- records -------------------------------------------------------------------------------------------------------------------

bool ExchangeBase::record_add(uint32_t s, uint32_t bucket, Rank sender, Buffer into, Buffer from, Actions& actions) {
    RecordHeader &a = header_of(into), &b = header_of(from);
    const StepId step = slots_[s].step;
    auto refuse = [&](Status status) {
        actions.completions.push_back({0, bucket, step, nullptr, status});
        return false;
    };
    const uint64_t own = state(s, bucket).own.state, theirs = a.state.get() == own ? b.state.get() : a.state.get();
    if (theirs != own)
        return refuse(fail(Code::conflict,
                           "step {}: rank {} ({}) and rank {} ({}) computed it from different states ({:016x} and {:016x}): "
                           "one of them computes or stores wrongly",
                           step, config_.self, view_.members[config_.self].name, sender, view_.members[sender].name, own, theirs));
    a.loss.set(a.loss.get() + b.loss.get());
    a.clipped.set(a.clipped.get() + b.clipped.get());
    float *x = maxima_of(into), *y = maxima_of(from);
    for (uint32_t g = 0; g < layout_.buckets[bucket].group_count; ++g) {
        if (!(std::isfinite(x[g]) && x[g] >= 0 && std::isfinite(y[g]) && y[g] >= 0))
            return refuse(fail(Code::conflict, "step {}: rank {} ({}) sent a record whose maximum of layer {} is no size", step, sender,
                               view_.members[sender].name, layout_.groups[layout_.buckets[bucket].group + g].layer));
        x[g] = std::fmax(x[g], y[g]);
    }
    return true;
}

// ---- completing, and the life of a slot --------------------------------------------------------------------------------------------

void ExchangeBase::arrived(uint32_t s, uint32_t b, Buffer record, Actions& actions) {
    BucketState& bucket = state(s, b);
    GC_ASSERT(bucket.missing > 0);
    if (--bucket.missing > 0) return;
    const Bucket& range = layout_.buckets[b];
    const RecordHeader& header = header_of(record);
    Sum& sum = bucket.sum;
    sum.step = slots_[s].step, sum.bucket = b, sum.word = sum_word_;
    const Buffer& whole = n() == 1 ? slots_[s].acc : slots_[s].sum;
    sum.words = whole.part(range.offset * word_bytes(sum_word_), range.count * word_bytes(sum_word_));
    sum.maxima = {maxima_of(record), range.group_count};
    sum.state = header.state.get(), sum.loss = static_cast<int64_t>(header.loss.get()), sum.clipped = header.clipped.get();
    bucket.complete = true;
    ++slots_[s].complete;
    tell(s, actions);
}

void ExchangeBase::tell(uint32_t s, Actions& actions) {
    Slot& slot = slots_[s];
    const Slot& next = slots_[(s + 1) % step_slots];
    if (next.step < slot.step && next.busy > 0) return;   // the codec could write what is still being sent
    for (uint32_t b = 0; b < slot.buckets.size(); ++b) {
        BucketState& bucket = slot.buckets[b];
        if (!bucket.complete || bucket.told) continue;
        bucket.told = true;
        actions.completions.push_back({0, b, slot.step, &bucket.sum, {}});
    }
}

void ExchangeBase::finished(uint32_t s, Actions& actions) {
    GC_ASSERT(slots_[s].busy > 0);
    if (--slots_[s].busy > 0) return;
    tell((s + step_slots - 1) % step_slots, actions);
    turn(s);
}

void ExchangeBase::release(StepId step) {
    Slot& slot = slots_[step % step_slots];
    GC_ASSERT(slot.step == step && slot.complete == slot.buckets.size() && !slot.released);
    slot.released = true;
    turn(step % step_slots);
}

void ExchangeBase::turn(uint32_t s) {
    if (slots_[s].released && slots_[s].busy == 0) begin(s, slots_[s].step + step_slots);
}

std::string ExchangeBase::missing_text(uint32_t s, uint32_t b) const {
    const BucketState& bucket = slots_[s].buckets[b];
    const uint32_t segments = first_[(b + 1) * parts_] - first_[b * parts_];
    return fmt::format("step {}, bucket {}: {}{} of {} segments and records ({} bytes a segment) are missing", slots_[s].step, b,
                       bucket.ready ? "" : "not computed here, ", bucket.missing, segments + missing_,
                       segment_words_ * word_bytes(sum_word_));
}

// One line is enough: the first bucket that waits, in the oldest step.
void ExchangeBase::tell_lost(Actions& actions) {
    uint32_t oldest = 0;
    for (uint32_t s = 1; s < step_slots; ++s)
        if (slots_[s].step < slots_[oldest].step) oldest = s;
    for (uint32_t i = 0; i < step_slots; ++i) {
        const uint32_t s = (oldest + i) % step_slots;
        for (uint32_t b = 0; b < slots_[s].buckets.size(); ++b) {
            const BucketState& bucket = slots_[s].buckets[b];
            if (!bucket.ready || bucket.complete) continue;
            actions.completions.push_back({0, b, slots_[s].step, nullptr, fail(lost_.code, "{}; {}", lost_.what, missing_text(s, b))});
            return;
        }
    }
}

// ---- out -----------------------------------------------------------------------------------------------------------------------

void ExchangeBase::send_words(uint32_t s, const Segment& segment, Phase phase, Buffer payload, RankSet to, Actions& actions) {
    DataBody body{};
    body.step.set(static_cast<uint32_t>(slots_[s].step)), body.bucket.set(static_cast<uint16_t>(segment.bucket));
    body.part.set(static_cast<uint16_t>(segment.part)), body.index.set(segment.index), body.phase = static_cast<uint8_t>(phase);
    ++slots_[s].busy;
    actions.sends.push_back({to, PacketType::words, body_bytes(body), payload, ++tickets_ * step_slots + s, 0});
}

void ExchangeBase::send_record(uint32_t s, uint32_t bucket, uint32_t part, Buffer payload, RankSet to, Actions& actions) {
    DataBody body{};
    body.step.set(static_cast<uint32_t>(slots_[s].step)), body.bucket.set(static_cast<uint16_t>(bucket)),
        body.part.set(static_cast<uint16_t>(part));
    body.phase = static_cast<uint8_t>(Phase::reduce);
    ++slots_[s].busy;
    actions.sends.push_back({to, PacketType::record, body_bytes(body), payload, ++tickets_ * step_slots + s, 0});
}

void ExchangeBase::compute(uint32_t s, uint32_t segment, Kernel kernel, Buffer dst, Buffer src, uint64_t count, Actions& actions) {
    ++slots_[s].busy;
    actions.computes.push_back({kernel, dst, src, count, uint64_t{segment} * step_slots + s + 1});
}

}   // namespace gradcast
