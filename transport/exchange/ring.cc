// Ring reduce-scatter, then ring all-gather, segment by segment.  Bytes a rank sends: 2 G (n-1)/n.
//
// Part p of each bucket starts at rank p as that rank's own words.  It passes every rank once, which adds its words, and is complete at
// rank p-1, its owner.  From there the sum passes all ranks again, up to rank p-2.  The bucket's record travels with each part of the first
// round, so every rank, as the owner of one part, gets loss, clip count and maxima over all ranks.  Each rank compares the digest of the
// state with its predecessor's.
//
// States of a segment at rank r, with distance d = (r - p) mod n:
//   d = 0        idle -ready-> summed (sent from acc) -gather-> gathered
//   0 < d < n-1  idle -packet-> arrived -ready-> adding (acc += sum) -computed-> summed (sent from acc) -gather-> gathered
//   d = n-1      idle -packet-> arrived -ready-> adding (sum += acc) -computed-> gathered (sent from sum)
// Words of the first round are received into the place of the sum.  It is free until the gather, and no gather of a segment exists before
// this rank has passed its addition on.  So there is no other buffer, and a packet of the first round is never answered `later` because
// this rank still computes.
#include "transport/exchange/counting.h"
#include "transport/exchange/plain.h"

namespace gradcast {
namespace {

class Ring : public PlainExchange {
public:
    explicit Ring(const ExchangeConfig& config) : PlainExchange(config) {}

private:
    enum State : uint8_t { idle, waiting, adding, summed, gathered };

    void plan_own(Arena&) override {
        parts_ = n();
        missing_ = 1;
        if (config_.quantiser == Quantiser::auto16) acc_word_ = sum_word_ = Word::i16;
        segment_words_ = config_.segment_bytes / word_bytes(sum_word_);
        before_ = (config_.self + n() - 1) % n();
        after_ = (config_.self + 1) % n();
    }

    void cleared_own(uint32_t slot) override { states_[slot].assign(segments_.size(), idle); }

    uint32_t width(Rank) const override { return word_bytes(sum_word_); }

    uint32_t distance(uint32_t part) const { return (config_.self + n() - part) % n(); }
    bool owned(uint32_t part) const { return distance(part) == n() - 1; }

    Landing wanted(const Arrival& a, Buffer* place) override {
        if (!expected(a)) return Landing::drop;
        *place = a.record ? record_of(a.slot, a.bucket, a.part) : sum_of(a.slot, segments_[a.segment]);
        return Landing::place;
    }

    bool expected(const Arrival& a) {
        if (a.sender != before_) return false;
        if (a.record) return distance(a.part) > 0 && !recorded(a.slot, a.bucket, a.part);
        const State state = states_[a.slot][a.segment];
        return a.phase == Phase::reduce ? distance(a.part) > 0 && state == idle : !owned(a.part) && state == summed;
    }

    void take(const Arrival& a, Buffer, Actions& actions) override {
        if (!expected(a)) return;
        const bool ready = state(a.slot, a.bucket).ready;
        if (a.record) {
            recorded(a.slot, a.bucket, a.part) = 1;
            if (ready) pass_record(a.slot, a.bucket, a.part, actions);
        } else if (a.phase == Phase::reduce) {
            states_[a.slot][a.segment] = waiting;
            if (ready) add(a.slot, a.segment, actions);
        } else {
            gather(a.slot, a.segment, distance(a.part) != n() - 2, actions);
        }
    }

    void started(uint32_t slot, uint32_t bucket, Actions& actions) override {
        send_record(slot, bucket, config_.self, record_of(slot, bucket, n()), {after_}, actions);
        for (uint32_t i = first_[bucket * parts_ + config_.self]; i < first_[bucket * parts_ + config_.self + 1]; ++i)
            pass(slot, i, actions);
        for (uint32_t p = 0; p < n(); ++p)
            if (recorded(slot, bucket, p)) pass_record(slot, bucket, p, actions);
        for (uint32_t i = first_[bucket * parts_]; i < first_[(bucket + 1) * parts_]; ++i)
            if (states_[slot][i] == waiting) add(slot, i, actions);
    }

    void add(uint32_t slot, uint32_t i, Actions& actions) {
        const Segment& segment = segments_[i];
        states_[slot][i] = adding;
        Buffer acc = acc_of(slot, segment), sum = sum_of(slot, segment);
        if (owned(segment.part)) std::swap(acc, sum);
        compute(slot, i, sum_word_ == Word::i16 ? Kernel::add_i16 : Kernel::add_i32, acc, sum, segment.words, actions);
    }

    void computed(uint32_t slot, uint32_t i, Actions& actions) override {
        if (owned(segments_[i].part)) gather(slot, i, true, actions);
        else pass(slot, i, actions);
    }

    void pass(uint32_t slot, uint32_t i, Actions& actions) {
        states_[slot][i] = summed;
        send_words(slot, segments_[i], Phase::reduce, acc_of(slot, segments_[i]), {after_}, actions);
    }

    void gather(uint32_t slot, uint32_t i, bool send, Actions& actions) {
        const Segment& segment = segments_[i];
        states_[slot][i] = gathered;
        if (send) send_words(slot, segment, Phase::gather, sum_of(slot, segment), {after_}, actions);
        arrived(slot, segment.bucket, actions);
    }

    void pass_record(uint32_t slot, uint32_t bucket, uint32_t part, Actions& actions) {
        Buffer record = record_of(slot, bucket, part);
        if (!record_add(slot, bucket, before_, record, record_of(slot, bucket, n()), actions)) return;
        if (owned(part)) arrived(slot, bucket, actions);
        else send_record(slot, bucket, part, record, {after_}, actions);
    }

    Buffer total_record(uint32_t slot, uint32_t bucket) const override {
        return record_of(slot, bucket, after_);
    }   // a rank owns the part after its own

    Rank before_ = 0, after_ = 0;
    std::array<std::vector<State>, step_slots> states_;
};

Cost cost(const ExchangeConfig& config, uint32_t n, const CostWire& wire) {
    Counting counting{config, n, wire};
    counting.cost.rounds = 2.0 * (n - 1);
    for (const Bucket& bucket : config.layout->buckets) {
        for (uint64_t part = 0; part < n; ++part) {
            const uint64_t elements = (part + 1) * bucket.count / n - part * bucket.count / n;
            const double bytes = static_cast<double>(elements) * counting.sum_width();
            const uint64_t passed = (config.self + n - part) % n;   // ranks that the part has passed before this one
            counting.sends(Counting::words, bytes, (passed != n - 1) + (passed != n - 2), config.segment_bytes);
            const double comes = (passed != 0) + (passed != n - 1);
            counting.receives(Counting::words, bytes, comes, comes, config.segment_bytes);
        }
        const double bytes = sizeof(RecordHeader) + bucket.group_count * sizeof(float);
        counting.sends(Counting::record, bytes, n - 1, segment_bytes_stream);
        counting.receives(Counting::record, bytes, n - 1, 0, segment_bytes_stream);
    }
    return counting.cost;
}

}   // namespace

extern const ExchangeKind ring_kind{
    .name = "ring",
    .summary = "ring reduce-scatter and all-gather: 2G(n-1)/n sent per node",
    .create = [](const ExchangeConfig& config) -> std::unique_ptr<Exchange> { return std::make_unique<Ring>(config); },
    .weighs = true,
    .balances = true,
    .cost = cost,
    .candidates = [](const ExchangeConfig& job,
                     uint32_t) { return job.s > 0 ? std::vector<ExchangeConfig>{} : std::vector{uncoded(job)}; }};

}   // namespace gradcast
