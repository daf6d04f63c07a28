// concat, and upsample as in nn/cpu/upsample.cc.
//
// The backward pass of upsample is a gather: each pixel adds its shares of the output's rows and columns in order.
#include <numeric>

#include "nn/cuda/build.h"
#include "nn/cuda/element.h"

namespace gradcast::cuda {
namespace {

/// A thread copies a pack.  Rows of a_packs and b_packs packs.
template <typename T, int width>
__global__ void join_kernel(T* y, const T* a, const T* b, uint32_t rows, uint32_t a_packs, uint32_t b_packs) {
    const uint32_t i = piece_thread(), packs = a_packs + b_packs, row = i / packs, pack = i % packs;
    if (row >= rows) return;
    as_packs<width>(y)[i] =
        pack < a_packs ? as_packs<width>(a)[uint64_t{row} * a_packs + pack] : as_packs<width>(b)[uint64_t{row} * b_packs + pack - a_packs];
}
template <typename T, int width>
__global__ void take_columns_kernel(T* y, const T* x, uint32_t rows, uint32_t packs, uint32_t first, uint32_t all) {
    const uint32_t i = piece_thread(), row = i / packs;
    if (row >= rows) return;
    as_packs<width>(y)[i] = as_packs<width>(x)[uint64_t{row} * all + first + i % packs];
}

/// Of an output row or column: the share of the next input row beside that of `first`.
struct Mix {
    uint32_t first, next;
    float share, next_share;
};
__device__ __forceinline__ Mix mix_of(uint32_t p, uint32_t side, uint32_t scale, bool bilinear) {
    const uint32_t centre = 2 * p + 1;
    const uint32_t twice = bilinear ? (centre > scale ? centre - scale : 0) : p / scale * 2 * scale;
    const uint32_t first = twice / (2 * scale);
    const float share = static_cast<float>(twice % (2 * scale)) / static_cast<float>(2 * scale);
    return {first, first + 1 < side ? first + 1 : side - 1, 1 - share, share};
}
/// [begin, end): the output rows or columns that may read input `i`.
struct Readers {
    uint32_t begin, end;
};
__device__ __forceinline__ Readers readers_of(uint32_t i, uint32_t side, uint32_t scale, bool bilinear) {
    if (!bilinear) return {i * scale, (i + 1) * scale};
    return {i > 0 ? (i - 1) * scale : 0, i + 2 < side ? (i + 2) * scale : side * scale};
}

/// A thread's place in an array [samples, height, columns, packs].
struct Spot {
    uint32_t n, h, w, pack;
    __device__ __forceinline__ Spot(uint32_t height, uint32_t columns, uint32_t packs) {
        uint32_t rest = piece_thread();
        pack = rest % packs;
        rest /= packs;
        w = rest % columns;
        rest /= columns;
        h = rest % height;
        n = rest / height;
    }
};

template <typename T, int width>
__global__ void upsample_kernel(T* y, const T* x, UpsampleShape s, uint32_t samples) {
    const uint32_t packs = s.C / width;
    const Spot at(s.H * s.scale, s.W * s.scale, packs);
    if (at.n >= samples) return;
    const Mix row = mix_of(at.h, s.H, s.scale, s.bilinear), column = mix_of(at.w, s.W, s.scale, s.bilinear);
    const auto pixel = [&](uint32_t h, uint32_t w) { return as_packs<width>(x)[((uint64_t{at.n} * s.H + h) * s.W + w) * packs + at.pack]; };
    Pack<T, width> made = pixel(row.first, column.first);
    if (s.bilinear) {
        const Pack<T, width> below = pixel(row.next, column.first), right = pixel(row.first, column.next),
                             both = pixel(row.next, column.next);
        for (int j = 0; j < width; ++j) {
            const float first = row.share * load(made.v[j]) + row.next_share * load(below.v[j]),
                        next = row.share * load(right.v[j]) + row.next_share * load(both.v[j]);
            store(&made.v[j], column.share * first + column.next_share * next);
        }
    }
    as_packs<width>(y)[piece_thread()] = made;
}

template <typename T, int width>
__global__ void upsample_backward_kernel(T* dx, const T* dy, UpsampleShape s, uint32_t samples) {
    const uint32_t packs = s.C / width, H = s.H * s.scale, W = s.W * s.scale;
    const Spot at(s.H, s.W, packs);
    if (at.n >= samples) return;
    const Readers rows = readers_of(at.h, s.H, s.scale, s.bilinear), columns = readers_of(at.w, s.W, s.scale, s.bilinear);
    float sum[width] = {};
    for (uint32_t p = rows.begin; p < rows.end; ++p) {
        const Mix row = mix_of(p, s.H, s.scale, s.bilinear);
        if (row.first != at.h && row.next != at.h) continue;
        float mixed[width] = {};
        for (uint32_t q = columns.begin; q < columns.end; ++q) {
            const Mix column = mix_of(q, s.W, s.scale, s.bilinear);
            if (column.first != at.w && column.next != at.w) continue;
            const Pack<T, width> from = as_packs<width>(dy)[((uint64_t{at.n} * H + p) * W + q) * packs + at.pack];
            for (int j = 0; j < width; ++j) {
                if (column.first == at.w) mixed[j] += s.bilinear ? column.share * load(from.v[j]) : load(from.v[j]);
                if (s.bilinear && column.next == at.w) mixed[j] += column.next_share * load(from.v[j]);
            }
        }
        for (int j = 0; j < width; ++j) {
            if (row.first == at.h) sum[j] += s.bilinear ? row.share * mixed[j] : mixed[j];
            if (s.bilinear && row.next == at.h) sum[j] += row.next_share * mixed[j];
        }
    }
    Pack<T, width> made;
    for (int j = 0; j < width; ++j) store(&made.v[j], sum[j]);
    as_packs<width>(dx)[piece_thread()] = made;
}

/// Pixels of a sample.
uint64_t inputs_of(const UpsampleShape& s) { return uint64_t{s.H} * s.W; }
uint64_t outputs_of(const UpsampleShape& s) { return inputs_of(s) * s.scale * s.scale; }

/// A thread for each pack of the `to_size` pixels of a sample; from_size: of what the kernel upsample_kernels(T{}, Width<w>{}) reads.
template <typename Kernel>
Status each_pixel(cudaStream_t stream, Values to, Values from, const UpsampleShape& s, uint64_t to_size, uint64_t from_size,
                  Kernel upsample_kernels) {
    return typed(to.bf16, s.C, [&](auto type, auto width) {
        using T = decltype(type);
        const uint64_t each = to_size * (s.C / decltype(width)::value);
        return pieces(s.N, each, [&](uint64_t first, uint32_t samples) {
            return GC_LAUNCH(upsample_kernels(type, width), blocks_of(samples * each, threads), threads, stream,
                             as<T>(to) + first * to_size * s.C, as<T>(from) + first * from_size * s.C, s, samples);
        });
    });
}

}   // namespace

Status join(cudaStream_t stream, Values y, Values a, Values b, uint64_t rows, uint32_t A, uint32_t B) {
    return typed(y.bf16, std::gcd(A, B), [&](auto type, auto width) {
        using T = decltype(type);
        constexpr int w = decltype(width)::value;
        return pieces(rows, (A + B) / w, [&](uint64_t first, uint32_t count) {
            return GC_LAUNCH((join_kernel<T, w>), blocks_of(uint64_t{count} * ((A + B) / w), threads), threads, stream,
                             as<T>(y) + first * (A + B), as<T>(a) + first * A, as<T>(b) + first * B, count, A / w, B / w);
        });
    });
}

Status take_columns(cudaStream_t stream, Values y, Values x, uint64_t rows, uint32_t C, uint32_t first_column, uint32_t all) {
    return typed(y.bf16, std::gcd(std::gcd(C, first_column), all), [&](auto type, auto width) {
        using T = decltype(type);
        constexpr int w = decltype(width)::value;
        return pieces(rows, C / w, [&](uint64_t first, uint32_t count) {
            return GC_LAUNCH((take_columns_kernel<T, w>), blocks_of(uint64_t{count} * (C / w), threads), threads, stream,
                             as<T>(y) + first * C, as<T>(x) + first * all, count, C / w, first_column / w, all / w);
        });
    });
}

Status upsample(cudaStream_t stream, Values y, Values x, const UpsampleShape& s) {
    const auto kernel = [](auto type, auto width) { return upsample_kernel<decltype(type), decltype(width)::value>; };
    return each_pixel(stream, y, x, s, outputs_of(s), inputs_of(s), kernel);
}

Status upsample_backward(cudaStream_t stream, Values dx, Values dy, const UpsampleShape& s) {
    const auto kernel = [](auto type, auto width) { return upsample_backward_kernel<decltype(type), decltype(width)::value>; };
    return each_pixel(stream, dx, dy, s, inputs_of(s), outputs_of(s), kernel);
}

// y = x and behind it `other`, along the channels.  The gradient is cut apart.
Status concat(Build& b) {
    const Layer& l = *b.layer;
    const Activation x = b.activation, other = b.other;
    const uint64_t rows = b.rows(l.in);
    const uint32_t A = l.in.C, B = l.other_in.C;
    const Activation y = b.activation = b.flows(x.learns || other.learns);
    b.operations->forward.emplace_back(
        [=](const Frame& f) { return join(f.stream, f.values(y.value), f.values(x.value), f.values(other.value), rows, A, B); });
    if (!b.training) return {};
    if (x.learns)
        b.operations->data.emplace_back(
            [=](const Frame& f) { return take_columns(f.stream, f.values(x.gradient), f.values(y.gradient), rows, A, 0, A + B); });
    if (other.learns)
        b.operations->data.emplace_back(
            [=](const Frame& f) { return take_columns(f.stream, f.values(other.gradient), f.values(y.gradient), rows, B, A, A + B); });
    return {};
}

Status upsample(Build& b) {
    const Layer& l = *b.layer;
    const UpsampleShape shape{b.samples, l.in.C, l.in.H, l.in.W, static_cast<uint32_t>(l.value("scale")), l.value("mode") != 0};
    const Activation x = b.activation, y = b.activation = b.flows(x.learns);
    b.operations->forward.emplace_back([=](const Frame& f) { return upsample(f.stream, f.values(y.value), f.values(x.value), shape); });
    if (b.training && x.learns)
        b.operations->data.emplace_back(
            [=](const Frame& f) { return upsample_backward(f.stream, f.values(x.gradient), f.values(y.gradient), shape); });
    return {};
}

}   // namespace gradcast::cuda
