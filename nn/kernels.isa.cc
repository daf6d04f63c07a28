#include "nn/kernels.h"

namespace gradcast {
namespace GC_ISA {
namespace {

void normalise(float* __restrict dst, const uint8_t* __restrict src, uint64_t count, float scale, float shift) {
    for (uint64_t i = 0; i < count; ++i) dst[i] = static_cast<float>(src[i]) * scale + shift;
}

void relu(float* x, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) x[i] = x[i] < 0 ? 0.0f : x[i];
}

void relu_backward(float* __restrict dx, const float* __restrict y, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) dx[i] = y[i] > 0 ? dx[i] : 0.0f;
}

// Vectors of the compiler's own kind, `width` channels each: one register, or as many as this instruction set needs.
template <uint32_t width>
struct Vector {
    typedef float F __attribute__((vector_size(width * sizeof(float))));
    typedef int32_t I __attribute__((vector_size(width * sizeof(int32_t))));
    typedef uint8_t B __attribute__((vector_size(width)));
};
// The memory need not be aligned to a vector.
template <typename V>
inline __attribute__((always_inline)) void load(V& to, const void* from) {
    __builtin_memcpy(&to, from, sizeof(V));
}
template <typename V>
inline __attribute__((always_inline)) void store(void* to, const V& from) {
    __builtin_memcpy(to, &from, sizeof(V));
}

/// Calls visit(place in the window, offset of the pixel in the plane) for the places of window (p, q) that lie inside.
template <typename Visit>
inline __attribute__((always_inline)) void window(const PoolShape& s, uint32_t p, uint32_t q, Visit visit) {
    for (uint32_t r = 0; r < s.kernel; ++r) {
        uint32_t h = p * s.stride + r - s.pad;   // wraps below 0, and is then not below H
        if (h >= s.H) continue;
        for (uint32_t t = 0; t < s.kernel; ++t)
            if (uint32_t w = q * s.stride + t - s.pad; w < s.W) visit(r * s.kernel + t, uint64_t{h} * s.W + w);
    }
}

template <uint32_t width>
void max_pool_of(float* y, uint8_t* winners, const float* x, const PoolShape& s) {
    using V = Vector<width>;
    for (uint32_t plane = 0; plane < s.planes; ++plane, x += uint64_t{s.H} * s.W * width)
        for (uint32_t p = 0; p < s.P; ++p)
            for (uint32_t q = 0; q < s.Q; ++q, y += width, winners += width) {
                typename V::F best = {}, value;
                typename V::I winner = {};
                bool first = true;
                window(s, p, q, [&](uint32_t place, uint64_t pixel) {
                    load(value, x + pixel * width);
                    typename V::I here = (typename V::I){} + static_cast<int32_t>(place);
                    typename V::I nan = value != value;   // NOLINT(misc-redundant-expression)
                    typename V::I takes = first ? (typename V::I){} - 1 : (typename V::I)(value > best) | nan;
                    best = takes ? value : best;
                    winner = takes ? here : winner;
                    first = false;
                });
                store(y, best);
                store(winners, __builtin_convertvector(winner, typename V::B));
            }
}

template <uint32_t width>
void max_pool_backward_of(float* dx, const float* dy, const uint8_t* winners, const PoolShape& s) {
    using V = Vector<width>;
    bool tiles = s.stride == s.kernel && s.pad == 0 && s.P * s.stride == s.H && s.Q * s.stride == s.W;   // each pixel is in one window
    uint64_t plane_size = uint64_t{s.H} * s.W * width;
    for (uint32_t plane = 0; plane < s.planes; ++plane, dx += plane_size) {
        if (!tiles)
            for (uint64_t i = 0; i < plane_size; ++i) dx[i] = 0;
        for (uint32_t p = 0; p < s.P; ++p)
            for (uint32_t q = 0; q < s.Q; ++q, dy += width, winners += width) {
                typename V::F gradient, before = {};
                typename V::B bytes;
                load(gradient, dy), load(bytes, winners);
                typename V::I winner = __builtin_convertvector(bytes, typename V::I);
                window(s, p, q, [&](uint32_t place, uint64_t pixel) {
                    typename V::F share = winner == static_cast<int32_t>(place) ? gradient : (typename V::F){};
                    if (!tiles) load(before, dx + pixel * width);
                    store(dx + pixel * width, tiles ? share : before + share);
                });
            }
    }
}

void max_pool(float* y, uint8_t* winners, const float* x, const PoolShape& s) {
    s.width == 8 ? max_pool_of<8>(y, winners, x, s) : max_pool_of<16>(y, winners, x, s);
}
void max_pool_backward(float* dx, const float* dy, const uint8_t* winners, const PoolShape& s) {
    s.width == 8 ? max_pool_backward_of<8>(dx, dy, winners, s) : max_pool_backward_of<16>(dx, dy, winners, s);
}

template <typename Word>
void dequantise(float* __restrict dst, const Word* __restrict words, uint64_t count, double unit) {
    for (uint64_t i = 0; i < count; ++i) dst[i] = static_cast<float>(static_cast<double>(words[i]) * unit);
}

void sgd(float* __restrict w, float* __restrict v, const float* __restrict g, uint64_t count, float lr, float momentum,
         float weight_decay) {
    if (!v) {
        for (uint64_t i = 0; i < count; ++i) w[i] -= lr * (g[i] + weight_decay * w[i]);
        return;
    }
    for (uint64_t i = 0; i < count; ++i) {
        v[i] = momentum * v[i] + (g[i] + weight_decay * w[i]);
        w[i] -= lr * v[i];
    }
}

}   // namespace
extern const FloatKernels float_kernels = {
    normalise, relu, relu_backward, max_pool, max_pool_backward, dequantise<int16_t>, dequantise<int32_t>, dequantise<int64_t>, sgd};
}   // namespace GC_ISA
}   // namespace gradcast
