#include "transport/exchange/held.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace gradcast {
namespace {

// A record in wire form.
Le64& state_of(const Buffer& record) {
    GC_ASSERT(record.host);   // the arena has been sealed
    return *record.as<Le64>();
}
HeldRecord* held_of(const Buffer& record) { return record.part(sizeof(Le64), sizeof(HeldRecord)).as<HeldRecord>(); }

}   // namespace

void HeldExchange::plan_records(std::vector<uint32_t> bounds, Arena& arena) {
    bounds_ = std::move(bounds);
    others_.assign((n() + 63) / 64, 0);
    for (Rank r = 0; r < n(); ++r)
        if (r != config_.self) others_[r / 64] |= uint64_t{1} << r % 64;
    const auto buckets = static_cast<uint32_t>(layout_.buckets.size());
    at_.assign(buckets, 0), have_at_.assign(buckets, 0);
    uint64_t bytes = 0;
    uint32_t packets = 0;
    for (uint32_t b = 0; b < buckets; ++b) {
        at_[b] = bytes, have_at_[b] = packets;
        bytes += n() * ((bytes_of(b) + 7) / 8 * 8), packets += packets_of(b);
    }
    for (Records& records : records_) {
        arena.plan("records", bytes, &records.memory);
        records.have.resize(uint64_t{packets} * n()), records.whole.resize(buckets * n()), records.failed.resize(buckets);
        records.said.resize(uint64_t{buckets} * super_blocks());
        records.maxima.resize(buckets), records.state.resize(buckets), records.state_of.resize(buckets);
        for (uint32_t b = 0; b < buckets; ++b) records.maxima[b].resize(layout_.buckets[b].group_count);
    }
}

void HeldExchange::clear_records(uint32_t s) {
    Records& records = records_[s];
    std::fill(records.have.begin(), records.have.end(), 0), std::fill(records.whole.begin(), records.whole.end(), 0);
    std::fill(records.failed.begin(), records.failed.end(), 0);
    std::fill(records.said.begin(), records.said.end(), Said{n(), 0, 0, 0});
    std::fill(records.state_of.begin(), records.state_of.end(), n());
    for (std::vector<float>& maxima : records.maxima) std::fill(maxima.begin(), maxima.end(), 0.0f);
    records.conflicts = false;
}

bool HeldExchange::record_valid(const Arrival& a) const {
    const uint64_t bytes = bytes_of(a.bucket), at = uint64_t{a.index} * config_.segment_bytes;
    return a.phase == Phase::reduce && a.part == 0 && at < bytes && a.bytes == std::min<uint64_t>(config_.segment_bytes, bytes - at);
}

Landing HeldExchange::record_wanted(const Arrival& a, Buffer* place) const {
    if (records_[a.slot].have[uint64_t{have_at_[a.bucket] + a.index} * n() + a.sender]) return Landing::drop;
    *place = record_of(a.slot, a.bucket, a.sender).part(uint64_t{a.index} * config_.segment_bytes, a.bytes);
    return Landing::place;
}

bool HeldExchange::record_taken(const Arrival& a, Actions& actions) {
    auto have = [&](uint32_t i) -> uint8_t& { return records_[a.slot].have[uint64_t{have_at_[a.bucket] + i} * n() + a.sender]; };
    have(a.index) = 1;
    for (uint32_t i = 0; i < packets_of(a.bucket); ++i)
        if (!have(i)) return false;
    return read(a.slot, a.bucket, a.sender, actions);
}

bool HeldExchange::record_own(uint32_t s, uint32_t b, Actions& actions) {
    const std::vector<Record>& own = state(s, b).own;
    const Buffer record = record_of(s, b, config_.self);
    state_of(record).set(own[0].state);
    HeldRecord* said = held_of(record);
    auto* maxima = reinterpret_cast<float*>(said + targets());
    for (uint32_t t = 0; t < targets(); ++t) {
        said[t].digest.set(audit() ? own[t].digest : 0), said[t].loss.set(static_cast<uint64_t>(own[t].loss));
        said[t].clipped.set(own[t].clipped);
        for (uint32_t g = 0; g < own[t].maxima.size(); ++g) maxima[g] = t == 0 ? own[t].maxima[g] : std::fmax(maxima[g], own[t].maxima[g]);
    }
    if (n() > 1) send(s, PacketType::record, Phase::reduce, {b, 0, 0}, record, others(), actions);
    return read(s, b, config_.self, actions);
}

bool HeldExchange::read(uint32_t s, uint32_t b, Rank sender, Actions& actions) {
    Records& records = records_[s];
    records.whole[b * n() + sender] = 1;
    if (records.failed[b]) return false;
    const Buffer record = record_of(s, b, sender);
    const StepId step = slots_[s].step;
    auto fails = [&](Status status) { return records.failed[b] = 1, refuse(s, b, status, actions), false; };
    if (records.state_of[b] == n()) records.state_of[b] = sender, records.state[b] = state_of(record).get();
    if (records.state[b] != state_of(record).get())
        return fails(states_differ(s, records.state_of[b], records.state[b], sender, state_of(record).get()));
    const HeldRecord* said = held_of(record);
    const auto* maxima = reinterpret_cast<const float*>(said + targets());
    for (uint32_t g = 0; g < records.maxima[b].size(); ++g)
        if (!(std::isfinite(maxima[g]) && maxima[g] >= 0)) return fails(no_size(s, b, sender, g));
    for (uint32_t t = 0; t < targets(); ++t) {
        const uint32_t k = held(sender, t);
        Said& known = records.said[uint64_t{b} * super_blocks() + k];
        const Said now{sender, said[t].digest.get(), said[t].loss.get(), said[t].clipped.get()};
        if (known.holder == n()) known = now;
        if (known.digest == now.digest && known.loss == now.loss && known.clipped == now.clipped) continue;
        if (!std::exchange(records.conflicts, true))   // the trainer may be reading it from then on
            records.conflict = {step, b, bounds_[k], bounds_[k + 1], {known.holder, sender}, {known.digest, now.digest}};
        return fails(fail(Code::conflict,
                          "step {}, bucket {}: {} and {} hold different sums of blocks {} to {} (digests {:016x} and {:016x}): "
                          "one of them computes or stores wrongly",
                          step, b, name(known.holder), name(sender), bounds_[k], bounds_[k + 1] - 1, known.digest, now.digest));
    }
    if (state(s, b).complete) return false;   // a late one, for the audit alone
    for (uint32_t g = 0; g < records.maxima[b].size(); ++g) records.maxima[b][g] = std::fmax(records.maxima[b][g], maxima[g]);
    return true;
}

void HeldExchange::record_total(uint32_t s, uint32_t b, Sum* sum) const {
    const Records& records = records_[s];
    sum->maxima = records.maxima[b], sum->state = records.state[b], sum->loss = 0, sum->clipped = 0;
    for (uint32_t k = 0; k < super_blocks(); ++k) {
        const Said& said = records.said[uint64_t{b} * super_blocks() + k];
        sum->loss += static_cast<int64_t>(said.loss), sum->clipped += said.clipped;
    }
}

const Conflict* HeldExchange::conflict(StepId step) const {
    const uint32_t s = step % step_slots;
    return slots_[s].step == step && records_[s].conflicts ? &records_[s].conflict : nullptr;
}

std::string HeldExchange::records_missing(uint32_t s, uint32_t b) const {
    std::string ranks;
    for (Rank r = 0; r < n(); ++r)
        if (!recorded(s, b, r)) ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", r);
    return ranks.empty() ? "" : "no record of ranks " + ranks + "; ";
}

}   // namespace gradcast
