#include "nn/cpu/conv16.h"
#include "nn/cpu/transpose.h"

namespace gradcast {
namespace GC_ISA {
namespace {

// Sizes of tiles, which the registers hold.
#if defined(__AVX512F__)
constexpr uint32_t pixels_most = 4, rows_most = 4, pooled_most = 6, pooled_rows_most = 5, looked_up_most = 6;
#elif defined(__AVX2__)
constexpr uint32_t pixels_most = 2, rows_most = 2, pooled_most = 2, pooled_rows_most = 1, looked_up_most = 3;
#else
constexpr uint32_t pixels_most = 2, rows_most = 2, pooled_most = 2, pooled_rows_most = 1, looked_up_most = 1;
#endif
constexpr bool looks_up = width > 4;
constexpr uint32_t channels_most = 6;    // of a tile
constexpr uint64_t level1 = 16 * 1024;   // bytes of dy that are used by all weights before the next ones

// By lanes: bits: whether one of the bits is set.  either: a choice.  look_up: four[place].
#define GC_INLINE inline __attribute__((always_inline))
#if defined(__AVX512F__)
typedef __mmask16 Mask;
GC_INLINE Mask bits(const I& lanes, int32_t wanted) {
    return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(lanes), _mm512_set1_epi32(wanted));
}
GC_INLINE V either(Mask mask, const V& yes, const V& no) {
    return static_cast<V>(_mm512_mask_blend_ps(mask, static_cast<__m512>(no), static_cast<__m512>(yes)));
}
GC_INLINE V look_up(const float* four, const I& place) {
    constexpr __mmask16 every = 0xffff;   // GCC 12 warns of its own header without masks
    const __m512 fours = _mm512_maskz_broadcast_f32x4(every, _mm_loadu_ps(four));
    return static_cast<V>(_mm512_maskz_permutevar_ps(every, fours, reinterpret_cast<__m512i>(place)));
}
#else
typedef I Mask;
GC_INLINE Mask bits(const I& lanes, int32_t wanted) { return (lanes & wanted) != 0; }
GC_INLINE V either(const Mask& mask, const V& yes, const V& no) { return mask ? yes : no; }
#if defined(__AVX2__)
GC_INLINE V look_up(const float* four, const I& place) {
    return static_cast<V>(
        _mm256_permutevar_ps(_mm256_broadcast_ps(reinterpret_cast<const __m128*>(four)), reinterpret_cast<__m256i>(place)));
}
#else
GC_INLINE V look_up(const float*, const I&) { return V{}; }
#endif
#endif

/// A load that GCC does not repeat at each use.
GC_INLINE V once(const float* from) {
    V v = load(from);
#if defined(__AVX512F__)
    asm("" : "+v"(v));
#endif
    return v;
}

/// Output channels of a tile: at most channels_most, and as even as possible.
uint32_t tile_of(uint32_t outputs) {
    const uint32_t tiles = (outputs + channels_most - 1) / channels_most;
    return (outputs + tiles - 1) / tiles;
}

// ---- forward; backward data is the same with turned weights --------------------------------------------------------------------

/// One row of y and the rows of x that it is computed from.  Weights [inputs][R][S][channels_most].
struct Strip {
    float* y;
    const float *x, *w, *bias;   // bias may be null
    uint64_t y_plane, x_plane, x_row;
    uint32_t pixels, inputs, first_row, end_row, R, S;
    uint32_t zeros;   // pixels at both ends of each row of x that are 0
};

template <uint32_t channels, uint32_t pixels>
inline __attribute__((always_inline)) void tile(const Strip& t, uint64_t pixel) {
    V sum[channels][pixels], x[pixels];
    for (uint32_t k = 0; k < channels; ++k)
        for (uint32_t q = 0; q < pixels; ++q) sum[k][q] = all(t.bias ? t.bias[k] : 0.0f);
    // Leaves out taps that meet zeros alone.
    const uint32_t row = t.pixels + t.S - 1, last = static_cast<uint32_t>(pixel) + pixels - 1;
    const uint32_t first = t.zeros > last ? t.zeros - last : 0, end = least(t.S, row - t.zeros - static_cast<uint32_t>(pixel));
    for (uint32_t c = 0; c < t.inputs; ++c)
        for (uint32_t r = t.first_row; r < t.end_row; ++r) {
            const float* from = t.x + c * t.x_plane + r * t.x_row + (pixel + first) * 16;
            const float* w = t.w + ((uint64_t{c} * t.R + r) * t.S + first) * channels_most;
            for (uint32_t s = first; s < end; ++s, w += channels_most, from += 16) {
                for (uint32_t q = 0; q < pixels; ++q) x[q] = load(from + uint64_t{q} * 16);
                for (uint32_t k = 0; k < channels; ++k) {
                    const V weight = all(w[k]);
                    for (uint32_t q = 0; q < pixels; ++q) multiply_add(sum[k][q], weight, x[q]);
                }
            }
        }
    for (uint32_t k = 0; k < channels; ++k)
        for (uint32_t q = 0; q < pixels; ++q) store(t.y + k * t.y_plane + (pixel + q) * 16, sum[k][q]);
}

template <uint32_t channels>
void strip(const Strip& t) {
    uint32_t pixel = 0;
    for (; pixel + pixels_most <= t.pixels; pixel += pixels_most) tile<channels, pixels_most>(t, pixel);
    for (; pixel + 2 <= t.pixels; pixel += 2) tile<channels, 2>(t, pixel);
    if (pixel < t.pixels) tile<channels, 1>(t, pixel);
}

void strip_of(uint32_t channels, const Strip& t) {
    constexpr void (*strips[channels_most])(const Strip&) = {strip<1>, strip<2>, strip<3>, strip<4>, strip<5>, strip<6>};
    strips[channels - 1](t);
}

uint64_t packed(const Conv16Shape& s, WeightOrder order) {
    if (looks_up && order == WeightOrder::data_pooled) return uint64_t{s.K} * s.C * (s.R / 2 + 1) * (s.S / 2 + 1) * 16;
    const uint32_t outputs = order == WeightOrder::forward ? s.K : s.C, inputs = order == WeightOrder::forward ? s.C : s.K;
    return (outputs + tile_of(outputs) - 1) / tile_of(outputs) * inputs * s.taps() * channels_most;
}

/// For look_up(): for each distance [R/2+1][S/2+1] from a window to a 2x2 tile of x and each [K][C], four pixels' weights by winner.
void pack_for_look_up(float* to, const float* w, const Conv16Shape& s) {
    for (uint32_t a = 0; a <= s.R / 2; ++a)
        for (uint32_t b = 0; b <= s.S / 2; ++b)
            for (uint64_t kc = 0; kc < uint64_t{s.K} * s.C; ++kc)
                for (uint32_t pixel = 0; pixel < 4; ++pixel)
                    for (uint32_t place = 0; place < 4; ++place) {
                        const uint32_t r = 2 * a + pixel / 2 - place / 2,
                                       t = 2 * b + pixel % 2 - place % 2;   // wraps below 0, and is then not below R or S
                        *to++ = r < s.R && t < s.S ? w[(kc * s.R + r) * s.S + t] : 0.0f;
                    }
}

void pack(float* to, const float* w, const Conv16Shape& s, WeightOrder order) {
    if (looks_up && order == WeightOrder::data_pooled) return pack_for_look_up(to, w, s);
    const bool turned = order != WeightOrder::forward;
    const uint32_t outputs = turned ? s.C : s.K, inputs = turned ? s.K : s.C, step = tile_of(outputs);
    const auto taps = static_cast<uint32_t>(s.taps());
    for (uint32_t first = 0; first < outputs; first += step)
        for (uint32_t in = 0; in < inputs; ++in)
            for (uint32_t tap = 0; tap < taps; ++tap)
                for (uint32_t i = 0; i < channels_most; ++i) {
                    const uint64_t out = first + i, k = turned ? in : out, c = turned ? out : in;
                    *to++ = i < step && out < outputs ? w[(k * s.C + c) * taps + (turned ? taps - 1 - tap : tap)] : 0.0f;
                }
}

void beside(float* to, const float* from, uint64_t elements, uint32_t samples) {
    for (uint32_t n = 0; n < samples; n += 16, to += elements * 16, from += elements * 16) {
        const uint32_t some = least(16, samples - n);
        uint64_t e = 0;
        for (; some == 16 && e + width <= elements; e += width)
            for (uint32_t i = 0; i < 16; i += width) transpose(to + e * 16 + i, 16, from + i * elements + e, elements);
        for (; e < elements; ++e)
            for (uint32_t i = 0; i < 16; ++i) to[e * 16 + i] = i < some ? from[i * elements + e] : 0.0f;
    }
}

void apart(float* to, const float* from, uint64_t elements, uint32_t samples) {
    for (uint32_t n = 0; n < samples; n += 16, to += elements * 16, from += elements * 16) {
        const uint32_t some = least(16, samples - n);
        uint64_t e = 0;
        for (; some == 16 && e + width <= elements; e += width)
            for (uint32_t i = 0; i < 16; i += width) transpose(to + i * elements + e, elements, from + e * 16 + i, 16);
        for (; e < elements; ++e)
            for (uint32_t i = 0; i < some; ++i) to[i * elements + e] = from[e * 16 + i];
    }
}

void forward(float* y, const float* x, const float* w, const float* bias, const Conv16Shape& s) {
    const uint32_t step = tile_of(s.K), P = s.P(), Q = s.Q();
    const uint64_t x_plane = uint64_t{s.H} * s.W * 16, y_plane = uint64_t{P} * Q * 16;
    for (uint32_t g = 0; g < s.groups; ++g)
        for (uint32_t part = 0; part < 16; part += width)
            for (uint32_t k = 0; k < s.K; k += step)
                for (uint32_t p = 0; p < P; ++p)
                    strip_of(least(step, s.K - k), {.y = y + (uint64_t{g} * s.K + k) * y_plane + uint64_t{p} * Q * 16 + part,
                                                    .x = x + uint64_t{g} * s.C * x_plane + uint64_t{p} * s.W * 16 + part,
                                                    .w = w + uint64_t{k / step} * s.C * s.taps() * channels_most,
                                                    .bias = bias + k,
                                                    .y_plane = y_plane,
                                                    .x_plane = x_plane,
                                                    .x_row = uint64_t{s.W} * 16,
                                                    .pixels = Q,
                                                    .inputs = s.C,
                                                    .first_row = 0,
                                                    .end_row = s.R,
                                                    .R = s.R,
                                                    .S = s.S,
                                                    .zeros = 0});
}

/// One window: four sums for each channel.
struct Window {
    float* y;
    int32_t* winners;
    const float *x, *w, *bias;
    uint64_t y_plane, x_plane, x_row;
    uint32_t inputs, R, S;
};

template <uint32_t channels>
inline __attribute__((always_inline)) void window(const Window& t, uint64_t q) {
    V sum[channels][4];
    for (uint32_t k = 0; k < channels; ++k)
        for (V& each : sum[k]) each = all(t.bias[k]);
    for (uint32_t c = 0; c < t.inputs; ++c)
        for (uint32_t r = 0; r < t.R; ++r) {
            const float* from = t.x + c * t.x_plane + r * t.x_row + q * 32;
            const float* w = t.w + (uint64_t{c} * t.R + r) * t.S * channels_most;
            for (uint32_t s = 0; s < t.S; ++s, w += channels_most, from += 16) {
                const V x[4] = {load(from), load(from + 16), load(from + t.x_row), load(from + t.x_row + 16)};
                for (uint32_t k = 0; k < channels; ++k) {
                    const V weight = all(w[k]);
                    for (uint32_t place = 0; place < 4; ++place) multiply_add(sum[k][place], weight, x[place]);
                }
            }
        }
    for (uint32_t k = 0; k < channels; ++k) pool(t.y + k * t.y_plane + q * 16, t.winners + k * t.y_plane + q * 16, sum[k]);
}

template <uint32_t channels>
void windows(const Window& t, uint32_t count) {
    for (uint32_t q = 0; q < count; ++q) window<channels>(t, q);
}

void windows_of(uint32_t channels, const Window& t, uint32_t count) {
    constexpr void (*each[channels_most])(const Window&, uint32_t) = {windows<1>, windows<2>, windows<3>,
                                                                      windows<4>, windows<5>, windows<6>};
    each[channels - 1](t, count);
}

void forward_pooled(float* y, int32_t* winners, const float* x, const float* w, const float* bias, const Conv16Shape& s) {
    const uint32_t step = tile_of(s.K), P = s.P() / 2, Q = s.Q() / 2;
    const uint64_t x_plane = uint64_t{s.H} * s.W * 16, y_plane = uint64_t{P} * Q * 16;
    for (uint32_t g = 0; g < s.groups; ++g)
        for (uint32_t part = 0; part < 16; part += width)
            for (uint32_t k = 0, channels = 0; k < s.K; k += channels) {
                channels = least(least(pooled_most, step - k % step), s.K - k);
                for (uint32_t p = 0; p < P; ++p) {
                    const uint64_t to = (uint64_t{g} * s.K + k) * y_plane + uint64_t{p} * Q * 16 + part;
                    windows_of(channels,
                               {.y = y + to,
                                .winners = winners + to,
                                .x = x + uint64_t{g} * s.C * x_plane + uint64_t{p} * s.W * 32 + part,
                                .w = w + uint64_t{k / step} * s.C * s.taps() * channels_most + k % step,
                                .bias = bias + k,
                                .y_plane = y_plane,
                                .x_plane = x_plane,
                                .x_row = uint64_t{s.W} * 16,
                                .inputs = s.C,
                                .R = s.R,
                                .S = s.S},
                               Q);
                }
            }
}

/// Backward data with pooling: of a window's four products with a pixel of dx one is not 0; its weight depends on the sample's winner.
struct Scatter {
    float* dx;
    const float *dy, *w;
    const int32_t* winners;
    uint64_t dx_plane, dy_plane, w_step;
};

template <uint32_t channels>
void scatter(const Scatter& t, const Conv16Shape& s, uint32_t i, uint32_t j) {
    V sum[channels][4] = {};
    for (uint32_t a = 0; a <= least(i, s.R / 2); ++a)
        for (uint32_t b = 0; b <= least(j, s.S / 2); ++b) {
            if (i - a >= s.P() / 2 || j - b >= s.Q() / 2) continue;
            const uint64_t window = (uint64_t{i - a} * (s.Q() / 2) + j - b) * 16;
            const float *dy = t.dy + window, *w = t.w + (uint64_t{a} * (s.S / 2 + 1) + b) * s.K * t.w_step;
            const int32_t* winners = t.winners + window;
            for (uint32_t k = 0; k < s.K; ++k, dy += t.dy_plane, winners += t.dy_plane, w += t.w_step) {
                const V d = load(dy);
                const I winner = load(winners);
#pragma GCC unroll 8
                for (uint32_t c = 0; c < channels; ++c)
#pragma GCC unroll 4
                    for (uint32_t pixel = 0; pixel < 4; ++pixel) multiply_add(sum[c][pixel], d, look_up(w + (c * 4 + pixel) * 4, winner));
            }
        }
    for (uint32_t pixel = 0; pixel < 4; ++pixel) {
        const uint32_t h = 2 * i + pixel / 2, x = 2 * j + pixel % 2;
        if (h >= s.H || x >= s.W) continue;
        for (uint32_t c = 0; c < channels; ++c) store(t.dx + c * t.dx_plane + (uint64_t{h} * s.W + x) * 16, sum[c][pixel]);
    }
}

void backward_data_pooled(float* dx, const float* dy, const int32_t* winners, const float* w, const Conv16Shape& s) {
    constexpr void (*each[])(const Scatter&, const Conv16Shape&, uint32_t, uint32_t) = {scatter<1>, scatter<2>, scatter<3>,
                                                                                        scatter<4>, scatter<5>, scatter<6>};
    const uint64_t x_plane = uint64_t{s.H} * s.W * 16, y_plane = uint64_t{s.P() / 2} * (s.Q() / 2) * 16;
    for (uint32_t g = 0; g < s.groups; ++g)
        for (uint32_t part = 0; part < 16; part += width)
            for (uint32_t c = 0, channels = 0; c < s.C; c += channels) {
                channels = least(looked_up_most, s.C - c);
                const Scatter t{.dx = dx + (uint64_t{g} * s.C + c) * x_plane + part,
                                .dy = dy + uint64_t{g} * s.K * y_plane + part,
                                .w = w + uint64_t{c} * 16,
                                .winners = winners + uint64_t{g} * s.K * y_plane + part,
                                .dx_plane = x_plane,
                                .dy_plane = y_plane,
                                .w_step = uint64_t{s.C} * 16};
                for (uint32_t i = 0; i < (s.H + 1) / 2; ++i)
                    for (uint32_t j = 0; j < (s.W + 1) / 2; ++j) each[channels - 1](t, s, i, j);
            }
}

/// A row of dy before pooling from the pooled one: 0 but at the winners.
void unpool(float* to, const float* dy, const int32_t* winners, uint32_t Q, int32_t odd_row) {
    for (uint32_t q = 0; q < Q; ++q, to += 32)
        for (uint32_t part = 0; part < 16; part += width, dy += width, winners += width) {
            const V d = load(dy);
            const I winner = load(winners);
            store(to + part, winner == 2 * odd_row ? d : V{});
            store(to + part + 16, winner == 2 * odd_row + 1 ? d : V{});
        }
}

void backward_data(float* dx, const float* dy, const int32_t* winners, const float* w, float* scratch, const Conv16Shape& s) {
    if (looks_up && winners) return backward_data_pooled(dx, dy, winners, w, s);
    const uint32_t step = tile_of(s.C), P = s.P(), Q = s.Q(), edge = s.S - 1;
    const uint64_t x_plane = uint64_t{s.H} * s.W * 16, row = (Q + 2 * uint64_t{edge}) * 16;
    const uint64_t pooled = uint64_t{Q} / 2 * 16;
    for (uint32_t g = 0; g < s.groups; ++g) {
        for (uint64_t r = 0; r < uint64_t{s.K} * P; ++r) {
            float* to = scratch + r * row;
            const uint64_t all_rows = uint64_t{g} * s.K * P + r;
            __builtin_memset(to, 0, edge * 16 * sizeof(float));
            if (!winners) __builtin_memcpy(to + edge * 16, dy + all_rows * Q * 16, Q * 16 * sizeof(float));
            else unpool(to + edge * 16, dy + all_rows / 2 * pooled, winners + all_rows / 2 * pooled, Q / 2, static_cast<int32_t>(r % 2));
            __builtin_memset(to + (edge + Q) * 16, 0, edge * 16 * sizeof(float));
        }
        for (uint32_t part = 0; part < 16; part += width)
            for (uint32_t c = 0; c < s.C; c += step)
                for (uint32_t h = 0; h < s.H; ++h)   // from those of dy's rows h - (R-1) .. h that exist
                    strip_of(least(step, s.C - c),
                             {.y = dx + (uint64_t{g} * s.C + c) * x_plane + uint64_t{h} * s.W * 16 + part,
                              .x = scratch + (static_cast<int64_t>(h) - static_cast<int64_t>(s.R - 1)) * static_cast<int64_t>(row) + part,
                              .w = w + uint64_t{c / step} * s.K * s.taps() * channels_most,
                              .bias = nullptr,
                              .y_plane = x_plane,
                              .x_plane = P * row,
                              .x_row = row,
                              .pixels = s.W,
                              .inputs = s.K,
                              .first_row = h < s.R - 1 ? s.R - 1 - h : 0,
                              .end_row = least(s.R, P + s.R - 1 - h),
                              .R = s.R,
                              .S = s.S,
                              .zeros = edge});
    }
}

// ---- backward weights ------------------------------------------------------------------------------------------------------------

/// Sums of dy of some channels times x of one, for taps of one row.
struct Products {
    float* sum;
    const float *dy, *x;
    uint64_t sum_plane, dy_plane, x_row;
    uint32_t rows, Q;
    bool add;   // to what sum holds
};

template <uint32_t channels, uint32_t taps>
void products(const Products& t) {
    V sum[channels][taps], x[taps];
    for (uint32_t k = 0; k < channels; ++k)
        for (uint32_t s = 0; s < taps; ++s) sum[k][s] = t.add ? load(t.sum + k * t.sum_plane + uint64_t{s} * 16) : V{};
    for (uint32_t p = 0; p < t.rows; ++p) {
        const float *from = t.x + p * t.x_row, *dy = t.dy + uint64_t{p} * t.Q * 16;
        for (uint32_t q = 0; q < t.Q; ++q, from += 16, dy += 16) {
            for (uint32_t s = 0; s < taps; ++s) x[s] = load(from + uint64_t{s} * 16);
            for (uint32_t k = 0; k < channels; ++k) {
                const V d = load(dy + k * t.dy_plane);
                for (uint32_t s = 0; s < taps; ++s) multiply_add(sum[k][s], d, x[s]);
            }
        }
    }
    for (uint32_t k = 0; k < channels; ++k)
        for (uint32_t s = 0; s < taps; ++s) store(t.sum + k * t.sum_plane + uint64_t{s} * 16, sum[k][s]);
}

template <uint32_t channels>
void products_of_row(Products t, uint32_t S) {
    for (; S >= 5; S -= 5, t.sum += 5 * 16, t.x += 5 * 16) products<channels, 5>(t);
    for (; S >= 3; S -= 3, t.sum += 3 * 16, t.x += 3 * 16) products<channels, 3>(t);
    for (; S > 0; --S, t.sum += 16, t.x += 16) products<channels, 1>(t);
}

/// The same order of additions in every build.
float over_samples(const float* sums) {
    float s[8];
    for (uint32_t i = 0; i < 8; ++i) s[i] = sums[i] + sums[i + 8];
    for (uint32_t i = 0; i < 4; ++i) s[i] += s[i + 4];
    return (s[0] + s[2]) + (s[1] + s[3]);
}

/// Floats of the sums by place in the group.
uint64_t weights_scratch(const Conv16Shape& s) { return s.K * s.C * s.taps() * 16; }

/// Computes db, and dw from the sums by place in the group.
void weights_finish(float* dw, float* db, const float* dy, const float* scratch, uint64_t y_plane, const Conv16Shape& s) {
    const uint64_t weights = s.K * s.C * s.taps();
    uint64_t done = 0;
    for (; done + width <= weights; done += width) {
        V v[width];
        GC_UNROLL for (uint32_t i = 0; i < width; ++i) {
            const float* const from = scratch + (done + i) * 16;
            v[i] = load(from);
            if (width == 8) v[i] += load(from + 8);
            if (width == 4) v[i] = (v[i] + load(from + 8)) + (load(from + 4) + load(from + 12));
        }
        store(dw + done, lane_sums(v));
    }
    for (; done < weights; ++done) dw[done] = over_samples(scratch + done * 16);
    for (uint32_t k = 0; k < s.K; ++k) {
        float sum[16];
        for (uint32_t part = 0; part < 16; part += width) {
            V even{}, odd{};
            for (uint32_t g = 0; g < s.groups; ++g) {
                const float* d = dy + (uint64_t{g} * s.K + k) * y_plane + part;
                for (uint64_t i = 0; i < y_plane; i += 32) {
                    even += load(d + i);
                    if (i + 16 < y_plane) odd += load(d + i + 16);
                }
            }
            store(sum + part, even + odd);
        }
        db[k] = over_samples(sum);
    }
}

void backward_weights(float* dw, float* db, const float* dy, const float* x, float* scratch, const Conv16Shape& s) {
    const uint32_t P = s.P(), Q = s.Q();
    const uint64_t x_plane = uint64_t{s.H} * s.W * 16, y_plane = uint64_t{P} * Q * 16, sums = s.C * s.taps() * 16;
    const uint64_t fit = level1 / (rows_most * uint64_t{Q} * 16 * sizeof(float));
    const uint32_t rows = fit < 1 ? 1 : fit > P ? P : static_cast<uint32_t>(fit);
    for (uint32_t g = 0; g < s.groups; ++g)
        for (uint32_t part = 0; part < 16; part += width)
            for (uint32_t p = 0; p < P; p += rows)
                for (uint32_t k = 0, channels = 0; k < s.K; k += channels) {
                    channels = s.K - k >= rows_most ? rows_most : s.K - k >= 2 ? 2 : 1;
                    for (uint32_t c = 0; c < s.C; ++c)
                        for (uint32_t r = 0; r < s.R; ++r) {
                            const Products t{.sum = scratch + k * sums + (uint64_t{c} * s.R + r) * s.S * 16 + part,
                                             .dy = dy + (uint64_t{g} * s.K + k) * y_plane + uint64_t{p} * Q * 16 + part,
                                             .x = x + (uint64_t{g} * s.C + c) * x_plane + (uint64_t{p} + r) * s.W * 16 + part,
                                             .sum_plane = sums,
                                             .dy_plane = y_plane,
                                             .x_row = uint64_t{s.W} * 16,
                                             .rows = least(rows, P - p),
                                             .Q = Q,
                                             .add = g > 0 || p > 0};
                            if (channels == rows_most) products_of_row<rows_most>(t, s.S);
                            else if (channels == 2) products_of_row<2>(t, s.S);
                            else products_of_row<1>(t, s.S);
                        }
                }
    weights_finish(dw, db, dy, scratch, y_plane, s);
}

/// The same with pooling: x is taken at each window's winner, so one product of four is left.
struct PooledProducts {
    float* sum;   // of some taps of some rows
    const float *dy, *x;
    const int32_t* winners;
    uint64_t sum_row, x_row;
    uint32_t P, Q;
    bool add;
};

template <uint32_t rows, uint32_t taps>
void pooled_products(const PooledProducts& t) {
    V sum[rows][taps];
#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; ++r)
#pragma GCC unroll 8
        for (uint32_t s = 0; s < taps; ++s) sum[r][s] = t.add ? load(t.sum + r * t.sum_row + uint64_t{s} * 16) : V{};
    const float* dy = t.dy;
    const int32_t* winners = t.winners;
    for (uint32_t p = 0; p < t.P; ++p) {
        const float* from = t.x + 2 * p * t.x_row;
        for (uint32_t q = 0; q < t.Q; ++q, from += 32, dy += 16, winners += 16) {
            const I winner = load(winners);
            const Mask low = bits(winner, 2);
            const V d = load(dy), d_left = (winner & 1) != 0 ? V{} : d, d_right = (winner & 1) != 0 ? d : V{};
            const float* row[rows + 1];
            for (uint32_t r = 0; r <= rows; ++r) {
                row[r] = from + r * t.x_row;
                asm("" : "+r"(row[r]));   // or GCC keeps x for the next window in registers that the sums need
            }
#pragma GCC unroll 8
            for (uint32_t s = 0; s <= taps; ++s) {
                V upper = once(row[0] + s * 16);
#pragma GCC unroll 8
                for (uint32_t r = 0; r < rows; ++r) {
                    const V lower = once(row[r + 1] + s * 16), x = either(low, lower, upper);
                    if (s < taps) multiply_add(sum[r][s], d_left, x);
                    if (s > 0) multiply_add(sum[r][s - 1], d_right, x);
                    upper = lower;
                }
            }
        }
    }
#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; ++r)
#pragma GCC unroll 8
        for (uint32_t s = 0; s < taps; ++s) store(t.sum + r * t.sum_row + uint64_t{s} * 16, sum[r][s]);
}

template <uint32_t rows>
void pooled_products_of_rows(PooledProducts t, uint32_t S) {
    for (; S >= 5; S -= 5, t.sum += 5 * 16, t.x += 5 * 16) pooled_products<rows, 5>(t);
    for (; S >= 3; S -= 3, t.sum += 3 * 16, t.x += 3 * 16) pooled_products<rows, 3>(t);
    for (; S > 0; --S, t.sum += 16, t.x += 16) pooled_products<rows, 1>(t);
}

void backward_weights_pooled(float* dw, float* db, const float* dy, const int32_t* winners, const float* x, float* scratch,
                             const Conv16Shape& s) {
    const uint32_t P = s.P() / 2, Q = s.Q() / 2;
    const uint64_t x_plane = uint64_t{s.H} * s.W * 16, y_plane = uint64_t{P} * Q * 16, sums = s.C * s.taps() * 16;
    for (uint32_t g = 0; g < s.groups; ++g)
        for (uint32_t part = 0; part < 16; part += width)
            for (uint32_t c = 0; c < s.C; ++c)
                for (uint32_t k = 0; k < s.K; ++k)
                    for (uint32_t r = 0, rows = 0; r < s.R; r += rows) {
                        rows = s.R - r >= pooled_rows_most ? pooled_rows_most : 1;
                        const PooledProducts t{.sum = scratch + k * sums + (uint64_t{c} * s.R + r) * s.S * 16 + part,
                                               .dy = dy + (uint64_t{g} * s.K + k) * y_plane + part,
                                               .x = x + (uint64_t{g} * s.C + c) * x_plane + uint64_t{r} * s.W * 16 + part,
                                               .winners = winners + (uint64_t{g} * s.K + k) * y_plane + part,
                                               .sum_row = uint64_t{s.S} * 16,
                                               .x_row = uint64_t{s.W} * 16,
                                               .P = P,
                                               .Q = Q,
                                               .add = g > 0};
                        if (rows == 1) pooled_products_of_rows<1>(t, s.S);
                        else pooled_products_of_rows<pooled_rows_most>(t, s.S);
                    }
    weights_finish(dw, db, dy, scratch, y_plane, s);
}

}   // namespace

extern const Conv16Kernels conv16_kernels;
const Conv16Kernels conv16_kernels = {
    beside, apart, packed, pack, forward, forward_pooled, backward_data, weights_scratch, backward_weights, backward_weights_pooled};

}   // namespace GC_ISA
}   // namespace gradcast
