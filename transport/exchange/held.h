// The part that exchanges share whose ranks hold the same super-blocks.  Each rank sends one record a bucket to all others.  It names the
// state that the rank computed from, and digest, loss and clip count of each super-block it holds.  These must agree with the records of
// the other holders.  If they do not, the bucket waits until one holder is outvoted, or all holders have sent theirs, and
// reports the dispute to the trainer.
#pragma once
#include "transport/exchange/base.h"

namespace gradcast {

class HeldExchange : public ExchangeBase {
public:
    using ExchangeBase::ExchangeBase;
    const Conflict* conflict(StepId step) const override;

protected:
    static constexpr uint32_t none = ~uint32_t{0};

    virtual uint32_t held(Rank rank, uint32_t target) const = 0;   // the super-block of that target; every rank has targets() of them
    virtual uint32_t tolerated() const { return 0; }               // ranks that a sum can do without
    virtual bool audited() const { return false; }                 // any needed() records include two holders of each super-block
    /// One more record has arrived and agrees with all before it.
    virtual void counted(uint32_t slot, uint32_t bucket, Rank rank, Actions& actions) = 0;
    /// A disputed bucket goes on without the lost ranks: their records do not count, and the others are read again.
    virtual void read_again(uint32_t slot, uint32_t bucket, Actions& actions);

    /// bounds: of the super-blocks, as in Placement.
    void plan_records(std::vector<uint32_t> bounds, Arena& arena);
    void clear_records(uint32_t slot);
    bool record_valid(const Arrival& a) const;
    Landing record_wanted(const Arrival& a, Buffer* place) const;
    void record_own(uint32_t slot, uint32_t bucket, Actions& actions);   // writes, sends and reads this rank's record
    void record_taken(const Arrival& a, Actions& actions);
    /// Reports a dispute about super-block k as soon as the wrong holder is known, or is known to be undecidable.
    void judge(uint32_t slot, uint32_t bucket, uint32_t k, Actions& actions);
    void record_total(uint32_t slot, uint32_t bucket, Sum* sum) const;   // state, loss, clipped, maxima
    std::string records_missing(uint32_t slot, uint32_t bucket) const;   // "no record of ranks 1, 2; ", or nothing

    uint32_t needed() const { return n() - tolerated(); }   // records, and senders
    bool record_counts(uint32_t slot, uint32_t bucket, Rank rank) const { return records_[slot].said[bucket * n() + rank] == Said::counts; }
    uint32_t counting(uint32_t slot, uint32_t bucket) const { return records_[slot].verdicts[bucket].counting; }   // records
    bool failed(uint32_t slot, uint32_t bucket) const { return records_[slot].verdicts[bucket].failed; }
    void set_failed(uint32_t slot, uint32_t bucket) { records_[slot].verdicts[bucket].failed = true; }
    uint32_t disputed(uint32_t slot, uint32_t bucket) const { return records_[slot].verdicts[bucket].disputed; }
    RankSet others() const { return {0, others_.data()}; }

    std::vector<uint8_t> lost_;   // by rank, set by the derived class

private:
    /// Whether a rank's record has arrived, and whether its words count.
    enum class Said : uint8_t { nothing, counts, rejected };
    /// A super-block in the first record that has it.
    struct First {
        Rank holder;   // none: no record yet
        uint64_t digest, loss, valid;
        uint32_t clipped, diverged;
        /// Returns whether two holders of one super-block have found the same.
        bool agrees(const First& other) const {
            return digest == other.digest && loss == other.loss && valid == other.valid && clipped == other.clipped &&
                   diverged == other.diverged;
        }
    };
    struct Verdict {
        uint32_t counting = 0;      // records
        uint32_t disputed = none;   // the super-block about which holders disagree
        bool failed = false;
        bool accused = false;   // the dispute has been reported to the trainer
    };
    struct Records {
        Buffer memory;
        std::vector<uint8_t> have;                // [packet of a record][sender]
        std::vector<Said> said;                   // [bucket][rank]
        std::vector<Verdict> verdicts;            // [bucket]
        std::vector<First> first;                 // [bucket][super-block]
        std::vector<std::vector<float>> maxima;   // [bucket]: over the records
        std::vector<uint64_t> state;              // [bucket]: of the first record
        std::vector<Rank> state_of;               // [bucket]: its sender
        Conflict conflict;
        bool conflicts = false;
    };

    void read(uint32_t slot, uint32_t bucket, Rank sender, Actions& actions);
    void clear_bucket(uint32_t slot, uint32_t bucket);
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
