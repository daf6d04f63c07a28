// attention as in nn/cpu/attention.cc:  y = p v,  p = softmax(q k^T / sqrt(width)) over keys, of each sample and head.
//     dp = dy v^T,  ds = p (dp - delta) / sqrt(width),  delta = sum of p dp = sum of dy y;   dq = ds k,  dk = ds^T q,  dv = p^T dy
//
// Scores exist in tiles alone: a thread block has attention_rows rows of one matrix (queries, or keys for dk and dv) and takes the rows of
// the other in tiles of `columns`, in order (Dao 2023, FlashAttention-2, algorithms 1 and 2).  So memory is in proportion to the positions.
// The forward pass keeps of each query the largest score and the inverse of its sum of exponentials; the backward pass computes p from
// them.  No sum depends on the order of thread blocks.  A thread block writes `slice` channels of its results; wider heads have several
// thread blocks, each of which computes the scores.
//
// Dropped probabilities are those of nn/cpu/attention.cc.  They count in the sum of exponentials.  Each kernel draws them again for its
// tile of scores; those without dropout are kernels of their own.
//
// Rotary positions are a pass of their own before that: channels i and i + width / 2 of a query or key are turned by the angle of their
// position, as in nn/cpu/attention.cc.  The turned copy of the input is scratch memory, so the backward pass makes it once more, and turns
// the gradients of queries and keys back.
#include "nn/graph/attention.h"

#include <cmath>

#include "nn/cuda/build.h"
#include "nn/cuda/rows.h"
#include "runtime/core/cuda/philox.h"

namespace gradcast::cuda {
namespace {

constexpr uint32_t rows = attention_rows, columns = 32, depth = 32, slice = 64, block_threads = 128;
// A thread computes `high` x `wide` scores of a tile, and `high` x `broad` results.
constexpr uint32_t high = 4, wide = columns / 8, broad = slice / 8;
static_assert(rows / high * 8 == block_threads);
static_assert(block_threads >= rows);

/// A head's rows, `apart` elements from one to the next.
template <typename T>
struct Matrix {
    T* at;
    uint64_t apart;
    /// 0 outside of [end, width].
    __device__ __forceinline__ float get(uint32_t row, uint32_t end, uint32_t d, uint32_t width) const {
        return row < end && d < width ? load(at[row * apart + d]) : 0.0f;
    }
};

/// Where a thread block is.
struct HeadPlace {
    uint32_t n, head, first, slice_first;
};
__device__ __forceinline__ HeadPlace head_place(const AttentionShape& s) {
    const uint32_t slices = (s.width + slice - 1) / slice, tiles = (s.positions + rows - 1) / rows;
    uint32_t rest = blockIdx.x;
    HeadPlace at;
    at.slice_first = rest % slices * slice;
    rest /= slices;
    at.first = rest % tiles * rows;
    rest /= tiles;
    at.head = rest % s.heads;
    at.n = rest / s.heads;
    return at;
}
/// The queries (part 0), keys (1) or values (2) of a head.
template <typename T>
__device__ __forceinline__ Matrix<T> part_of(T* x, const AttentionShape& s, const HeadPlace& at, uint32_t part) {
    const uint64_t channels = uint64_t{s.heads} * s.width;
    return {x + at.n * (3 * channels * s.positions) + part * channels + at.head * s.width, 3 * channels};
}
template <typename T>
__device__ __forceinline__ Matrix<T> output_of(T* y, const AttentionShape& s, const HeadPlace& at) {
    const uint64_t channels = uint64_t{s.heads} * s.width;
    return {y + at.n * (channels * s.positions) + at.head * s.width, channels};
}
/// Of AttentionKept and delta: the place of the head's first query.
__device__ __forceinline__ uint64_t kept_place(const AttentionShape& s, const HeadPlace& at) {
    return (uint64_t{at.n} * s.heads + at.head) * s.positions;
}

struct Tiles {
    float a[rows][depth + 1], b[columns][depth + 1];
};

/// sum[i][j] = the product of row `high` (thread / 8) + i of a's tile and row thread % 8 + 8 j of b's.
template <typename T>
__device__ __forceinline__ void products(float (&sum)[high][wide], Tiles& tiles, const Matrix<T>& a, uint32_t a_first, const Matrix<T>& b,
                                         uint32_t b_first, uint32_t end, uint32_t width) {
    for (auto& row : sum)
        for (float& each : row) each = 0;
    const uint32_t row = threadIdx.x / 8 * high, column = threadIdx.x % 8;
    for (uint32_t first = 0; first < width; first += depth) {
        __syncthreads();   // the tiles before may still be read
        for (uint32_t i = threadIdx.x; i < rows * depth; i += block_threads)
            tiles.a[i / depth][i % depth] = a.get(a_first + i / depth, end, first + i % depth, width);
        for (uint32_t i = threadIdx.x; i < columns * depth; i += block_threads)
            tiles.b[i / depth][i % depth] = b.get(b_first + i / depth, end, first + i % depth, width);
        __syncthreads();
        for (uint32_t d = 0; d < depth; ++d) {
            float left[high], right[wide];
            for (uint32_t i = 0; i < high; ++i) left[i] = tiles.a[row + i][d];
            for (uint32_t j = 0; j < wide; ++j) right[j] = tiles.b[column + 8 * j][d];
            for (uint32_t i = 0; i < high; ++i)
                for (uint32_t j = 0; j < wide; ++j) sum[i][j] = fmaf(left[i], right[j], sum[i][j]);
        }
    }
}

/// sum[i][j] += the product of row `high` (thread / 8) + i of p and column slice_first + thread % 8 + 8 j of b's tile.  All threads have
/// written p.
template <typename T>
__device__ __forceinline__ void add_products(float (&sum)[high][broad], const float (&p)[rows][columns + 1],
                                             float (&values)[columns][slice], const Matrix<T>& b, uint32_t b_first, uint32_t end,
                                             uint32_t slice_first, uint32_t width) {
    const uint32_t row = threadIdx.x / 8 * high, column = threadIdx.x % 8;
    __syncthreads();   // the values before may still be read
    for (uint32_t i = threadIdx.x; i < columns * slice; i += block_threads)
        values[i / slice][i % slice] = b.get(b_first + i / slice, end, slice_first + i % slice, width);
    __syncthreads();
    for (uint32_t k = 0; k < columns; ++k) {
        float left[high], right[broad];
        for (uint32_t i = 0; i < high; ++i) left[i] = p[row + i][k];
        for (uint32_t j = 0; j < broad; ++j) right[j] = values[k][column + 8 * j];
        for (uint32_t i = 0; i < high; ++i)
            for (uint32_t j = 0; j < broad; ++j) sum[i][j] = fmaf(left[i], right[j], sum[i][j]);
    }
}

/// to = sum factor(row of the tile)
template <typename T, typename Factor>
__device__ __forceinline__ void put(const Matrix<T>& to, const float (&sum)[high][broad], uint32_t first, uint32_t end,
                                    uint32_t slice_first, uint32_t width, Factor factor) {
    const uint32_t row = threadIdx.x / 8 * high, column = slice_first + threadIdx.x % 8;
    for (uint32_t i = 0; i < high; ++i)
        for (uint32_t j = 0; j < broad; ++j)
            if (first + row + i < end && column + 8 * j < width)
                store(to.at + (first + row + i) * to.apart + column + 8 * j, sum[i][j] * factor(row + i));
}

/// Whether a query sees a key.
__device__ __forceinline__ bool sees(const AttentionShape& s, uint32_t query, uint32_t key) {
    return query < s.positions && key < s.positions && (!s.causal || key <= query);
}

/// Of a tile of scores: bit k % 8 of keeps[q][k / 8] says whether the probability of query first_query + q and key first_key + k stays.
/// first_key is a multiple of 8.  Threads may read it behind the next barrier.
template <uint32_t queries, uint32_t keys>
__device__ __forceinline__ void draw_keeps(uint8_t (&keeps)[queries][keys], const AttentionDrops& drops, const AttentionShape& s,
                                           const HeadPlace& at, uint32_t first_query, uint32_t first_key) {
    const uint64_t sample = uint64_t{drops.header->block} << 32 | (drops.first + at.n);
    for (uint32_t i = threadIdx.x; i < queries * keys; i += block_threads) {
        const uint32_t query = first_query + i / keys, eight = first_key / 8 + i % keys;
        // As AttentionDraws::first() (nn/graph/attention.h) numbers draws.
        const uint32_t number = (at.head * s.positions + query) * ((s.positions + 7) / 8) + eight;
        const Draw draw = draw4(Purpose::dropout, *drops.seed, sample, number);
        uint32_t bits = 0;
        for (uint32_t j = 0; j < 8; ++j) bits |= uint32_t{(draw.word[j / 2] >> (j % 2 * 16) & 0xffff) >= drops.drop} << j;
        keeps[i / keys][i % keys] = static_cast<uint8_t>(bits);
    }
}
/// x of a probability that stays or not.  keeps: of its query.
template <bool dropping>
__device__ __forceinline__ float dropped(float x, const uint8_t* keeps, uint32_t key, const AttentionDrops& drops) {
    if constexpr (!dropping) return x;
    return keeps[key / 8] >> key % 8 & 1 ? x * drops.scale : 0.0f;
}

template <typename T, bool dropping>
__global__ void __launch_bounds__(block_threads)
    attention_forward_kernel(T* y, const T* x, AttentionKept* kept, const AttentionShape s, const AttentionDrops drops) {
    __shared__ uint8_t keeps[rows][columns / 8];
    __shared__ Tiles tiles;
    __shared__ float p[rows][columns + 1], values[columns][slice];
    __shared__ float tops[rows], sums[rows], shrinks[rows];   // of each query: the largest score so far, its sum, what older sums shrink by
    const HeadPlace at = head_place(s);
    const Matrix<const T> q = part_of(x, s, at, 0), k = part_of(x, s, at, 1), v = part_of(x, s, at, 2);
    const uint32_t row = threadIdx.x / 8 * high, column = threadIdx.x % 8;
    const uint32_t last = at.first + rows < s.positions ? at.first + rows : s.positions, keys = s.causal ? last : s.positions;
    float sum[high][broad] = {};
    if (threadIdx.x < rows) {
        tops[threadIdx.x] = -INFINITY;
        sums[threadIdx.x] = 0;
    }
    for (uint32_t key = 0; key < keys; key += columns) {
        float scores[high][wide];
        if constexpr (dropping) draw_keeps(keeps, drops, s, at, at.first, key);
        products(scores, tiles, q, at.first, k, key, s.positions, s.width);
        for (uint32_t i = 0; i < high; ++i)
            for (uint32_t j = 0; j < wide; ++j) p[row + i][column + 8 * j] = scores[i][j];
        __syncthreads();
        if (threadIdx.x < rows) {
            float(&own)[columns + 1] = p[threadIdx.x];
            const uint32_t query = at.first + threadIdx.x;
            float top = tops[threadIdx.x], total = 0;
            for (uint32_t j = 0; j < columns; ++j)
                if (sees(s, query, key + j) && (own[j] > top || own[j] != own[j])) top = own[j];
            // NaN is larger than all others, as on the CPU.  No key seen so far: the sum is still 0.
            const float shrink = sums[threadIdx.x] > 0 || top != top ? expf(s.scale * (tops[threadIdx.x] - top)) : 0.0f;
            for (uint32_t j = 0; j < columns; ++j) {
                own[j] = sees(s, query, key + j) ? expf(s.scale * (own[j] - top)) : 0.0f;
                total += own[j];
                own[j] = dropped<dropping>(own[j], keeps[threadIdx.x], j, drops);
            }
            tops[threadIdx.x] = top;
            sums[threadIdx.x] = sums[threadIdx.x] * shrink + total;
            shrinks[threadIdx.x] = shrink;
        }
        __syncthreads();
        for (uint32_t i = 0; i < high; ++i)
            for (float& each : sum[i]) each *= shrinks[row + i];
        add_products(sum, p, values, v, key, s.positions, at.slice_first, s.width);
    }
    put(output_of(y, s, at), sum, at.first, s.positions, at.slice_first, s.width, [&](uint32_t i) { return 1 / sums[i]; });
    const uint32_t query = at.first + threadIdx.x;
    if (kept && at.slice_first == 0 && threadIdx.x < rows && query < s.positions)
        kept[kept_place(s, at) + query] = {tops[threadIdx.x], 1 / sums[threadIdx.x]};
}

/// delta of each query and head: some threads share one.
template <typename T>
__global__ void __launch_bounds__(row_threads)
    attention_delta_kernel(float* delta, const T* dy, const T* y, const AttentionShape s, uint32_t count, uint32_t lanes) {
    __shared__ float scratch[row_threads];
    const uint32_t i = blockIdx.x * (row_threads / lanes) + threadIdx.x / lanes, lane = threadIdx.x % lanes;   // n, position, head
    const uint64_t first = uint64_t{i} * s.width;
    float sum = 0;
    for (uint32_t d = lane; i < count && d < s.width; d += lanes) sum = fmaf(load(dy[first + d]), load(y[first + d]), sum);
    sum = row_sum(sum, lanes, scratch);
    const uint32_t head = i % s.heads, position = i / s.heads % s.positions, n = i / s.heads / s.positions;
    if (i < count && lane == 0) delta[(uint64_t{n} * s.heads + head) * s.positions + position] = sum;
}

/// What a score gives to dv, and ds.
struct Slope {
    float p, ds;
};
/// drop(x): x or 0, as the probability stays or not.
template <typename Drop>
__device__ __forceinline__ Slope slope_of(float score, float dp, const AttentionKept& kept, float delta, float scale, bool seen,
                                          Drop drop) {
    if (!seen) return {0, 0};
    const float p = expf(scale * (score - kept.top)) * kept.inverse;
    return {drop(p), scale * p * (drop(dp) - delta)};
}

template <typename T, bool dropping>
__global__ void __launch_bounds__(block_threads)
    attention_queries_kernel(T* dx, const T* dy, const T* x, const AttentionKept* kept, const float* delta, const AttentionShape s,
                             const AttentionDrops drops) {
    __shared__ uint8_t keeps[rows][columns / 8];
    __shared__ Tiles tiles;
    __shared__ float ds[rows][columns + 1], values[columns][slice];
    const HeadPlace at = head_place(s);
    const Matrix<const T> q = part_of(x, s, at, 0), k = part_of(x, s, at, 1), v = part_of(x, s, at, 2), slopes = output_of(dy, s, at);
    const uint32_t row = threadIdx.x / 8 * high, column = threadIdx.x % 8;
    const uint32_t last = at.first + rows < s.positions ? at.first + rows : s.positions, keys = s.causal ? last : s.positions;
    float sum[high][broad] = {};
    for (uint32_t key = 0; key < keys; key += columns) {
        float scores[high][wide], dp[high][wide];
        if constexpr (dropping) draw_keeps(keeps, drops, s, at, at.first, key);
        products(scores, tiles, q, at.first, k, key, s.positions, s.width);
        products(dp, tiles, slopes, at.first, v, key, s.positions, s.width);
        for (uint32_t i = 0; i < high; ++i) {
            const uint32_t query = at.first + row + i;
            const uint64_t place = kept_place(s, at) + (query < s.positions ? query : 0);
            const AttentionKept of = kept[place];
            const float less = delta[place];
            for (uint32_t j = 0; j < wide; ++j) {
                const uint32_t at_key = column + 8 * j;
                const auto drop = [&](float each) { return dropped<dropping>(each, keeps[row + i], at_key, drops); };
                ds[row + i][at_key] = slope_of(scores[i][j], dp[i][j], of, less, s.scale, sees(s, query, key + at_key), drop).ds;
            }
        }
        __syncthreads();
        add_products(sum, ds, values, k, key, s.positions, at.slice_first, s.width);
    }
    put(part_of(dx, s, at, 0), sum, at.first, s.positions, at.slice_first, s.width, [](uint32_t) { return 1.0f; });
}

/// at.first: the first key.
template <typename T, bool dropping>
__global__ void __launch_bounds__(block_threads)
    attention_keys_kernel(T* dx, const T* dy, const T* x, const AttentionKept* kept, const float* delta, const AttentionShape s,
                          const AttentionDrops drops) {
    __shared__ uint8_t keeps[columns][rows / 8];
    __shared__ Tiles tiles;
    __shared__ float p[rows][columns + 1], ds[rows][columns + 1], values[columns][slice];
    const HeadPlace at = head_place(s);
    const Matrix<const T> q = part_of(x, s, at, 0), k = part_of(x, s, at, 1), v = part_of(x, s, at, 2), slopes = output_of(dy, s, at);
    const uint32_t row = threadIdx.x / 8 * high, column = threadIdx.x % 8;
    float dk[high][broad] = {}, dv[high][broad] = {};
    // Causal: no query before the first key sees it.
    for (uint32_t query = s.causal ? at.first / columns * columns : 0; query < s.positions; query += columns) {
        float scores[high][wide], dp[high][wide];
        if constexpr (dropping) draw_keeps(keeps, drops, s, at, query, at.first);
        products(scores, tiles, k, at.first, q, query, s.positions, s.width);
        products(dp, tiles, v, at.first, slopes, query, s.positions, s.width);
        for (uint32_t j = 0; j < wide; ++j) {
            const uint32_t each = query + column + 8 * j;
            const uint64_t place = kept_place(s, at) + (each < s.positions ? each : 0);
            const AttentionKept of = kept[place];
            const float less = delta[place];
            for (uint32_t i = 0; i < high; ++i) {
                const auto drop = [&](float of_it) { return dropped<dropping>(of_it, keeps[column + 8 * j], row + i, drops); };
                const Slope slope = slope_of(scores[i][j], dp[i][j], of, less, s.scale, sees(s, each, at.first + row + i), drop);
                p[row + i][column + 8 * j] = slope.p;
                ds[row + i][column + 8 * j] = slope.ds;
            }
        }
        __syncthreads();
        add_products(dv, p, values, slopes, query, s.positions, at.slice_first, s.width);
        add_products(dk, ds, values, q, query, s.positions, at.slice_first, s.width);
    }
    const auto one = [](uint32_t) { return 1.0f; };
    put(part_of(dx, s, at, 1), dk, at.first, s.positions, at.slice_first, s.width, one);
    put(part_of(dx, s, at, 2), dv, at.first, s.positions, at.slice_first, s.width, one);
}

/// A thread turns a pack of channels and that `half` channels behind it; way: 1, or -1 back.  matrices: of a position, 2 heads to turn and
/// others to copy; y and x have 3 heads matrices.
template <typename T, int packed>
__global__ void rotary_kernel(T* y, const T* x, const float* turns, const AttentionShape s, uint32_t samples, uint32_t matrices,
                              float way) {
    const uint32_t half = s.width / 2, packs = half / packed, i = piece_thread(), matrix = i / packs % matrices, row = i / packs / matrices;
    if (row >= samples * s.positions) return;
    const uint32_t channel = i % packs * packed;
    const uint64_t at = uint64_t{row} * 3 * s.heads * s.width + matrix * s.width + channel;
    Pack<T, packed> left = *as_packs<packed>(x + at), right = *as_packs<packed>(x + at + half);
    if (matrix < 2 * s.heads) {
        const float* const angles = turns + uint64_t{row % s.positions} * half + channel;
        const Pack<float, packed> cosines = floats<packed>(angles), sines = floats<packed>(angles + uint64_t{s.positions} * half);
        for (int j = 0; j < packed; ++j) {
            const float of_x = load(left.v[j]), of_y = load(right.v[j]), cosine = cosines.v[j], sine = way * sines.v[j];
            store(&left.v[j], of_x * cosine - of_y * sine);
            store(&right.v[j], of_y * cosine + of_x * sine);
        }
    }
    *as_packs<packed>(y + at) = left;
    *as_packs<packed>(y + at + half) = right;
}

Status turn(cudaStream_t stream, Values y, Values x, const float* turns, const AttentionShape& s, uint32_t matrices, float way) {
    const uint32_t half = s.width / 2;
    const uint64_t values = uint64_t{3} * s.heads * s.width * s.positions;
    return typed(x.bf16, half, [&](auto type, auto packed) {
        using T = decltype(type);
        constexpr int w = decltype(packed)::value;
        const uint64_t each = uint64_t{s.positions} * matrices * (half / w);
        return pieces(s.samples, each, [&](uint64_t first, uint32_t samples) {
            return GC_LAUNCH((rotary_kernel<T, w>), blocks_of(samples * each, threads), threads, stream, as<T>(y) + first * values,
                             as<T>(x) + first * values, turns, s, samples, matrices, way);
        });
    });
}

/// Calls launch(T{}, whether something is dropped, first sample, thread blocks, what is dropped from there on) for pieces of the samples.
template <typename Launch>
Status of_heads(bool bf16, const AttentionShape& s, AttentionDrops drops, Launch launch) {
    const uint64_t each = uint64_t{s.heads} * blocks_of(s.positions, rows) * blocks_of(s.width, slice);
    return typed(bf16, [&](auto type) {
        return pieces(s.samples, each, [&](uint64_t first, uint32_t samples) {
            drops.first = static_cast<uint32_t>(first);
            const auto blocks = static_cast<uint32_t>(samples * each);
            return drops.seed ? launch(type, std::true_type{}, first, blocks, drops)
                              : launch(type, std::false_type{}, first, blocks, drops);
        });
    });
}

}   // namespace

Status rotary(cudaStream_t stream, Values y, Values x, const float* turns, const AttentionShape& s) {
    return turn(stream, y, x, turns, s, 3 * s.heads, 1);
}
Status rotary_backward(cudaStream_t stream, Values dx, const float* turns, const AttentionShape& s) {
    return turn(stream, dx, dx, turns, s, 2 * s.heads, -1);
}

Status attention_forward(cudaStream_t stream, Values y, Values x, AttentionKept* kept, const AttentionShape& s, AttentionDrops drops) {
    const uint64_t values = uint64_t{s.heads} * s.width * s.positions, queries = uint64_t{s.heads} * s.positions;
    return of_heads(x.bf16, s, drops, [&](auto type, auto dropping, uint64_t first, uint32_t blocks, const AttentionDrops& from) {
        using T = decltype(type);
        return GC_LAUNCH((attention_forward_kernel<T, decltype(dropping)::value>), blocks, block_threads, stream, as<T>(y) + first * values,
                         as<T>(x) + first * 3 * values, kept ? kept + first * queries : nullptr, s, from);
    });
}

Status attention_backward(cudaStream_t stream, Values dx, Values dy, Values x, Values y, const AttentionKept* kept, float* delta,
                          const AttentionShape& s, AttentionDrops drops) {
    const uint64_t values = uint64_t{s.heads} * s.width * s.positions, queries = uint64_t{s.heads} * s.positions;
    const uint32_t lanes = row_lanes(s.width);
    GC_TRY(typed(x.bf16, [&](auto type) {
        using T = decltype(type);
        return pieces(s.samples, queries * lanes, [&](uint64_t first, uint32_t samples) {
            const auto count = static_cast<uint32_t>(samples * queries);
            return GC_LAUNCH(attention_delta_kernel<T>, blocks_of(count, row_threads / lanes), row_threads, stream, delta + first * queries,
                             as<T>(dy) + first * values, as<T>(y) + first * values, s, count, lanes);
        });
    }));
    return of_heads(x.bf16, s, drops, [&](auto type, auto dropping, uint64_t first, uint32_t blocks, const AttentionDrops& which) {
        using T = decltype(type);
        constexpr bool drop = decltype(dropping)::value;
        T* const to = as<T>(dx) + first * 3 * values;
        const T *const slopes = as<T>(dy) + first * values, *const from = as<T>(x) + first * 3 * values;
        GC_TRY(GC_LAUNCH((attention_queries_kernel<T, drop>), blocks, block_threads, stream, to, slopes, from, kept + first * queries,
                         delta + first * queries, s, which));
        return GC_LAUNCH((attention_keys_kernel<T, drop>), blocks, block_threads, stream, to, slopes, from, kept + first * queries,
                         delta + first * queries, s, which);
    });
}

Status attention(Build& b) {
    const Layer& l = *b.layer;
    const auto heads = static_cast<uint32_t>(l.value("heads"));
    const uint32_t width = l.out.C / heads, positions = l.in.H * l.in.W;
    const AttentionShape shape{
        b.samples, positions, heads, width, static_cast<float>(1 / std::sqrt(static_cast<double>(width))), l.value("causal") != 0};
    const uint64_t queries = uint64_t{b.samples} * positions * heads;
    GC_TRY(b.rows_fit(queries));
    const Activation x = b.activation, y = b.activation = b.flows(x.learns);
    const bool learns = b.training && x.learns;
    const Tensor kept = learns ? b.kept(queries * sizeof(AttentionKept)) : Tensor{};

    const DropoutShare share = dropout_share(l.value("dropout"));
    const bool draws = b.training && layer_draws(l);
    const size_t seed = b.seed_number();
    const auto drops = [=](const Frame& f) {
        return draws && f.training ? AttentionDrops{f.seeds + seed, f.header, share.drop, share.scale} : AttentionDrops{};
    };
    RotaryTurns by = rotary_turns(l);
    const bool turns = !by.cosines.empty();
    by.cosines.insert(by.cosines.end(), by.sines.begin(), by.sines.end());
    const Tensor angles = turns ? b.constant(std::move(by.cosines)) : Tensor{};
    const uint64_t delta_bytes = learns ? aligned(queries * sizeof(float)) : 0;
    const Tensor delta = b.scratch(delta_bytes + (turns ? 3 * queries * width * b.value_bytes() : 0));
    const Tensor turned{delta.place, delta.offset + delta_bytes};
    /// What the kernels read.
    const auto input = [=](const Frame& f, Values* of) {
        *of = f.values(turns ? turned : x.value);
        return turns ? rotary(f.stream, *of, f.values(x.value), f.at(angles), shape) : Status{};
    };
    b.operations->forward.emplace_back([=](const Frame& f) {
        Values from;
        GC_TRY(input(f, &from));
        return attention_forward(f.stream, f.values(y.value), from, learns ? f.at<AttentionKept>(kept) : nullptr, shape, drops(f));
    });
    if (!learns) return {};
    b.operations->data.emplace_back([=](const Frame& f) {
        Values from;
        GC_TRY(input(f, &from));
        GC_TRY(attention_backward(f.stream, f.values(x.gradient), f.values(y.gradient), from, f.values(y.value), f.at<AttentionKept>(kept),
                                  f.at(delta), shape, drops(f)));
        return turns ? rotary_backward(f.stream, f.values(x.gradient), f.at(angles), shape) : Status{};
    });
    return {};
}

}   // namespace gradcast::cuda
