// `multicast`, `ps`, `coded` and `coded-rs` (transport/exchange/CODES.md, "The exchanges" and
// "The code of coded and coded-rs"): one class, because they differ in two settings.
//
//                what a rank sends of its words        who sums up (reduces)
//   multicast    the words themselves                  everybody everything
//   ps           the words themselves                  the first `servers` ranks a part each
//   coded        one combination of 1/m of the length  everybody everything
//   coded-rs     one combination of 1/m of the length  every rank a part
//
// A bucket is padded with zeros and cut into parts of equal length, of at most piece_words combined words.  Part p is reduced by rank
// p mod reducers, or by all.  A part passes through
//   encode   each rank combines segment u of its d super-blocks, u < m, into the part's words (where it codes);
//   reduce   these words go to the reducer, into a place for each sender.  Once any n-s senders are there at every packet index, they are
//            decoded (without a code: added up), run by run of packet indexes with the same senders;
//   gather   the sum goes to all others, where not everybody reduces.
// The words of a sender count only once its record has arrived and agrees with the others (exchange/held.h).  With m >= 2 any n-s records
// include two holders of each super-block, so what was decoded before is right: once a wrong rank is lost, the bucket goes on without it.
//
// With s >= 1 a sum may complete before the rank's own words are ready; they are sent all the same.  A part of coded-rs whose reducer is
// lost or late is decoded by every rank, as in `coded`.  Each rank sends its words of the part to all (Phase::again): at once if the
// reducer is known to be lost, else when the first rank asks (Phase::want).  A rank asks when its own words are sent, the parts of at most
// s reducers are missing, and half the usual time from `ready` to the sum (of the last buckets) has passed since; at least 5 ms and at most
// 1/32 of the deadline.
//
// A rank whose words come late may omit them once all other ranks have announced that they have the sums (Phase::complete): until then one
// that is lost may have given its words, or its sums, to some of them only.
//
// Words of a part that another rank reduces need a room, and each bucket has few.  Words without a room are dropped; a rank that needs them
// later has them sent once more (Phase::reply).  Each rank then sends once what it sent to the reducer, at most once for each bucket and
// reducer, so a slow rank causes a bounded number of packets.  Such a part is decoded into the first accumulator, which is free by then:
// the place of the sum may still receive packets of the late reducer.
#pragma once
#include <algorithm>

#include "transport/code/field.h"
#include "transport/exchange/held.h"

namespace gradcast {

enum class Reducers : uint8_t { all, ranks, servers };

class Coded : public HeldExchange {
public:
    Coded(const ExchangeConfig& config, bool codes, Reducers reducers) : HeldExchange(config), codes_(codes), who_(reducers) {}

    Placement place(const View& view, std::span<const uint32_t> samples_of_block) const override;
    uint32_t targets() const override { return combines() ? config_.m + config_.s : 1; }
    bool weighs() const override { return !codes_; }
    uint32_t target_of(uint32_t block) const override;
    uint32_t losses_tolerated() const override { return tolerated(); }

private:
    static constexpr uint64_t wait_us_min = 5'000;
    static constexpr uint32_t wait_share = 32;                         // of the deadline
    static constexpr uint32_t encode_id = 0, reduce_id = 1, ids = 2;   // computes of a bucket: at most one of each is under way

    /// How a bucket is cut.  Lengths in words, the same for all parts.
    struct Cut {
        uint32_t parts, first_part;    // number of the first among all parts
        uint64_t words, coded_words;   // of a part: coded_words = words / m
        uint64_t at, coded_at;         // offset of part 0 in an accumulator and in the coded words
        uint64_t received_at;          // offset of the first received part in a sender's place
        uint32_t segments;             // packets of a part's words of one sender, at most
        uint32_t gather_segments;
        uint32_t have_at, gather_at;   // of the first in SlotState::have, gathered
    };
    /// Memory for the parts of a bucket that another rank reduces but this rank may have to decode.
    struct Room {
        uint32_t number = 0;    // of its place, from 1; 0: no place
        bool replies = false;   // only Phase::reply is taken, because words of Phase::again were dropped
        bool dropped = false;   // words came while there was no room
    };
    struct Reply {
        uint32_t bucket;
        Rank reducer, to;
        bool operator==(const Reply&) const = default;
    };
    struct Part {
        uint32_t waiting;                                 // packet indexes that lack senders; without a code packets that are missing
        uint32_t gather_remaining;                        // packets of its sum
        bool encoded, sent_again, reduced, done, aside;   // aside: the sum is in the first accumulator
    };
    /// A Compute::combine and what it points to.
    struct Job {
        Combine combine;
        std::vector<Buffer> in, out;
        std::vector<uint32_t> weights;
        std::vector<Rank> senders;
    };
    struct Work {
        uint32_t parts_remaining = 0, reducers_remaining = 0;
        uint32_t encoded = 0;   // parts
        bool encoding = false;
        enum class Reducing : uint8_t { none, combine, add, copy } reducing = Reducing::none;
        uint32_t part = 0, at = 0;   // the part being reduced; its next packet index, without a code its next rank
        uint32_t added = 0;          // ranks
        uint32_t encode_part = 0;
        bool settled = false;   // all parts are there
        uint32_t rooms = 0, rooms_unasked = 0;
        uint64_t ready_us = 0, late_us = 0;   // late_us: when this rank begins to ask; 0: not set
        Job encode, decode;
    };
    struct SlotState {
        std::vector<Buffer> acc;         // by target
        std::vector<void*> acc_device;   // the same; null: not on a device
        Buffer accumulator(uint32_t target) const {
            const Buffer& here = acc[target];
            return {here.host, acc_device[target], here.bytes};
        }
        Buffer coded, sum, asking;
        std::vector<Buffer> received;    // by sender; this rank's own is `coded`
        std::vector<uint8_t> have;       // [packet of a part][sender]
        std::vector<uint32_t> senders;   // [packet of a part]: senders of it whose record counts
        std::vector<uint8_t> gathered;   // [packet of a part's sum]
        std::vector<Part> parts;
        std::vector<uint8_t> asked, wanted;   // [bucket][reducer]
        std::vector<uint32_t> remaining;      // [bucket][reducer]: parts without a sum
        std::vector<Room> rooms;              // [bucket][reducer]
        std::vector<Reply> replies;           // parts to be sent when they are encoded
        std::vector<uint8_t> complete;        // [rank]: it has all sums
        std::vector<Work> work;
    };
    struct Weights {
        std::vector<Rank> senders;
        std::vector<uint32_t> weights;
    };

    // coded.cc: memory, bytes
    Status plan_memory(Arena& arena) override;
    void cleared(uint32_t slot) override;
    Buffer target(uint32_t slot, uint32_t bucket, uint32_t target) override;
    Word target_word() const override { return word_of(config_.self); }
    bool audit() const override { return codes_ && config_.m + config_.s > 1; }
    bool valid(Arrival* arrival) const override;
    void total(uint32_t slot, uint32_t bucket, Sum* sum) const override;
    std::string missing_text(uint32_t slot, uint32_t bucket) const override;
    uint32_t held(Rank rank, uint32_t target) const override { return combines() ? code_.held(rank, target) : local() ? 0 : rank; }
    uint32_t tolerated() const override { return codes_ ? config_.s : 0; }
    bool audited() const override { return tolerated() > 0 && m() > 1; }   // n - s records show two holders of each super-block
    void counted(uint32_t slot, uint32_t bucket, Rank rank, Actions& actions) override;
    void read_again(uint32_t slot, uint32_t bucket, Actions& actions) override;

    // coded_words.cc: words
    Landing wanted(const Arrival& arrival, Buffer* place) override;
    void take(const Arrival& arrival, Buffer payload, Actions& actions) override;
    void contributed(uint32_t slot, uint32_t bucket, Actions& actions) override;
    void abandoned(uint32_t slot, uint32_t bucket, Actions& actions) override;
    void computed(uint32_t slot, uint32_t id, Actions& actions) override;
    bool goes_on_without(Rank lost, Actions& actions) override;
    void timer(uint64_t id, Actions& actions) override;
    void all_complete(uint32_t slot, Actions& actions) override;
    void complete_at(uint32_t slot, Rank rank);
    bool wants(const Arrival& arrival);
    void encode_next(uint32_t slot, uint32_t bucket, Actions& actions);
    void encoded(uint32_t slot, uint32_t bucket, uint32_t part, Actions& actions);
    void send_again(uint32_t slot, uint32_t bucket, uint32_t part, Actions& actions);
    void counts(uint32_t slot, uint32_t bucket, uint32_t part, uint32_t index, Actions& actions);
    void reduce_next(uint32_t slot, uint32_t bucket, Actions& actions);
    void reduce_more(uint32_t slot, uint32_t bucket, Actions& actions);
    void decode_run(uint32_t slot, uint32_t bucket, Actions& actions);
    void reduced(uint32_t slot, uint32_t bucket, Actions& actions);
    void done(uint32_t slot, uint32_t bucket, uint32_t part, Actions& actions);
    void settle(uint32_t slot, uint32_t bucket, Actions& actions);
    void late(uint32_t slot, uint32_t bucket, Actions& actions);
    void ask(uint32_t slot, uint32_t bucket, Rank reducer, Actions& actions);
    void need(uint32_t slot, uint32_t bucket, Rank reducer, Actions& actions);
    void want(uint32_t slot, uint32_t bucket, Rank reducer, Phase phase, Actions& actions);
    void own_come(uint32_t slot, uint32_t bucket, uint32_t part, Actions& actions);
    bool take_room(uint32_t slot, uint32_t bucket, Rank reducer, bool needed);
    void reply(uint32_t slot, uint32_t bucket, Rank reducer, Rank to, Actions& actions);
    void refused(uint32_t slot, uint32_t bucket, Actions& actions);
    void count_down(uint32_t slot, uint32_t bucket, Actions& actions);
    std::span<const uint32_t> weights_of(std::span<const Rank> senders);

    uint32_t m() const { return codes_ ? config_.m : 1; }
    /// Every rank computes all blocks into one accumulator, which is the sum.  Only records travel.
    bool local(uint32_t ranks) const { return codes_ && config_.m + config_.s == ranks && !words_travel(config_, ranks); }
    bool local() const { return local(n()); }
    bool combines() const { return codes_ && !local(); }
    bool scatters() const { return who_ != Reducers::all && !local(); }
    uint32_t reducers() const { return !scatters() ? 1 : who_ == Reducers::ranks ? n() : config_.servers; }
    Rank reducer_of(uint32_t part) const { return part % reducers(); }
    bool reduces(uint32_t part) const { return !scatters() || reducer_of(part) == config_.self; }
    bool spare() const { return scatters() && tolerated() > 0; }   // words of parts that others reduce may arrive
    /// Rooms of a bucket: for s reducers that others ask for, s that this rank asks for, and s that are lost.
    uint32_t rooms_max() const { return spare() ? std::min(3 * tolerated(), reducers() - 1) : 0; }
    const Room& room_of(uint32_t slot, uint32_t bucket, Rank reducer) const { return memory_[slot].rooms[bucket * reducers() + reducer]; }
    bool receives(uint32_t slot, uint32_t bucket, uint32_t part) const {
        return !local() && (reduces(part) || room_of(slot, bucket, reducer_of(part)).number > 0);
    }
    /// Index among the received parts of a bucket: first the parts that this rank reduces, then those with a room.
    uint32_t place_of(uint32_t slot, uint32_t bucket, uint32_t part) const {
        if (!scatters()) return part;
        const uint32_t rounds = cuts_[bucket].parts / reducers();
        return room_of(slot, bucket, reducer_of(part)).number * rounds + part / reducers();
    }
    uint32_t received_parts(const Cut& cut) const {
        if (local()) return 0;
        if (!scatters()) return cut.parts;
        return config_.self < reducers() ? (1 + rooms_max()) * (cut.parts / reducers()) : 0;
    }
    bool contributes(Rank rank) const { return combines() || blocks_of(rank) > 0; }
    Word word_of(Rank rank) const;
    uint32_t width(Rank sender) const { return word_bytes(word_of(sender)); }
    uint32_t sum_width() const { return word_bytes(sum_word_); }
    uint32_t segments_of(uint64_t bytes) const {
        return static_cast<uint32_t>((bytes + config_.segment_bytes - 1) / config_.segment_bytes);
    }
    uint32_t have_index(uint32_t slot, uint32_t bucket, uint32_t part, uint32_t index) const {
        const Cut& cut = cuts_[bucket];
        return cut.have_at + place_of(slot, bucket, part) * cut.segments + index;
    }
    uint32_t gather_index(const Cut& cut, uint32_t part, uint32_t index) const {
        return cut.gather_at + part * cut.gather_segments + index;
    }
    /// The words of a part of one sender, in this rank's memory.
    Buffer words_of(uint32_t slot, uint32_t bucket, uint32_t part, Rank sender) const;
    Buffer sum_of(uint32_t slot, uint32_t bucket, uint32_t part) const {
        const Cut& cut = cuts_[bucket];
        return memory_[slot].sum.part((cut.at + part * cut.words) * sum_width(), cut.words * sum_width());
    }
    Buffer acc_of(uint32_t slot, uint32_t bucket, uint32_t part, uint32_t target) const {
        const Cut& cut = cuts_[bucket];
        return memory_[slot].accumulator(target).part((cut.at + part * cut.words) * width(config_.self), cut.words * width(config_.self));
    }
    Part& part_of(uint32_t slot, uint32_t bucket, uint32_t part) { return memory_[slot].parts[cuts_[bucket].first_part + part]; }
    const Part& part_of(uint32_t slot, uint32_t bucket, uint32_t part) const {
        return memory_[slot].parts[cuts_[bucket].first_part + part];
    }
    Work& work_of(uint32_t slot, uint32_t bucket) { return memory_[slot].work[bucket]; }
    bool free_of_lanes(uint32_t slot, uint32_t bucket) const {   // its accumulators are not in use
        const BucketState& each = state(slot, bucket);
        return each.closed && (!each.ready || memory_[slot].work[bucket].encoded == cuts_[bucket].parts);
    }

    const bool codes_;
    const Reducers who_;
    CyclicCode code_{};
    Word sum_word_ = Word::i32;
    std::vector<Cut> cuts_;   // by bucket
    std::vector<uint32_t> encode_weights_;
    std::array<SlotState, step_slots> memory_;
    std::vector<Weights> cache_;   // decode weights by set of senders, those used last
    uint32_t cached_ = 0;
    uint32_t losses_ = 0;
    uint64_t usual_us_ = 0;   // from `ready` to the sum
};

}   // namespace gradcast
