#include "transport/code/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "runtime/core/rng.h"

namespace gradcast {
namespace {

std::vector<Isa> isas() {
    std::vector<Isa> list;
    for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512})
        if (isa <= isa_best()) list.push_back(isa);
    return list;
}

uint32_t bits32(uint32_t i) { return random4(Purpose::test, 11, i / 4, 0)[i % 4]; }

// Spec section 2, a word at a time: libm's rint in the default rounding mode is ties to even.
int64_t plain(float x, const Scale& scale, uint64_t* clipped) {
    double v = std::rint(static_cast<double>(x) / scale.divisor * scale.factor);
    if (!(std::fabs(v) <= scale.limit)) ++*clipped;
    if (std::isnan(v) || v > scale.limit) return scale.limit;
    if (v < -static_cast<double>(scale.limit)) return -static_cast<int64_t>(scale.limit);
    return static_cast<int64_t>(v);
}

// Values around everything that matters: ties, both limits, denormals, both zeros, huge ones, any bit pattern.
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
    if (!finite) x[x.size() / 2] = limits::quiet_NaN(), x[x.size() / 3] = limits::infinity(), x[5] = -limits::infinity();
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
                // Lengths and starts that leave every remainder to the vector loops' tails.
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

TEST(Words, ComputeNow) {
    int32_t a[4] = {1, 2, 3, 4}, b[4] = {10, 20, 30, 40};
    int64_t w[4] = {1, 1, 1, 1}, v[2] = {5, 6};
    auto buffer = [](auto& array) { return Buffer{reinterpret_cast<std::byte*>(array), nullptr, sizeof(array), 0}; };
    compute_now({Kernel::add_i32, buffer(a), buffer(b), 4, 1});
    EXPECT_EQ(a[3], 44);
    compute_now({Kernel::add_i32_to_i64, buffer(w), buffer(a), 4, 1});
    EXPECT_EQ(w[3], 45);
    compute_now({Kernel::add_i64, buffer(w), buffer(v), 2, 1});
    EXPECT_EQ(w[0], 17);
    EXPECT_EQ(w[3], 45);
    compute_now({Kernel::copy, buffer(b), buffer(a), sizeof(a), 1});
    EXPECT_EQ(b[0], 11);
}

}   // namespace
}   // namespace gradcast
