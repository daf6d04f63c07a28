// Functions of runtime/core/elementary.h against the C library's in long double, and their bits against those of every other machine.
#include "runtime/core/elementary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <span>
#include <vector>

#include "runtime/core/digest.h"
#include "runtime/core/rng.h"

namespace gradcast {
namespace {

using elementary::turn;

constexpr double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();

/// A double with random bits below those of the exponent, and a random exponent in least .. most.
double random_double(uint64_t n, int least, int most) {
    const Philox bits = random4(Purpose::test, 11, n, 0);
    const auto fraction = (uint64_t{bits[0]} << 32 | bits[1]) >> 12;
    const int exponent = least + static_cast<int>(bits[2] % static_cast<uint32_t>(most - least + 1));
    return std::ldexp(1 + std::ldexp(static_cast<double>(fraction), -52), exponent) * (bits[3] & 1 ? -1 : 1);
}

/// In distances of neighbouring numbers of type F at the exact result.
template <typename F>
double ulps(F result, long double exact) {
    int exponent;
    std::frexp(exact, &exponent);
    constexpr int digits = std::numeric_limits<F>::digits, least = std::numeric_limits<F>::min_exponent;
    return static_cast<double>(std::fabs(std::ldexp(static_cast<long double>(result) - exact, digits - std::max(exponent, least))));
}

TEST(Elementary, ExpIsWithinItsBound) {
    double worst = 0;
    for (uint64_t n = 0; n < 400'000; ++n) {
        const double x = n % 2 ? random_double(n, -30, 9) : static_cast<double>(n) / 400'000 * 1454.5 - 745;
        if (x < -745.1 || x > 709.7) continue;
        worst = std::max(worst, ulps(elementary::exp(x), std::exp(static_cast<long double>(x))));
    }
    RecordProperty("ulps", std::to_string(worst));
    EXPECT_LT(worst, 1.2);
    worst = 0;
    for (uint32_t bits = 1; bits < 0x42b10000; bits += 997)   // to 88.5
        for (const float x : {std::bit_cast<float>(bits), -std::bit_cast<float>(bits)})
            worst = std::max(worst, ulps(elementary::exp(x), std::exp(static_cast<long double>(x))));
    for (float x = -104; x < -80; x += 0x1p-10f)   // subnormal results
        worst = std::max(worst, ulps(elementary::exp(x), std::exp(static_cast<long double>(x))));
    RecordProperty("ulps of float", std::to_string(worst));
    EXPECT_LT(worst, 1.2);
}

TEST(Elementary, LogIsWithinItsBound) {
    double worst = 0;
    for (uint64_t n = 0; n < 400'000; ++n) {
        double x = std::fabs(n % 2 ? random_double(n, -1074, 1023) : 1 + random_double(n, -53, -1));
        if (n % 16 == 1) x *= 0x1p-1000;   // some are subnormal
        if (x == 0) continue;
        worst = std::max(worst, ulps(elementary::log(x), std::log(static_cast<long double>(x))));
    }
    for (uint32_t bits = 0; bits < 1u << 24; bits += 61) {   // all that uniform() gives are of this kind
        const double x = uniform(bits << 8);
        worst = std::max(worst, ulps(elementary::log(x), std::log(static_cast<long double>(x))));
    }
    RecordProperty("ulps", std::to_string(worst));
    EXPECT_LT(worst, 1.0);
}

TEST(Elementary, TurnIsWithinItsBound) {
    double worst = 0;
    const auto check = [&](double u) {
        // The distance from the nearest quarter is exact.
        const double quarter = std::nearbyint(4 * u), rest = u - quarter / 4;
        const long double angle = 2 * std::numbers::pi_v<long double> * static_cast<long double>(rest);
        long double cos = std::cos(angle), sin = std::sin(angle);
        for (auto turns = static_cast<int64_t>(quarter) & 3; turns > 0; --turns) cos = -std::exchange(sin, cos);
        const elementary::Turn got = turn(u);
        worst = std::max({worst, ulps(got.cos, cos), ulps(got.sin, sin)});
    };
    for (uint64_t n = 0; n < 400'000; ++n) check(random_double(n, -60, n % 4 ? 0 : 40));
    for (uint32_t bits = 0; bits < 1u << 24; bits += 61) check(uniform(bits << 8));
    RecordProperty("ulps", std::to_string(worst));
    EXPECT_LT(worst, 2.0);
}

TEST(Elementary, PowerIsWithinItsBound) {
    for (const double base : {0.9, 0.999, 0.9999999, 1.0000001, 0.5, 1.1})
        for (const uint64_t exponent : {1u, 2u, 3u, 7u, 100u, 1000u, 4097u}) {
            const long double exact = std::pow(static_cast<long double>(base), static_cast<long double>(exponent));
            if (exact < DBL_MIN) continue;
            const long double error = std::fabs(static_cast<long double>(elementary::power(base, exponent)) - exact) / exact;
            EXPECT_LE(static_cast<double>(error), static_cast<double>(exponent) * 0x1p-53) << base << "^" << exponent;
        }
    EXPECT_EQ(elementary::power(0.3, 0), 1);
    EXPECT_EQ(elementary::power(0.3, 1), 0.3);
    EXPECT_EQ(elementary::power(0, 0), 1);
    EXPECT_EQ(elementary::power(0, uint64_t{1} << 63), 0);
    EXPECT_EQ(elementary::power(2, 1023), 0x1p1023);
    EXPECT_EQ(elementary::power(2, 1024), infinity);
    EXPECT_TRUE(std::isnan(elementary::power(nan, 3)));
}

TEST(Elementary, EdgesAreExact) {
    for (const double x : {0.0, -0.0, 0x1p-1074, -0x1p-1074, 0x1p-60}) EXPECT_EQ(elementary::exp(x), 1);
    EXPECT_EQ(elementary::exp(infinity), infinity);
    EXPECT_EQ(elementary::exp(DBL_MAX), infinity);
    EXPECT_EQ(elementary::exp(709.79), infinity);
    EXPECT_LT(elementary::exp(709.78), infinity);
    EXPECT_EQ(elementary::exp(-745.13), 0x1p-1074);
    for (const double x : {-745.14, -746.0, -DBL_MAX, -infinity}) EXPECT_EQ(elementary::exp(x), 0);
    EXPECT_TRUE(std::isnan(elementary::exp(nan)));
    for (const float x : {0.0f, -0.0f, 0x1p-149f, -0x1p-149f, 0x1p-30f}) EXPECT_EQ(elementary::exp(x), 1);
    for (const float x : {88.73f, FLT_MAX, HUGE_VALF}) EXPECT_EQ(elementary::exp(x), HUGE_VALF);
    EXPECT_LT(elementary::exp(88.72f), HUGE_VALF);
    EXPECT_EQ(elementary::exp(-103.9f), 0x1p-149f);
    for (const float x : {-104.0f, -1e30f, -HUGE_VALF}) EXPECT_EQ(elementary::exp(x), 0);
    EXPECT_TRUE(std::isnan(elementary::exp(std::numeric_limits<float>::quiet_NaN())));

    EXPECT_EQ(std::bit_cast<uint64_t>(elementary::log(1)), 0u);   // not -0
    EXPECT_EQ(elementary::log(0), -infinity);
    EXPECT_EQ(elementary::log(-0.0), -infinity);
    EXPECT_EQ(elementary::log(infinity), infinity);
    for (const double x : {-0x1p-1074, -1.0, -infinity, nan}) EXPECT_TRUE(std::isnan(elementary::log(x))) << x;
    for (const double x : {0x1p-1074, 0x1p-1022, 2.0, DBL_MAX}) EXPECT_EQ(elementary::log(x), std::log(x));

    for (const double u : {0.0, 1.0, -1.0, 0x1p50}) EXPECT_TRUE(turn(u).cos == 1 && turn(u).sin == 0) << u;
    for (const double u : {0.25, -0.75, 1e6 + 0.25}) EXPECT_TRUE(turn(u).cos == 0 && turn(u).sin == 1) << u;
    for (const double u : {0.5, -0.5, 1.5}) EXPECT_TRUE(turn(u).cos == -1 && turn(u).sin == 0) << u;
    for (const double u : {0.75, -0.25}) EXPECT_TRUE(turn(u).cos == 0 && turn(u).sin == -1) << u;
    EXPECT_EQ(turn(0x1p-1074).cos, 1);
    EXPECT_EQ(turn(0x1p-1074).sin, 6 * 0x1p-1074);
    for (const double u : {infinity, -infinity, nan}) EXPECT_TRUE(std::isnan(turn(u).cos) && std::isnan(turn(u).sin)) << u;
}

/// Values of all functions at the points of number n.
constexpr std::array<double, 6> values(uint64_t n) {
    const Philox bits = philox({static_cast<uint32_t>(n), 1, 2, 3}, {4, 5});
    const double u = (static_cast<double>(bits[0]) + 0.5) * 0x1p-32, x = (static_cast<double>(bits[1]) * 0x1p-32 - 0.5) * 1400;
    return {elementary::exp(x),
            static_cast<double>(elementary::exp(static_cast<float>(x / 8))),
            elementary::log(u * static_cast<double>(bits[2])),
            turn(u).cos,
            turn(u).sin,
            elementary::power(u, bits[3] % 64)};
}
template <typename Value>
constexpr std::array<Value, 64> table(Value (*value)(uint64_t)) {
    std::array<Value, 64> all{};
    for (uint64_t n = 0; n < all.size(); ++n) all[n] = value(n);
    return all;
}

// The compiler computes without the CPU.
TEST(Elementary, HasTheBitsThatTheCompilerComputes) {
    constexpr auto wanted = table(values);
    for (uint64_t n = 0; n < wanted.size(); ++n) {
        volatile uint64_t unknown = n;   // to the compiler
        EXPECT_EQ(values(unknown), wanted[n]) << n;
    }
}

TEST(Elementary, HasTheBitsOfEveryOtherMachine) {
    std::vector<double> all;
    for (uint64_t n = 0; n < 100'000; ++n)
        for (const double each : values(n)) all.push_back(each);
    EXPECT_EQ(sha256_hex(std::as_bytes(std::span(all))), "0bc4e2b3204efc6826dc6548c55fec9f738669569535284c6cab0edec99524c5");
}

}   // namespace
}   // namespace gradcast
