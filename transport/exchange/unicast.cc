// Each rank sends its words and its record to every other rank and sums what it receives.  Bytes a rank sends: (n-1) G.  G doubles where
// `fixed` travels as int64 (a rank with several blocks), and is 0 for a rank without blocks (n > B).
//
// Words of a peer are received into one of two buffers (one being added, one being filled).  They are added to the sum segment by segment,
// in any order.  The first contribution to a segment is copied.  At most one addition a segment is under way.
#include <algorithm>
#include <cstring>

#include "transport/exchange/counting.h"
#include "transport/exchange/plain.h"

namespace gradcast {
namespace {

class Unicast : public PlainExchange {
public:
    explicit Unicast(const ExchangeConfig& config) : PlainExchange(config) {}

private:
    static constexpr uint32_t nobody = ~uint32_t{0}, own = nobody - 1;
    struct Summing {
        uint32_t remaining;   // contributions to be added
        uint32_t adding;      // being added: nobody, own or a buffer
        bool begun, own_added;
    };
    struct Scratch {
        Buffer buffer;
        enum class State : uint8_t { free, filling, waiting, adding } state;
        uint32_t slot, segment;
    };
    static constexpr uint32_t per_peer = 2;

    void plan_own(Arena& arena) override {
        parts_ = 1;
        missing_ = n();
        sum_word_ = config_.quantiser == Quantiser::fixed ? Word::i64 : config_.quantiser == Quantiser::auto32 ? Word::i32 : Word::i16;
        acc_word_ = word_of(config_.self);
        segment_words_ = config_.segment_bytes / word_bytes(sum_word_);   // the same for all senders
        contributions_ = 0;
        uint64_t largest = 0;
        for (const Bucket& bucket : layout_.buckets) largest = std::max(largest, bucket.count);
        scratch_ = std::vector<Scratch>(n() * per_peer);
        others_ = ranks_but(config_.self, n());
        for (Rank r = 0; r < n(); ++r) {
            contributions_ += blocks_of(r) > 0;
            if (r == config_.self) continue;
            for (uint32_t k = 0; k < per_peer && blocks_of(r) > 0; ++k)
                arena.plan("words of peers", std::min<uint64_t>(segment_words_, largest) * word_bytes(word_of(r)),
                           &scratch_[r * per_peer + k].buffer);
        }
    }

    // `fixed` words of one block fit int32 and travel so.
    Word word_of(Rank rank) const {
        if (config_.quantiser != Quantiser::fixed) return sum_word_;
        return n() > 1 && blocks_of(rank) == 1 && one_gradient(layout_) ? Word::i32 : Word::i64;
    }
    uint32_t width(Rank sender) const override { return blocks_of(sender) == 0 ? 0 : word_bytes(word_of(sender)); }
    RankSet others() const { return {0, others_.data()}; }

    void cleared_own(uint32_t slot) override {
        summing_[slot].assign(segments_.size(), {contributions_, nobody, false, false});
        got_[slot].assign(segments_.size() * n(), 0);
    }
    uint8_t& got(uint32_t slot, uint32_t segment, Rank sender) { return got_[slot][segment * n() + sender]; }

    Landing wanted(const Arrival& a, Buffer* place) override {
        if (a.record) {
            if (recorded(a.slot, a.bucket, a.sender)) return Landing::drop;
            *place = record_of(a.slot, a.bucket, a.sender);
            return Landing::place;
        }
        if (a.phase != Phase::reduce || got(a.slot, a.segment, a.sender)) return Landing::drop;
        // A stream that breaks within a payload asks again for the same packet, which must get the same buffer.
        Scratch* scratch = scratch_of(a, Scratch::State::filling);
        if (!scratch) scratch = scratch_of(a, Scratch::State::free);
        if (!scratch) return Landing::later;
        scratch->state = Scratch::State::filling;
        scratch->slot = a.slot;
        scratch->segment = a.segment;
        *place = scratch->buffer.part(0, uint64_t{segments_[a.segment].words} * width(a.sender));
        return Landing::place;
    }

    Scratch* scratch_of(const Arrival& a, Scratch::State state) {
        for (uint32_t k = 0; k < per_peer; ++k) {
            Scratch& scratch = scratch_[a.sender * per_peer + k];
            if (scratch.state == state && (state == Scratch::State::free || (scratch.slot == a.slot && scratch.segment == a.segment)))
                return &scratch;
        }
        return nullptr;
    }

    void take(const Arrival& a, Buffer payload, Actions& actions) override {
        if (a.record) {
            if (recorded(a.slot, a.bucket, a.sender)) return;
            recorded(a.slot, a.bucket, a.sender) = 1;
            if (state(a.slot, a.bucket).ready) add_record(a.slot, a.bucket, a.sender, actions);
            return;
        }
        Scratch* scratch = scratch_of(a, Scratch::State::filling);
        if (!scratch || scratch->buffer.host != payload.host || a.phase != Phase::reduce) return;
        scratch->state = Scratch::State::waiting;
        got(a.slot, a.segment, a.sender) = 1;
        add_next(a.slot, a.segment, actions);
    }

    void started(uint32_t slot, uint32_t bucket, Actions& actions) override {
        Buffer record = record_of(slot, bucket, n()), total = record_of(slot, bucket, config_.self);
        std::memcpy(total.host, record.host, record.bytes);
        send_record(slot, bucket, 0, record, others(), actions);
        arrived(slot, bucket, actions);
        for (Rank r = 0; r < n(); ++r)
            if (recorded(slot, bucket, r)) add_record(slot, bucket, r, actions);
        if (blocks_of(config_.self) == 0) return;
        for (uint32_t i = first_[bucket]; i < first_[bucket + 1]; ++i) {
            send_words(slot, segments_[i], Phase::reduce, acc_of(slot, segments_[i]), others(), actions);
            add_next(slot, i, actions);
        }
    }

    Buffer total_record(uint32_t slot, uint32_t bucket) const override { return record_of(slot, bucket, config_.self); }

    void add_record(uint32_t slot, uint32_t bucket, Rank sender, Actions& actions) {
        Buffer total = record_of(slot, bucket, config_.self);
        if (record_add(slot, bucket, sender, total, record_of(slot, bucket, sender), actions)) arrived(slot, bucket, actions);
    }

    // Starts the next addition to the segment, if a contribution waits and none is being added.
    void add_next(uint32_t slot, uint32_t i, Actions& actions) {
        Summing& summing = summing_[slot][i];
        if (summing.adding != nobody) return;
        const Segment& segment = segments_[i];
        Buffer src;
        Word word = acc_word_;
        if (!summing.own_added && state(slot, segment.bucket).ready && blocks_of(config_.self) > 0) {
            summing.adding = own;
            summing.own_added = true;
            src = acc_of(slot, segment);
        } else {
            uint32_t k = 0;
            while (k < scratch_.size() &&
                   !(scratch_[k].state == Scratch::State::waiting && scratch_[k].slot == slot && scratch_[k].segment == i))
                ++k;
            if (k == scratch_.size()) return;
            summing.adding = k;
            scratch_[k].state = Scratch::State::adding;
            word = word_of(k / per_peer);
            src = scratch_[k].buffer.part(0, uint64_t{segment.words} * word_bytes(word));
        }
        const Buffer dst = sum_of(slot, segment);
        const bool widen = word != sum_word_, copy = !summing.begun && !widen;
        const Kernel add = sum_word_ == Word::i16   ? Kernel::add_i16
                           : sum_word_ == Word::i32 ? Kernel::add_i32
                           : widen                  ? Kernel::add_i32_to_i64
                                                    : Kernel::add_i64;
        const Kernel first = widen ? Kernel::copy_i32_to_i64 : Kernel::copy;
        compute(slot, i, summing.begun ? add : first, dst, src, copy ? src.bytes : segment.words, actions);
        summing.begun = true;
    }

    void computed(uint32_t slot, uint32_t i, Actions& actions) override {
        Summing& summing = summing_[slot][i];
        if (summing.adding != own) scratch_[summing.adding].state = Scratch::State::free;
        summing.adding = nobody;
        if (--summing.remaining > 0) return add_next(slot, i, actions);
        arrived(slot, segments_[i].bucket, actions);
    }

    uint32_t contributions_ = 0;   // ranks that have blocks
    std::vector<Scratch> scratch_;
    std::vector<uint64_t> others_;
    std::array<std::vector<Summing>, step_slots> summing_;
    std::array<std::vector<uint8_t>, step_slots> got_;   // [segment][sender]
};

Cost cost(const ExchangeConfig& config, uint32_t n, const CostWire& wire) {
    Counting counting{config, n, wire};
    counting.cost.rounds = 1;
    for (const Bucket& bucket : config.layout->buckets) {
        for (Rank rank = 0; rank < n; ++rank) {
            if (counting.blocks_of(rank) == 0) continue;
            const uint32_t width_of = counting.width(counting.blocks_of(rank) == 1),
                           segment = config.segment_bytes / counting.sum_width() * width_of;
            const double bytes = static_cast<double>(bucket.count) * width_of;
            if (rank == config.self) counting.sends(Counting::words, bytes, n - 1, segment);
            else counting.receives(Counting::words, bytes, 1, 1, segment);
        }
        const double bytes = sizeof(RecordHeader) + bucket.group_count * sizeof(float);
        counting.sends(Counting::record, bytes, n - 1, segment_bytes_stream);
        counting.receives(Counting::record, bytes, n - 1, 0, segment_bytes_stream);
    }
    return counting.cost;
}

}   // namespace

extern const ExchangeKind unicast_kind{
    .name = "unicast",
    .summary = "each node sends its gradient to each other: (n-1)G sent per node",
    .create = [](const ExchangeConfig& config) -> std::unique_ptr<Exchange> { return std::make_unique<Unicast>(config); },
    .fixed = true,
    .weighs = true,
    .balances = true,
    .cost = cost};

}   // namespace gradcast
