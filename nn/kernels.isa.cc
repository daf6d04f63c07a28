#include "nn/kernels.h"

#include "runtime/core/rng.h"

namespace gradcast {
namespace GC_ISA {
namespace {

void normalise(float* __restrict dst, const uint8_t* __restrict src, uint64_t count, float scale, float shift) {
    for (uint64_t i = 0; i < count; ++i) dst[i] = static_cast<float>(src[i]) * scale + shift;
}

// 16 bytes of 16 samples at a time, transposed by four rounds that interleave the first half of the rows with the second.
void normalise16(float* dst, const uint8_t* src, uint64_t stride, uint32_t samples, uint64_t count, float scale, float shift) {
    typedef uint8_t Bytes __attribute__((vector_size(16)));
    for (uint64_t begin = 0; begin < count; begin += 16) {
        const uint64_t i = count < 16 || begin + 16 <= count ? begin : count - 16;   // the last 16 may overlap those before
        const uint64_t some = count < 16 ? count : 16;
        Bytes rows[16] = {}, mixed[16];
        for (uint32_t n = 0; n < samples; ++n) {
            if (some == 16) __builtin_memcpy(&rows[n], src + n * stride + i, 16);
            else __builtin_memcpy(&rows[n], src + n * stride + i, some);
        }
        for (uint32_t round = 0; round < 4; ++round) {
            for (uint32_t n = 0; n < 8; ++n) {
                mixed[2 * n] = __builtin_shufflevector(rows[n], rows[n + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
                mixed[2 * n + 1] =
                    __builtin_shufflevector(rows[n], rows[n + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
            }
            __builtin_memcpy(rows, mixed, sizeof rows);
        }
        const auto* bytes = reinterpret_cast<const uint8_t*>(rows);
        normalise(dst + i * 16, bytes, some * 16, scale, shift);
        for (uint64_t j = 0; samples < 16 && j < some; ++j)
            for (uint32_t n = 0; n < 16; ++n) dst[(i + j) * 16 + n] = n < samples ? dst[(i + j) * 16 + n] : 0.0f;
    }
}

void relu(float* x, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) x[i] = x[i] < 0 ? 0.0f : x[i];
}

void relu_backward(float* __restrict dx, const float* __restrict y, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) dx[i] = y[i] > 0 ? dx[i] : 0.0f;
}

// A bf16 is negative where its upper bit is set, and NaN where the rest is above infinity's.
void relu_bf16(uint16_t* x, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) x[i] = x[i] > 0x8000 && x[i] <= 0xff80 ? 0 : x[i];
}

void relu_backward_bf16(uint16_t* __restrict dx, const uint16_t* __restrict y, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) dx[i] = static_cast<uint16_t>(y[i] - 1) < 0x7f80 ? dx[i] : 0;
}

// Vectors of `width` channels, which GCC puts into one or more registers.
template <uint32_t width>
struct Vector {
    typedef float F __attribute__((vector_size(width * sizeof(float))));
    typedef int32_t I __attribute__((vector_size(width * sizeof(int32_t))));
    typedef uint8_t B __attribute__((vector_size(width)));
    typedef double D __attribute__((vector_size(width * sizeof(double))));
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
    for (uint32_t plane = 0; plane < s.planes; ++plane) {
        const float* const from = x + s.begin(plane);
        for (uint32_t p = 0; p < s.P; ++p)
            for (uint32_t q = 0; q < s.Q; ++q, y += width, winners += width) {
                typename V::F best = {}, value;
                typename V::I winner = {};
                bool first = true;
                window(s, p, q, [&](uint32_t place, uint64_t pixel) {
                    load(value, from + pixel * s.apart);
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
}

void fill_zeros(float* to, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) to[i] = 0;
}

template <uint32_t width>
void max_pool_backward_of(float* dx, const float* dy, const uint8_t* winners, const PoolShape& s) {
    using V = Vector<width>;
    bool tiles = s.stride == s.kernel && s.pad == 0 && s.P * s.stride == s.H && s.Q * s.stride == s.W;   // each pixel is in one window
    for (uint32_t plane = 0; plane < s.planes; ++plane) {
        float* const to = dx + s.begin(plane);
        if (!tiles && plane % s.together() == 0) fill_zeros(to, s.pixels() * s.apart);
        for (uint32_t p = 0; p < s.P; ++p)
            for (uint32_t q = 0; q < s.Q; ++q, dy += width, winners += width) {
                typename V::F gradient, before = {};
                typename V::B bytes;
                load(gradient, dy), load(bytes, winners);
                typename V::I winner = __builtin_convertvector(bytes, typename V::I);
                window(s, p, q, [&](uint32_t place, uint64_t pixel) {
                    typename V::F share = winner == static_cast<int32_t>(place) ? gradient : (typename V::F){};
                    if (!tiles) load(before, to + pixel * s.apart);
                    store(to + pixel * s.apart, tiles ? share : before + share);
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

template <uint32_t width>
void average_pool_of(float* y, const float* x, const PoolShape& s) {
    using V = Vector<width>;
    for (uint32_t plane = 0; plane < s.planes; ++plane) {
        const float* const from = x + s.begin(plane);
        for (uint32_t p = 0; p < s.P; ++p)
            for (uint32_t q = 0; q < s.Q; ++q, y += width) {
                typename V::F sum = {}, value;
                uint32_t inside = 0;
                window(s, p, q, [&](uint32_t, uint64_t pixel) {
                    load(value, from + pixel * s.apart);
                    sum += value;
                    ++inside;
                });
                store(y, sum / static_cast<float>(inside));
            }
    }
}

template <uint32_t width>
void average_pool_backward_of(float* dx, const float* dy, const PoolShape& s) {
    using V = Vector<width>;
    for (uint32_t plane = 0; plane < s.planes; ++plane) {
        float* const to = dx + s.begin(plane);
        if (plane % s.together() == 0) fill_zeros(to, s.pixels() * s.apart);
        for (uint32_t p = 0; p < s.P; ++p)
            for (uint32_t q = 0; q < s.Q; ++q, dy += width) {
                typename V::F share, before;
                uint32_t inside = 0;
                window(s, p, q, [&](uint32_t, uint64_t) { ++inside; });
                load(share, dy);
                share /= static_cast<float>(inside);
                window(s, p, q, [&](uint32_t, uint64_t pixel) {
                    load(before, to + pixel * s.apart);
                    store(to + pixel * s.apart, before + share);
                });
            }
    }
}

void average_pool(float* y, const float* x, const PoolShape& s) {
    s.width == 8 ? average_pool_of<8>(y, x, s) : average_pool_of<16>(y, x, s);
}
void average_pool_backward(float* dx, const float* dy, const PoolShape& s) {
    s.width == 8 ? average_pool_backward_of<8>(dx, dy, s) : average_pool_backward_of<16>(dx, dy, s);
}

/// Calls visit(offset of the pixel in x) for all pixels of a group of channels, and flush() after at most 64 of them, which are summed in
/// float.
template <typename Visit, typename Flush>
inline __attribute__((always_inline)) void channel_pixels(const ChannelShape& s, uint32_t group, Visit visit, Flush flush) {
    for (uint32_t n = 0; n < s.samples; ++n) {
        uint64_t first = (uint64_t{n} * s.groups + group) * s.pixels;
        for (uint64_t begin = 0; begin < s.pixels; begin += 64) {
            uint64_t end = begin + 64 < s.pixels ? begin + 64 : s.pixels;
            for (uint64_t pixel = begin; pixel < end; ++pixel) visit((first + pixel) * s.width);
            flush();
        }
    }
}

template <uint32_t width>
void channel_sums_of(double* sums, const float* x, const float* mean, const ChannelShape& s) {
    using V = Vector<width>;
    for (uint32_t group = 0; group < s.groups; ++group) {
        typename V::F part = {}, value, centre = {};
        typename V::D total = {};
        if (mean) load(centre, mean + group * width);
        auto flush = [&] { total += __builtin_convertvector(part, typename V::D), part = (typename V::F){}; };
        if (mean) {
            channel_pixels(
                s, group,
                [&](uint64_t at) {
                    load(value, x + at);
                    value -= centre;
                    part += value * value;
                },
                flush);
        } else {
            channel_pixels(
                s, group,
                [&](uint64_t at) {
                    load(value, x + at);
                    part += value;
                },
                flush);
        }
        store(sums + group * width, total);
    }
}

template <uint32_t width>
void channel_products_of(double* dy_sums, double* dyx_sums, const float* dy, const float* x, const float* mean, const ChannelShape& s) {
    using V = Vector<width>;
    for (uint32_t group = 0; group < s.groups; ++group) {
        typename V::F part = {}, product = {}, value, gradient, centre;
        typename V::D total = {}, product_total = {};
        load(centre, mean + group * width);
        channel_pixels(
            s, group,
            [&](uint64_t at) {
                load(value, x + at), load(gradient, dy + at);
                part += gradient;
                product += gradient * (value - centre);
            },
            [&] {
                total += __builtin_convertvector(part, typename V::D);
                part = (typename V::F){};
                product_total += __builtin_convertvector(product, typename V::D);
                product = (typename V::F){};
            });
        store(dy_sums + group * width, total), store(dyx_sums + group * width, product_total);
    }
}

template <uint32_t width>
void channel_affine_of(float* y, const float* x, const float* mean, const float* scale, const float* shift, const ChannelShape& s) {
    using V = Vector<width>;
    for (uint32_t group = 0; group < s.groups; ++group) {
        typename V::F value, centre, factor, constant;
        load(centre, mean + group * width), load(factor, scale + group * width), load(constant, shift + group * width);
        channel_pixels(
            s, group,
            [&](uint64_t at) {
                load(value, x + at);
                store(y + at, (value - centre) * factor + constant);
            },
            [] {});
    }
}

template <uint32_t width>
void channel_affine_backward_of(float* dx, const float* dy, const float* x, const float* mean, const float* a, const float* b,
                                const float* c, const ChannelShape& s) {
    using V = Vector<width>;
    for (uint32_t group = 0; group < s.groups; ++group) {
        typename V::F value, gradient, centre, of_gradient, of_value, constant;
        load(centre, mean + group * width), load(of_gradient, a + group * width);
        load(of_value, b + group * width), load(constant, c + group * width);
        channel_pixels(
            s, group,
            [&](uint64_t at) {
                load(value, x + at), load(gradient, dy + at);
                store(dx + at, gradient * of_gradient + ((value - centre) * of_value + constant));
            },
            [] {});
    }
}

void channel_sums(double* sums, const float* x, const float* mean, const ChannelShape& s) {
    s.width == 8 ? channel_sums_of<8>(sums, x, mean, s) : channel_sums_of<16>(sums, x, mean, s);
}
void channel_products(double* dy_sums, double* dyx_sums, const float* dy, const float* x, const float* mean, const ChannelShape& s) {
    s.width == 8 ? channel_products_of<8>(dy_sums, dyx_sums, dy, x, mean, s) : channel_products_of<16>(dy_sums, dyx_sums, dy, x, mean, s);
}
void channel_affine(float* y, const float* x, const float* mean, const float* scale, const float* shift, const ChannelShape& s) {
    s.width == 8 ? channel_affine_of<8>(y, x, mean, scale, shift, s) : channel_affine_of<16>(y, x, mean, scale, shift, s);
}
void channel_affine_backward(float* dx, const float* dy, const float* x, const float* mean, const float* a, const float* b, const float* c,
                             const ChannelShape& s) {
    s.width == 8 ? channel_affine_backward_of<8>(dx, dy, x, mean, a, b, c, s) : channel_affine_backward_of<16>(dx, dy, x, mean, a, b, c, s);
}

// Philox as in runtime/core/rng.h, 16 draws side by side in two vectors.  Each word has 64 bits, as products need them.
void dropout(float* x, uint64_t count, const DropoutKey& key) {
    typedef uint64_t V __attribute__((vector_size(64)));
    const uint32_t drop = key.drop;   // a copy, as x may alias the key
    const float scale = key.scale;
    constexpr V low = V{} + 0xffffffff, places = {0, 1, 2, 3, 4, 5, 6, 7};
    for (uint64_t begin = 0; begin < count; begin += 128) {
        V w[2][4];
        for (uint32_t h = 0; h < 2; ++h) {
            w[h][0] = V{} + (key.sample & 0xffffffff);
            w[h][1] = V{} + (key.sample >> 32);
            w[h][2] = (key.first + (begin / 8 + h * 8 + places) * key.stride) & low;
            w[h][3] = V{} + static_cast<uint64_t>(Purpose::dropout);
        }
        auto k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);
        for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9, k1 += 0xBB67AE85)
            for (V* words : {w[0], w[1]}) {
                const V a = words[0] * 0xD2511F53, b = words[2] * 0xCD9E8D57;
                words[0] = (b >> 32) ^ words[1] ^ k0;
                words[1] = b & low;
                words[2] = (a >> 32) ^ words[3] ^ k1;
                words[3] = a & low;
            }
        uint16_t numbers[128];   // eight of each draw, the lower half of its first word first
        for (uint32_t h = 0; h < 2; ++h) {
            const V first = w[h][0] | w[h][1] << 32, second = w[h][2] | w[h][3] << 32;
            store(numbers + h * 64, __builtin_shufflevector(first, second, 0, 8, 1, 9, 2, 10, 3, 11));
            store(numbers + h * 64 + 32, __builtin_shufflevector(first, second, 4, 12, 5, 13, 6, 14, 7, 15));
        }
        uint64_t here = count - begin < 128 ? count - begin : 128;
        float* to = x + begin;
        for (uint64_t i = 0; i < here; ++i) to[i] = numbers[i] >= drop ? to[i] * scale : 0.0f;
    }
}

void add(float* y, const float* a, const float* b, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) y[i] = a[i] + b[i];
}

void multiply(float* y, const float* a, const float* b, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) y[i] = a[i] * b[i];
}

// Elements to prefetch ahead, across pages; no multiple of cpu/net.cc's apply_chunk, so that prefetches are spread evenly.  Lines to be
// written are prefetched for writing (PREFETCHW): other cores have read them.
constexpr uint64_t fetch_ahead = 704;
template <uint64_t some = 16, typename Fetch, typename Each>
inline __attribute__((always_inline)) void fetching(uint64_t count, Fetch fetch, Each each) {
    uint64_t i = 0;
    for (; i + 16 <= count; i += 16) {
        fetch(i);
#pragma GCC unroll 2
        for (uint64_t part = i; part < i + 16; part += some)
            for (uint64_t j = part; j < part + some; ++j) each(j);
    }
    for (; i < count; ++i) each(i);
}

template <typename Word>
void dequantise(float* __restrict dst, const Word* __restrict words, uint64_t count, double unit) {
    fetching<8>(   // 8 doubles are a vector
        count, [=](uint64_t i) { __builtin_prefetch(words + i + fetch_ahead); },
        [=](uint64_t i) { dst[i] = static_cast<float>(static_cast<double>(words[i]) * unit); });
}

void sgd(float* __restrict w, float* __restrict v, const float* __restrict g, uint64_t count, float lr, float momentum,
         float weight_decay) {
    if (!v)
        return fetching(
            count, [=](uint64_t i) { __builtin_prefetch(w + i + fetch_ahead, 1); },
            [=](uint64_t i) { w[i] -= lr * (g[i] + weight_decay * w[i]); });
    fetching(
        count, [=](uint64_t i) { __builtin_prefetch(w + i + fetch_ahead, 1), __builtin_prefetch(v + i + fetch_ahead, 1); },
        [=](uint64_t i) {
            v[i] = momentum * v[i] + (g[i] + weight_decay * w[i]);
            w[i] -= lr * v[i];
        });
}

void nesterov(float* __restrict w, float* __restrict v, const float* __restrict g, uint64_t count, float lr, float momentum,
              float weight_decay) {
    fetching(
        count, [=](uint64_t i) { __builtin_prefetch(w + i + fetch_ahead, 1), __builtin_prefetch(v + i + fetch_ahead, 1); },
        [=](uint64_t i) {
            float d = g[i] + weight_decay * w[i];
            v[i] = momentum * v[i] + d;
            w[i] -= lr * (d + momentum * v[i]);
        });
}

void adam(float* __restrict w, float* __restrict m, float* __restrict v, const float* __restrict g, uint64_t count, const AdamStep& step) {
    const AdamStep s = step;
    fetching(
        count,
        [=](uint64_t i) {
            __builtin_prefetch(w + i + fetch_ahead, 1), __builtin_prefetch(m + i + fetch_ahead, 1);
            __builtin_prefetch(v + i + fetch_ahead, 1);
        },
        [=](uint64_t i) {
            float d = g[i] + s.weight_decay * w[i];
            m[i] = s.beta1 * m[i] + s.rest1 * d;
            v[i] = s.beta2 * v[i] + s.rest2 * (d * d);
            w[i] -= s.rate * m[i] / (__builtin_sqrtf(v[i]) * s.root + s.epsilon);
        });
}

}   // namespace
extern const FloatKernels float_kernels = {normalise,
                                           normalise16,
                                           relu,
                                           relu_backward,
                                           relu_bf16,
                                           relu_backward_bf16,
                                           max_pool,
                                           max_pool_backward,
                                           average_pool,
                                           average_pool_backward,
                                           channel_sums,
                                           channel_products,
                                           channel_affine,
                                           channel_affine_backward,
                                           dropout,
                                           add,
                                           multiply,
                                           dequantise<int16_t>,
                                           dequantise<int32_t>,
                                           dequantise<int64_t>,
                                           sgd,
                                           nesterov,
                                           adam};
}   // namespace GC_ISA
}   // namespace gradcast
