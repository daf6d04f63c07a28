// layer_norm, rms_norm and group_norm as in nn/cpu/norm.cc:  y = w z + b by channel, z = (x - mean) / sqrt(variance + epsilon), with both
// over a set.  A set has the channels of a group at all pixels of a sample.  layer_norm has one group and takes each position for a sample
// of one pixel; so does rms_norm, which is not centred: its mean counts as 0.
//     dx = inverse (g - mean of g - z mean of g z),  g = dy w;  of rms_norm without the mean of g
//     dw = sum of dy z,  db = sum of dy
//
// Some threads share a set.  Sums of sets are in double, each thread its elements in order, then the threads by halves.
#include <algorithm>

#include "nn/cuda/build.h"
#include "nn/cuda/columns.h"
#include "nn/cuda/rows.h"

namespace gradcast::cuda {
namespace {

/// A thread's part of a set.  `one`: samples of one pixel in one group.
template <bool one>
class Set {
public:
    __device__ __forceinline__ Set(const SetShape& shape, uint32_t sets, uint32_t lanes)
        : number(blockIdx.x * (row_threads / lanes) + threadIdx.x / lanes), lane(threadIdx.x % lanes), shape_(shape), lanes_(lanes) {
        if (number >= sets) return;
        const uint32_t n = one ? number : number / shape.groups, group = one ? 0 : number % shape.groups;
        of_group_ = shape.C / shape.groups;
        channel_ = group * of_group_;
        base_ = uint64_t{n} * shape.pixels * shape.C + channel_;
        count_ = shape.pixels * of_group_;
    }
    /// Calls f(place, channel) for each element of this thread.
    template <typename F>
    __device__ __forceinline__ void each(F f) const {
        for (uint32_t i = lane; i < count_; i += lanes_) {
            const uint32_t pixel = one ? 0 : i / of_group_, c = one ? i : i - pixel * of_group_;
            f(base_ + uint64_t{pixel} * shape_.C + c, channel_ + c);
        }
    }
    const uint32_t number, lane;

private:
    const SetShape& shape_;
    const uint32_t lanes_;
    uint32_t of_group_ = 1, channel_ = 0, count_ = 0;   // count_: 0 behind the last set
    uint64_t base_ = 0;
};

__device__ __forceinline__ float z_of(float x, const SetScale& by) { return (x - by.mean) * by.inverse; }

template <typename T, bool one>
__global__ void __launch_bounds__(row_threads)
    set_forward_kernel(T* y, const T* x, SetScale* scales, const float* weight, const float* bias, const SetShape s, double epsilon,
                       uint32_t sets, uint32_t lanes) {
    __shared__ double scratch[row_threads];
    const Set<one> set(s, sets, lanes);
    const double count = static_cast<double>(s.pixels) * (s.C / s.groups);
    double mean = 0, squares = 0;
    if (s.centred) {
        double sum = 0;
        set.each([&](uint64_t at, uint32_t) { sum += static_cast<double>(load(x[at])); });
        mean = row_sum(sum, lanes, scratch) / count;
    }
    set.each([&](uint64_t at, uint32_t) {
        const double off = static_cast<double>(load(x[at])) - mean;
        squares += off * off;
    });
    const double variance = row_sum(squares, lanes, scratch) / count;
    const SetScale by{static_cast<float>(mean), static_cast<float>(1 / sqrt(variance + epsilon))};
    if (set.lane == 0 && set.number < sets) scales[set.number] = by;
    set.each([&](uint64_t at, uint32_t c) { store(y + at, z_of(load(x[at]), by) * weight[c] + (bias ? bias[c] : 0.0f)); });
}

template <typename T, bool one>
__global__ void __launch_bounds__(row_threads) set_backward_kernel(T* dx, const T* dy, const T* x, const SetScale* scales,
                                                                   const float* weight, const SetShape s, uint32_t sets, uint32_t lanes) {
    __shared__ double scratch[row_threads];
    const Set<one> set(s, sets, lanes);
    const double count = static_cast<double>(s.pixels) * (s.C / s.groups);
    const SetScale by = scales[set.number < sets ? set.number : 0];
    double of_g = 0, of_gz = 0;
    set.each([&](uint64_t at, uint32_t c) {
        const auto g = static_cast<double>(load(dy[at]) * weight[c]);
        of_g += g;
        of_gz += g * static_cast<double>(z_of(load(x[at]), by));
    });
    const float a = s.centred ? static_cast<float>(row_sum(of_g, lanes, scratch) / count) : 0.0f;
    const auto b = static_cast<float>(row_sum(of_gz, lanes, scratch) / count);
    set.each([&](uint64_t at, uint32_t c) { store(dx + at, by.inverse * (load(dy[at]) * weight[c] - a - z_of(load(x[at]), by) * b)); });
}

/// 32 bits where they are enough: several times as fast as 64.
__device__ __forceinline__ uint64_t divided(uint64_t a, uint32_t b) { return a >> 32 ? a / b : static_cast<uint32_t>(a) / b; }

/// Of dy and dy z, for the sums by channel (columns.h).
template <typename T, int packed>
struct SetElement {
    using Type = T;
    static constexpr int sums = 2, width = packed;
    const T *dy, *x;
    const SetScale* scales;
    SetShape shape;
    struct Read {
        Pack<T, width> dy[columns_unrolled], x[columns_unrolled];
        uint32_t pack;
    };
    __device__ void begin(Read* to, uint32_t pack) const { to->pack = pack; }
    __device__ void load(Read* to, const uint64_t (&at)[columns_unrolled]) const {
        for (uint32_t u = 0; u < columns_unrolled; ++u) to->dy[u] = as_packs<width>(dy)[at[u]];
        for (uint32_t u = 0; u < columns_unrolled; ++u) to->x[u] = as_packs<width>(x)[at[u]];
    }
    __device__ void add(const Read& from, uint32_t u, uint64_t at, double* s) const {
        const uint64_t row = divided(at, shape.C / width), first = divided(row, shape.pixels) * shape.groups;
        const uint32_t of_group = shape.C / shape.groups;
        SetScale by = scales[first + from.pack * width / of_group];
        for (int j = 0; j < width; ++j) {
            if (shape.groups > 1) by = scales[first + (from.pack * width + static_cast<uint32_t>(j)) / of_group];
            const float gradient = cuda::load(from.dy[u].v[j]);
            s[j] += static_cast<double>(gradient);
            s[width + j] += static_cast<double>(gradient) * static_cast<double>(z_of(cuda::load(from.x[u].v[j]), by));
        }
    }
};
struct SetTotal {
    static constexpr int sums = 2;
    float *dweight, *dbias;
    __device__ void operator()(uint32_t c, const double* s) const {
        if (dbias) dbias[c] = static_cast<float>(s[0]);
        dweight[c] = static_cast<float>(s[1]);
    }
};

/// Calls launch(T{}, one of its kernels' `one`, thread blocks, lanes).
template <typename Launch>
Status of_sets(bool bf16, const SetShape& s, Launch launch) {
    const uint32_t lanes = row_lanes(uint64_t{s.pixels} * (s.C / s.groups)), blocks = blocks_of(s.sets(), row_threads / lanes);
    const bool one = s.pixels == 1 && s.groups == 1;
    return typed(bf16, [&](auto type) {
        return one ? launch(type, std::true_type{}, blocks, lanes) : launch(type, std::false_type{}, blocks, lanes);
    });
}

}   // namespace

Status set_norm_forward(cudaStream_t stream, Values y, Values x, SetScale* scales, const float* weight, const float* bias,
                        const SetShape& s, double epsilon) {
    return of_sets(x.bf16, s, [&](auto type, auto one, uint32_t blocks, uint32_t lanes) {
        using T = decltype(type);
        return GC_LAUNCH((set_forward_kernel<T, decltype(one)::value>), blocks, row_threads, stream, as<T>(y), as<T>(x), scales, weight,
                         bias, s, epsilon, s.sets(), lanes);
    });
}

Status set_norm_backward(cudaStream_t stream, Values dx, Values dy, Values x, const SetScale* scales, const float* weight,
                         const SetShape& s) {
    return of_sets(x.bf16, s, [&](auto type, auto one, uint32_t blocks, uint32_t lanes) {
        using T = decltype(type);
        return GC_LAUNCH((set_backward_kernel<T, decltype(one)::value>), blocks, row_threads, stream, as<T>(dx), as<T>(dy), as<T>(x),
                         scales, weight, s, s.sets(), lanes);
    });
}

Status set_norm_weights(cudaStream_t stream, Values dy, Values x, const SetScale* scales, float* dweight, float* dbias,
                        const SumMemory& memory, const SetShape& s) {
    return typed(x.bf16, s.C, [&](auto type, auto width) {
        using T = decltype(type);
        return columns_sum(stream, SetElement<T, decltype(width)::value>{as<T>(dy), as<T>(x), scales, s}, SetTotal{dweight, dbias}, memory,
                           uint64_t{s.N} * s.pixels, s.C);
    });
}

namespace {

Status set_norm(Build& b, const SetShape& shape) {
    const Layer& l = *b.layer;
    const uint64_t rows = b.rows(l.in);
    GC_TRY(b.rows_fit(std::max(rows, uint64_t{shape.N} * shape.groups)));
    const Activation x = b.activation, y = b.activation = b.flows(true);
    const Tensor scales = b.kept(uint64_t{shape.sets()} * sizeof(SetScale));
    const bool biased = l.biases > 0;
    const Tensor weight = b.weight(Place::parameters), bias = biased ? b.bias(Place::parameters) : Tensor{};
    b.operations->forward.emplace_back([=, epsilon = l.value("epsilon")](const Frame& f) {
        return set_norm_forward(f.stream, f.values(y.value), f.values(x.value), f.at<SetScale>(scales), f.at(weight),
                                biased ? f.at(bias) : nullptr, shape, epsilon);
    });
    if (!b.training) return {};
    const Tensor dweight = b.weight(Place::gradient), dbias = biased ? b.bias(Place::gradient) : Tensor{};
    const SumPlaces sums = b.sum(Place::beside, columns_size(rows, l.in.C, 2, b.bf16));
    b.operations->weights.emplace_back([=](const Frame& f) {
        return set_norm_weights(f.stream, f.values(y.gradient), f.values(x.value), f.at<SetScale>(scales), f.at(dweight),
                                biased ? f.at(dbias) : nullptr, f.at(sums), shape);
    });
    if (x.learns)
        b.operations->data.emplace_back([=](const Frame& f) {
            return set_norm_backward(f.stream, f.values(x.gradient), f.values(y.gradient), f.values(x.value), f.at<SetScale>(scales),
                                     f.at(weight), shape);
        });
    return {};
}

}   // namespace

/// Of each position, whose channels are a set.
static Status row_norm(Build& b, bool centred) {
    return set_norm(b, {static_cast<uint32_t>(b.rows(b.layer->in)), 1, b.layer->in.C, 1, centred});
}
Status layer_norm(Build& b) { return row_norm(b, true); }
Status rms_norm(Build& b) { return row_norm(b, false); }

Status group_norm(Build& b) {
    const Layer& l = *b.layer;
    return set_norm(b, {b.samples, l.in.H * l.in.W, l.in.C, static_cast<uint32_t>(l.value("groups"))});
}

}   // namespace gradcast::cuda
