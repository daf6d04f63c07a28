// Elementary functions with the same bits on every machine.  The C library's may differ in the last bit: glibc chooses among variants by
// the CPU, whatever the job's `isa`.  Whatever a digest depends on calls these instead: initial weights, losses, schedules, synthetic data.
//
// They consist of +, -, * and / of IEEE 754 in a fixed order, to nearest, and of operations on bits.  No compiler flag for an instruction
// set changes them, because nothing is contracted to a fused multiply-add (-ffp-contract=off, -fmad=false).
//
// exp: x = k ln 2 + r by the two-part ln 2 of Cody and Waite 1980 ("Software Manual for the Elementary Functions"), then Taylor's series of
// exp(r), |r| <= ln(2) / 2.  log: x = 2^k (1 + f), s = f / (2 + f), then the series of 2 artanh(s), added up as in fdlibm (Sun Microsystems
// 1993, e_log.c).  turn: the nearest quarter of a turn, then Taylor's series.  tests/core/elementary_test.cc holds the error bounds against
// long double; 1 ulp is the distance of neighbouring numbers at the exact result.
#pragma once
#include <bit>
#include <cfloat>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace gradcast::elementary {

static_assert(FLT_EVAL_METHOD == 0);
#ifdef __FAST_MATH__
#error "elementary.h needs floating-point operations as they are written: leave out -ffast-math"
#endif

// Coefficients, the highest power first.
// 1 / n!, n = 13 .. 2; the factorials are exact in double.
constexpr double of_exp[] = {1 / 6227020800.0, 1 / 479001600.0, 1 / 39916800.0, 1 / 3628800.0, 1 / 362880.0, 1 / 40320.0,
                             1 / 5040.0,       1 / 720.0,       1 / 120.0,      1 / 24.0,      1 / 6.0,      1 / 2.0};
// 2 / n, n = 21 .. 3
constexpr double of_log[] = {2 / 21.0, 2 / 19.0, 2 / 17.0, 2 / 15.0, 2 / 13.0, 2 / 11.0, 2 / 9.0, 2 / 7.0, 2 / 5.0, 2 / 3.0};
// (2 pi)^n / n!, n = 16 .. 2 and 17 .. 1
constexpr double of_cos[] = {0x1.20c62c2f2d7f5p-2, 0x1.b6e24f44b128fp+0, 0x1.f9d38a3763cc3p+2, 0x1.a6d1f2a204a8cp+4,
                             0x1.e1f506891babbp+5, 0x1.55d3c7e3cbffap+6, 0x1.03c1f081b5ac4p+6, 0x1.3bd3cc9be45dep+4};
constexpr double of_sin[] = {0x1.aaec32af93359p-4, 0x1.6fadb9f155744p-1, 0x1.e8f434d018d63p+1, 0x1.e3074fde8871fp+3, 0x1.50783487ee782p+5,
                             0x1.32d2cce62bd86p+6, 0x1.466bc6775aae2p+6, 0x1.4abbce625be53p+5, 0x1.921fb54442d18p+2};

/// e^x of float or double.  Error below 1.2 ulp, also of a subnormal result; 0 and infinity where the result leaves the range; NaN gives
/// NaN. Without branches, so that loops are vectorised.
template <typename F>
constexpr F exp(F x) {
    constexpr bool wide = std::is_same_v<F, double>;
    static_assert(wide || std::is_same_v<F, float>);
    using Bits = std::conditional_t<wide, uint64_t, uint32_t>;
    constexpr int mantissa = std::numeric_limits<F>::digits - 1, bias = std::numeric_limits<F>::max_exponent - 1;
    constexpr F least = wide ? -746 : -104, most = wide ? 710 : 89;   // 0 and infinity from there on
    constexpr F log2_e = static_cast<F>(0x1.71547652b82fep+0);
    constexpr F ln2_high = static_cast<F>(wide ? 0x1.62e42feep-1 : 0x1.62e4p-1);   // k ln2_high is exact
    constexpr F ln2_low = static_cast<F>(wide ? 0x1.a39ef35793c76p-33 : 0x1.7f7d1cp-20);
    constexpr F whole = static_cast<F>(wide ? 0x1.8p52 : 0x1.8p23);   // x + whole is x rounded to an integer, in the low bits
    constexpr int terms = wide ? 12 : 6, first = 12 - terms;
    x = x < least ? least : x;
    x = x > most ? most : x;
    const F shifted = x * log2_e + whole, k = shifted - whole;
    const F r = (x - k * ln2_high) - k * ln2_low;
    F q = static_cast<F>(of_exp[first]);
#ifndef __CUDACC__   // which does not know it
#pragma GCC unroll 12
#endif
    for (int i = 1; i < terms; ++i) q = q * r + static_cast<F>(of_exp[first + i]);
    const F of_r = 1 + (r + r * r * q);
    // Times 2^k in two steps, neither of which leaves the range before the result does.
    const Bits all = std::bit_cast<Bits>(shifted) - std::bit_cast<Bits>(whole) + 2 * bias, half = all / 2;
    return of_r * std::bit_cast<F>(half << mantissa) * std::bit_cast<F>((all - half) << mantissa);
}

/// The natural logarithm.  Error below 1 ulp.  0 gives -infinity; a number below 0 and NaN give NaN.
constexpr double log(double x) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    constexpr double ln2_high = 0x1.62e42feep-1, ln2_low = 0x1.a39ef35793c76p-33;
    constexpr uint64_t one = 0x3ff0000000000000, root = 0x3fe6a09e667f3bcd, mantissa = 0xfffffffffffff;   // root: of 1/2
    if (!(x > 0)) return x == 0 ? -infinity : std::numeric_limits<double>::quiet_NaN();
    if (x == infinity) return x;
    int exponent = -1023;
    if (x < DBL_MIN) x *= 0x1p54, exponent -= 54;
    const uint64_t bits = std::bit_cast<uint64_t>(x) + (one - root);
    const double k = exponent + static_cast<int>(bits >> 52);
    const double f = std::bit_cast<double>((bits & mantissa) + root) - 1;   // 1 + f in sqrt(1/2) .. sqrt(2)
    const double s = f / (2 + f), square = s * s, half = f * f / 2;
    double rest = 0;   // 2 artanh(s) / s - 2
    for (const double each : of_log) rest = square * (rest + each);
    return k * ln2_high - ((half - (s * (half + rest) + k * ln2_low)) - f);
}

struct Turn {
    double cos, sin;
};
/// cos and sin of 2 pi u, |u| <= 2^50.  Error below 2 ulp; quarters of a turn are exact.  Infinity and NaN give NaN.
constexpr Turn turn(double u) {
    constexpr double whole = 0x1.8p52;
    const double shifted = 4 * u + whole, r = u - (shifted - whole) / 4, square = r * r;
    double cosine = 0, sine = 0;
    for (const double each : of_cos) cosine = each - square * cosine;
    cosine = 1 - square * cosine;
    for (const double each : of_sin) sine = each - square * sine;
    sine = r * sine;
    switch (std::bit_cast<uint64_t>(shifted) % 4) {
        case 0: return {cosine, sine};
        case 1: return {-sine, cosine};
        case 2: return {-cosine, -sine};
        default: return {sine, -cosine};
    }
}

/// base^exponent by squaring.  Relative error below exponent 2^-53.
constexpr double power(double base, uint64_t exponent) {
    double result = 1;
    for (; exponent; exponent >>= 1, base *= base)
        if (exponent & 1) result *= base;
    return result;
}

}   // namespace gradcast::elementary
