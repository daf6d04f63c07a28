// Choices between sums are vectorised only where the compiler may compute both.  It changes no value.
#pragma GCC optimize("no-trapping-math")
#include "nn/curves.h"

namespace gradcast {
namespace GC_ISA {
namespace {

template <Curve which>
void forward(float* y, const float* x, uint64_t count) {
#pragma GCC ivdep
    for (uint64_t i = 0; i < count; ++i) y[i] = curve<which>(x[i]).value;
}
template <Curve which>
void backward(float* dx, const float* dy, const float* x, uint64_t count) {
#pragma GCC ivdep
    for (uint64_t i = 0; i < count; ++i) dx[i] = dy[i] * curve<which>(x[i]).slope;
}
template <Curve which>
constexpr CurveKernels both = {forward<which>, backward<which>};

}   // namespace

extern const CurveKernels curve_kernels[curve_count];
const CurveKernels curve_kernels[] = {both<Curve::gelu>, both<Curve::gelu_tanh>, both<Curve::silu>, both<Curve::sigmoid>,
                                      both<Curve::tanh>};

}   // namespace GC_ISA
}   // namespace gradcast
