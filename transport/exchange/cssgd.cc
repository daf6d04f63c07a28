// `cssgd`, Algorithms 2 to 4 of the CSSGD paper (transport/exchange/CODES.md, "The CSSGD code").
//
// Placement: C(n,r) super-blocks, the q-th for the q-th r-subset of the ranks in lexicographic order.  A rank holds C(n-1,r-1) of them,
// each in its own accumulator.  Weights by rank make super-blocks larger or smaller; the sum stays the same.
//
// A bucket of a super-block is padded with zeros and cut into r segments of equal length.  Its a-th rank sends segment a.
//
// Encoding, at rank i: for each (r+1)-subset S with i in S, rank i sums its segments of the super-blocks S\{k} over all k != i in S; k
// lacks S\{k}.  The sum goes to S\{i} as one transfer.  DataBody::part is the number of S among the (r+1)-subsets, which names super-blocks
// and segments.
//
// Decoding, at rank k: the words from i for S are received into the place of i's segment of the super-block S\{k}.  The segments of the r-1
// super-blocks that k holds are subtracted there, and the result is added to the sum.  All words wrap, so the result is exact.
//
// The computes of a bucket form one chain: encode (the others wait for it), own super-blocks into the sum, then segments in order of
// arrival.
//
// Memory for each of the step_slots steps, with G the words of one gradient: C(n,r) G for super-blocks, held or decoded, G for the sum,
// C(n-1,r) G/r for what is sent.  The algorithm needs C(n-1,r-1) G of it, because gradients are not added up before they travel.
//
// r = 1 is unicast with n-1 times G; with r = n only records travel.
#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "runtime/core/bits.h"
#include "transport/exchange/counting.h"
#include "transport/exchange/held.h"

namespace gradcast {
namespace {

constexpr uint64_t parts_max = binomial_max;   // of a bucket, in DataBody::part

/// All k-subsets of 0 .. n-1 in lexicographic order, concatenated.
std::vector<Rank> subsets(uint32_t n, uint32_t k) {
    std::vector<Rank> all, one(k);
    for (uint32_t i = 0; i < k; ++i) one[i] = i;
    while (k <= n) {
        all.insert(all.end(), one.begin(), one.end());
        uint32_t at = k;
        while (at > 0 && one[at - 1] == n - k + at - 1) --at;
        if (at == 0) break;
        ++one[at - 1];
        for (uint32_t i = at; i < k; ++i) one[i] = one[i - 1] + 1;
    }
    return all;
}

/// The number of S without its member at `omitted` among the r-subsets: those that come later are counted by where they first differ.
uint32_t number_of(uint32_t n, std::span<const Rank> set, uint32_t omitted) {
    const auto r = static_cast<uint32_t>(set.size() - 1);
    uint64_t number = binomial(n, r) - 1;
    for (uint32_t i = 0, remaining = r; i <= r; ++i)
        if (i != omitted) number -= binomial(n - 1 - set[i], remaining--);
    return static_cast<uint32_t>(number);
}

/// Bounds of the super-blocks of n nodes, as in Placement.
// A rank's share of all computed blocks should be its weight's share w.  Super-blocks in proportion to the sum of v over their ranks, with
// v = w - (r-1)/(r(n-1)), give that, unless a sum is negative (it is then set to 0).  Equal weights give equal super-blocks.
std::vector<uint32_t> cssgd_bounds(const ExchangeConfig& config, uint32_t n, uint64_t blocks) {
    const uint32_t r = config.r;
    const std::vector<Rank> ranks = subsets(n, r);
    double all = 0;
    for (double weight : config.weights) all += weight;
    std::vector<uint64_t> ends = {0};
    for (size_t at = 0; at < ranks.size(); at += r) {
        double sum = 0;
        for (size_t i = at; i < at + r && !config.weights.empty(); ++i) sum += config.weights[ranks[i]] / all - (r - 1.0) / (r * (n - 1.0));
        const bool alike = config.weights.empty() || r == n;
        ends.push_back(ends.back() + (alike ? 1 : static_cast<uint64_t>(std::llround(std::max(sum, 0.0) * 0x1p30))));
    }
    std::vector<uint32_t> bounds;
    for (uint64_t end : ends) bounds.push_back(static_cast<uint32_t>(end * blocks / ends.back()));
    return bounds;
}

/// No super-block has more than one block, so `fixed` words fit int32 and travel so.
bool cssgd_narrow(std::span<const uint32_t> bounds) {
    for (size_t q = 1; q < bounds.size(); ++q)
        if (bounds[q] - bounds[q - 1] > 1) return false;
    return true;
}

class Cssgd : public HeldExchange {
public:
    explicit Cssgd(const ExchangeConfig& config) : HeldExchange(config), r_(config.r) {}

    Placement place(const View& view, std::span<const uint32_t> samples_of_block) const override {
        const auto blocks = static_cast<uint32_t>(samples_of_block.size());
        Placement placement;
        if (!check(view.n(), blocks).ok()) return ExchangeBase::place(view, samples_of_block);   // install() reports the error
        placement.bounds = cssgd_bounds(config_, view.n(), blocks);
        const std::vector<Rank> ranks = subsets(view.n(), r_);
        for (size_t at = 0; at < ranks.size(); at += r_) placement.holders.emplace_back(ranks.begin() + at, ranks.begin() + at + r_);
        return placement;
    }

    uint32_t targets() const override { return targets_; }
    bool weighs() const override { return false; }   // see cssgd_bounds()
    uint32_t target_of(uint32_t block) const override {
        const auto end = std::upper_bound(bounds_.begin(), bounds_.end(), block);
        const uint32_t place = place_of_[static_cast<size_t>(end - bounds_.begin() - 1)];
        GC_ASSERT(place < targets_);
        return place;
    }

private:
    /// How a bucket is cut.  Lengths in words.
    struct Cut {
        uint64_t words;      // of a segment
        uint64_t at;         // of the bucket in a super-block's place
        uint64_t coded_at;   // of its first segment to be sent
        uint32_t packets;    // of a segment
        uint32_t first;      // of its packets among all, each counted once
    };
    /// State of a bucket's chain of computes.
    struct Work {
        uint32_t encoded = 0, summed = 0, decoded = 0;   // sets, targets, segments
        uint32_t term = 0;                               // of the set or segment
        uint32_t come = 0;                               // segments, in SlotState::order
        bool computing = false;
    };
    struct SlotState {
        Buffer own, other, coded, sum;
        std::vector<uint8_t> have;         // [packet of a segment][segment]
        std::vector<uint32_t> remaining;   // [bucket][segment]: packets
        std::vector<uint32_t> order;       // [bucket][..]: segments in the order in which they have come
        std::vector<Work> work;
    };

    Status check(uint32_t n, uint32_t blocks) const {
        const std::string ranks = ranks_text(config_, n);
        if (r_ < 1 || r_ > n)
            return fail(Code::invalid, "cssgd: r = {} {}s cannot share a block of {}: r is 1 to {}", r_, rank_name(config_), ranks, n);
        const uint64_t super_blocks = binomial(n, r_);
        if (super_blocks > blocks)
            return fail(Code::invalid, "cssgd with r = {} on {} needs {}{} blocks at least, and there are {}: set blocks, or another r", r_,
                        ranks, super_blocks > parts_max ? "more than " : "", std::min(super_blocks, parts_max), blocks);
        if (binomial(n, r_ + 1) > parts_max)
            return fail(Code::invalid, "cssgd with r = {} on {} makes more parts than a packet can name ({}): take another r", r_, ranks,
                        parts_max);
        return weights_check(config_, n);
    }

    Status plan_memory(Arena& arena) override {
        GC_ASSERT(config_.segment_bytes % 8 == 0);
        GC_TRY(check(n(), config_.blocks));
        bounds_ = cssgd_bounds(config_, n(), config_.blocks);
        word_ = sum_word_ = config_.quantiser == Quantiser::auto16 ? Word::i16 : Word::i32;
        if (config_.quantiser == Quantiser::fixed) {
            sum_word_ = Word::i64;
            if (!cssgd_narrow(bounds_) || !one_gradient(layout_)) word_ = Word::i64;
        }
        place_ranks();

        cuts_.clear();
        Cut next{};
        for (const Bucket& bucket : layout_.buckets) {
            next.words = (bucket.count + r_ - 1) / r_;
            next.packets = static_cast<uint32_t>((next.words * width() + config_.segment_bytes - 1) / config_.segment_bytes);
            cuts_.push_back(next);
            next.at += r_ * next.words;
            next.coded_at += sets() * next.words;
            next.first += next.packets;
        }
        const uint64_t super_blocks = bounds_.size() - 1, others = super_blocks - targets_;
        const uint64_t bytes = step_slots * ((super_blocks * next.at + next.coded_at) * width() + next.at * word_bytes(sum_word_));
        const uint64_t memory = machine_memory();
        if (bytes > memory)
            return fail(Code::node_memory,
                        "cssgd with r = {} on {} keeps {} gradients for each of {} steps: {} MiB, and this machine has {} MiB: take a "
                        "smaller r, or coded-rs",
                        r_, ranks_text(config_, n()), super_blocks, step_slots, bytes >> 20, memory >> 20);
        for (SlotState& slot : memory_) {
            arena.plan("own words", targets_ * next.at * width(), &slot.own);
            arena.plan("words of others", others * next.at * width(), &slot.other);
            arena.plan("coded words", next.coded_at * width(), &slot.coded);
            arena.plan("sums", next.at * word_bytes(sum_word_), &slot.sum);
            slot.have.resize(uint64_t{next.first} * segments());
            slot.remaining.resize(cuts_.size() * segments());
            slot.order.resize(cuts_.size() * segments());
            slot.work.resize(cuts_.size());
        }
        plan_records(bounds_, arena);
        return {};
    }

    // The holders, and the (r+1)-subsets that contain this rank.
    void place_ranks() {
        const std::vector<Rank> holders = subsets(n(), r_), all = subsets(n(), r_ + 1);
        std::vector<std::vector<uint32_t>> held(n());
        for (size_t at = 0; at < holders.size(); ++at) held[holders[at]].push_back(static_cast<uint32_t>(at / r_));
        targets_ = static_cast<uint32_t>(held[0].size());
        held_.clear();
        for (const std::vector<uint32_t>& each : held) held_.insert(held_.end(), each.begin(), each.end());
        place_of_.assign(holders.size() / r_, 0);
        for (uint32_t q = 0, own = 0, other = targets_; q < place_of_.size(); ++q)
            place_of_[q] = own < targets_ && held[config_.self][own] == q ? own++ : other++;

        const size_t words = bit_words(n());
        part_.clear();
        ranks_.clear();
        self_at_.clear();
        block_.clear();
        to_.clear();
        set_of_part_.assign(all.size() / (r_ + 1), none);
        for (uint32_t part = 0; part < set_of_part_.size(); ++part) {
            const std::span<const Rank> set = std::span(all).subspan(size_t{part} * (r_ + 1), r_ + 1);
            const auto self = std::find(set.begin(), set.end(), config_.self);
            if (self == set.end()) continue;
            set_of_part_[part] = sets();
            part_.push_back(part);
            self_at_.push_back(static_cast<uint32_t>(self - set.begin()));
            to_.resize(to_.size() + words);
            for (uint32_t i = 0; i <= r_; ++i) {
                ranks_.push_back(set[i]);
                block_.push_back(place_of_[number_of(n(), set, i)]);
                if (set[i] != config_.self) set_bit(to_.data() + to_.size() - words, set[i]);
            }
        }
    }

    void counted(uint32_t s, uint32_t b, Rank, Actions& actions) override { arrived(s, b, actions); }
    uint32_t held(Rank rank, uint32_t target) const override { return held_[rank * targets_ + target]; }
    bool audit() const override { return r_ > 1; }
    Word target_word() const override { return word_; }
    Buffer target(uint32_t s, uint32_t b, uint32_t t) override { return super_block(s, b, t).part(0, layout_.buckets[b].count * width()); }

    void cleared(uint32_t s) override {
        SlotState& slot = memory_[s];
        clear_records(s);
        std::fill(slot.have.begin(), slot.have.end(), 0);
        for (uint32_t b = 0; b < cuts_.size(); ++b) {
            slot.work[b] = {};
            std::fill_n(slot.remaining.begin() + b * segments(), segments(), cuts_[b].packets);
            state(s, b).missing = 1 + n();   // words, and records
        }
    }

    // ---- in --------------------------------------------------------------------------------------------------------------------

    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override {
        const uint32_t part = body_of<DataBody>(packet).part.get();
        if (packet.type == PacketType::words && part < set_of_part_.size() && set_of_part_[part] == none) return Landing::foreign;
        return HeldExchange::land(packet, bytes, place);
    }

    bool valid(Arrival* a) const override {
        if (a->record) return record_valid(*a);
        if (a->phase != Phase::reduce || a->part >= set_of_part_.size() || set_of_part_[a->part] == none) return false;
        const uint32_t first = set_of_part_[a->part] * (r_ + 1);
        const auto set = ranks_.begin() + first, sender = std::find(set, set + r_ + 1, a->sender);
        if (sender == set + r_ + 1) return false;
        a->segment = static_cast<uint32_t>(sender - ranks_.begin());
        const uint64_t bytes = cuts_[a->bucket].words * width(), at = uint64_t{a->index} * config_.segment_bytes;
        return at < bytes && a->bytes == std::min<uint64_t>(config_.segment_bytes, bytes - at);
    }

    uint8_t& have(const Arrival& a) { return memory_[a.slot].have[uint64_t{cuts_[a.bucket].first + a.index} * segments() + a.segment]; }

    Landing wanted(const Arrival& a, Buffer* place) override {
        if (a.record) return record_wanted(a, place);
        if (have(a)) return Landing::drop;
        *place = come_to(a.slot, a.bucket, a.segment).part(uint64_t{a.index} * config_.segment_bytes, a.bytes);
        return Landing::place;
    }

    void take(const Arrival& a, Buffer payload, Actions& actions) override {
        Buffer place;
        if (wanted(a, &place) != Landing::place || place.host != payload.host) return;
        if (a.record) return record_taken(a, actions);
        SlotState& slot = memory_[a.slot];
        have(a) = 1;
        if (--slot.remaining[a.bucket * segments() + a.segment] > 0) return;
        slot.order[a.bucket * segments() + slot.work[a.bucket].come++] = a.segment;
        advance(a.slot, a.bucket, actions);
    }

    // ---- words -----------------------------------------------------------------------------------------------------------------

    void contributed(uint32_t s, uint32_t b, Actions& actions) override {
        record_own(s, b, actions);
        advance(s, b, actions);
    }

    // Starts the next compute of the bucket, if there is one and none is under way.
    void advance(uint32_t s, uint32_t b, Actions& actions) {
        SlotState& slot = memory_[s];
        Work& work = slot.work[b];
        if (work.computing || !state(s, b).ready) return;
        Kernel kernel = add(word_);
        Buffer dst, src;
        if (work.encoded < sets()) {
            const uint32_t self = self_at_[work.encoded], without = work.term + (work.term >= self);
            if (work.term == 0) kernel = Kernel::copy;
            dst = coded(s, b, work.encoded);
            src = segment(s, b, work.encoded, without, self);
        } else if (work.summed < targets_) {
            const bool widen = word_ != sum_word_;
            kernel = work.summed > 0 ? widen ? Kernel::add_i32_to_i64 : add(word_) : widen ? Kernel::copy_i32_to_i64 : Kernel::copy;
            dst = sum(s, b, 0, r_);
            src = super_block(s, b, work.summed);
        } else if (work.decoded < work.come) {
            const uint32_t at = slot.order[b * segments() + work.decoded], set = at / (r_ + 1), from = at % (r_ + 1), self = self_at_[set];
            if (work.term + 1 < r_) {
                uint32_t without = work.term;   // of the positions but `from` and `self`
                without += without >= std::min(from, self);
                without += without >= std::max(from, self);
                kernel = word_ == Word::i16 ? Kernel::sub_i16 : word_ == Word::i32 ? Kernel::sub_i32 : Kernel::sub_i64;
                dst = come_to(s, b, at);
                src = segment(s, b, set, without, from);
            } else {
                if (word_ != sum_word_) kernel = Kernel::add_i32_to_i64;
                dst = sum(s, b, from - (from > self), 1);
                src = come_to(s, b, at);
            }
        } else {
            return;
        }
        work.computing = true;
        compute(s, b, kernel, dst, src, kernel == Kernel::copy ? src.bytes : src.bytes / width(), actions);
    }

    void computed(uint32_t s, uint32_t b, Actions& actions) override {
        Work& work = memory_[s].work[b];
        work.computing = false;
        if (work.encoded < sets()) {
            if (++work.term == r_) {
                work.term = 0;
                const uint32_t set = work.encoded++;
                const RankSet to{0, &to_[set * bit_words(n())]};
                send(s, PacketType::words, Phase::reduce, {b, part_[set], 0}, coded(s, b, set), to, actions);
            }
        } else if (work.summed < targets_) {
            ++work.summed;
        } else if (++work.term == r_) {
            work.term = 0;
            ++work.decoded;
        }
        if (work.summed == targets_ && work.decoded == sets() * r_) return arrived(s, b, actions);
        advance(s, b, actions);
    }

    void total(uint32_t s, uint32_t b, Sum* out) const override {
        out->word = sum_word_;
        out->words = sum(s, b, 0, r_).part(0, layout_.buckets[b].count * word_bytes(sum_word_));
        record_total(s, b, out);
    }

    std::string missing_text(uint32_t s, uint32_t b) const override {
        const SlotState& slot = memory_[s];
        if (slot.work[b].come == sets() * r_)
            return fmt::format("{}all {} coded segments have come and are being added up", records_missing(s, b), sets() * r_);
        std::string text =
            fmt::format("{}{} of {} coded segments are missing", records_missing(s, b), sets() * r_ - slot.work[b].come, sets() * r_);
        for (uint32_t i = 0; i < segments(); ++i) {
            const uint64_t bytes = uint64_t{slot.remaining[b * segments() + i]} * config_.segment_bytes;
            if (ranks_[i] == config_.self || bytes == 0) continue;
            return text + fmt::format(": part {} lacks {} bytes from rank {}", part_[i / (r_ + 1)],
                                      std::min(bytes, cuts_[b].words * width()), ranks_[i]);
        }
        return text;
    }

    static Kernel add(Word word) { return word == Word::i16 ? Kernel::add_i16 : word == Word::i32 ? Kernel::add_i32 : Kernel::add_i64; }
    uint32_t width() const { return word_bytes(word_); }
    uint32_t sets() const { return static_cast<uint32_t>(part_.size()); }
    /// Received segments are numbered by set and position of the sender in it.  The rank's own numbers stay unused.
    uint32_t segments() const { return sets() * (r_ + 1); }

    Buffer super_block(uint32_t s, uint32_t b, uint32_t place) const {
        const Cut& cut = cuts_[b];
        const uint64_t all = cuts_.back().at + r_ * cuts_.back().words;
        const Buffer& whole = place < targets_ ? memory_[s].own : memory_[s].other;
        const uint64_t index = place < targets_ ? place : place - targets_;
        return whole.part((index * all + cut.at) * width(), r_ * cut.words * width());
    }
    /// Of the set's super-block without the member at `without`, the segment that the member at `sender` sends.
    Buffer segment(uint32_t s, uint32_t b, uint32_t set, uint32_t without, uint32_t sender) const {
        const uint64_t bytes = cuts_[b].words * width();
        return super_block(s, b, block_[set * (r_ + 1) + without]).part((sender - (sender > without)) * bytes, bytes);
    }
    /// Where a segment lands and is decoded.
    Buffer come_to(uint32_t s, uint32_t b, uint32_t number) const {
        const uint32_t set = number / (r_ + 1);
        return segment(s, b, set, self_at_[set], number % (r_ + 1));
    }
    Buffer coded(uint32_t s, uint32_t b, uint32_t set) const {
        const Cut& cut = cuts_[b];
        return memory_[s].coded.part((cut.coded_at + set * cut.words) * width(), cut.words * width());
    }
    Buffer sum(uint32_t s, uint32_t b, uint32_t first, uint32_t count) const {   // of its segments
        const Cut& cut = cuts_[b];
        return memory_[s].sum.part((cut.at + first * cut.words) * word_bytes(sum_word_), count * cut.words * word_bytes(sum_word_));
    }

    static constexpr uint32_t none = ~uint32_t{0};
    const uint32_t r_;
    uint32_t targets_ = 0;
    Word word_ = Word::i32, sum_word_ = Word::i32;
    std::vector<uint32_t> bounds_;
    std::vector<uint32_t> held_;          // [rank][target]: super-block
    std::vector<uint32_t> place_of_;      // [super-block]: its place in memory; the first ones are the targets
    std::vector<uint32_t> set_of_part_;   // [part]: the set, if it contains this rank
    // By set:
    std::vector<uint32_t> part_, self_at_;   // self_at_: the rank's own position
    std::vector<uint64_t> to_;               // [set][word]: the others
    std::vector<Rank> ranks_;                // [set][position], ascending
    std::vector<uint32_t> block_;            // [set][position]: place of the super-block of all others
    std::vector<Cut> cuts_;                  // by bucket
    std::array<SlotState, step_slots> memory_;
};

}   // namespace

namespace {

Cost cost(const ExchangeConfig& config, uint32_t n, const CostWire& wire) {
    Counting counting{config, n, wire};
    const uint32_t r = config.r, segment = config.segment_bytes;
    const auto sets = static_cast<double>(binomial(n - 1, r)),
               held = static_cast<double>(binomial(n - 1, r - 1));   // sets: of r + 1 ranks with this one
    counting.cost.d = r;
    counting.cost.rounds = 1;
    const bool fixed = config.quantiser == Quantiser::fixed;   // only `fixed` has two widths
    const uint32_t wide = counting.width(fixed && cssgd_narrow(cssgd_bounds(config, n, config.blocks)));
    for (const Bucket& bucket : config.layout->buckets) {
        const double bytes = ceil_of(static_cast<double>(bucket.count), r) * wide;
        counting.multicasts(Counting::words, bytes, sets, r);
        const double come = wire.multicast == CostWire::Multicast::flat ? sets * (n - 1) : sets * r;
        counting.receives(Counting::words, bytes, come, sets * r, segment);
        counting.cost.words_foreign += bytes * (come - sets * r);
        const double record_bytes = sizeof(Le64) + held * sizeof(HeldRecord) + bucket.group_count * sizeof(float);
        counting.multicasts(Counting::record, record_bytes, 1, n - 1);
        counting.receives(Counting::record, record_bytes, n - 1, 0, segment);
    }
    return counting.cost;
}

}   // namespace

extern const ExchangeKind cssgd_kind{
    .name = "cssgd",
    .summary = "the CSSGD paper's: r nodes compute a block, segments go coded by multicast: C(n-1,r) G/r sent per node",
    .create = [](const ExchangeConfig& config) -> std::unique_ptr<Exchange> { return std::make_unique<Cssgd>(config); },
    .fixed = true,
    .datagrams = true,
    .shares = true,
    .weighs = true,
    .cost = cost,
    // With 2 <= r <= n - 2 it sends and computes more than multicast (transport/exchange/CODES.md, "The CSSGD code").
    .candidates =
        [](const ExchangeConfig& job, uint32_t n) {
            if (job.quantiser != Quantiser::fixed || n <= 2 || n > job.blocks) return std::vector<ExchangeConfig>{};
            ExchangeConfig all = uncoded(job);
            all.r = n - 1;
            return std::vector{all};
        }};

}   // namespace gradcast
