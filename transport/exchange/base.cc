#include "transport/exchange/base.h"

#include "runtime/core/overloads.h"

namespace gradcast {

std::vector<uint32_t> ExchangeBase::shares(uint32_t blocks, uint32_t ranks) const {
    const bool weighted = weighs() && config_.weights.size() == ranks;   // else install() reports the error
    return block_bounds(blocks, ranks, weighted ? std::span<const double>(config_.weights) : std::span<const double>{});
}

Placement ExchangeBase::place(const View& view, std::span<const uint32_t> samples_of_block) const {
    Placement placement;
    placement.bounds = shares(static_cast<uint32_t>(samples_of_block.size()), view.n());
    for (Rank k = 0; k < view.n(); ++k) placement.holders.push_back({k});
    return placement;
}

Status ExchangeBase::install(const View& view, Arena& arena) {
    GC_ASSERT(config_.self < view.n() && view.n() <= ranks_max && config_.blocks >= 1 && config_.segment_bytes >= 8);
    if (layout_.buckets.size() > UINT16_MAX)
        return fail(Code::invalid, "{} buckets of gradient are more than a packet can name ({}): make them larger", layout_.buckets.size(),
                    UINT16_MAX);
    if (config_.quantiser == Quantiser::auto16 && config_.blocks > 64)
        return fail(Code::invalid, "auto16 adds at most 64 blocks, and there are {}: use auto32, or fewer blocks", config_.blocks);
    GC_TRY(weights_check(config_, view.n()));
    view_ = view;
    shares_ = shares(config_.blocks, view.n());
    lost_ = {};
    GC_TRY(plan_memory(arena));
    for (uint32_t s = 0; s < step_slots; ++s) {
        slots_[s].buckets = std::vector<BucketState>(layout_.buckets.size());
        for (uint32_t b = 0; b < layout_.buckets.size(); ++b) {
            BucketState& bucket = slots_[s].buckets[b];
            const uint32_t groups = layout_.buckets[b].group_count;
            bucket.own.resize(targets());
            bucket.maxima.resize(targets() * groups);
            for (uint32_t t = 0; t < targets(); ++t) bucket.own[t].maxima = std::span(bucket.maxima).subspan(t * groups, groups);
        }
        slots_[s].busy = 0;
        begin(s, config_.first_step + (s + step_slots - config_.first_step % step_slots) % step_slots);
    }
    return {};
}

void ExchangeBase::begin(uint32_t s, StepId step) {
    Slot& slot = slots_[s];
    slot.step = step;
    slot.released = false;
    slot.complete = slot.reported = 0;
    for (BucketState& bucket : slot.buckets) {
        bucket.ready = bucket.closed = bucket.complete = bucket.reported = false;
        for (Record& record : bucket.own) record.blocks = 0;
    }
    cleared(s);
    begun_[s].store(step, std::memory_order_release);
}

Plan ExchangeBase::plan(StepId step, uint32_t bucket, uint32_t t) {
    const uint32_t s = step % step_slots;
    return {target_word(), target(s, bucket, t), &state(s, bucket).own[t], audit()};
}

// ---- in ------------------------------------------------------------------------------------------------------------------------

Landing ExchangeBase::find(const Packet& packet, uint64_t bytes, Arrival* arrival) const {
    const DataBody body = body_of<DataBody>(packet);
    const StepId step = body.step.get();
    const uint32_t s = step % step_slots;
    *arrival = {packet.sender,
                packet.type == PacketType::record,
                static_cast<Phase>(body.phase),
                s,
                body.bucket.get(),
                body.part.get(),
                body.index.get(),
                bytes,
                0};
    if (packet.view != view_.number || packet.sender >= n() || packet.sender == config_.self || body.reserved != 0 ||
        arrival->bucket >= layout_.buckets.size() || (packet.type != PacketType::record && packet.type != PacketType::words) ||
        !valid(arrival))
        return Landing::drop;
    if (step == slots_[s].step) return Landing::place;
    return step == slots_[s].step + step_slots ? Landing::later : Landing::drop;
}

Landing ExchangeBase::land(const Packet& packet, uint64_t bytes, Buffer* place) {
    Arrival arrival;
    const Landing landing = find(packet, bytes, &arrival);
    return landing == Landing::place ? wanted(arrival, place) : landing;
}

void ExchangeBase::on(std::span<const Event> events, Actions& actions) {
    for (const Event& event : events)
        std::visit(Overloads{[&](const Event::Received& it) {
                                 Arrival arrival;
                                 if (find(*it.packet, it.packet->payload.bytes, &arrival) != Landing::place) return;
                                 arrivals_.store(arrivals() + 1, std::memory_order_relaxed);   // written by this thread only
                                 last_ = arrival.sender;
                                 take(arrival, it.packet->payload, actions);
                             },
                             [&](const Event::Sent& it) { finished(it.ticket % step_slots, actions); },
                             [&](const Event::Computed& it) {
                                 const auto slot = static_cast<uint32_t>((it.ticket - 1) % step_slots);
                                 computed(slot, static_cast<uint32_t>((it.ticket - 1) / step_slots), actions);
                                 finished(slot, actions);
                             },
                             [&](const Event::Ready& it) { close(it.step, it.bucket, true, actions); },
                             [&](const Event::PeerLost& it) { lose(it.rank, it.status, actions); },
                             [&](const Event::Command& it) { command(it.as<ExchangeCommand>(), actions); },
                             [&](const Event::TimerExpired& it) { timer(it.id, actions); }, [](const Event::PeerUp&) {}},
                   event.what);
}

void ExchangeBase::command(const ExchangeCommand& command, Actions& actions) {
    std::visit(Overloads{[&](const ExchangeCommand::Release& it) { release(it.step); },
                         [&](const ExchangeCommand::Explain& it) { explain(it.step, actions); },
                         [&](const ExchangeCommand::Abandon& it) { close(it.step, it.bucket, false, actions); },
                         [&](const ExchangeCommand::Expel& it) { lose(it.rank, it.status, actions); }},
               command.what);
}

void ExchangeBase::explain(StepId step, Actions& actions) {
    const uint32_t s = step % step_slots;
    for (uint32_t b = 0; b < slots_[s].buckets.size(); ++b) {
        if (slots_[s].step != step || slots_[s].buckets[b].reported) continue;
        actions.completions.push_back({0, b, step, nullptr, fail(Code::deadline, "{}", waits_for(s, b))});
        return;
    }
}

void ExchangeBase::lose(Rank rank, const Status& why, Actions& actions) {
    if (goes_on_without(rank, actions)) return;
    if (lost_.ok()) lost_ = why.ok() ? fail(Code::peer_lost, "rank {} is lost", rank) : why;
    report_lost(actions);
}

void ExchangeBase::close(StepId step, uint32_t b, bool ready, Actions& actions) {
    const uint32_t s = step % step_slots;
    Slot& slot = slots_[s];
    GC_ASSERT(slot.step == step && b < slot.buckets.size());
    BucketState& bucket = slot.buckets[b];
    GC_ASSERT(!bucket.closed);
    bucket.ready = ready;
    bucket.closed = true;
    last_ = config_.self;
    if (ready) contributed(s, b, actions);
    else abandoned(s, b, actions);
    if (!lost_.ok()) report_lost(actions);
}

// ---- completing, and the life of a slot --------------------------------------------------------------------------------------------

void ExchangeBase::arrived(uint32_t s, uint32_t b, Actions& actions) {
    BucketState& bucket = state(s, b);
    GC_ASSERT(bucket.missing > 0);
    if (--bucket.missing > 0) return;
    bucket.sum.step = slots_[s].step;
    bucket.sum.bucket = b;
    total(s, b, &bucket.sum);
    bucket.complete = true;
    if (++slots_[s].complete == slots_[s].buckets.size()) {
        waited_for_.store(last_, std::memory_order_relaxed);
        all_complete(s, actions);
    }
    report(s, actions);
}

void ExchangeBase::refuse(uint32_t s, uint32_t bucket, Status status, Actions& actions) {
    actions.completions.push_back({0, bucket, slots_[s].step, nullptr, status});
}

Status ExchangeBase::states_differ(uint32_t s, Rank a, uint64_t state_a, Rank b, uint64_t state_b) const {
    return fail(Code::conflict,
                "step {}: {} and {} computed it from different states ({:016x} and {:016x}): one of them computes or stores wrongly",
                slots_[s].step + 1, name(a), name(b), state_a, state_b);
}

Status ExchangeBase::no_size(uint32_t s, uint32_t bucket, Rank sender, uint32_t group) const {
    return fail(Code::conflict, "step {}: {} sent a record whose maximum of layer {} is no size", slots_[s].step + 1, name(sender),
                layout_.groups[layout_.buckets[bucket].group + group].layer);
}

void ExchangeBase::report(uint32_t s, Actions& actions) {
    Slot& slot = slots_[s];
    const Slot &next = slots_[(s + 1) % step_slots], &before = slots_[(s + step_slots - 1) % step_slots];
    if (next.step < slot.step && next.busy > 0) return;   // the codec could overwrite what is still being sent
    if (before.step < slot.step && before.reported < before.buckets.size()) return;
    for (uint32_t b = 0; b < slot.buckets.size(); ++b) {
        BucketState& bucket = slot.buckets[b];
        if (!bucket.complete || bucket.reported) continue;
        bucket.reported = true;
        ++slot.reported;
        actions.completions.push_back({0, b, slot.step, &bucket.sum, {}});
    }
    if (slot.reported == slot.buckets.size() && next.step > slot.step && next.complete > next.reported)
        report((s + 1) % step_slots, actions);
}

void ExchangeBase::finished(uint32_t s, Actions& actions) {
    GC_ASSERT(slots_[s].busy > 0);
    if (--slots_[s].busy > 0) return;
    report((s + step_slots - 1) % step_slots, actions);
    turn(s);
}

void ExchangeBase::release(StepId step) {
    Slot& slot = slots_[step % step_slots];
    GC_ASSERT(slot.step == step && slot.complete == slot.buckets.size() && !slot.released);
    for (const BucketState& bucket : slot.buckets) GC_ASSERT(bucket.closed);
    slot.released = true;
    turn(step % step_slots);
}

void ExchangeBase::turn(uint32_t s) {
    if (slots_[s].released && slots_[s].busy == 0) begin(s, slots_[s].step + step_slots);
}

std::string ExchangeBase::waits_for(uint32_t s, uint32_t b) const {
    return fmt::format("step {}, bucket {}: {}{}", slots_[s].step + 1, b, state(s, b).closed ? "" : "not computed here, ",
                       missing_text(s, b));
}

// The first bucket that waits, in the oldest step.
void ExchangeBase::report_lost(Actions& actions) {
    uint32_t oldest = 0;
    for (uint32_t s = 1; s < step_slots; ++s)
        if (slots_[s].step < slots_[oldest].step) oldest = s;
    for (uint32_t i = 0; i < step_slots; ++i) {
        const uint32_t s = (oldest + i) % step_slots;
        for (uint32_t b = 0; b < slots_[s].buckets.size(); ++b) {
            if (!state(s, b).closed || state(s, b).complete) continue;
            return refuse(s, b, fail(lost_.code, "{}; {}", lost_.what, waits_for(s, b)), actions);
        }
    }
}

// ---- out -----------------------------------------------------------------------------------------------------------------------

void ExchangeBase::send(uint32_t s, PacketType type, Phase phase, const Place& at, Buffer payload, RankSet to, Actions& actions) {
    DataBody body{};
    body.step.set(static_cast<uint32_t>(slots_[s].step));
    body.bucket.set(static_cast<uint16_t>(at.bucket));
    body.part.set(static_cast<uint16_t>(at.part));
    body.index.set(at.index);
    body.phase = static_cast<uint8_t>(phase);
    ++slots_[s].busy;
    actions.sends.push_back({to, type, body_bytes(body), payload, ++tickets_ * step_slots + s, 0});
}

void ExchangeBase::compute(uint32_t s, uint32_t id, Kernel kernel, Buffer dst, Buffer src, uint64_t count, Actions& actions) {
    ++slots_[s].busy;
    actions.computes.push_back({kernel, dst, src, count, uint64_t{id} * step_slots + s + 1});
}

void ExchangeBase::combine(uint32_t s, uint32_t id, Combine* combine, uint64_t count, Actions& actions) {
    ++slots_[s].busy;
    actions.computes.push_back({Kernel::combine, {}, {}, count, uint64_t{id} * step_slots + s + 1, combine});
}

}   // namespace gradcast
