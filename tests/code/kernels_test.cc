#include "transport/code/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "runtime/core/digest.h"
#include "runtime/core/rng.h"
#include "tests/code/isas.h"

namespace gradcast {
namespace {

uint32_t bits32(uint32_t i) { return random4(Purpose::test, 11, i / 4, 0)[i % 4]; }

// The words of transport/exchange/CODES.md, "Quantisation", one at a time: libm's rint in the default rounding mode is ties to even.
int64_t plain(float x, const Scale& scale, uint64_t* clipped) {
    double v = std::rint(static_cast<double>(x) / scale.divisor * scale.factor);
    if (!(std::fabs(v) <= scale.limit)) ++*clipped;
    if (std::isnan(v) || v > scale.limit) return scale.limit;
    if (v < -static_cast<double>(scale.limit)) return -static_cast<int64_t>(scale.limit);
    return static_cast<int64_t>(v);
}

// Edge values: ties, both limits, denormals, both zeros, huge values, arbitrary bit patterns.
std::vector<float> inputs(const Scale& scale, bool finite) {
    std::vector<float> x;
    const double unit = scale.divisor / scale.factor;
    for (double k : {0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 1e6 + 0.5, 8388607.5, scale.limit - 1.0, scale.limit - 0.5, scale.limit + 0.0,
                     scale.limit + 0.5, scale.limit + 1.0, scale.limit + 1.5, 4.0 * scale.limit})
        for (double sign : {1.0, -1.0}) {
            auto f = static_cast<float>(sign * k * unit);
            for (float each : {f, std::nextafter(f, 1e38f), std::nextafter(f, -1e38f)}) x.push_back(each);
        }
    using limits = std::numeric_limits<float>;
    for (float f : {0.0f, limits::denorm_min(), limits::min(), limits::max(), 1e-40f, 3e38f}) x.push_back(f), x.push_back(-f);
    for (uint32_t i = 0; i < 3000; ++i) {
        float any = std::bit_cast<float>(bits32(i));
        if (std::isfinite(any)) x.push_back(any);
        x.push_back(static_cast<float>((uniform(bits32(i + 5000)) * 4 - 2) * scale.limit * unit));
        x.push_back(static_cast<float>((static_cast<double>(bits32(i + 9000) % 2000) - 1000) * 0.5 * unit));   // ties
    }
    if (!finite) {
        x[x.size() / 2] = limits::quiet_NaN();
        x[x.size() / 3] = limits::infinity();
        x[5] = -limits::infinity();
    }
    return x;
}

std::vector<Scale> scales() {
    std::vector<Scale> list = {{10.0, 2147483647.0, 2147483647}};
    for (int32_t limit : {1, 2, 511, 134217727, 16777215, 357913941, 178956970, 1073741823})
        for (double factor : {1.0, 0x1p-100, 0x1p30, 0x1p177}) list.push_back({1.0, factor, limit});
    return list;
}

TEST(Quantise, EqualsThePlainReferenceAtEveryLevel) {
    for (const Scale& scale : scales())
        for (bool finite : {true, false}) {
            std::vector<float> x = inputs(scale, finite);
            float maximum = 0;
            uint64_t clipped = 0;
            std::vector<int64_t> want;
            for (float f : x) {
                want.push_back(plain(f, scale, &clipped));
                maximum = std::isnan(f) || std::isnan(maximum) ? NAN : std::max(maximum, std::fabs(f));
            }
            for (Isa isa : isas()) {
                SCOPED_TRACE(fmt::format("{} limit {} factor {}", isa_name(isa), scale.limit, scale.factor));
                // Lengths and starts cover every remainder of the vector loops.
                for (size_t start : {size_t{0}, size_t{1}, size_t{13}}) {
                    const size_t count = x.size() - start - (start == 13 ? 7 : 0);
                    std::vector<int32_t> narrow(count, 7), base(count);
                    std::vector<int64_t> wide(count, 7);
                    for (size_t i = 0; i < count; ++i) base[i] = static_cast<int32_t>(bits32(static_cast<uint32_t>(i)));
                    std::vector<int32_t> narrow_sum = base;
                    std::vector<int64_t> wide_sum(base.begin(), base.end());
                    const WordKernels& kernels = word_kernels(isa);
                    QuantiseResult result = kernels.quantise_i32(narrow.data(), x.data() + start, count, scale, false);
                    QuantiseResult again = kernels.quantise_i64(wide.data(), x.data() + start, count, scale, false);
                    kernels.quantise_i32(narrow_sum.data(), x.data() + start, count, scale, true);
                    kernels.quantise_i64(wide_sum.data(), x.data() + start, count, scale, true);
                    for (size_t i = 0; i < count; ++i) {
                        int64_t q = want[start + i];
                        ASSERT_EQ(narrow[i], q) << "x = " << fmt::format("{:a}", x[start + i]) << " at " << i;
                        ASSERT_EQ(wide[i], q) << "x = " << fmt::format("{:a}", x[start + i]) << " at " << i;
                        ASSERT_EQ(narrow_sum[i], static_cast<int32_t>(static_cast<uint32_t>(base[i]) + static_cast<uint32_t>(q)));
                        ASSERT_EQ(wide_sum[i], base[i] + q);
                    }
                    EXPECT_EQ(result.clipped, again.clipped);
                    EXPECT_EQ(std::bit_cast<uint32_t>(result.maximum), std::bit_cast<uint32_t>(again.maximum));
                    if (start == 0) {
                        EXPECT_EQ(result.clipped, clipped);
                        if (std::isnan(maximum)) {
                            EXPECT_TRUE(std::isnan(result.maximum));
                        } else {
                            EXPECT_EQ(result.maximum, maximum);
                        }
                    }
                }
            }
        }
}

// Long ranges are stored in whole cache lines; the words before the first and after the last line are covered too.
TEST(Quantise, LongRangesEqualShortOnes) {
    const Scale scale{1, 0x1p20, 1 << 29, true};
    constexpr size_t count = 20'000, room = 32;
    std::vector<float> x(count);
    for (size_t i = 0; i < count; ++i) x[i] = static_cast<float>(static_cast<int32_t>(bits32(static_cast<uint32_t>(i)))) * 0x1p-21f;
    for (Isa isa : isas())
        for (size_t start = 0; start < 18; ++start) {
            SCOPED_TRACE(fmt::format("{} {}", isa_name(isa), start));
            std::vector<int32_t> words(count + room, 7), want(count + room, 7);
            const QuantiseResult all = word_kernels(isa).quantise_i32(words.data() + start, x.data(), count, scale, false);
            QuantiseResult sum{};
            for (size_t i = 0; i < count; i += 500) {
                const QuantiseResult part = word_kernels(isa).quantise_i32(want.data() + start + i, x.data() + i, 500, scale, false);
                sum.clipped += part.clipped;
                sum.maximum = std::max(sum.maximum, part.maximum);
            }
            EXPECT_EQ(words, want);
            EXPECT_EQ(all.clipped, sum.clipped);
            EXPECT_GT(all.clipped, 0u);
            EXPECT_EQ(all.maximum, sum.maximum);
        }
}

TEST(Quantise, AnEmptyRangeAndAnEmptyMaximum) {
    for (Isa isa : isas()) {
        QuantiseResult result = word_kernels(isa).quantise_i32(nullptr, nullptr, 0, {1, 1, 1}, false);
        EXPECT_EQ(result.maximum, 0.0f);
        EXPECT_EQ(result.clipped, 0u);
    }
}

TEST(Words, AddsWrapAtEveryLevel) {
    for (Isa isa : isas())
        for (uint64_t count : {0, 1, 3, 8, 15, 16, 17, 63, 1000}) {
            std::vector<int32_t> a(count), b(count);
            std::vector<int64_t> wide(count), other(count);
            for (uint64_t i = 0; i < count; ++i) {
                a[i] = i % 3 == 0 ? INT32_MAX : static_cast<int32_t>(bits32(static_cast<uint32_t>(i)));
                b[i] = static_cast<int32_t>(bits32(static_cast<uint32_t>(i) + 1000));
                wide[i] = i % 3 == 0 ? INT64_MAX : -static_cast<int64_t>(bits32(static_cast<uint32_t>(i)));
                other[i] = int64_t{b[i]} * 3000000000;
            }
            std::vector<int32_t> a0 = a;
            std::vector<int64_t> wide0 = wide, mixed = wide;
            word_kernels(isa).add_i32(a.data(), b.data(), count);
            word_kernels(isa).add_i64(wide.data(), other.data(), count);
            word_kernels(isa).add_i32_to_i64(mixed.data(), b.data(), count);
            for (uint64_t i = 0; i < count; ++i) {
                ASSERT_EQ(static_cast<uint32_t>(a[i]), static_cast<uint32_t>(a0[i]) + static_cast<uint32_t>(b[i]));
                ASSERT_EQ(static_cast<uint64_t>(wide[i]), static_cast<uint64_t>(wide0[i]) + static_cast<uint64_t>(other[i]));
                ASSERT_EQ(static_cast<uint64_t>(mixed[i]), static_cast<uint64_t>(wide0[i]) + static_cast<uint64_t>(int64_t{b[i]}));
            }
        }
}

TEST(Words, ShortAddsWrapAtEveryLevel) {
    for (Isa isa : isas())
        for (uint64_t count : {0, 1, 31, 32, 33, 1000}) {
            std::vector<int16_t> a(count), b(count), want(count);
            for (uint64_t i = 0; i < count; ++i) {
                a[i] = static_cast<int16_t>(i % 3 == 0 ? INT16_MAX : bits32(static_cast<uint32_t>(i)));
                b[i] = static_cast<int16_t>(i % 4 == 0 ? INT16_MAX : bits32(static_cast<uint32_t>(i) + 1000));
                want[i] = static_cast<int16_t>(a[i] + b[i]);
            }
            word_kernels(isa).add_i16(a.data(), b.data(), count);
            EXPECT_EQ(a, want);
        }
}

TEST(Words, SubtractionUndoesAddition) {
    auto check = [](auto zero, auto add, auto sub) {
        using Signed = decltype(zero);
        for (uint64_t count : {0, 1, 7, 31, 32, 33, 1000}) {
            std::vector<Signed> a(count), b(count);
            for (uint64_t i = 0; i < count; ++i) {
                a[i] = static_cast<Signed>(i % 3 == 0 ? uint64_t{1} << 63 >> (64 - 8 * sizeof(Signed)) : splitmix64(i));
                b[i] = static_cast<Signed>(i % 4 == 0 ? uint64_t{1} << 63 >> (64 - 8 * sizeof(Signed)) : splitmix64(i + 1000));
            }
            const std::vector<Signed> a0 = a;
            add(a.data(), b.data(), count);
            EXPECT_EQ(a == a0, count == 0);
            sub(a.data(), b.data(), count);
            EXPECT_EQ(a, a0);
        }
    };
    for (Isa isa : isas()) {
        const WordKernels& kernels = word_kernels(isa);
        check(int16_t{}, kernels.add_i16, kernels.sub_i16);
        check(int32_t{}, kernels.add_i32, kernels.sub_i32);
        check(int64_t{}, kernels.add_i64, kernels.sub_i64);
    }
}

// auto16 (transport/exchange/CODES.md, "Quantisation"): floor(v + u) in units of 2^-32, u from the generator's own function.
int64_t plain_stochastic(float x, const Scale& scale, const Rounding& rounding, uint64_t i, uint64_t* clipped) {
    double v = x * scale.factor;
    if (!(std::fabs(v) <= scale.limit)) ++*clipped;
    v = std::isnan(v) || v > scale.limit ? scale.limit : std::max(v, -static_cast<double>(scale.limit));
    const uint64_t e = rounding.first + i;
    const uint32_t u = random4(Purpose::rounding, rounding.seed, rounding.step | uint64_t{rounding.block} << 32,
                               static_cast<uint32_t>(e / 64 * 16 + e % 16))[e % 64 / 16];
    return (std::llrint(v * 0x1p32) + u) >> 32;
}

TEST(Stochastic, EqualsThePlainReferenceAtEveryLevel) {
    for (int32_t limit : {511, 4095, 32760})
        for (bool finite : {true, false}) {
            const Scale scale{1.0, limit == 511 ? 0x1p20 : 1.0, limit};
            const std::vector<float> x = inputs(scale, finite);
            for (uint64_t first : {uint64_t{0}, uint64_t{64}, uint64_t{77}, uint64_t{1023}, (uint64_t{1} << 34) - 64 * 1024}) {
                const Rounding rounding{0x123456789ABCDEF0 + first, 4000000000, 63, first};
                uint64_t clipped = 0;
                std::vector<int16_t> want, base;
                for (size_t i = 0; i < x.size(); ++i) {
                    const int64_t q = plain_stochastic(x[i], scale, rounding, i, &clipped);
                    ASSERT_LE(std::abs(q), limit);
                    want.push_back(static_cast<int16_t>(q)), base.push_back(static_cast<int16_t>(bits32(static_cast<uint32_t>(i))));
                }
                for (Isa isa : isas()) {
                    std::vector<int16_t> words(x.size(), 7), sum = base;
                    const WordKernels& kernels = word_kernels(isa);
                    const QuantiseResult result = kernels.quantise_i16(words.data(), x.data(), x.size(), scale, rounding, false);
                    kernels.quantise_i16(sum.data(), x.data(), x.size(), scale, rounding, true);
                    ASSERT_EQ(words, want) << isa_name(isa);
                    for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(sum[i], static_cast<int16_t>(base[i] + want[i]));
                    EXPECT_EQ(result.clipped, clipped);
                    EXPECT_EQ(std::isfinite(result.maximum), finite);
                    // Every cut of the vector gives the same words.
                    std::vector<int16_t> parts(x.size());
                    for (size_t from = 0, size = 1; from < x.size(); from += size, size = size * 2 + 1) {
                        size = std::min(size, x.size() - from);
                        Rounding part = rounding;
                        part.first += from;
                        kernels.quantise_i16(parts.data() + from, x.data() + from, size, scale, part, false);
                    }
                    ASSERT_EQ(parts, want) << isa_name(isa);
                }
            }
        }
}

TEST(Stochastic, IsUnbiasedAndKeyed) {
    constexpr uint32_t count = 1 << 18;
    const WordKernels& kernels = word_kernels(isa_best());
    auto words_of = [&](float value, const Rounding& rounding) {
        const std::vector<float> x(count, value);
        std::vector<int16_t> words(count);
        kernels.quantise_i16(words.data(), x.data(), count, {1.0, 1.0, 4095}, rounding, false);
        return words;
    };
    const Rounding one{1, 2, 3, 0};
    for (float value : {0.0f, 0.5f, -0.5f, 0.01f, -0.99f, 1234.25f, -3.7f, 4094.9f, 1e-3f}) {
        const std::vector<int16_t> words = words_of(value, one);
        double sum = 0;
        for (int16_t word : words) {
            ASSERT_LT(std::fabs(word - value), 1.0f);
            sum += word;
        }
        const double share = value - std::floor(value), deviation = std::sqrt(share * (1 - share) * count);
        EXPECT_LE(std::fabs(sum - static_cast<double>(value) * count), 6 * deviation) << value;
    }
    const std::vector<int16_t> words = words_of(0.5f, one);
    EXPECT_EQ(words, words_of(0.5f, one));
    for (const Rounding& other : {Rounding{2, 2, 3, 0}, Rounding{1, 3, 3, 0}, Rounding{1, 2, 4, 0}, Rounding{1, 2, 3, 1},
                                  Rounding{1, 2, 3, 16}, Rounding{1, 2, 3, 64}, Rounding{1ull << 32 | 1, 2, 3, 0}}) {
        const std::vector<int16_t> others = words_of(0.5f, other);
        int64_t equal = 0;
        for (uint32_t i = 0; i < count; ++i) equal += words[i] == others[i];
        EXPECT_LE(std::abs(equal - count / 2), 6 * 256);   // six standard deviations of independent bits
    }
}

TEST(Digest, IsAdditiveAndSeesEveryBit) {
    constexpr uint64_t first = 12345678901, count = 1003;
    std::vector<int16_t> narrow(count);
    std::vector<int32_t> a(count), b(count), sum(count);
    std::vector<int64_t> wide(count);
    uint64_t want = 0, want_narrow = 0;
    for (uint64_t i = 0; i < count; ++i) {
        a[i] = i % 5 == 0 ? -(1 << 29) : static_cast<int32_t>(bits32(static_cast<uint32_t>(i))) >> 2;
        b[i] = i % 7 == 0 ? 1 << 29 : static_cast<int32_t>(bits32(static_cast<uint32_t>(i) + 5000)) >> 2;
        sum[i] = a[i] + b[i];
        narrow[i] = static_cast<int16_t>(a[i]);
        wide[i] = a[i];
        want += digest_factor(first + i) * static_cast<uint64_t>(int64_t{a[i]});
        want_narrow += digest_factor(first + i) * static_cast<uint64_t>(int64_t{narrow[i]});
    }
    for (Isa isa : isas()) {
        const WordKernels& kernels = word_kernels(isa);
        EXPECT_EQ(kernels.digest_i32(a.data(), count, first), want) << isa_name(isa);
        EXPECT_EQ(kernels.digest_i64(wide.data(), count, first), want) << isa_name(isa);
        EXPECT_EQ(kernels.digest_i16(narrow.data(), count, first), want_narrow) << isa_name(isa);
        EXPECT_EQ(kernels.digest_i32(sum.data(), count, first), want + kernels.digest_i32(b.data(), count, first));
        for (uint64_t cut : {0, 1, 500, 1003})
            EXPECT_EQ(want, kernels.digest_i32(a.data(), cut, first) + kernels.digest_i32(a.data() + cut, count - cut, first + cut));
        for (uint32_t i = 0; i < count; i += 17)
            for (uint32_t bit = 0; bit < 32; ++bit) {
                a[i] ^= static_cast<int32_t>(1u << bit);
                EXPECT_NE(kernels.digest_i32(a.data(), count, first), want);
                a[i] ^= static_cast<int32_t>(1u << bit);
            }
    }
}

TEST(Words, ComputeNow) {
    int32_t a[4] = {1, 2, 3, 4}, b[4] = {10, 20, 30, 40};
    int64_t w[4] = {1, 1, 1, 1}, v[2] = {5, 6};
    auto buffer = [](auto& array) { return Buffer{reinterpret_cast<std::byte*>(array), nullptr, sizeof(array)}; };
    compute_now({Kernel::add_i32, buffer(a), buffer(b), 4, 1});
    EXPECT_EQ(a[3], 44);
    compute_now({Kernel::add_i32_to_i64, buffer(w), buffer(a), 4, 1});
    EXPECT_EQ(w[3], 45);
    compute_now({Kernel::add_i64, buffer(w), buffer(v), 2, 1});
    EXPECT_EQ(w[0], 17);
    EXPECT_EQ(w[3], 45);
    compute_now({Kernel::copy, buffer(b), buffer(a), sizeof(a), 1});
    EXPECT_EQ(b[0], 11);
    compute_now({Kernel::add_i16, buffer(a), buffer(b), 8, 1});
    EXPECT_EQ(a[3], 88);
    compute_now({Kernel::add_i16, buffer(a), buffer(b), 2, 1});
    EXPECT_EQ(a[3], 88);
    compute_now({Kernel::sub_i64, buffer(w), buffer(v), 2, 1});
    EXPECT_EQ(w[0], 12);
    const uint32_t weights[2] = {3, 65520};
    const Buffer in[2] = {buffer(a), buffer(b)}, out = buffer(w);
    Combine combine{65521, 1, 2, weights, in, &out, false, true};
    compute_now({Kernel::combine, {}, {}, 8, 1, &combine});
    EXPECT_FALSE(combine.refused);
    EXPECT_EQ(static_cast<int16_t>(w[0]), 3 * 33 - 11);
    a[0] = 0xFFFF;
    compute_now({Kernel::combine, {}, {}, 8, 1, &combine});
    EXPECT_TRUE(combine.refused);
}

}   // namespace
}   // namespace gradcast
