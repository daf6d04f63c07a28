#include "transport/exchange/held.h"

#include <algorithm>
#include <cmath>
#include <cstring>
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
    others_ = ranks_but(config_.self, n());
    lost_.assign(n(), 0);
    const auto buckets = static_cast<uint32_t>(layout_.buckets.size());
    at_.assign(buckets, 0);
    have_at_.assign(buckets, 0);
    uint64_t bytes = 0;
    uint32_t packets = 0;
    for (uint32_t b = 0; b < buckets; ++b) {
        at_[b] = bytes;
        have_at_[b] = packets;
        bytes += n() * ((bytes_of(b) + 7) / 8 * 8);
        packets += packets_of(b);
    }
    for (Records& records : records_) {
        arena.plan("records", bytes, &records.memory);
        records.have.resize(uint64_t{packets} * n());
        records.said.resize(buckets * n());
        records.verdicts.resize(buckets);
        records.first.resize(uint64_t{buckets} * super_blocks());
        records.maxima.resize(buckets);
        records.state.resize(buckets);
        records.state_of.resize(buckets);
        for (uint32_t b = 0; b < buckets; ++b) records.maxima[b].resize(layout_.buckets[b].group_count);
    }
}

void HeldExchange::clear_records(uint32_t s) {
    Records& records = records_[s];
    std::fill(records.have.begin(), records.have.end(), 0);
    std::fill(records.said.begin(), records.said.end(), Said::nothing);
    for (uint32_t b = 0; b < at_.size(); ++b) clear_bucket(s, b);
    records.conflicts = false;
}

void HeldExchange::clear_bucket(uint32_t s, uint32_t b) {
    Records& records = records_[s];
    records.verdicts[b] = {};
    std::fill_n(records.first.begin() + uint64_t{b} * super_blocks(), super_blocks(), First{none, 0, 0, 0, 0, 0});
    std::fill(records.maxima[b].begin(), records.maxima[b].end(), 0.0f);
    records.state_of[b] = none;
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

void HeldExchange::record_taken(const Arrival& a, Actions& actions) {
    auto have = [&](uint32_t i) -> uint8_t& { return records_[a.slot].have[uint64_t{have_at_[a.bucket] + i} * n() + a.sender]; };
    have(a.index) = 1;
    for (uint32_t i = 0; i < packets_of(a.bucket); ++i)
        if (!have(i)) return;
    read(a.slot, a.bucket, a.sender, actions);
}

void HeldExchange::record_own(uint32_t s, uint32_t b, Actions& actions) {
    const std::vector<Record>& own = state(s, b).own;
    const Buffer record = record_of(s, b, config_.self);
    state_of(record).set(own[0].state);
    HeldRecord* said = held_of(record);
    auto* maxima = reinterpret_cast<float*>(said + targets());
    for (uint32_t t = 0; t < targets(); ++t) {
        said[t].digest.set(audit() ? own[t].digest : 0);
        said[t].loss.set(static_cast<uint64_t>(own[t].loss));
        said[t].valid.set(own[t].valid);
        said[t].clipped.set(static_cast<uint32_t>(std::min<uint64_t>(own[t].clipped, UINT32_MAX)));
        said[t].diverged.set(own[t].diverged);
        for (uint32_t g = 0; g < own[t].maxima.size(); ++g) maxima[g] = t == 0 ? own[t].maxima[g] : std::fmax(maxima[g], own[t].maxima[g]);
    }
    if (n() > 1) send(s, PacketType::record, Phase::reduce, {b, 0, 0}, record, others(), actions);
    read(s, b, config_.self, actions);
}

void HeldExchange::read(uint32_t s, uint32_t b, Rank sender, Actions& actions) {
    Records& records = records_[s];
    Verdict& verdict = records.verdicts[b];
    records.said[b * n() + sender] = Said::counts;
    if (verdict.failed) {
        if (verdict.disputed != none) judge(s, b, verdict.disputed, actions);
        return;
    }
    const Buffer record = record_of(s, b, sender);
    auto fails = [&](Status status) { verdict.failed = true, refuse(s, b, status, actions); };
    if (records.state_of[b] == none) {
        records.state_of[b] = sender;
        records.state[b] = state_of(record).get();
    }
    if (records.state[b] != state_of(record).get())
        return fails(states_differ(s, records.state_of[b], records.state[b], sender, state_of(record).get()));
    const HeldRecord* said = held_of(record);
    const auto* maxima = reinterpret_cast<const float*>(said + targets());
    for (uint32_t g = 0; g < records.maxima[b].size(); ++g)
        if (!(maxima[g] >= 0) || (std::isinf(maxima[g]) && !audit())) return fails(no_size(s, b, sender, g));
    for (uint32_t t = 0; t < targets(); ++t) {
        const uint32_t k = held(sender, t);
        First& known = records.first[uint64_t{b} * super_blocks() + k];
        const First now{
            sender, said[t].digest.get(), said[t].loss.get(), said[t].valid.get(), said[t].clipped.get(), said[t].diverged.get()};
        if (known.holder == none) known = now;
        if (known.agrees(now)) continue;
        // All records that a sum needs are there: this one is not needed, and at least two contradict it.
        if (audited() && verdict.counting >= needed()) records.said[b * n() + sender] = Said::rejected;
        else {
            verdict.failed = true;
            verdict.disputed = k;
        }
        return judge(s, b, k, actions);
    }
    if (state(s, b).complete) return;   // a late record, only for the audit
    for (uint32_t g = 0; g < records.maxima[b].size(); ++g) records.maxima[b][g] = std::fmax(records.maxima[b][g], maxima[g]);
    ++verdict.counting;
    counted(s, b, sender, actions);
}

// Of three holders the one that differs is wrong.  Of two the trainers decide, once no other holder can send a record.
void HeldExchange::judge(uint32_t s, uint32_t b, uint32_t k, Actions& actions) {
    Records& records = records_[s];
    Verdict& verdict = records.verdicts[b];
    std::vector<Rank> spoken;   // allocates: at most once in a job
    std::vector<HeldRecord> said(n());
    bool more = false;
    for (Rank h = 0; h < n(); ++h)
        for (uint32_t t = 0; t < targets(); ++t) {
            if (held(h, t) != k) continue;
            said[h] = held_of(record_of(s, b, h))[t];
            if (records.said[b * n() + h] != Said::nothing) spoken.push_back(h);
            else more |= !lost_[h] && (tolerated() == 0 || audited());   // otherwise it may have abandoned the step
        }
    auto same = [&](Rank x, Rank y) { return std::memcmp(&said[x], &said[y], sizeof(HeldRecord)) == 0; };
    Rank odd = none, other = none;
    for (Rank rank : spoken) {
        const auto agree = static_cast<size_t>(std::count_if(spoken.begin(), spoken.end(), [&](Rank each) { return same(each, rank); }));
        if (spoken.size() > 2 && agree == 1) {
            other = odd == none ? other : rank;
            odd = odd == none ? rank : odd;
        }
    }
    const bool outvoted = odd != none && other == none;
    if (outvoted && lost_[odd] && verdict.failed) return read_again(s, b, actions);
    if ((more && !outvoted) || verdict.accused) return;
    verdict.accused = true;
    const Rank right = outvoted ? spoken[spoken[0] == odd] : spoken[0];
    const Rank wrong = outvoted ? odd : *std::find_if(spoken.begin(), spoken.end(), [&](Rank each) { return !same(each, spoken[0]); });
    const uint64_t digests[2] = {said[right].digest.get(), said[wrong].digest.get()};
    const uint32_t first = bounds_[k], end = bounds_[k + 1];
    const StepId step = slots_[s].step;
    if (!std::exchange(records.conflicts, true))   // the trainer may read `conflict` from then on
        records.conflict = {step, b, first, end, {right, wrong}, {digests[0], digests[1]}, outvoted, !audited()};
    refuse(s, b,
           outvoted
               ? fail(Code::conflict, "step {}, bucket {}: {} computed blocks {} to {} wrongly: digest {:016x}, but {:016x} at {} others",
                      step + 1, b, name(wrong), first, end - 1, digests[1], digests[0], spoken.size() - 1)
               : fail(Code::conflict,
                      "step {}, bucket {}: {} and {} hold different sums of blocks {} to {} (digests {:016x} and {:016x}): "
                      "one of them computes or stores wrongly",
                      step + 1, b, name(right), name(wrong), first, end - 1, digests[0], digests[1]),
           actions);
}

void HeldExchange::read_again(uint32_t s, uint32_t b, Actions& actions) {
    clear_bucket(s, b);
    for (Rank r = 0; r < n(); ++r)
        if (lost_[r] && record_counts(s, b, r)) records_[s].said[b * n() + r] = Said::rejected;
    for (Rank r = 0; r < n(); ++r)
        if (record_counts(s, b, r)) read(s, b, r, actions);
}

void HeldExchange::record_total(uint32_t s, uint32_t b, Sum* sum) const {
    const Records& records = records_[s];
    sum->maxima = records.maxima[b];
    sum->state = records.state[b];
    sum->loss = 0;
    sum->valid = 0;
    sum->clipped = 0;
    sum->diverged = 0;
    for (uint32_t k = 0; k < super_blocks(); ++k) {
        const First& first = records.first[uint64_t{b} * super_blocks() + k];
        sum->loss += static_cast<int64_t>(first.loss);
        sum->valid += first.valid;
        sum->clipped += first.clipped;
        if (sum->diverged == 0) sum->diverged = first.diverged;
    }
}

const Conflict* HeldExchange::conflict(StepId step) const {
    const uint32_t s = step % step_slots;
    return slots_[s].step == step && records_[s].conflicts ? &records_[s].conflict : nullptr;
}

std::string HeldExchange::records_missing(uint32_t s, uint32_t b) const {
    std::string ranks;
    for (Rank r = 0; r < n(); ++r)
        if (records_[s].said[b * n() + r] == Said::nothing) ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", r);
    std::string text = ranks.empty() ? "" : "no record of ranks " + ranks + "; ";
    if (disputed(s, b) != none) text += fmt::format("holders of super-block {} disagree; ", disputed(s, b));
    return text;
}

}   // namespace gradcast
