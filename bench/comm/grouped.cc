#include "bench/comm/grouped.h"

#include <algorithm>

#include "runtime/core/bits.h"
#include "transport/code/field.h"
#include "transport/wire/packet.h"

namespace gradcast {
namespace {

constexpr uint32_t prime = prime_32;
uint32_t residue(int32_t word) { return word >= 0 ? static_cast<uint32_t>(word) : prime - static_cast<uint32_t>(-word); }
int32_t word_of(uint32_t residue) { return static_cast<int32_t>(residue > prime / 2 ? int64_t{residue} - prime : int64_t{residue}); }

class Grouped : public Protocol {
public:
    Grouped(GroupedPlan& plan, Rank self)
        : plan_(plan),
          code_{plan.group, plan.m, 0, prime},
          k_(self % plan.group),
          h_(self / plan.group),
          rings_(plan.n / plan.group),
          first_(self - k_),
          coded_words_((plan.count + plan.group * plan.m - 1) / (plan.group * plan.m)),
          part_words_(coded_words_ * plan.m),
          coded_(plan.group * coded_words_),
          part_(part_words_),
          record_(std::max(group_record_bytes(), sizeof(RecordHeader) + sizeof(float))),
          group_bits_(bit_words(plan.n)),
          decode_(plan.m * plan.group) {
        std::vector<Rank> all(plan.group);
        for (Rank r = 0; r < plan.group; ++r) {
            all[r] = r;
            if (r != k_) set_bit(group_bits_.data(), first_ + r);
        }
        code_.decode_weights(all, decode_);
        encode();
        reduce_remaining_ = (plan.group - 1) * coded_words_;
        ring_remaining_ = rings_ == 1 ? 0 : part_words_;
        gather_remaining_ = (plan.group - 1) * part_words_;
    }

    void on(std::span<const Event> events, Actions& actions) override {
        if (!begun_) begin(actions);
        for (const Event& event : events) {
            const auto* received = event.is<Event::Received>();
            if (!received || received->packet->type != PacketType::words) continue;
            const Packet& packet = *received->packet;
            const DataBody body = body_of<DataBody>(packet);
            const Buffer& payload = packet.payload;
            const std::span<const int32_t> words(payload.as<int32_t>(), payload.bytes / 4);
            const uint64_t at = uint64_t{body.index.get()} * segment_words();
            if (body.bucket.get() != 0) {
                if (reduce_remaining_ > 0) early_.push_back({body, {words.begin(), words.end()}});   // the group's sum is not complete yet
                else ring(body, words, actions);
            } else if (static_cast<Phase>(body.phase) == Phase::reduce) {
                decode(packet.sender - first_, at, words);
                reduce_remaining_ -= words.size();
                if (reduce_remaining_ == 0) reduced(actions);
            } else {
                const Rank from = packet.sender - first_;
                for (size_t i = 0; i < words.size(); ++i) compare(from, at + i, words[i]);
                gather_remaining_ -= words.size();
                finish(actions);
            }
        }
    }

private:
    uint64_t segment_words() const { return plan_.segment_bytes / 4; }
    size_t group_record_bytes() const { return sizeof(Le64) + plan_.m * sizeof(HeldRecord) + sizeof(float); }
    uint64_t chunk_at(uint32_t chunk) const { return chunk * part_words_ / rings_; }
    void compare(uint32_t part, uint64_t at, int32_t word) {
        const uint64_t element = part * part_words_ + at;
        plan_.wrong += word != (element < plan_.count ? plan_.expected[element] : 0);
    }
    Send make(PacketType type, Phase phase, uint32_t bucket, uint32_t part, uint32_t index, void* words, uint64_t bytes, RankSet to) {
        DataBody body{};
        body.bucket.set(static_cast<uint16_t>(bucket));
        body.part.set(static_cast<uint16_t>(part));
        body.index.set(index);
        body.phase = static_cast<uint8_t>(phase);
        Send send;
        send.to = to;
        send.type = type;
        send.body = body_bytes(body);
        send.sequence = ++sequence_;
        send.payload.host = static_cast<std::byte*>(words);
        send.payload.bytes = bytes;
        return send;
    }
    RankSet group() const { return {0, group_bits_.data()}; }
    RankSet next() const { return {(first_ + k_ + plan_.group) % plan_.n, nullptr}; }

    // For each part of the group: this rank's combination of the segments of its super-blocks.
    void encode() {
        std::vector<uint32_t> weights(uint64_t{code_.d()} * plan_.m);
        code_.encode_weights(k_, weights);
        for (uint32_t part = 0; part < plan_.group; ++part)
            for (uint32_t held = 0; held < code_.d(); ++held)
                for (uint32_t u = 0; u < plan_.m; ++u)
                    for (uint64_t x = 0; x < coded_words_; ++x) {
                        const uint64_t element = part * part_words_ + u * coded_words_ + x;
                        if (element >= plan_.count) break;
                        const uint32_t word = residue(plan_.word(first_ + code_.held(k_, held), element));
                        uint32_t& sum = coded_[part * coded_words_ + x];
                        sum = field_add(sum, field_mul(weights[held * plan_.m + u], word, prime), prime);
                    }
    }
    void decode(Rank from, uint64_t at, std::span<const int32_t> words) {
        for (uint32_t u = 0; u < plan_.m; ++u)
            for (size_t x = 0; x < words.size(); ++x) {
                uint32_t& sum = part_[u * coded_words_ + at + x];
                sum = field_add(sum, field_mul(decode_[u * plan_.group + from], static_cast<uint32_t>(words[x]), prime), prime);
            }
    }

    void begin(Actions& actions) {
        begun_ = true;
        if (plan_.group > 1)
            actions.sends.push_back(make(PacketType::record, Phase::reduce, 0, 0, 0, record_.data(), group_record_bytes(), group()));
        for (uint32_t i = 1; i < plan_.group; ++i) {   // ranks start at different receivers, so none is flooded
            const Rank to = (k_ + i) % plan_.group;
            actions.sends.push_back(
                make(PacketType::words, Phase::reduce, 0, to, 0, &coded_[to * coded_words_], coded_words_ * 4, {first_ + to, nullptr}));
        }
        const uint32_t* own = &coded_[k_ * coded_words_];
        decode(k_, 0, {reinterpret_cast<const int32_t*>(own), coded_words_});
        if (reduce_remaining_ == 0) reduced(actions);
    }

    void reduced(Actions& actions) {
        for (uint32_t& word : part_) word = static_cast<uint32_t>(word_of(word));
        if (rings_ == 1) return gather(actions);
        for (uint64_t at = chunk_at(h_), index = 0; at < chunk_at(h_ + 1); at += segment_words(), ++index)
            pass(Phase::reduce, h_, static_cast<uint32_t>(index), actions);
        for (const Early& each : early_) ring(each.body, each.words, actions);
        early_.clear();
    }

    void pass(Phase phase, uint32_t chunk, uint32_t index, Actions& actions) {
        const uint64_t at = chunk_at(chunk) + index * segment_words(), end = std::min(at + segment_words(), chunk_at(chunk + 1));
        if (phase == Phase::reduce && index == 0)
            actions.sends.push_back(
                make(PacketType::record, phase, 1, chunk, 0, record_.data(), sizeof(RecordHeader) + sizeof(float), next()));
        actions.sends.push_back(make(PacketType::words, phase, 1, chunk, index, &part_[at], (end - at) * 4, next()));
    }

    // As in transport/exchange/ring.cc; `distance` counts the groups that the chunk has passed.
    void ring(const DataBody& body, std::span<const int32_t> words, Actions& actions) {
        const uint32_t chunk = body.part.get(), distance = (h_ + rings_ - chunk) % rings_;
        const uint64_t at = chunk_at(chunk) + body.index.get() * segment_words();
        const bool adds = static_cast<Phase>(body.phase) == Phase::reduce;
        for (size_t i = 0; i < words.size(); ++i) part_[at + i] = static_cast<uint32_t>(words[i]) + (adds ? part_[at + i] : 0);
        if (adds) pass(distance == rings_ - 1 ? Phase::gather : Phase::reduce, chunk, body.index.get(), actions);
        else if (distance != rings_ - 2) pass(Phase::gather, chunk, body.index.get(), actions);
        if (adds && distance != rings_ - 1) return;
        ring_remaining_ -= words.size();
        if (ring_remaining_ == 0) gather(actions);
    }

    void gather(Actions& actions) {
        for (uint64_t i = 0; i < part_words_; ++i) compare(k_, i, static_cast<int32_t>(part_[i]));
        if (plan_.group > 1)
            actions.sends.push_back(make(PacketType::words, Phase::gather, 0, k_, 0, part_.data(), part_words_ * 4, group()));
        gathered_ = true;
        finish(actions);
    }

    void finish(const Actions& actions) {
        if (!gathered_ || gather_remaining_ > 0) return;
        ++plan_.done;
        plan_.done_us = std::max(plan_.done_us, actions.now_us);
    }

    struct Early {
        DataBody body;
        std::vector<int32_t> words;
    };
    GroupedPlan& plan_;
    const CyclicCode code_;
    const uint32_t k_, h_, rings_;   // position, group, groups
    const Rank first_;               // of the group
    const uint64_t coded_words_, part_words_;
    std::vector<uint32_t> coded_, part_;   // part_: residues until the group's sum is complete, then signed words
    std::vector<std::byte> record_;
    std::vector<uint64_t> group_bits_;
    std::vector<uint32_t> decode_;
    std::vector<Early> early_;
    uint64_t reduce_remaining_ = 0, ring_remaining_ = 0, gather_remaining_ = 0, sequence_ = 0;   // words
    bool begun_ = false, gathered_ = false;
};

}   // namespace

Status grouped_check(const GroupedPlan& plan) {
    if (plan.group < 1 || plan.n % plan.group != 0)
        return fail(Code::invalid, "{} nodes do not make groups of {}: give --group a divisor", plan.n, plan.group);
    GC_TRY((CyclicCode{plan.group, plan.m, 0, prime}.check()));
    if (plan.m == plan.group && plan.m > 1)
        return fail(Code::invalid, "m = {} in groups of {} leaves nothing to send: lower m", plan.m, plan.group);
    const uint64_t share = uint64_t{plan.group} * plan.m;
    if ((plan.count + share - 1) / share * plan.m < plan.n / plan.group)
        return fail(Code::invalid, "{} bytes are less than one word for each of {} nodes: give a larger --size", plan.count * 4, plan.n);
    return {};
}

std::unique_ptr<Protocol> grouped_create(GroupedPlan& plan, Rank self) { return std::make_unique<Grouped>(plan, self); }

}   // namespace gradcast
