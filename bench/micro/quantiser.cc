// The quantiser and the adds of exchanges by instruction set, in bytes of float32 (or int32) read per second, and memcpy of as many.  64
// KiB is a bucket that is still in the caches, 32 MiB comes from memory.
#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "runtime/core/rng.h"
#include "transport/code/codec.h"
#include "transport/code/kernels.h"

namespace gradcast {
namespace {

std::vector<float> gradient_make(uint64_t count) {
    std::vector<float> x(count);
    for (uint64_t i = 0; i < count; ++i) x[i] = uniform(random4(Purpose::test, 1, i, 0)[0]) - 0.5f;
    return x;
}

template <typename Word, typename Kernel>
void measure(benchmark::State& state, Kernel kernel) {
    const auto count = static_cast<uint64_t>(state.range(0)) / sizeof(float);
    const std::vector<float> x = gradient_make(count);
    std::vector<Word> words(count, 1);
    for (auto _ : state) {
        kernel(words.data(), x.data(), count);
        benchmark::ClobberMemory();
    }
    state.SetBytesProcessed(state.iterations() * state.range(0));
}

void copy(benchmark::State& state) {
    measure<int32_t>(state, [](int32_t* dst, const float* x, uint64_t count) { std::memcpy(dst, x, count * sizeof(float)); });
}
void auto32(benchmark::State& state, Isa isa, bool accumulate) {
    const bool past_caches = state.range(0) > 1 << 20;
    const Scale scale = {1.0, 0x1p27, quantise_limit(Quantiser::auto32, 8), past_caches};
    measure<int32_t>(
        state, [&](int32_t* dst, const float* x, uint64_t count) { word_kernels(isa).quantise_i32(dst, x, count, scale, accumulate); });
}
void fixed(benchmark::State& state, Isa isa) {
    const Scale scale = {10.0, 2147483647.0, quantise_limit(Quantiser::fixed, 8)};
    measure<int64_t>(state,
                     [&](int64_t* dst, const float* x, uint64_t count) { word_kernels(isa).quantise_i64(dst, x, count, scale, true); });
}
void add(benchmark::State& state, Isa isa) {
    std::vector<int32_t> src(static_cast<uint64_t>(state.range(0)) / sizeof(int32_t), 3);
    measure<int32_t>(state, [&](int32_t* dst, const float*, uint64_t count) { word_kernels(isa).add_i32(dst, src.data(), count); });
}

const bool registered = [] {
    auto sizes = [](benchmark::internal::Benchmark* each) { each->Arg(64 << 10)->Arg(32 << 20); };
    sizes(benchmark::RegisterBenchmark("quantiser/memcpy", copy));
    for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
        if (isa > isa_best()) continue;
        const std::string name = isa_name(isa);
        sizes(benchmark::RegisterBenchmark(("quantiser/auto32/first_block/" + name).c_str(), auto32, isa, false));
        sizes(benchmark::RegisterBenchmark(("quantiser/auto32/next_block/" + name).c_str(), auto32, isa, true));
        sizes(benchmark::RegisterBenchmark(("quantiser/fixed/next_block/" + name).c_str(), fixed, isa));
        sizes(benchmark::RegisterBenchmark(("quantiser/add_i32/" + name).c_str(), add, isa));
    }
    return true;
}();

}   // namespace
}   // namespace gradcast
