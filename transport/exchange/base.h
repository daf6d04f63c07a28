// What the exchanges share: slots of steps, records, completions, and the checks on everything that comes from the network.
//
// A bucket is cut in parts, a part in segments; a segment is one packet of words.  Slot step % step_slots holds one step:
//   acc   the rank's own words, filled by the codec through plan(), sent from here;
//   sum   the place of the sum, where words land and are handed to the trainer.
// Both are written again only by the step that follows in the slot.  The slot goes over to that step when the trainer has released the old
// one and nothing of it is under way any more (`busy` counts sends without their `sent`, computes without their `computed`); until then
// packets of the new step are answered `later`.  The codec does not ask, so the trainer is told of step s only when the slot that s + 1
// will fill is not busy. Acknowledgements come ahead of a peer's later packets on every link, hence neither wait can be for ever.
#pragma once
#include "runtime/core/limits.h"
#include "transport/exchange/exchange.h"
#include "transport/wire/packet.h"

namespace gradcast {

class ExchangeBase : public Exchange {
public:
    explicit ExchangeBase(const ExchangeConfig& config) : config_(config), layout_(*config.layout) {}

    Placement place(const View& view, std::span<const uint32_t> samples_of_block) const override;
    Status install(const View& view, Arena& arena) override;
    Plan plan(StepId step, uint32_t bucket, uint32_t target) override;
    const Sum* sum(StepId step, uint32_t bucket) const override;
    void release(StepId step) override;
    void on(std::span<const Event> events, Actions& actions) override;
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override;

protected:
    struct Segment {
        uint32_t bucket, part, index, words;
        uint64_t offset;   // elements from the bucket's start
    };
    /// A packet whose every field is within its range.
    struct Arrival {
        Rank sender;
        bool record;
        Phase phase;
        uint32_t slot, bucket, part, segment;   // segment: index into segments_, of words
    };
    struct BucketState {
        bool ready = false, complete = false, told = false;
        uint32_t missing = 0;   // segments and records until it is complete
        Record own;
        std::vector<float> own_maxima;
        Sum sum;
    };
    struct Slot {
        StepId step = 0;
        bool released = false;
        uint32_t busy = 0, complete = 0;   // complete: buckets
        Buffer acc, sum, records;
        std::vector<BucketState> buckets;
        std::vector<uint8_t> recorded;   // [bucket][rank]: that record has arrived
    };

    // What an exchange adds.
    virtual void plan_memory(Arena& arena) = 0;                          // its own part of install()
    virtual void cleared(uint32_t slot) = 0;                             // a new step begins in the slot
    virtual uint32_t width(Rank sender) const = 0;                       // bytes of a word of that sender, 0: it sends none
    virtual Landing wanted(const Arrival& arrival, Buffer* place) = 0;   // land(), checked
    virtual void take(const Arrival& arrival, Buffer payload,
                      Actions& actions) = 0;                                      // the packet is there; wanted() may not have been asked
    virtual void started(uint32_t slot, uint32_t bucket, Actions& actions) = 0;   // own words and record are there
    virtual void computed(uint32_t slot, uint32_t segment, Actions& actions) = 0;

    uint32_t n() const { return view_.n(); }
    uint32_t blocks_of(Rank rank) const;
    BucketState& state(uint32_t slot, uint32_t bucket) { return slots_[slot].buckets[bucket]; }
    Buffer acc_of(uint32_t slot, const Segment& segment) const { return words_of(slots_[slot].acc, acc_word_, segment); }
    Buffer sum_of(uint32_t slot, const Segment& segment) const { return words_of(slots_[slot].sum, sum_word_, segment); }
    /// Record `index` of a bucket in wire form: 0 .. n-1 as the exchange likes, n is the rank's own.
    Buffer record_of(uint32_t slot, uint32_t bucket, uint32_t index) const;
    uint8_t& recorded(uint32_t slot, uint32_t bucket, uint32_t index) { return slots_[slot].recorded[bucket * n() + index]; }
    /// Adds record `from`, which rank `sender` sent, to `into`.  False: they contradict one another, the bucket has failed.
    bool record_add(uint32_t slot, uint32_t bucket, Rank sender, Buffer into, Buffer from, Actions& actions);
    /// One thing less is missing; `record` is where the total record stands when nothing is.
    void arrived(uint32_t slot, uint32_t bucket, Buffer record, Actions& actions);

    void send_words(uint32_t slot, const Segment& segment, Phase phase, Buffer payload, RankSet to, Actions& actions);
    void send_record(uint32_t slot, uint32_t bucket, uint32_t part, Buffer payload, RankSet to, Actions& actions);
    void compute(uint32_t slot, uint32_t segment, Kernel kernel, Buffer dst, Buffer src, uint64_t count, Actions& actions);

    const ExchangeConfig config_;
    const Layout& layout_;
    View view_;
    uint32_t parts_ = 1;   // of a bucket
    Word acc_word_ = Word::i32, sum_word_ = Word::i32;
    uint32_t segment_words_ = 0;
    uint32_t missing_ = 0;            // per bucket beside its segments
    std::vector<Segment> segments_;   // bucket by bucket, part by part
    std::vector<uint32_t> first_;     // [bucket * parts_ + part]: its first segment; one more at the end
    std::array<Slot, step_slots> slots_;

private:
    Buffer words_of(const Buffer& whole, Word word, const Segment& segment) const;
    uint64_t record_bytes(uint32_t bucket) const { return sizeof(RecordHeader) + layout_.buckets[bucket].group_count * sizeof(float); }
    Landing find(const Packet& packet, uint64_t bytes, Arrival* arrival) const;
    void ready(const Event& event, Actions& actions);
    void begin(uint32_t slot, StepId step);
    void finished(uint32_t slot, Actions& actions);
    void turn(uint32_t slot);
    void tell(uint32_t slot, Actions& actions);
    void tell_lost(Actions& actions);
    std::string missing_text(uint32_t slot, uint32_t bucket) const;

    std::vector<uint64_t> record_offset_;   // [bucket]: of its n + 1 records within Slot::records
    uint64_t tickets_ = 0;
    Status lost_;   // a rank is gone: what waits, and all that will, fails
};

std::unique_ptr<Exchange> ring_create(const ExchangeConfig& config);
std::unique_ptr<Exchange> unicast_create(const ExchangeConfig& config);

}   // namespace gradcast
