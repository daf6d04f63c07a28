// The update of the parameters by an optimiser, for its .cu file alone: sums to float, the rule, digests.  Same bits as nn/kernels.isa.cc
// and runtime/core/digest.cc (nvcc -fmad=false).
//
// A Rule has
//     static constexpr uint32_t vectors_max;   // of state; of one with whole steps
//     static __device__ void element(float& w, float& first, float& second, uint32_t vectors, float g, const StepRates& now);
// which updates an element of w and of the optimiser's vectors of state.  There are `vectors` of them; element() ignores the others.
// One that scales the step of each tensor by its norms has also
//     static __device__ float look(float w, float& first, float& second, float g, const StepRates& now);   // the step before that
//     static __device__ void scale(StepRates& now, const TensorNorms& norms);
#pragma once
#include "nn/cuda/element.h"
#include "runtime/core/cuda/digest.h"

namespace gradcast::cuda {
namespace {

__device__ bool finite(float x) { return (__float_as_uint(x) & 0x7f800000) != 0x7f800000; }

/// Of the optimiser's rule.
__device__ uint32_t vectors_of(const UpdateVectors& at) { return (at.first ? 1 : 0) + (at.second ? 1 : 0); }
/// The rule of running statistics and of averaged weights.
__device__ void mix(float& w, float share, float g) { w += share * (g - w); }

template <typename Rule>
struct Update {
    UpdateVectors at;
    UpdateRule rule;
    const StepRates* own;   // of the tensor; null: those of the step
    __device__ void operator()(uint64_t i, float g, const UpdateRates& now) const {
        if (rule != UpdateRule::frozen) {
            float one = at.first ? at.first[i] : 0, two = at.second ? at.second[i] : 0;
            Rule::element(at.w[i], one, two, vectors_of(at), g, own ? *own : rule == UpdateRule::exempt ? now.exempt : now.plain);
            if (at.first) at.first[i] = one;
            if (at.second) at.second[i] = two;
        }
        if (at.mean) mix(at.mean[i], now.fresh, at.w[i]);
    }
};
struct StatisticsUpdate {
    UpdateVectors at;
    float share;
    __device__ void operator()(uint64_t i, float g, const UpdateRates&) const { mix(at.w[i], share, g); }
};

__device__ float gradient_at(const Words& words, uint64_t i) {
    const ApplyNow& now = *words.now;
    const uint64_t at = words.first + i;
    const double word = now.word == Word::i16   ? static_cast<double>(static_cast<const int16_t*>(now.words)[at])
                        : now.word == Word::i32 ? static_cast<double>(static_cast<const int32_t*>(now.words)[at])
                                                : static_cast<double>(static_cast<const int64_t*>(now.words)[at]);
    return static_cast<float>(word * *words.unit);
}

template <typename Update>
__global__ void apply_kernel(Update update, Words words, uint64_t count) {
    const uint64_t i = thread_number();
    if (i >= count) return;
    update(i, gradient_at(words, i), words.now->rates);
    if (!finite(update.at.w[i])) *words.now->spoiled = 1;
}

/// A thread block adds up the squares of norm_piece elements.
template <typename Rule>
__global__ void norms_kernel(TensorNorms* norms, UpdateVectors at, Words words, uint64_t count) {
    __shared__ double weights[threads], steps[threads];
    const uint64_t begin = blockIdx.x * norm_piece, end = count - begin < norm_piece ? count : begin + norm_piece;
    TensorNorms sum{};
    for (uint64_t i = begin + threadIdx.x; i < end; i += threads) {
        float first = at.first[i], second = at.second[i];
        const double weight = at.w[i], step = Rule::look(at.w[i], first, second, gradient_at(words, i), words.now->rates.plain);
        sum.w += weight * weight;
        sum.step += step * step;
    }
    weights[threadIdx.x] = sum.w;
    steps[threadIdx.x] = sum.step;
    for (uint32_t apart = threads / 2; apart > 0; apart /= 2) {
        __syncthreads();
        if (threadIdx.x >= apart) continue;
        weights[threadIdx.x] += weights[threadIdx.x + apart];
        steps[threadIdx.x] += steps[threadIdx.x + apart];
    }
    if (threadIdx.x == 0) norms[blockIdx.x] = {weights[0], steps[0]};
}
template <typename Rule>
__global__ void rates_kernel(StepRates* own, const TensorNorms* norms, uint32_t pieces, const ApplyNow* now) {
    TensorNorms sum{};
    for (uint32_t i = 0; i < pieces; ++i) {
        sum.w += norms[i].w;
        sum.step += norms[i].step;
    }
    *own = now->rates.plain;
    Rule::scale(*own, sum);
}

template <typename Update>
Status apply(cudaStream_t stream, const Update& update, const Words& words, uint64_t count) {
    return GC_LAUNCH(apply_kernel<Update>, blocks_of(count, threads), threads, stream, update, words, count);
}

// ---- whole steps: every group in one kernel, which also digests what it has written ------------------------------------------------

// A thread updates packs of four elements, which are 4 * threads apart.
constexpr uint32_t packs = update_per_block / (4 * threads);
static_assert(update_per_block % (4 * threads) == 0 && threads == digest_row);

/// The place of a thread's packs in its thread block.
struct UpdatePlace {
    uint32_t at[packs];
    Part part[packs];
    /// Calls each(k, i) for each element i of each pack k.
    template <typename Each>
    __device__ __forceinline__ void each(Each each) const {
        for (uint32_t k = 0; k < packs; ++k)
            for (uint32_t i = 0; i < 4; ++i)
                if (part[k].has(i)) each(k, i);
    }
};
template <typename T>
__device__ __forceinline__ void read(Pack<T, 4> (&to)[packs], const T* from, const UpdatePlace& place) {
    for (uint32_t k = 0; k < packs; ++k) to[k] = read(from + place.at[k], place.part[k]);
}
template <typename T>
__device__ __forceinline__ void write(T* to, const Pack<T, 4> (&from)[packs], const UpdatePlace& place) {
    for (uint32_t k = 0; k < packs; ++k) write(to + place.at[k], place.part[k], from[k]);
}

/// The sums over the lanes of the words from `first` on.
template <typename Unsigned>
__device__ __forceinline__ void sum_lanes(Pack<Unsigned, 4> (&sums)[packs], const CudaDevice::StepWords& words, uint64_t first,
                                          const UpdatePlace& place) {
    for (auto& sum : sums) sum = {};
    for (uint32_t lane = 0; lane < words.lanes; ++lane) {
        Pack<Unsigned, 4> more[packs];
        read(more, static_cast<const Unsigned*>(words.from[lane]) + first, place);
        for (uint32_t k = 0; k < packs; ++k)
            for (int i = 0; i < 4; ++i) sums[k].v[i] = static_cast<Unsigned>(sums[k].v[i] + more[k].v[i]);
    }
}
using Gradients = Pack<float, 4>[packs];
template <typename Signed, typename Unsigned>
__device__ __forceinline__ void read_words(Gradients& to, const CudaDevice::StepWords& words, uint64_t first, double unit,
                                           const UpdatePlace& place) {
    Pack<Unsigned, 4> sums[packs];
    sum_lanes(sums, words, first, place);
    for (uint32_t k = 0; k < packs; ++k)
        for (int i = 0; i < 4; ++i) to[k].v[i] = static_cast<float>(static_cast<double>(static_cast<Signed>(sums[k].v[i])) * unit);
}
/// Digits as Codec::whole() reads them.
__device__ __forceinline__ void read_digits(Gradients& to, const CudaDevice::StepWords& words, const UpdateGroup& group, double unit,
                                            const UpdatePlace& place) {
    int64_t values[packs][4] = {};
    for (uint64_t digit = 3; digit-- > 0;) {
        Pack<uint16_t, 4> sums[packs];
        sum_lanes(sums, words, group.words + digit * group.digit, place);
        for (uint32_t k = 0; k < packs; ++k)
            for (int i = 0; i < 4; ++i) values[k][i] = values[k][i] * group.radix + static_cast<int16_t>(sums[k].v[i]);
    }
    for (uint32_t k = 0; k < packs; ++k)
        for (int i = 0; i < 4; ++i) to[k].v[i] = static_cast<float>(static_cast<double>(values[k][i]) * unit);
}

/// The digest's factors for the elements of a thread block in w (0), and in the vectors of state from the first one (1) on.  A thread block
/// computes them once: an element takes far fewer instructions than its factor.
template <uint32_t vectors>
struct Factors {
    uint32_t small[vectors][digest_row];   // by element % digest_row
    uint64_t large[vectors][update_per_block / digest_row + 1];
    __device__ void fill(uint32_t vector, uint64_t first) {
        small[vector][threadIdx.x] = digest_small((first + threadIdx.x) % digest_row);
        if (threadIdx.x <= update_per_block / digest_row) large[vector][threadIdx.x] = digest_large(first / digest_row + threadIdx.x);
    }
    /// `first`: as in fill().
    __device__ __forceinline__ uint64_t digest(uint32_t vector, uint64_t first, const Pack<float, 4> (&values)[packs],
                                               const UpdatePlace& place) const {
        const uint32_t begin = first % digest_row;
        uint64_t sum = 0;
        for (uint32_t k = 0; k < packs; ++k) {
            const Pack<uint32_t, 4> some = *as_packs<4>(&small[vector][place.at[k] % digest_row]);
            for (uint32_t i = 0; i < 4; ++i)   // elements that are not in the part are 0
                sum += uint64_t{some.v[i]} * __float_as_uint(values[k].v[i]) * large[vector][(begin + place.at[k] + i) / digest_row];
        }
        return sum;
    }
};

// 3 thread blocks of a multiprocessor: fewer registers would be too few.  averages: there are averaged weights.
template <typename Rule, bool averages>
__global__ void __launch_bounds__(threads, averages ? 2 : 3) update_kernel(const __grid_constant__ UpdateTask task) {
    const UpdateBlock block = task.blocks[blockIdx.x];
    const UpdateGroup& group = block.group;
    const bool halted = *task.words.halted != 0;
    const double unit = task.words.units[group.number];
    const uint64_t element = group.element;
    UpdatePlace place;
    for (uint32_t k = 0; k < packs; ++k) {
        place.at[k] = 4 * (threadIdx.x + k * threads);
        place.part[k] = Part::of(place.at[k], block.begin, block.end);
    }
    // All loads are under way before the first value is needed.
    const UpdateVectors& at = task.at;
    Pack<float, 4> w[packs], first[packs] = {}, second[packs] = {}, gradient[packs];
    [[maybe_unused]] Pack<float, 4> mean[packs] = {};
    read(w, at.w + element, place);
    if (at.first) read(first, at.first + element, place);
    const bool has_second = Rule::vectors_max > 1 && at.second;
    if (has_second) read(second, at.second + element, place);
    if constexpr (averages) read(mean, at.mean + element, place);
    if (group.radix != 0) read_digits(gradient, task.words, group, unit, place);
    else if (task.words.word == Word::i16) read_words<int16_t, uint16_t>(gradient, task.words, group.words, unit, place);
    else read_words<int32_t, uint32_t>(gradient, task.words, group.words, unit, place);

    // In shared memory, what registers have no room for.
    alignas(16) __shared__ Factors<1 + Rule::vectors_max + (averages ? 1 : 0)> factors;
    __shared__ StepRates rates;
    const UpdateRule rule = group.rule;
    if (threadIdx.x < sizeof rates / sizeof(float))
        rates.at[threadIdx.x] = (rule == UpdateRule::exempt ? task.rates->exempt : task.rates->plain).at[threadIdx.x];
    const uint32_t vectors = vectors_of(at);
    factors.fill(0, element);
    if (at.first) factors.fill(1, task.elements + element);
    if (has_second) factors.fill(2, 2 * task.elements + element);
    if constexpr (averages) factors.fill(vectors + 1, (vectors + 1) * task.elements + element);
    __syncthreads();

    if (!halted) {
        if (rule == UpdateRule::statistics) place.each([&](uint32_t k, uint32_t i) { mix(w[k].v[i], task.share, gradient[k].v[i]); });
        else if (rule != UpdateRule::frozen)
            place.each(
                [&](uint32_t k, uint32_t i) { Rule::element(w[k].v[i], first[k].v[i], second[k].v[i], vectors, gradient[k].v[i], rates); });
        write(at.w + element, w, place);
        if (at.first) write(at.first + element, first, place);
        if (has_second) write(at.second + element, second, place);
        if constexpr (averages) {
            const float fresh = task.rates->fresh;
            if (rule != UpdateRule::statistics) place.each([&](uint32_t k, uint32_t i) { mix(mean[k].v[i], fresh, w[k].v[i]); });
            write(at.mean + element, mean, place);
        }
    }
    bool sound = true;
    for (const auto& pack : w)
        for (const float x : pack.v) sound = sound && finite(x);
    if (!sound) *task.spoiled = 1;
    uint64_t sum = factors.digest(0, element, w, place);
    if (at.first) sum += factors.digest(1, task.elements + element, first, place);
    if (has_second) sum += factors.digest(2, 2 * task.elements + element, second, place);
    if constexpr (averages) sum += factors.digest(vectors + 1, (vectors + 1) * task.elements + element, mean, place);
    const unsigned long long all = block_sum(sum);
    if (threadIdx.x > 0) return;
    atomicAdd(&task.total->sum, all);
    __threadfence();   // the thread block that takes the last ticket sees the sums of all
    if (atomicAdd(&task.total->ticket, 1u) + 1 < gridDim.x) return;
    *task.digest = atomicAdd(&task.total->sum, 0ull);
    *task.total = {0, 0};
}

template <typename Rule>
Status apply_rule(cudaStream_t stream, const UpdateVectors& at, UpdateRule rule, const Words& words, uint64_t count, const StepRates* own) {
    return apply(stream, Update<Rule>{at, rule, own}, words, count);
}
template <typename Rule>
UpdateKernels update_kernels_by_tensor() {
    return {.apply = apply_rule<Rule>,
            .look = [](cudaStream_t stream, const UpdateVectors& at, const Words& words, uint64_t count, TensorNorms* norms,
                       StepRates* own) -> Status {
                const uint32_t pieces = blocks_of(count, norm_piece);
                GC_TRY(GC_LAUNCH(norms_kernel<Rule>, pieces, threads, stream, norms, at, words, count));
                return GC_LAUNCH(rates_kernel<Rule>, 1, 1, stream, own, norms, pieces, words.now);
            }};
}
template <typename Rule>
UpdateKernels update_kernels() {
    return {.apply = apply_rule<Rule>, .all = [](cudaStream_t stream, const UpdateTask& task, uint32_t blocks) {
                return task.at.mean ? GC_LAUNCH((update_kernel<Rule, true>), blocks, threads, stream, task)
                                    : GC_LAUNCH((update_kernel<Rule, false>), blocks, threads, stream, task);
            }};
}

}   // namespace
}   // namespace gradcast::cuda
