// Functions of one number that layers apply to each element: their values and slopes.
//
//     gelu       x Phi(x), Phi the distribution function of the normal distribution (Hendrycks, Gimpel 2016)
//     gelu_tanh  x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
//     silu       x / (1 + e^-x)
//     sigmoid    1 / (1 + e^-x)
//     tanh       (1 - e^-2x) / (1 + e^-2x)
//
// On CPUs they consist of +, -, * and / of floats in a fixed order and of operations on bits, as runtime/core/elementary.h, so each has the
// same bits in every build.  On GPUs e^x, tanh and the normal distribution are CUDA's: curve() is one text for both, with `Functions` for
// the rest.  tests/nn/curves_test.cc holds the error bounds against the C library in double.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>

#include "nn/graph/curves.h"
#include "runtime/core/elementary.h"
#include "runtime/core/isa.h"

#ifdef __CUDACC__
#define GC_OF_DEVICE __host__ __device__
#else
#define GC_OF_DEVICE
#endif

namespace gradcast {

namespace curves {

/// The normal distribution at x: the share below x, and the density.
struct Normal {
    float share, density;
};
constexpr float density_at_0 = 0x1.988454p-2f;

// Coefficients, the highest power first.
// (tanh(x) - x) / x^3 in x^2
constexpr float of_tanh[] = {0x1.36c02ep-9f, -0x1.13955ap-7f, 0x1.64faf0p-6f, -0x1.ba0d94p-5f, 0x1.1110f6p-3f, -0x1.555556p-2f};
// The share above a, divided by t e^(-a^2 / 2), in t = 1 / (1 + a / 4)
constexpr float of_share[] = {0x1.1daf74p-6f, -0x1.14b558p-4f, 0x1.029eecp-4f, 0x1.9fb578p-7f, 0x1.ad8136p-6f,
                              0x1.4440a8p-4f, 0x1.31ea3cp-4f,  0x1.84c73cp-4f, 0x1.97d474p-4f, 0x1.988d00p-4f};
// 1 / n!, n = 4 .. 0
constexpr float of_rest[] = {0x1.555556p-5f, 0x1.555556p-3f, 0.5f, 1, 1};

/// By Horner's scheme.
template <size_t count>
constexpr float polynomial(const float (&coefficients)[count], float x) {
    float sum = coefficients[0];
#ifndef __CUDACC__
#pragma GCC unroll 12
#endif
    for (size_t i = 1; i < count; ++i) sum = sum * x + coefficients[i];
    return sum;
}

GC_OF_DEVICE constexpr float size_of(float x) { return x < 0 ? -x : x; }

/// The functions of CPUs.  Choices are between values that are both computed, so that loops are vectorised.
struct Functions {
    static constexpr float exp(float x) { return elementary::exp(x); }

    /// Error below 3 ulp.  Near 0 x + x^3 P(x^2), P a minimax polynomial for |x| up to 0.6.
    static constexpr float tanh(float x) {
        const float size = size_of(x), e = exp(-2 * size), square = x * x;
        const float near = size + size * square * polynomial(of_tanh, square), far = (1 - e) / (1 + e);
        const float value = size < 0.6f ? near : far;
        return x < 0 ? -value : value;
    }

    /// Relative error of both below 1e-6 where they are normal numbers.  P is a minimax polynomial for a = |x| up to
    /// 15.5, where both are 0.  a^2 = h^2 + (a - h)(a + h), where h has the upper 12 bits of a's mantissa: h^2 is exact.
    static constexpr Normal normal(float x) {
        const float size = size_of(x), a = size > 15.5f ? 15.5f : size, t = 1 / (1 + 0.25f * a);
        const float h = std::bit_cast<float>(std::bit_cast<uint32_t>(a) & 0xfffff000);
        const float e = exp(-0.5f * (h * h)) * polynomial(of_rest, -0.5f * ((a - h) * (a + h)));
        const float above = t * polynomial(of_share, t) * e;
        return {x < 0 ? above : 1 - above, density_at_0 * e};
    }
};

struct Point {
    float value, slope;
};
/// 1 / (1 + e^-x).  Without cancellation: both are quotients of positive numbers.
template <typename Functions>
GC_OF_DEVICE constexpr Point sigmoid(float x) {
    const float e = Functions::exp(-size_of(x)), root = 1 / (1 + e);
    return {x < 0 ? e * root : root, e * root * root};
}

}   // namespace curves

/// Value and slope at x.  NaN gives NaN.
template <Curve which, typename Functions = curves::Functions>
GC_OF_DEVICE constexpr curves::Point curve(float x) {
    if constexpr (which == Curve::gelu) {
        const curves::Normal normal = Functions::normal(x);
        return {x * normal.share, normal.share + x * normal.density};
    } else if constexpr (which == Curve::gelu_tanh) {   // (1 + tanh(u)) / 2 = sigmoid(2 u)
        constexpr float cube = 0.044715f, twice = 2 * curves::root_2_by_pi;
        const float near = x < -16 ? -16 : x > 16 ? 16 : x, square = near * near;   // e^-u is 0 before
        const curves::Point s = curves::sigmoid<Functions>(twice * (near + cube * (square * near)));
        return {x * s.value, s.value + x * s.slope * (twice * (1 + 3 * cube * square))};
    } else if constexpr (which == Curve::silu) {
        const curves::Point s = curves::sigmoid<Functions>(x);
        return {x * s.value, s.value + x * s.slope};
    } else if constexpr (which == Curve::sigmoid) {
        return curves::sigmoid<Functions>(x);
    } else {
        const float e = Functions::exp(-2 * curves::size_of(x)), root = 1 / (1 + e);
        return {Functions::tanh(x), 4 * e * root * root};
    }
}

/// Loops over them on the CPU, in three builds of one file with the same bits, so by default the fastest of this CPU is taken.
struct CurveKernels {
    /// y = f(x); y may be x.
    void (*forward)(float* y, const float* x, uint64_t count);
    /// dx = dy f'(x); dx may be dy.
    void (*backward)(float* dx, const float* dy, const float* x, uint64_t count);
};
const CurveKernels& curve_kernels(Curve which, Isa isa = isa_best());

}   // namespace gradcast
