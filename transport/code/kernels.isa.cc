// The kernels of one instruction set.  The Makefile compiles this file once for each, with GC_ISA set to its name; the compiler makes the
// vectors. Written so that every build gives the same bits: integer arithmetic, and doubles of which each operation rounds alone.  Nothing
// inline from a header may be called here: the linker would keep one copy for all three, perhaps the one whose instructions this CPU lacks.
#include "transport/code/kernels.h"

#define GC_NAME_(isa) kernels_##isa
#define GC_NAME(isa) GC_NAME_(isa)

namespace gradcast {
namespace {

void add_i32(int32_t* __restrict dst, const int32_t* __restrict src, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) dst[i] = static_cast<int32_t>(static_cast<uint32_t>(dst[i]) + static_cast<uint32_t>(src[i]));
}

void add_i64(int64_t* __restrict dst, const int64_t* __restrict src, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) dst[i] = static_cast<int64_t>(static_cast<uint64_t>(dst[i]) + static_cast<uint64_t>(src[i]));
}

void add_i32_to_i64(int64_t* __restrict dst, const int32_t* __restrict src, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i)
        dst[i] = static_cast<int64_t>(static_cast<uint64_t>(dst[i]) + static_cast<uint64_t>(int64_t{src[i]}));
}

// Elements are taken in runs that fit the first-level cache, so that the maximum (a pass of its own over 32-bit lanes, where |x| compares
// as an integer and NaN is above Inf) reads from there and the loop over doubles stays in 64-bit lanes.
constexpr uint64_t run_max = 1024;

template <typename Signed, typename Unsigned, bool accumulate, bool divide>
QuantiseResult quantise(Signed* __restrict dst, const float* __restrict x, uint64_t count, const Scale& scale) {
    const double divisor = scale.divisor, factor = scale.factor, limit = scale.limit;
    // rint(v) is beyond the limit from limit + 1/2 on, or from the next double on where the tie goes to an even limit.
    const uint64_t tie_bits = __builtin_bit_cast(uint64_t, limit + 0.5);
    const double beyond = __builtin_bit_cast(double, tie_bits + (scale.limit % 2 == 0 ? 1 : 0));
    // Adding 3 * 2^51 to a |v| below 2^51 leaves rint(v), ties to even, in the low bits of the double.
    constexpr double magic = 0x1.8p52;
    constexpr uint64_t magic_bits = 0x4338000000000000;
    uint32_t maximum = 0;
    uint64_t clipped = 0;
    for (uint64_t start = 0; start < count; start += run_max) {
        const uint64_t run = count - start < run_max ? count - start : run_max;
        const float* __restrict from = x + start;
        Signed* __restrict to = dst + start;
        for (uint64_t i = 0; i < run; ++i) {
            const uint32_t magnitude = __builtin_bit_cast(uint32_t, from[i]) & 0x7FFFFFFF;
            maximum = magnitude > maximum ? magnitude : maximum;
        }
        for (uint64_t i = 0; i < run; ++i) {
            double v = from[i];
            if constexpr (divide) v /= divisor;
            v *= factor;
            const double size = __builtin_fabs(v);
            clipped += size < beyond ? 0 : 1;
            v = v < limit ? v : limit;   // NaN becomes the limit
            v = v > -limit ? v : -limit;
            const Unsigned q = static_cast<Unsigned>(__builtin_bit_cast(uint64_t, v + magic) - magic_bits);
            to[i] = static_cast<Signed>(accumulate ? static_cast<Unsigned>(to[i]) + q : q);
        }
    }
    return {__builtin_bit_cast(float, maximum), clipped};
}

template <typename Signed, typename Unsigned>
QuantiseResult quantise_any(Signed* dst, const float* x, uint64_t count, const Scale& scale, bool accumulate) {
    if (scale.divisor == 1.0)
        return accumulate ? quantise<Signed, Unsigned, true, false>(dst, x, count, scale)
                          : quantise<Signed, Unsigned, false, false>(dst, x, count, scale);
    return accumulate ? quantise<Signed, Unsigned, true, true>(dst, x, count, scale)
                      : quantise<Signed, Unsigned, false, true>(dst, x, count, scale);
}

}   // namespace

extern const WordKernels GC_NAME(GC_ISA);
const WordKernels GC_NAME(GC_ISA) = {add_i32, add_i64, add_i32_to_i64, quantise_any<int32_t, uint32_t>, quantise_any<int64_t, uint64_t>};

}   // namespace gradcast
