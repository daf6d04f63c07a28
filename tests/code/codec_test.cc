#include "transport/code/codec.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include "runtime/core/limits.h"
#include "runtime/core/rng.h"

namespace gradcast {
namespace {

constexpr float inf = std::numeric_limits<float>::infinity();

// Two buckets, from the end of the vector: head (40) in bucket 0, conv (300) + bias (5) in bucket 1.
Layout layout_of_three() {
    Layout layout;
    layout.elements = 345;
    layout.groups = {{0, 300, "conv1"}, {300, 5, "conv1.bias"}, {305, 40, "head"}};
    layout.buckets = {{305, 40, 2, 1}, {0, 305, 0, 2}};
    return layout;
}

struct Accumulator {
    std::vector<int64_t> memory;
    std::vector<float> maxima;
    Record record;
    Plan plan;
    Accumulator(const Layout& layout, uint32_t bucket, Word word)
        : memory(layout.buckets[bucket].count, -77), maxima(layout.buckets[bucket].group_count, 99.0f) {
        record.maxima = maxima;
        record.clipped = 12345;
        plan = {word, {reinterpret_cast<std::byte*>(memory.data()), nullptr, memory.size() * word_bytes(word)}, &record};
    }
    int64_t operator[](uint64_t i) const {
        return plan.word == Word::i16 ? plan.words.as<int16_t>()[i] : plan.word == Word::i32 ? plan.words.as<int32_t>()[i] : memory[i];
    }
};

std::vector<float> gradient_of(uint32_t block, uint64_t count, float size) {
    std::vector<float> x(count);
    for (uint64_t i = 0; i < count; ++i) x[i] = (uniform(random4(Purpose::test, 5, i, block)[0]) * 2 - 1) * size;
    return x;
}

Status add(Codec& codec, BlockId id, uint32_t bucket, const std::vector<float>& all, const Layout& layout, Accumulator& into) {
    const Bucket& range = layout.buckets[bucket];
    std::vector<float> part(all.begin() + static_cast<long>(range.offset), all.begin() + static_cast<long>(range.offset + range.count));
    Status status = codec.add(0, id, bucket, {reinterpret_cast<std::byte*>(part.data()), nullptr, range.count * 4}, into.plan);
    if (status.ok()) {
    }
    return status;
}

/// The same in pieces of `step` elements, in rows of up to 7; several blocks at once.
struct Added {
    BlockId id;
    const std::vector<float>& all;
    Accumulator& into;
};
Status add_pieces(Codec& codec, const std::vector<Added>& blocks, uint32_t bucket, const Layout& layout, uint64_t step) {
    const Bucket& range = layout.buckets[bucket];
    constexpr uint64_t apart = 9;
    std::vector<float> here;
    std::vector<Addition> additions;
    for (const Added& each : blocks) additions.push_back({each.id, each.into.plan});
    uint64_t wanted_first = 0;
    uint32_t wanted_block = 0;
    auto piece = [&](uint32_t block, uint64_t first) {
        EXPECT_EQ(block, wanted_block);
        EXPECT_EQ(first, wanted_first);
        const float* from = blocks[block].all.data() + range.offset + first;
        const uint64_t most = std::min(step, range.count - first), count = std::min<uint64_t>(most, 7), rows = most / count;
        here.assign(rows * apart, NAN);
        for (uint64_t row = 0; row < rows; ++row) std::copy_n(from + row * count, count, here.begin() + static_cast<long>(row * apart));
        wanted_block = (block + 1) % static_cast<uint32_t>(blocks.size());
        wanted_first += wanted_block == 0 ? rows * count : 0;
        return GradientPart{here.data(), count, static_cast<uint32_t>(rows), apart};
    };
    Status status;
    EXPECT_TRUE(codec.add_pieces(0, additions, bucket, piece, &status));
    if (status.ok()) {
        EXPECT_EQ(wanted_first, range.count);
    }
    return status;
}

Sum sum_of(uint32_t bucket, std::vector<float>& maxima) {
    Sum sum;
    sum.bucket = bucket;
    sum.maxima = maxima;
    return sum;
}

TEST(Codec, QuantisersByName) {
    Quantiser quantiser;
    ASSERT_TRUE(quantiser_parse("fixed", &quantiser).ok());
    EXPECT_EQ(quantiser, Quantiser::fixed);
    ASSERT_TRUE(quantiser_parse("auto32", &quantiser).ok());
    EXPECT_EQ(quantiser, Quantiser::auto32);
    ASSERT_TRUE(quantiser_parse("auto16", &quantiser).ok());
    EXPECT_EQ(quantiser, Quantiser::auto16);
    EXPECT_STREQ(quantiser_parse("auto8", &quantiser).what, "quantiser \"auto8\" does not exist; one of: auto32, auto16, fixed");
}

TEST(Codec, LimitsOfTheSpec) {
    EXPECT_EQ(quantise_limit(Quantiser::auto32, 8), (1 << 27) - 1);
    EXPECT_EQ(quantise_limit(Quantiser::auto32, 64), (1 << 24) - 1);
    EXPECT_EQ(quantise_limit(Quantiser::auto32, 1), (1 << 30) - 1);
    EXPECT_EQ(quantise_limit(Quantiser::fixed, 8), INT32_MAX);
    EXPECT_EQ(quantise_limit(Quantiser::auto16, 8), 4095);
    EXPECT_EQ(quantise_limit(Quantiser::auto16, 64), 511);
    for (uint32_t blocks : {1u, 2u, 3u, 7u, 8u, 100u, blocks_max})
        EXPECT_LE(int64_t{blocks} * quantise_limit(Quantiser::auto32, blocks),
                  (1 << 30) - 1);   // a sum of limits is a residue of p = 2^31 - 1
}

TEST(Codec, TheScaleIsTheLeastPowerOfTwoThatHoldsTwiceTheMaximum) {
    Layout layout = layout_of_three();
    for (uint32_t blocks : {1u, 3u, 8u, 64u, 65536u}) {
        auto codec = codec_cpu(layout, {Quantiser::auto32, 65536, blocks});
        const double limit = quantise_limit(Quantiser::auto32, blocks);
        std::vector<float> maxima;
        for (uint32_t i = 0; i < 2000; ++i) {
            float m = std::fabs(std::bit_cast<float>(random4(Purpose::test, 9, i, 0)[1]));
            if (std::isfinite(m)) maxima.push_back(m);
        }
        for (float exact : {limit * 0.5, limit, limit * 0.25})   // 2 M = Q 2^e exactly, if a float holds it, and its neighbours
            for (float m : {static_cast<float>(exact), std::nextafter(static_cast<float>(exact), inf),
                            std::nextafter(static_cast<float>(exact), 0.0f)})
                maxima.push_back(m);
        for (float m : {1.0f, 0.5f, std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min()}) maxima.push_back(m);
        for (float m : maxima) {
            std::vector<float> one = {m};
            codec->commit(sum_of(0, one));
            const int e = codec->exponents()[2];
            if (m == 0) continue;
            EXPECT_LE(2.0 * m, std::ldexp(limit, e)) << m;
            EXPECT_GT(2.0 * m, std::ldexp(limit, e - 1)) << m;
        }
        const int before = codec->exponents()[2];
        std::vector<float> zero = {0.0f}, broken = {inf};
        codec->commit(sum_of(0, zero));
        codec->commit(sum_of(0, broken));
        EXPECT_EQ(codec->exponents()[2], before);
        EXPECT_EQ(codec->exponents()[0], 0);   // other groups keep theirs
        EXPECT_EQ(codec->units(0)[0], std::ldexp(1.0, before) / 65536);
    }
}

TEST(Codec, TheProbeExpectsFourTimesItsMaxima) {
    Layout layout = layout_of_three();
    auto codec = codec_cpu(layout, {Quantiser::auto32, 128, 8}), other = codec_cpu(layout, {Quantiser::auto32, 128, 8});
    std::vector<float> x = gradient_of(0, layout.elements, 0.3f);
    for (int i = 300; i < 305; ++i) x[static_cast<size_t>(i)] = 0;   // the bias keeps its e
    codec->probe(x.data());
    for (uint32_t g : {0u, 2u}) {
        float m = 0;
        for (uint64_t i = 0; i < layout.groups[g].count; ++i) m = std::max(m, std::fabs(x[layout.groups[g].offset + i]));
        std::vector<float> maxima = {4 * m, 0};
        if (g == 2) maxima.pop_back();
        other->commit(sum_of(g == 2 ? 0 : 1, maxima));
        EXPECT_EQ(codec->exponents()[g], other->exponents()[g]);
        EXPECT_NE(codec->exponents()[g], 0);
    }
    EXPECT_EQ(codec->exponents()[1], 0);
}

TEST(Codec, SumsBlocksExactlyInAnyWord) {
    Layout layout = layout_of_three();
    constexpr uint32_t blocks = 5;
    for (Quantiser quantiser : {Quantiser::auto32, Quantiser::fixed})
        for (StepId step : {StepId{0}, StepId{1}}) {
            auto codec = codec_cpu(layout, {quantiser, 50, blocks});
            codec->probe(gradient_of(0, layout.elements, 3.0f).data());
            for (uint32_t bucket : {0u, 1u}) {
                const Bucket& range = layout.buckets[bucket];
                Accumulator into(layout, bucket, quantiser == Quantiser::fixed ? Word::i64 : Word::i32);
                std::vector<int64_t> want(range.count);
                std::vector<float> maxima(range.group_count);
                uint64_t clipped = 0;
                for (uint32_t b : {3u, 0u, 4u, 1u, 2u}) {
                    std::vector<float> x = gradient_of(b, layout.elements, b == 4 ? 60.0f : 3.0f);   // block 4 is clipped
                    ASSERT_TRUE(add(*codec, {step, b}, bucket, x, layout, into).ok());
                    for (uint32_t g = 0; g < range.group_count; ++g) {
                        const Group& group = layout.groups[range.group + g];
                        const double factor = quantiser == Quantiser::fixed ? 0 : std::ldexp(1.0, -codec->exponents()[range.group + g]);
                        const double limit = quantise_limit(quantiser, blocks);
                        for (uint64_t i = group.offset; i < group.offset + group.count; ++i) {
                            double v =
                                std::rint(quantiser == Quantiser::fixed ? static_cast<double>(x[i]) / 10.0 * 2147483647.0 : x[i] * factor);
                            clipped += std::fabs(v) > limit;
                            want[i - range.offset] += static_cast<int64_t>(std::clamp(v, -limit, limit));
                            maxima[g] = std::max(maxima[g], std::fabs(x[i]));
                        }
                    }
                }
                for (uint64_t i = 0; i < range.count; ++i) ASSERT_EQ(into[i], want[i]);
                EXPECT_EQ(into.maxima, maxima);
                EXPECT_EQ(into.record.clipped, clipped);
                EXPECT_GT(clipped, 0u);
            }
        }
}

TEST(Codec, AStepAtTheLimitDoesNotLeaveInt32) {
    Layout layout = layout_of_three();
    for (uint32_t blocks : {1u, 3u, 8u, 200u}) {
        auto codec = codec_cpu(layout, {Quantiser::auto32, 200, blocks});
        for (float sign : {1.0f, -1.0f}) {
            Accumulator into(layout, 0, Word::i32);
            std::vector<float> huge(layout.elements, sign * 3e38f);
            for (uint32_t b = 0; b < blocks; ++b) ASSERT_TRUE(add(*codec, {sign > 0 ? 0u : 1u, b}, 0, huge, layout, into).ok());
            EXPECT_EQ(into[7], static_cast<int64_t>(sign) * blocks * quantise_limit(Quantiser::auto32, blocks));
            EXPECT_EQ(into.record.clipped, uint64_t{40} * blocks);
        }
    }
}

// Weights that several layers take have so many gradients in each block.
TEST(Codec, AStepAtTheLimitOfTiedWeightsIsAWordOfItsField) {
    Layout layout = layout_of_three();
    for (const uint32_t uses : {2u, 16u}) {
        layout.groups[2].uses = uses;
        for (const auto& [quantiser, word, most] :
             {std::tuple{Quantiser::auto32, Word::i32, int64_t{1073741823}}, {Quantiser::auto16, Word::i16, int64_t{32760}}})
            for (const uint32_t blocks : {1u, 3u, 64u}) {
                auto codec = codec_cpu(layout, {quantiser, 64, blocks});
                Accumulator into(layout, 0, word);
                const std::vector<float> huge(layout.elements, 3e38f);
                for (uint32_t b = 0; b < blocks; ++b)
                    for (uint32_t use = 0; use < uses; ++use) {
                        ASSERT_TRUE(add(*codec, {0, b}, 0, huge, layout, into).ok());
                    }
                EXPECT_EQ(into[7], int64_t{blocks} * uses * quantise_limit(quantiser, blocks * uses));
                EXPECT_LE(into[7], most);
                EXPECT_GT(into[7], most / 2);
                // The other groups keep the limit of one gradient a block.
                Accumulator other(layout, 1, word);
                ASSERT_TRUE(add(*codec, {0, 0}, 1, huge, layout, other).ok());
                EXPECT_EQ(other[7], quantise_limit(quantiser, blocks));
            }
    }
}

TEST(Codec, Auto16RoundsByElementStepAndBlockAlone) {
    Layout whole = layout_of_three(), cut = layout_of_three();
    cut.buckets = {{305, 40, 2, 1}, {300, 5, 1, 1}, {0, 300, 0, 1}};   // the cut into buckets changes no bit
    constexpr uint32_t blocks = 64;
    const std::vector<float> x = gradient_of(2, whole.elements, 0.5f);
    auto all = [&](const Layout& layout, uint64_t seed, BlockId id) {
        auto codec = codec_cpu(layout, {Quantiser::auto16, blocks, blocks, seed});
        codec->probe(x.data());
        std::vector<int64_t> words(layout.elements);
        for (uint32_t bucket = 0; bucket < layout.buckets.size(); ++bucket) {
            Accumulator into(layout, bucket, Word::i16);
            EXPECT_TRUE(add(*codec, id, bucket, x, layout, into).ok());
            const Bucket& range = layout.buckets[bucket];
            for (uint64_t i = 0; i < range.count; ++i) {
                words[range.offset + i] = into[i];
                uint32_t g = range.group;
                while (range.offset + i >= layout.groups[g].offset + layout.groups[g].count) ++g;
                EXPECT_LT(std::fabs(static_cast<double>(into[i]) - std::ldexp(x[range.offset + i], -codec->exponents()[g])), 1.0);
            }
        }
        return words;
    };
    const std::vector<int64_t> words = all(whole, 1, {5, 63});
    EXPECT_EQ(words, all(cut, 1, {5, 63}));
    EXPECT_NE(words, all(whole, 2, {5, 63}));
    EXPECT_NE(words, all(whole, 1, {6, 63}));
    EXPECT_NE(words, all(whole, 1, {5, 62}));
}

TEST(Codec, AStepAtTheLimitOfAuto16IsAWordOfItsField) {
    Layout layout = layout_of_three();
    for (uint32_t blocks : {1u, 3u, 8u, 64u}) {
        auto codec = codec_cpu(layout, {Quantiser::auto16, 64, blocks});
        for (float sign : {1.0f, -1.0f}) {
            Accumulator into(layout, 0, Word::i16);
            std::vector<float> huge(layout.elements, sign * 3e38f);
            for (uint32_t b = 0; b < blocks; ++b) ASSERT_TRUE(add(*codec, {sign > 0 ? 0u : 1u, b}, 0, huge, layout, into).ok());
            EXPECT_EQ(into[7], static_cast<int64_t>(sign) * blocks * quantise_limit(Quantiser::auto16, blocks));
            EXPECT_LE(std::abs(into[7]), 32760);
            EXPECT_EQ(into.record.clipped, uint64_t{40} * blocks);
        }
    }
}

// The digest that holders of a super-block compare does not depend on order and buckets, and changes with one bit.  Statistics are words of
// auto32's size for every quantiser.
TEST(Codec, StatisticsKeepTheSizeOfAuto32) {
    Layout layout = layout_of_three();
    layout.elements += 30;
    layout.groups.push_back({345, 20, "norm1 statistics", true}), layout.groups.push_back({365, 10, "norm2 statistics", true});
    layout.buckets.insert(layout.buckets.begin(), {345, 30, 3, 2});
    for (uint32_t blocks : {1u, 2u, 7u, 8u, 64u}) {
        const auto codec32 = codec_cpu(layout, {Quantiser::auto32, blocks, blocks});
        for (auto [quantiser, word] : {std::pair{Quantiser::auto16, Word::i16}, {Quantiser::fixed, Word::i64}}) {
            const auto codec = codec_cpu(layout, {quantiser, blocks, blocks});
            for (Codec* each : {codec.get(), codec32.get()}) each->probe(gradient_of(0, layout.elements, 20.0f).data());
            EXPECT_EQ(codec->words().elements, layout.elements + (word == Word::i16 ? 60 : 0));
            for (uint32_t bucket : {1u, 2u}) EXPECT_EQ(codec->words().buckets[bucket].offset, layout.buckets[bucket].offset);
            Accumulator into(codec->words(), 0, word), want(layout, 0, Word::i32);
            for (uint32_t b = 0; b < blocks; ++b) {
                std::vector<float> x = gradient_of(b, layout.elements, b == 3 ? 400.0f : 20.0f);   // block 3 is clipped
                std::fill(x.begin() + 345, x.begin() + 350, 400.0f);                               // all are clipped here
                ASSERT_TRUE(add(*codec, {1, b}, 0, x, layout, into).ok());
                ASSERT_TRUE(add(*codec32, {1, b}, 0, x, layout, want).ok());
                for (uint64_t i = 0; word == Word::i16 && i < codec->words().buckets[0].count; ++i)
                    ASSERT_LE(std::abs(into[i]), quantise_limit(quantiser, 1));
            }
            Sum sum = sum_of(0, into.maxima);
            sum.word = word;
            sum.words = into.plan.words;
            const Sum whole = codec->whole(sum);
            for (uint64_t i = 0; i < 30; ++i)
                ASSERT_EQ(whole.word == Word::i32 ? whole.words.as<int32_t>()[i] : whole.words.as<int64_t>()[i], want[i])
                    << blocks << " " << i;
            EXPECT_EQ(into.maxima, want.maxima);
            EXPECT_EQ(into.record.clipped, want.record.clipped);
            for (size_t g : {0u, 1u}) EXPECT_EQ(codec->units(0)[g], codec32->units(0)[g]);
            sum.maxima = into.maxima;
            codec->commit(sum), codec32->commit(sum);
            for (size_t g : {3u, 4u}) EXPECT_EQ(codec->exponents()[g], codec32->exponents()[g]);
        }
    }
}

// Holders that find the same NaN must hold the same words, whatever their memory held before.
TEST(Codec, HoldersOfOneDivergenceAgree) {
    Layout layout = layout_of_three();
    layout.groups[2].statistics = true;
    for (auto [quantiser, word] : {std::pair{Quantiser::auto16, Word::i16}, {Quantiser::auto32, Word::i32}})
        for (uint32_t bucket : {0u, 1u}) {
            const auto codec = codec_cpu(layout, {quantiser, 8, 8});
            std::vector<float> x = gradient_of(0, layout.elements, 1.0f);
            codec->probe(x.data());
            x[layout.buckets[bucket].offset + 3] = std::numeric_limits<float>::quiet_NaN();
            Accumulator one(codec->words(), bucket, word), other(codec->words(), bucket, word);
            std::fill(other.memory.begin(), other.memory.end(), 1234567);
            for (Accumulator* each : {&one, &other}) {
                each->plan.audit = true;
                ASSERT_TRUE(add(*codec, {3, 5}, bucket, x, layout, *each).ok());
                ASSERT_TRUE(codec->finish(3, bucket, each->plan).ok());
                EXPECT_EQ(each->record.diverged, 6u);
                EXPECT_EQ(each->maxima[0], inf);
            }
            EXPECT_EQ(one.record.digest, other.record.digest) << quantiser_name(quantiser) << " " << bucket;
        }
}

TEST(Codec, FinishTakesTheDigestWhereAsked) {
    Layout layout = layout_of_three();
    for (auto [quantiser, word] :
         {std::pair{Quantiser::auto16, Word::i16}, {Quantiser::auto32, Word::i32}, {Quantiser::fixed, Word::i64}}) {
        auto codec = codec_cpu(layout, {quantiser, 8, 8});
        codec->probe(gradient_of(0, layout.elements, 9.0f).data());
        auto digest_of = [&](std::vector<uint32_t> blocks, bool flipped) {
            Accumulator into(layout, 1, word);
            into.plan.audit = true;
            for (uint32_t b : blocks) {
                std::vector<float> x = gradient_of(b, layout.elements, 9.0f);
                if (flipped && b == 1) x[17] = std::bit_cast<float>(std::bit_cast<uint32_t>(x[17]) ^ 0x00400000u);
                EXPECT_TRUE(add(*codec, {3, b}, 1, x, layout, into).ok());
            }
            EXPECT_TRUE(codec->finish(3, 1, into.plan).ok());
            return into.record.digest;
        };
        EXPECT_EQ(digest_of({0, 1, 2}, false), digest_of({2, 0, 1}, false));
        EXPECT_EQ(digest_of({0, 1, 2}, false), digest_of({0, 1}, false) + digest_of({2}, false));
        EXPECT_NE(digest_of({0, 1, 2}, false), digest_of({0, 1, 2}, true));
        EXPECT_EQ(digest_of({}, false), 0u);
        Accumulator unasked(layout, 1, word);
        unasked.record.digest = 7;
        ASSERT_TRUE(codec->finish(3, 1, unasked.plan).ok());
        EXPECT_EQ(unasked.record.digest, 0u);
    }
}

TEST(Codec, NamesStepLayerAndBlockOfWhatIsNotFinite) {
    Layout layout = layout_of_three();
    auto codec = codec_cpu(layout, {Quantiser::auto32, 16, 8});
    Accumulator into(layout, 1, Word::i32);
    std::vector<float> x = gradient_of(0, layout.elements, 1.0f);
    x[302] = std::numeric_limits<float>::quiet_NaN();
    Status status = add(*codec, {41, 6}, 1, x, layout, into);
    EXPECT_EQ(status.code, Code::diverged);
    EXPECT_STREQ(status.what,
                 "step 42: the gradient of layer conv1.bias holds NaN in block 6: lower the learning rate, or look at the data");
    x[302] = 0;
    x[7] = -inf;
    EXPECT_STREQ(add(*codec, {41, 7}, 1, x, layout, into).what,
                 "step 42: the gradient of layer conv1 holds Inf in block 7: lower the learning rate, or look at the data");
}

TEST(Codec, TheFirstBlockOfAStepOverwritesAndClearIsZero) {
    Layout layout = layout_of_three();
    auto codec = codec_cpu(layout, {Quantiser::auto32, 8, 8});
    std::vector<float> x = gradient_of(1, layout.elements, 0.01f);
    Accumulator once(layout, 0, Word::i32), again(layout, 0, Word::i32);
    ASSERT_TRUE(add(*codec, {0, 1}, 0, x, layout, once).ok());
    ASSERT_TRUE(add(*codec, {1, 1}, 0, x, layout, again).ok());
    again.record.blocks = 0;   // as the exchange does when the next step begins in the slot
    ASSERT_TRUE(add(*codec, {2, 1}, 0, x, layout, again).ok());
    for (uint64_t i = 0; i < 40; ++i) ASSERT_EQ(again[i], once[i]);
    // Computing a step again after its sums were committed also starts from zero.
    again.record.blocks = 0;
    std::vector<float> maxima = {0.0f};
    codec->commit(sum_of(0, maxima));
    ASSERT_TRUE(add(*codec, {2, 1}, 0, x, layout, again).ok());
    for (uint64_t i = 0; i < 40; ++i) ASSERT_EQ(again[i], once[i]);
    again.record.blocks = 0;
    ASSERT_TRUE(codec->finish(3, 0, again.plan).ok());
    for (uint64_t i = 0; i < 40; ++i) ASSERT_EQ(again[i], 0);
    EXPECT_EQ(again.maxima[0], 0.0f);
    EXPECT_EQ(again.record.clipped, 0u);
}

TEST(Codec, LanesAddConcurrently) {
    Layout layout = layout_of_three();
    constexpr uint32_t blocks = 64, lanes = 4;
    auto codec = codec_cpu(layout, {Quantiser::auto32, 64, blocks});
    Accumulator one(layout, 1, Word::i32), many(layout, 1, Word::i32);
    for (uint32_t b = 0; b < blocks; ++b) ASSERT_TRUE(add(*codec, {0, b}, 1, gradient_of(b, layout.elements, 1e-3f), layout, one).ok());
    std::vector<std::thread> threads;
    for (uint32_t lane = 0; lane < lanes; ++lane)
        threads.emplace_back([&, lane] {
            for (uint32_t b = lane; b < blocks; b += lanes)
                EXPECT_TRUE(add(*codec, {1, b}, 1, gradient_of(b, layout.elements, 1e-3f), layout, many).ok());
        });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(0, std::memcmp(one.plan.words.host, many.plan.words.host, one.plan.words.bytes));
    EXPECT_EQ(one.maxima, many.maxima);
    EXPECT_EQ(one.record.clipped, many.record.clipped);
}

// Pieces of any size, also across groups, give the same words, records and errors.
TEST(Codec, PiecesAddWhatTheWholeAdds) {
    const Layout layout = layout_of_three();
    for (auto [quantiser, word] : {std::pair{Quantiser::fixed, Word::i64},
                                   {Quantiser::auto32, Word::i32},
                                   {Quantiser::auto32, Word::i64},
                                   {Quantiser::auto16, Word::i16}}) {
        auto codec = codec_cpu(layout, {quantiser, 32, 3, 9});
        codec->probe(gradient_of(7, layout.elements, 0.2f).data());   // some values exceed the limit
        for (uint64_t step : {1, 7, 64, 300, 304, 305, 1000})
            for (uint32_t bucket : {0u, 1u}) {
                Accumulator whole(layout, bucket, word), pieces(layout, bucket, word);
                for (uint32_t block = 0; block < 3; ++block) {
                    const std::vector<float> x = gradient_of(block, layout.elements, block == 1 ? 90.0f : 1.0f);
                    ASSERT_TRUE(add(*codec, {4, block}, bucket, x, layout, whole).ok());
                    ASSERT_TRUE(add_pieces(*codec, {{{4, block}, x, pieces}}, bucket, layout, step).ok());
                }
                EXPECT_EQ(whole.memory, pieces.memory);
                EXPECT_EQ(whole.maxima, pieces.maxima);
                EXPECT_EQ(whole.record.clipped, pieces.record.clipped);
                EXPECT_GT(whole.record.clipped, 0u);
                EXPECT_EQ(pieces.record.blocks, 3u);
            }
        for (float wrong : {inf, std::nanf("")})
            for (bool audit : {false, true}) {
                std::vector<float> x = gradient_of(1, layout.elements, 1);
                // NaN in an earlier piece counts more than Inf
                x[17] = wrong;
                x[250] = -inf;
                Accumulator whole(layout, 1, word), pieces(layout, 1, word);
                whole.plan.audit = pieces.plan.audit = audit;
                const Status wanted = add(*codec, {4, 2}, 1, x, layout, whole),
                             found = add_pieces(*codec, {{{4, 2}, x, pieces}}, 1, layout, 50);
                EXPECT_EQ(wanted.code, found.code);
                EXPECT_EQ(found.ok(), audit);
                if (!audit) {
                    EXPECT_STREQ(wanted.what, found.what);
                }
                EXPECT_EQ(whole.record.diverged, pieces.record.diverged);
                if (audit) {
                    EXPECT_EQ(whole.maxima, pieces.maxima);
                }
            }
    }
}

// Several blocks at once, some with one target, give the same as one by one.
TEST(Codec, PiecesOfSeveralBlocksAddWhatEachAdds) {
    const Layout layout = layout_of_three();
    for (auto [quantiser, word] : {std::pair{Quantiser::auto32, Word::i32}, {Quantiser::auto16, Word::i16}}) {
        auto codec = codec_cpu(layout, {quantiser, 32, 8, 9});
        codec->probe(gradient_of(7, layout.elements, 0.2f).data());
        for (uint64_t step : {1, 7, 64, 300, 1000})
            for (uint32_t bucket : {0u, 1u}) {
                std::vector<std::vector<float>> x;
                for (uint32_t block = 0; block < 6; ++block) x.push_back(gradient_of(block, layout.elements, block == 1 ? 90.0f : 1.0f));
                Accumulator a(layout, bucket, word), b(layout, bucket, word), together_a(layout, bucket, word),
                    together_b(layout, bucket, word);
                for (uint32_t block = 0; block < 6; ++block)
                    ASSERT_TRUE(add(*codec, {4, block}, bucket, x[block], layout, block % 3 == 1 ? a : b).ok());
                ASSERT_TRUE(add_pieces(*codec, {{{4, 0}, x[0], together_b}, {{4, 1}, x[1], together_a}, {{4, 2}, x[2], together_b}}, bucket,
                                       layout, step)
                                .ok());
                ASSERT_TRUE(add_pieces(*codec, {{{4, 3}, x[3], together_b}, {{4, 4}, x[4], together_a}, {{4, 5}, x[5], together_b}}, bucket,
                                       layout, step)
                                .ok());
                for (const auto& [one, together] : {std::pair{&a, &together_a}, {&b, &together_b}}) {
                    EXPECT_EQ(one->memory, together->memory);
                    EXPECT_EQ(one->maxima, together->maxima);
                    EXPECT_EQ(one->record.clipped, together->record.clipped);
                    EXPECT_EQ(one->record.blocks, together->record.blocks);
                }
            }
    }
}

// Up to lanes_most lanes share a bucket's pieces and more are refused; a lane that adds the whole bucket waits.
TEST(Codec, LanesAddPiecesAtTheSameTime) {
    const Layout layout = layout_of_three();
    constexpr uint32_t lanes = 7, each = 3;
    std::atomic<uint32_t> taken{0};
    for (auto [quantiser, word] : {std::pair{Quantiser::auto32, Word::i32}, {Quantiser::auto16, Word::i16}})
        for (uint64_t step = 1; step < 60; ++step) {
            auto codec = codec_cpu(layout, {quantiser, 32, lanes * each, 9});
            codec->probe(gradient_of(7, layout.elements, 0.5f).data());
            Accumulator wanted(layout, 1, word), found(layout, 1, word);
            std::vector<std::vector<float>> x;
            for (uint32_t block = 0; block < lanes * each; ++block) {
                x.push_back(gradient_of(block, layout.elements, 1));
                ASSERT_TRUE(add(*codec, {4, block}, 1, x[block], layout, wanted).ok());
            }
            std::vector<std::thread> threads;
            for (uint32_t lane = 0; lane < lanes; ++lane)
                threads.emplace_back([&, lane] {
                    std::array<Addition, each> blocks;
                    for (uint32_t i = 0; i < each; ++i) blocks[i] = {{4, lane * each + i}, found.plan};
                    bool began = false;
                    auto piece = [&](uint32_t block, uint64_t first) {
                        if (!began) {
                            began = true;
                            ++taken;
                        }
                        return GradientPart{x[lane * each + block].data() + layout.buckets[1].offset + first,
                                            std::min(step, layout.buckets[1].count - first)};
                    };
                    Status status;
                    if (codec->add_pieces(lane, blocks, 1, piece, &status)) {
                        EXPECT_TRUE(status.ok());
                        return;
                    }
                    EXPECT_FALSE(began);
                    for (const Addition& one : blocks) EXPECT_TRUE(add(*codec, one.block, 1, x[one.block.block], layout, found).ok());
                });
            for (std::thread& thread : threads) thread.join();
            EXPECT_EQ(wanted.memory, found.memory);
            EXPECT_EQ(wanted.maxima, found.maxima);
            EXPECT_EQ(wanted.record.clipped, found.record.clipped);
            EXPECT_EQ(found.record.blocks, lanes * each);
        }
    EXPECT_GT(taken, 0u);
}

}   // namespace
}   // namespace gradcast
