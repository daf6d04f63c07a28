// The codec of the CPU.  Scale of a group (transport/exchange/CODES.md, "Quantisation"): auto32 and auto16 choose for the next step the
// least power of two 2^e with 2 M <= Q 2^e.  M is the largest |x| of this step, Q the largest word of one gradient (quantise_limit()).
// Statistics are words of auto32's size for every quantiser; auto16 carries such a word as three digits.
#include "transport/code/codec.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "runtime/core/arena.h"
#include "runtime/core/limits.h"
#include "transport/code/field.h"
#include "transport/code/kernels.h"

namespace gradcast {

Word quantiser_word(Quantiser quantiser) {
    return quantiser == Quantiser::fixed ? Word::i64 : quantiser == Quantiser::auto16 ? Word::i16 : Word::i32;
}

const char* quantiser_name(Quantiser quantiser) {
    switch (quantiser) {
        case Quantiser::fixed: return "fixed";
        case Quantiser::auto32: return "auto32";
        case Quantiser::auto16: return "auto16";
    }
    return "?";
}

Status quantiser_parse(std::string_view name, Quantiser* quantiser) {
    for (Quantiser each : {Quantiser::fixed, Quantiser::auto32, Quantiser::auto16})
        if (name == quantiser_name(each)) {
            *quantiser = each;
            return {};
        }
    return fail(Code::invalid, "quantiser \"{}\" does not exist; one of: auto32, auto16, fixed", name);
}

namespace {

constexpr int32_t fixed_limit = 2147483647;
constexpr double fixed_range = 10.0;
constexpr uint64_t step_bytes = 16;   // touched per element and step: words, parameters, state and copies

class CpuCodec : public Codec {
public:
    CpuCodec(const Layout& layout, const CodecConfig& config)
        : layout_(layout),
          config_(config),
          kernels_(word_kernels(isa_best())),
          limit_(quantise_limit(config.quantiser, config.blocks)),
          statistics_limit_(quantise_limit(Quantiser::auto32, config.blocks)),
          past_caches_(layout.elements * step_bytes > third_level_cache()),
          words_(layout),
          exponents_(layout.groups.size()),
          units_(layout.groups.size()),
          access_(layout.buckets.size()) {
        GC_ASSERT(config.batch >= config.blocks && config.blocks >= 1 && config.blocks <= blocks_max);
        GC_ASSERT(config.quantiser != Quantiser::auto16 || (config.blocks <= auto16_blocks_max && layout.elements < uint64_t{1} << 34));
        if (config.quantiser != Quantiser::auto16) return;
        uint64_t more = 0;   // words of digits added so far
        for (Group& group : words_.groups) {
            group.offset += more;
            if (group.statistics) {
                more += group.count * (digits - 1);
                group.count *= digits;
            }
        }
        for (Bucket& bucket : words_.buckets) {
            bucket.offset = words_.groups[bucket.group].offset;
            const Group& last = words_.groups[bucket.group + bucket.group_count - 1];
            bucket.count = last.offset + last.count - bucket.offset;
            const uint64_t elements = layout.buckets[&bucket - words_.buckets.data()].count;
            if (bucket.count != elements) whole_.resize(std::max(whole_.size(), elements));
        }
        words_.elements += more;
    }

    Status add(uint32_t lane, BlockId block, uint32_t bucket, Buffer gradient, const Plan& plan) override {
        (void)lane;   // lanes need no memory of their own: words are added in the target
        GC_ASSERT(gradient.bytes == layout_.buckets[bucket].count * sizeof(float));
        std::scoped_lock alone(access_[bucket].whole);
        const Addition one{block, plan};
        return take({&one, 1}, bucket, [&gradient](uint32_t, uint64_t) {
            return GradientPart{gradient.as<float>(), gradient.bytes / sizeof(float)};
        });
    }

    bool add_pieces(uint32_t lane, std::span<const Addition> blocks, uint32_t bucket, const GradientPiece& piece, Status* status) override {
        (void)lane;
        // At most lanes_most lanes follow one another, a piece apart; further lanes would only wait.
        Access& access = access_[bucket];
        std::shared_lock others(access.whole, std::try_to_lock);
        if (!others) return false;
        const bool taken = access.lanes.fetch_add(1, std::memory_order_relaxed) < lanes_most;   // the locks order all other accesses
        if (taken) *status = take(blocks, bucket, piece);
        access.lanes.fetch_sub(1, std::memory_order_relaxed);
        return taken;
    }

    Status finish(StepId, uint32_t bucket, const Plan& plan) override {
        if (plan.record->blocks == 0) {
            std::memset(plan.words.host, 0, plan.words.bytes);
            std::fill(plan.record->maxima.begin(), plan.record->maxima.end(), 0.0f);
            plan.record->clipped = plan.record->diverged = 0;
        }
        plan.record->digest = plan.audit ? digest(plan, words_.buckets[bucket]) : 0;
        return {};
    }

    const Layout& words() const override { return words_; }

    Sum whole(const Sum& sum) override {
        const Bucket &range = layout_.buckets[sum.bucket], &words = words_.buckets[sum.bucket];
        if (words.count == range.count) return sum;
        for (uint32_t g = range.group; g < range.group + range.group_count; ++g) {
            const Group& group = layout_.groups[g];   // a bucket with statistics holds nothing else (nn/graph/layers.h)
            const int16_t* digit = sum.words.as<int16_t>() + (words_.groups[g].offset - words.offset);
            for (uint64_t i = 0; i < group.count; ++i)
                whole_[group.offset - range.offset + i] =
                    (digit[2 * group.count + i] * radix() + digit[group.count + i]) * radix() + digit[i];
        }
        Sum result = sum;
        result.word = Word::i32;
        result.words = {reinterpret_cast<std::byte*>(whole_.data()), nullptr, range.count * sizeof(int32_t)};
        return result;
    }

    void probe(const float* gradient) override {
        for (uint32_t g = 0; g < layout_.groups.size(); ++g) {
            const Group& group = layout_.groups[g];
            float maximum = 0;
            for (uint64_t i = 0; i < group.count; ++i) maximum = std::fmax(maximum, std::fabs(gradient[group.offset + i]));
            rescale(g, 4.0 * maximum);
        }
    }

    std::span<const double> units(uint32_t bucket) const override {
        const Bucket& range = layout_.buckets[bucket];
        for (uint32_t g = range.group; g < range.group + range.group_count; ++g)
            units_[g] = fixed(g) ? fixed_range / fixed_limit / config_.batch : std::ldexp(1.0, exponents_[g]) / config_.batch;
        return std::span(units_).subspan(range.group, range.group_count);
    }

    void commit(const Sum& sum) override {
        const Bucket& range = layout_.buckets[sum.bucket];
        GC_ASSERT(sum.maxima.size() == range.group_count);
        for (uint32_t g = 0; g < range.group_count; ++g) rescale(range.group + g, sum.maxima[g]);
    }

    std::span<int32_t> exponents() override { return exponents_; }

private:
    static constexpr uint32_t digits = 3;              // enough for auto16_blocks_max blocks
    int32_t radix() const { return 2 * limit_ + 1; }   // digits are -limit_ .. limit_
    bool fixed(uint32_t group) const { return config_.quantiser == Quantiser::fixed && !layout_.groups[group].statistics; }
    int32_t limit(uint32_t group) const {
        const Group& of = layout_.groups[group];
        if (of.statistics) return statistics_limit_;
        return of.uses == 1 ? limit_ : quantise_limit(config_.quantiser, config_.blocks * of.uses);
    }

    Status take(std::span<const Addition> blocks, uint32_t bucket, const GradientPiece& piece) {
        const Bucket& range = layout_.buckets[bucket];
        Access& access = access_[bucket];
        for (const auto& [block, plan] : blocks) {
            GC_ASSERT(plan.words.bytes == words_.buckets[bucket].count * word_bytes(plan.word));
            GC_ASSERT(plan.record->maxima.size() == range.group_count);
            GC_ASSERT((plan.word == Word::i16) == (config_.quantiser == Quantiser::auto16));
            std::scoped_lock lock(access.record);
            if (plan.record->blocks++ > 0) continue;
            plan.record->clipped = 0;
            plan.record->diverged = 0;
            plan.record->written = 0;
            std::fill(plan.record->maxima.begin(), plan.record->maxima.end(), 0.0f);
        }
        uint32_t pieces = 0;
        for (uint64_t begin = 0, count = 0; begin < range.count; begin += count, ++pieces) {
            std::scoped_lock mine(access.pieces[pieces % lanes_most]);   // all lanes take the same pieces in the same order
            for (uint32_t i = 0; i < blocks.size(); ++i) {
                GradientPart here = piece(i, begin);
                if (here.apart == here.count) here = {here.x, here.rows * here.count};
                count = here.rows * here.count;
                GC_ASSERT(count > 0 && begin + count <= range.count);
                const std::atomic_ref written(blocks[i].plan.record->written);   // only the first lane at a piece changes it
                const uint64_t begun = written.load(std::memory_order_relaxed);
                Found found;
                for (uint64_t row = 0, from = begin; row < here.rows; ++row, from += here.count) {
                    const float* const x = here.x + row * here.apart;
                    const uint64_t there = std::clamp(begun, from, from + here.count) - from;
                    if (there > 0) GC_TRY(take_run(blocks[i], bucket, from, x, there, true, &found));
                    if (there < here.count) GC_TRY(take_run(blocks[i], bucket, from + there, x + there, here.count - there, false, &found));
                }
                GC_TRY(note(blocks[i], bucket, &found));
                if (begun < begin + count) written.store(begin + count, std::memory_order_relaxed);
            }
        }
        return {};
    }

    // Result of one group, not yet in the record.
    struct Found {
        uint32_t group = 0;   // of the bucket
        QuantiseResult result{};
    };

    // Quantises elements begin .. begin + count - 1 of a bucket.
    Status take_run(const Addition& to, uint32_t bucket, uint64_t begin, const float* x, uint64_t count, bool accumulate, Found* found) {
        const auto& [block, plan] = to;
        const Bucket& range = layout_.buckets[bucket];
        for (uint32_t g = 0; g < range.group_count; ++g) {
            const Group& group = layout_.groups[range.group + g];
            const uint64_t at = words_.groups[range.group + g].offset - words_.buckets[bucket].offset,
                           in_bucket = group.offset - range.offset;
            const uint64_t from = std::max(begin, in_bucket), end = std::min(begin + count, in_bucket + group.count);
            if (from >= end) continue;
            if (g != found->group) {
                GC_TRY(note(to, bucket, found));
                *found = {g, {}};
            }
            const QuantiseResult result =
                quantise(plan, at, range.group + g, from - in_bucket, x + (from - begin), end - from, block, accumulate);
            // Compared as bits: NaN is above Inf, and Inf above all numbers.
            if (std::bit_cast<uint32_t>(result.maximum) > std::bit_cast<uint32_t>(found->result.maximum))
                found->result.maximum = result.maximum;
            found->result.clipped += result.clipped;
        }
        return {};
    }

    Status note(const Addition& to, uint32_t bucket, const Found* found) {
        const auto& [block, plan] = to;
        const auto& [maximum, clipped] = found->result;
        const bool diverged = !std::isfinite(maximum);
        if (diverged && !plan.audit)
            return fail(Code::diverged,
                        "step {}: the gradient of layer {} holds {} in block {}: lower the learning rate, or look at the data",
                        block.step + 1, layout_.groups[layout_.buckets[bucket].group + found->group].layer,
                        std::isnan(maximum) ? "NaN" : "Inf", block.block);
        std::scoped_lock lock(access_[bucket].record);
        float& most = plan.record->maxima[found->group];
        most = std::fmax(most, diverged ? INFINITY : maximum);
        plan.record->clipped += clipped;
        if (diverged) plan.record->diverged = std::min(plan.record->diverged - 1, block.block) + 1;   // 0 - 1 wraps: no block yet
        return {};
    }

    // Quantises elements i .. i + count - 1 of a group whose words begin at `at`.
    QuantiseResult quantise(const Plan& plan, uint64_t at, uint32_t g, uint64_t i, const float* x, uint64_t count, BlockId block,
                            bool accumulate) const {
        const Group& group = layout_.groups[g];
        const Scale scale = scale_of(g);
        if (group.statistics && plan.word == Word::i16) {
            GC_ASSERT(count == group.count);
            return quantise_digits(plan.words.as<int16_t>() + at, x, count, scale, accumulate);
        }
        switch (plan.word) {
            case Word::i16:
                return kernels_.quantise_i16(plan.words.as<int16_t>() + at + i, x, count, scale,
                                             {config_.seed, static_cast<uint32_t>(block.step), block.block, group.place() + i}, accumulate);
            case Word::i32: return kernels_.quantise_i32(plan.words.as<int32_t>() + at + i, x, count, scale, accumulate);
            case Word::i64: return kernels_.quantise_i64(plan.words.as<int64_t>() + at + i, x, count, scale, accumulate);
        }
        GC_ASSERT(false && "word");
    }

    // Fills to[digit][element], lowest digit first.
    QuantiseResult quantise_digits(int16_t* to, const float* x, uint64_t count, const Scale& scale, bool accumulate) const {
        QuantiseResult all{};
        for (uint64_t i = 0; i < count; ++i) {
            int32_t rest = 0;
            const QuantiseResult one = kernels_.quantise_i32(&rest, x + i, 1, scale, false);
            if (std::isfinite(all.maximum)) all.maximum = std::isfinite(one.maximum) ? std::fmax(all.maximum, one.maximum) : one.maximum;
            all.clipped += one.clipped;
            for (uint32_t d = 0; d < digits; ++d) {
                int32_t digit = rest % radix();
                if (std::abs(digit) > limit_) digit -= digit > 0 ? radix() : -radix();
                rest = (rest - digit) / radix();
                int16_t& word = to[d * count + i];
                word = static_cast<int16_t>(accumulate ? word + digit : digit);
            }
        }
        return all;
    }

    // Digest of the finished target: once for all its blocks.
    uint64_t digest(const Plan& plan, const Bucket& range) const {
        switch (plan.word) {
            case Word::i16: return kernels_.digest_i16(plan.words.as<int16_t>(), range.count, range.offset);
            case Word::i32: return kernels_.digest_i32(plan.words.as<int32_t>(), range.count, range.offset);
            case Word::i64: return kernels_.digest_i64(plan.words.as<int64_t>(), range.count, range.offset);
        }
        GC_ASSERT(false && "word");
    }

    Scale scale_of(uint32_t group) const {
        if (fixed(group)) return {fixed_range, static_cast<double>(fixed_limit), limit_};
        return {1.0, std::ldexp(1.0, -exponents_[group]), limit(group), past_caches_};
    }

    // M = 0 or a non-finite M keeps e: the next add() of such a gradient reports the error.
    void rescale(uint32_t group, double maximum) {
        if (fixed(group) || maximum == 0 || !std::isfinite(maximum)) return;
        int e = std::ilogb(2 * maximum) - std::ilogb(static_cast<double>(limit(group)));
        if (std::ldexp(limit(group), e) < 2 * maximum) ++e;   // both exact in double
        exponents_[group] = e;
    }

    const Layout& layout_;
    const CodecConfig config_;
    const WordKernels& kernels_;
    const int32_t limit_, statistics_limit_;
    const bool past_caches_;
    Layout words_;
    std::vector<int32_t> whole_;   // the sum of a bucket of statistics
    std::vector<int32_t> exponents_;
    mutable std::vector<double> units_;   // the last result of units(); trainer thread only
    static constexpr uint32_t lanes_most = 4;
    /// Either one lane holds the bucket, or up to lanes_most follow one another through its pieces.  Accumulators per lane would double the
    /// memory traffic.
    struct Access {
        std::shared_mutex whole;
        std::array<std::mutex, lanes_most> pieces;   // by piece number modulo lanes_most
        std::atomic<uint32_t> lanes{0};
        std::mutex record;   // guards all of the record but `written`
    };
    std::vector<Access> access_;   // by bucket
};

}   // namespace

int32_t quantise_limit(Quantiser quantiser, uint32_t gradients) {
    if (quantiser == Quantiser::fixed) return fixed_limit;
    return static_cast<int32_t>((quantiser == Quantiser::auto16 ? prime_16 : prime_32) / 2 / gradients);
}

std::unique_ptr<Codec> codec_cpu(const Layout& layout, const CodecConfig& config) { return std::make_unique<CpuCodec>(layout, config); }

}   // namespace gradcast
