// Functions of one number against the C library in double precision, and their loops in every build.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "nn/curves.h"
#include "tests/nn/rig.h"

namespace gradcast {
namespace {

struct ExactCurve {
    double value, slope;
};
double root(double x) { return std::sqrt(x); }
double share(double x) { return std::erfc(-x / root(2)) / 2; }
double density(double x) { return std::exp(-x * x / 2) / root(2 * M_PI); }
ExactCurve sigmoid_of(double x) { return {1 / (1 + std::exp(-x)), 1 / (2 + std::exp(x) + std::exp(-x))}; }
ExactCurve exact(Curve which, double x) {
    const double twice = 2 * root(2 / M_PI);
    const ExactCurve s = sigmoid_of(which == Curve::gelu_tanh ? twice * (x + 0.044715 * x * x * x) : x);
    switch (which) {
        case Curve::gelu: return {x * share(x), share(x) + x * density(x)};
        case Curve::gelu_tanh: return {x * s.value, s.value + x * s.slope * twice * (1 + 3 * 0.044715 * x * x)};
        case Curve::silu: return {x * s.value, s.value + x * s.slope};
        case Curve::sigmoid: return s;
        case Curve::tanh: return {std::tanh(x), 1 / (std::cosh(x) * std::cosh(x))};
    }
    return {};
}
constexpr Curve all_curves[] = {Curve::gelu, Curve::gelu_tanh, Curve::silu, Curve::sigmoid, Curve::tanh};

/// Calls check(x) for every 257th float between -`most` and `most`; GC_FLOATS=all: for every one.
template <typename Check>
void each_float(float most, Check check) {
    const char* const wish = std::getenv("GC_FLOATS");
    const uint32_t step = wish && std::string_view(wish) == "all" ? 1 : 257, end = std::bit_cast<uint32_t>(most);
    for (uint32_t bits = 0; bits <= end; bits += step)
        for (const uint32_t sign : {0u, 0x80000000u}) check(std::bit_cast<float>(bits | sign));
}

float value(Curve which, float x) {
    float y = 0;
    curve_kernels(which).forward(&y, &x, 1);
    return y;
}
float slope(Curve which, float x) {
    float dx = 0;
    const float one = 1;
    curve_kernels(which).backward(&dx, &one, &x, 1);
    return dx;
}

TEST(Curves, AreNearTheExactFunctions) {
    for (const Curve which : all_curves) {
        double worst = 0, worst_slope = 0;
        each_float(100, [&](float x) {
            const ExactCurve wanted = exact(which, static_cast<double>(x));
            const double scale = std::max(1.0, std::fabs(static_cast<double>(x)));
            worst = std::max(worst, std::fabs(static_cast<double>(value(which, x)) - wanted.value) / scale);
            worst_slope = std::max(worst_slope, std::fabs(static_cast<double>(slope(which, x)) - wanted.slope));
        });
        EXPECT_LT(worst, 1.5e-7) << static_cast<int>(which);
        EXPECT_LT(worst_slope, 3e-7) << static_cast<int>(which);
    }
}

// Where 1 + erf(x) would be 0, and where x / 2 (1 + tanh) would be.
TEST(Curves, KeepTheirRelativeErrorInTheTails) {
    auto off = [](float have, double wanted) { return std::fabs(static_cast<double>(have) / wanted - 1); };
    constexpr double least = 0x1p-126;   // of a normal number
    each_float(90, [&](float x) {
        const auto wide = static_cast<double>(x);
        const curves::Normal normal = curves::Functions::normal(x);
        if (share(wide) >= least) {
            ASSERT_LT(off(normal.share, share(wide)), 1e-6) << x;
        }
        if (density(wide) >= least) {
            ASSERT_LT(off(normal.density, density(wide)), 1e-6) << x;
        }
        if (std::fabs(wide) < least) return;
        if (const double s = exact(Curve::silu, wide).value; std::fabs(s) >= least) {
            ASSERT_LT(off(value(Curve::silu, x), s), 1e-6) << x;
        }
        if (const double t = std::tanh(wide); std::fabs(t) >= least) {
            ASSERT_LT(off(value(Curve::tanh, x), t), 3 * 0x1p-23) << x;
        }
    });
}

TEST(Curves, OfInfinitiesAndNaN) {
    for (const Curve which : all_curves) {
        EXPECT_TRUE(std::isnan(value(which, NAN)));
        EXPECT_TRUE(std::isnan(slope(which, NAN)));
        for (const float x : {3e38f, -3e38f}) {
            EXPECT_EQ(slope(which, x), which == Curve::sigmoid || which == Curve::tanh || x < 0 ? 0.0f : 1.0f) << static_cast<int>(which);
            EXPECT_EQ(value(which, x), which == Curve::sigmoid ? x > 0 : which == Curve::tanh ? std::copysign(1.0f, x) : std::max(x, 0.0f));
        }
        EXPECT_EQ(value(which, 0), which == Curve::sigmoid ? 0.5f : 0.0f);
    }
}

// No build's registers divide 1003 elements.
TEST(Curves, HaveTheSameBitsInEveryBuild) {
    std::vector<float> x = numbers(1003, 1), dy = numbers(1003, 2);
    for (size_t i = 0; i < x.size(); ++i) x[i] *= i % 3 ? 4.0f : 40.0f;
    for (uint32_t which = 0; which < curve_count; ++which) {
        std::vector<std::vector<float>> found;
        for (const auto& [name, kernels] : builds([which](Isa isa) { return curve_kernels(static_cast<Curve>(which), isa); })) {
            std::vector<float> y(x.size()), dx(x.size());
            kernels.forward(y.data(), x.data(), x.size());
            kernels.backward(dx.data(), dy.data(), x.data(), x.size());
            y.insert(y.end(), dx.begin(), dx.end());
            found.push_back(y);
            EXPECT_EQ(found[0], found.back()) << name << " " << which;
        }
        for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(found[0][i], value(static_cast<Curve>(which), x[i])) << which;
    }
}

}   // namespace
}   // namespace gradcast
