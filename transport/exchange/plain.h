// Base class of the exchanges that send words as they are: one accumulator a bucket, one way to cut it into segments,
// records that are added up.
//
// A bucket is cut into parts, a part into segments.  A segment is one packet of words, in either direction.  Memory of a slot:
//   acc   this rank's own words, written by the codec through plan(), sent from here;
//   sum   the sum, into which words are received and which is handed to the trainer.
// One rank alone has one accumulator, which is the sum: its trainer writes words of a step when it has applied the sums before.
#pragma once
#include "transport/exchange/base.h"

namespace gradcast {

class PlainExchange : public ExchangeBase {
public:
    using ExchangeBase::ExchangeBase;

protected:
    struct Segment {
        uint32_t bucket, part, index, words;
        uint64_t offset;   // elements from the bucket's start
    };

    // For the derived class, beside ExchangeBase's.
    virtual void plan_own(Arena& arena) = 0;   // sets parts_, acc_word_, sum_word_, segment_words_ and missing_
    virtual void cleared_own(uint32_t slot) = 0;
    virtual uint32_t width(Rank sender) const = 0;                                // bytes of a word of that sender, 0: it sends none
    virtual void started(uint32_t slot, uint32_t bucket, Actions& actions) = 0;   // own words and record are complete
    virtual Buffer total_record(uint32_t slot, uint32_t bucket) const = 0;        // the complete record

    Buffer acc_of(uint32_t slot, const Segment& segment) const { return words_of(acc(slot), acc_word_, segment); }
    Buffer sum_of(uint32_t slot, const Segment& segment) const { return words_of(memory_[slot].sum, sum_word_, segment); }
    /// Record `index` of a bucket in wire form: 0 .. n-1 are the derived class's, n is this rank's own.
    Buffer record_of(uint32_t slot, uint32_t bucket, uint32_t index) const;
    uint8_t& recorded(uint32_t slot, uint32_t bucket, uint32_t index) { return memory_[slot].recorded[bucket * n() + index]; }
    /// Adds record `from` of rank `sender` to `into`.  False: they contradict each other, and the bucket has failed.
    bool record_add(uint32_t slot, uint32_t bucket, Rank sender, Buffer into, Buffer from, Actions& actions);

    void send_words(uint32_t slot, const Segment& segment, Phase phase, Buffer payload, RankSet to, Actions& actions) {
        send(slot, PacketType::words, phase, {segment.bucket, segment.part, segment.index}, payload, to, actions);
    }
    void send_record(uint32_t slot, uint32_t bucket, uint32_t part, Buffer payload, RankSet to, Actions& actions) {
        send(slot, PacketType::record, Phase::reduce, {bucket, part, 0}, payload, to, actions);
    }

    uint32_t parts_ = 1;   // of a bucket
    Word acc_word_ = Word::i32, sum_word_ = Word::i32;
    uint32_t segment_words_ = 0;
    uint32_t missing_ = 0;            // what a bucket needs beside its segments
    std::vector<Segment> segments_;   // bucket by bucket, part by part
    std::vector<uint32_t> first_;     // [bucket * parts_ + part]: its first segment; one more at the end

private:
    struct Memory {
        Buffer acc, sum, records;
        std::vector<uint8_t> recorded;   // [bucket][rank]: the record has arrived
    };

    Status plan_memory(Arena& arena) override;
    void cleared(uint32_t slot) override;
    Buffer target(uint32_t slot, uint32_t bucket, uint32_t target) override;
    Word target_word() const override { return acc_word_; }
    bool valid(Arrival* arrival) const override;
    void contributed(uint32_t slot, uint32_t bucket, Actions& actions) override;
    void total(uint32_t slot, uint32_t bucket, Sum* sum) const override;
    std::string missing_text(uint32_t slot, uint32_t bucket) const override;
    const Buffer& acc(uint32_t slot) const { return memory_[n() == 1 ? 0 : slot].acc; }
    Buffer words_of(const Buffer& whole, Word word, const Segment& segment) const;
    uint64_t record_bytes(uint32_t bucket) const { return sizeof(RecordHeader) + layout_.buckets[bucket].group_count * sizeof(float); }

    std::array<Memory, step_slots> memory_;
    std::vector<uint64_t> record_offset_;   // [bucket]: of its n + 1 records within Memory::records
};

}   // namespace gradcast
