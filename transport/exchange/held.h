// What exchanges share whose ranks hold the same super-blocks: one record a rank and bucket, sent to all others, which names digest, loss
// and clips of each super-block held.  These must agree with what the other holders sent; so must the state that all computed from.
#pragma once
#include "transport/exchange/base.h"

namespace gradcast {

class HeldExchange : public ExchangeBase {
public:
    using ExchangeBase::ExchangeBase;
    const Conflict* conflict(StepId step) const override;

protected:
    virtual uint32_t held(Rank rank, uint32_t target) const = 0;   // which super-block that target is; every rank has targets() of them

    /// bounds: of the super-blocks, as in Placement.
    void plan_records(std::vector<uint32_t> bounds, Arena& arena);
    void clear_records(uint32_t slot);
    bool record_valid(const Arrival& a) const;
    Landing record_wanted(const Arrival& a, Buffer* place) const;
    // Each of these is true if one more record is there and contradicts nobody's; the bucket has failed if two do.
    bool record_own(uint32_t slot, uint32_t bucket, Actions& actions);   // writes, sends and reads the rank's own
    bool record_taken(const Arrival& a, Actions& actions);
    bool recorded(uint32_t slot, uint32_t bucket, Rank rank) const { return records_[slot].whole[bucket * n() + rank]; }
    void record_total(uint32_t slot, uint32_t bucket, Sum* sum) const;   // state, loss, clipped, maxima
    std::string records_missing(uint32_t slot, uint32_t bucket) const;   // "no record of ranks 1, 2; ", or nothing
    RankSet others() const { return {0, others_.data()}; }

private:
    /// What the first record said of a super-block.
    struct Said {
        Rank holder;   // n(): nobody has yet
        uint64_t digest, loss, clipped;
    };
    struct Records {
        Buffer memory;
        std::vector<uint8_t> have;                // [packet of a record][sender]
        std::vector<uint8_t> whole;               // [bucket][rank]
        std::vector<uint8_t> failed;              // [bucket]
        std::vector<Said> said;                   // [bucket][super-block]
        std::vector<std::vector<float>> maxima;   // [bucket]: over the records
        std::vector<uint64_t> state;              // [bucket]: of the first record
        std::vector<Rank> state_of;               // [bucket]: who sent that, n(): nobody yet
        Conflict conflict;
        bool conflicts = false;
    };

    bool read(uint32_t slot, uint32_t bucket, Rank sender, Actions& actions);
    uint32_t super_blocks() const { return static_cast<uint32_t>(bounds_.size() - 1); }
    uint64_t bytes_of(uint32_t bucket) const {
        return sizeof(Le64) + targets() * sizeof(HeldRecord) + layout_.buckets[bucket].group_count * sizeof(float);
    }
    uint32_t packets_of(uint32_t bucket) const {
        return static_cast<uint32_t>((bytes_of(bucket) + config_.segment_bytes - 1) / config_.segment_bytes);
    }
    Buffer record_of(uint32_t slot, uint32_t bucket, Rank rank) const {
        return records_[slot].memory.part(at_[bucket] + rank * ((bytes_of(bucket) + 7) / 8 * 8), bytes_of(bucket));
    }

    std::vector<uint32_t> bounds_;
    std::vector<uint64_t> at_;        // [bucket]: of its n records in Records::memory
    std::vector<uint32_t> have_at_;   // [bucket]: of the first packet of its records
    std::vector<uint64_t> others_;
    std::array<Records, step_slots> records_;
};

}   // namespace gradcast
