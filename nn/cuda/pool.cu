// Max pooling:  y[n,p,q,c] = max over r,s of x[n, p stride + r - pad, q stride + s - pad, c].  Average pooling: the mean over the same
// window without the padding; global pooling is one window over the plane.
//
// The backward pass is a gather: each pixel sums over its windows in order, so no two threads add to one element.
#include "nn/cuda/element.h"

namespace gradcast::cuda {
namespace {

/// A thread's place in an array [N, height, columns, packs]; it computes a pack.
struct Spot {
    uint32_t n, h, w, pack;
};
__device__ __forceinline__ bool spot(uint32_t N, uint32_t height, uint32_t columns, uint32_t packs, Spot* at) {
    uint32_t rest = piece_thread();
    at->pack = rest % packs;
    rest /= packs;
    at->w = rest % columns;
    rest /= columns;
    at->h = rest % height;
    at->n = rest / height;
    return at->n < N;
}
/// [begin, end): the windows along one side that contain pixel `at`.
struct Range {
    uint32_t begin, end;
};
__device__ __forceinline__ Range windows_of(uint32_t at, uint32_t count, const WindowShape& s) {
    const uint32_t padded = at + s.pad;
    const uint32_t begin = padded < s.kernel ? 0 : (padded - s.kernel) / s.stride + 1, last = padded / s.stride;
    return {begin, last < count ? last + 1 : count};
}
/// [begin, end): the pixels along one side in window `at`, without padding.
__device__ __forceinline__ Range places_of(uint32_t at, uint32_t side, const WindowShape& s) {
    const uint32_t from = at * s.stride, begin = from < s.pad ? 0 : from - s.pad;
    const uint32_t until = from + s.kernel - s.pad;   // above 0: every window ends inside
    return {begin, until < side ? until : side};
}
__device__ __forceinline__ uint32_t inside(const Range& rows, const Range& columns) {
    return (rows.end - rows.begin) * (columns.end - columns.begin);
}

template <typename T, int width>
__global__ void max_pool_kernel(T* y, uint8_t* winners, const T* x, const float* bias, WindowShape s, bool rectify) {
    Spot at;
    const uint32_t packs = s.C / width;
    if (!spot(s.N, s.P, s.Q, packs, &at)) return;
    const Range rows = places_of(at.h, s.H, s), columns = places_of(at.w, s.W, s);
    float best[width] = {};
    uint32_t winner[width] = {};
    bool first = true;
    for (uint32_t h = rows.begin; h < rows.end; ++h)
        for (uint32_t w = columns.begin; w < columns.end; ++w, first = false) {
            const uint32_t place = (h + s.pad - at.h * s.stride) * s.kernel + (w + s.pad - at.w * s.stride);
            const auto values = as_packs<width>(x)[((at.n * s.H + h) * s.W + w) * packs + at.pack];
            for (int j = 0; j < width; ++j) {
                const float value = load(values.v[j]);
                if (first || value > best[j] || value != value) {
                    best[j] = value;
                    winner[j] = place;
                }
            }
        }
    Pack<T, width> result;
    Pack<uint8_t, width> numbers;
    Pack<float, width> add = {};
    if (bias) add = floats<width>(bias + at.pack * width);
    for (int j = 0; j < width; ++j) {
        const float value = bias ? best[j] + add.v[j] : best[j];
        store(&result.v[j], rectify ? rectified(value) : value);
        numbers.v[j] = static_cast<uint8_t>(winner[j]);
    }
    as_packs<width>(y)[piece_thread()] = result;
    as_packs<width>(winners)[piece_thread()] = numbers;
}

template <typename T, int width>
__global__ void max_pool_backward_kernel(T* dx, const T* dy, const T* y, const uint8_t* winners, WindowShape s) {
    Spot at;
    const uint32_t packs = s.C / width;
    if (!spot(s.N, s.H, s.W, packs, &at)) return;
    const Range ps = windows_of(at.h, s.P, s), qs = windows_of(at.w, s.Q, s);
    float sums[width] = {};
    for (uint32_t p = ps.begin; p < ps.end; ++p)
        for (uint32_t q = qs.begin; q < qs.end; ++q) {
            const uint32_t place = (at.h + s.pad - p * s.stride) * s.kernel + (at.w + s.pad - q * s.stride);
            const uint32_t from = ((at.n * s.P + p) * s.Q + q) * packs + at.pack;
            const auto numbers = as_packs<width>(winners)[from];
            const auto gradients = as_packs<width>(dy)[from];
            Pack<T, width> outputs = {};
            if (y) outputs = as_packs<width>(y)[from];
            for (int j = 0; j < width; ++j)
                if (numbers.v[j] == place && (!y || load(outputs.v[j]) > 0)) sums[j] += load(gradients.v[j]);
        }
    Pack<T, width> result;
    for (int j = 0; j < width; ++j) store(&result.v[j], sums[j]);
    as_packs<width>(dx)[piece_thread()] = result;
}

template <typename T, int width>
__global__ void average_pool_kernel(T* y, const T* x, WindowShape s) {
    Spot at;
    const uint32_t packs = s.C / width;
    if (!spot(s.N, s.P, s.Q, packs, &at)) return;
    const Range rows = places_of(at.h, s.H, s), columns = places_of(at.w, s.W, s);
    float sums[width] = {};
    for (uint32_t h = rows.begin; h < rows.end; ++h)
        for (uint32_t w = columns.begin; w < columns.end; ++w) {
            const auto values = as_packs<width>(x)[((at.n * s.H + h) * s.W + w) * packs + at.pack];
            for (int j = 0; j < width; ++j) sums[j] += load(values.v[j]);
        }
    const auto count = static_cast<float>(inside(rows, columns));
    Pack<T, width> result;
    for (int j = 0; j < width; ++j) store(&result.v[j], sums[j] / count);
    as_packs<width>(y)[piece_thread()] = result;
}

template <typename T, int width>
__global__ void average_pool_backward_kernel(T* dx, const T* dy, WindowShape s) {
    Spot at;
    const uint32_t packs = s.C / width;
    if (!spot(s.N, s.H, s.W, packs, &at)) return;
    const Range ps = windows_of(at.h, s.P, s), qs = windows_of(at.w, s.Q, s);
    float sums[width] = {};
    for (uint32_t p = ps.begin; p < ps.end; ++p)
        for (uint32_t q = qs.begin; q < qs.end; ++q) {
            const auto count = static_cast<float>(inside(places_of(p, s.H, s), places_of(q, s.W, s)));
            const auto gradients = as_packs<width>(dy)[((at.n * s.P + p) * s.Q + q) * packs + at.pack];
            for (int j = 0; j < width; ++j) sums[j] += load(gradients.v[j]) / count;
        }
    Pack<T, width> result;
    for (int j = 0; j < width; ++j) store(&result.v[j], sums[j]);
    as_packs<width>(dx)[piece_thread()] = result;
}

/// Calls launch(T{}, Width<w>{}, grid, piece, in, out) for pieces of samples: offsets of their first elements in [N,H,W,C] and [N,P,Q,C].
/// The grid has a thread for each pack of the output: [N,P,Q,C] if `forward`, else [N,H,W,C].
template <typename Launch>
Status pooled(bool bf16, const WindowShape& s, bool forward, Launch launch) {
    const uint64_t in = uint64_t{s.H} * s.W, out = uint64_t{s.P} * s.Q;
    return typed(bf16, s.C, [&](auto type, auto width) {
        const uint32_t packs = s.C / decltype(width)::value;
        return pieces(s.N, std::max(in, out) * packs, [&](uint64_t first, uint32_t samples) {
            WindowShape piece = s;
            piece.N = samples;
            const uint32_t grid = blocks_of(samples * (forward ? out : in) * packs, threads);
            return launch(type, width, grid, piece, first * in * s.C, first * out * s.C);
        });
    });
}

}   // namespace

Status max_pool(cudaStream_t stream, Values y, uint8_t* winners, Values x, const float* bias, const WindowShape& s, bool rectify) {
    return pooled(x.bf16, s, true, [&](auto type, auto width, uint32_t grid, const WindowShape& piece, uint64_t in, uint64_t out) {
        using T = decltype(type);
        return GC_LAUNCH((max_pool_kernel<T, decltype(width)::value>), grid, threads, stream, as<T>(y) + out, winners + out, as<T>(x) + in,
                         bias, piece, rectify);
    });
}

Status max_pool_backward(cudaStream_t stream, Values dx, Values dy, Values y, const uint8_t* winners, const WindowShape& s) {
    return pooled(dx.bf16, s, false, [&](auto type, auto width, uint32_t grid, const WindowShape& piece, uint64_t in, uint64_t out) {
        using T = decltype(type);
        return GC_LAUNCH((max_pool_backward_kernel<T, decltype(width)::value>), grid, threads, stream, as<T>(dx) + in, as<T>(dy) + out,
                         y.at ? as<T>(y) + out : nullptr, winners + out, piece);
    });
}

Status average_pool(cudaStream_t stream, Values y, Values x, const WindowShape& s) {
    return pooled(x.bf16, s, true, [&](auto type, auto width, uint32_t grid, const WindowShape& piece, uint64_t in, uint64_t out) {
        using T = decltype(type);
        return GC_LAUNCH((average_pool_kernel<T, decltype(width)::value>), grid, threads, stream, as<T>(y) + out, as<T>(x) + in, piece);
    });
}

Status average_pool_backward(cudaStream_t stream, Values dx, Values dy, const WindowShape& s) {
    return pooled(dx.bf16, s, false, [&](auto type, auto width, uint32_t grid, const WindowShape& piece, uint64_t in, uint64_t out) {
        using T = decltype(type);
        return GC_LAUNCH((average_pool_backward_kernel<T, decltype(width)::value>), grid, threads, stream, as<T>(dx) + in, as<T>(dy) + out,
                         piece);
    });
}

}   // namespace gradcast::cuda
