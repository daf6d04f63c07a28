// The coded exchanges' arithmetic by instruction set: encoding at d = m = 2, s = 0, n = 8, decoding of all its segments, digests and
// auto16.  Bytes are those read (encode: both super-blocks' words); code/memcpy copies as many.  One core; 256 KiB of words fits in the
// second-level cache, 4 MiB does not.
#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "runtime/core/rng.h"
#include "transport/code/codec.h"
#include "transport/code/field.h"
#include "transport/code/kernels.h"

namespace gradcast {
namespace {

// `rows` vectors of `bytes` in all, contiguous, below every prime and limit.
struct Rows {
    std::vector<uint32_t> memory;
    std::vector<Buffer> buffers;
    Rows(uint32_t rows, uint64_t bytes) : memory(bytes / 4) {
        for (uint64_t i = 0; i < memory.size(); ++i) memory[i] = random4(Purpose::test, 1, i, 0)[0] & 0x1FFF1FFF;
        for (uint32_t r = 0; r < rows; ++r)
            buffers.push_back({reinterpret_cast<std::byte*>(memory.data()) + r * (bytes / rows), nullptr, bytes / rows});
    }
};

void copy(benchmark::State& state) {
    const auto bytes = static_cast<uint64_t>(state.range(0));
    const Rows in(1, bytes);
    Rows out(1, bytes);
    for (auto _ : state) {
        std::memcpy(out.memory.data(), in.memory.data(), bytes);
        benchmark::ClobberMemory();
    }
    state.SetBytesProcessed(state.iterations() * state.range(0));
}

void combine(benchmark::State& state, Isa isa, const Combine& shape, const std::vector<uint32_t>& weights) {
    const auto bytes = static_cast<uint64_t>(state.range(0));
    const Rows in(shape.ins, bytes), out(shape.outs, bytes / shape.ins * shape.outs);
    Combine combine = shape;
    combine.weights = weights.data();
    combine.in = in.buffers.data();
    combine.out = out.buffers.data();
    const uint64_t count = bytes / shape.ins / (shape.prime == prime_16 ? 2 : 4);
    for (auto _ : state) {
        if (word_kernels(isa).combine(combine, count) != shape.ins) state.SkipWithError("refused");
        benchmark::ClobberMemory();
    }
    state.SetBytesProcessed(state.iterations() * state.range(0));
}

constexpr CyclicCode code_of(uint32_t prime) { return {8, 2, 0, prime}; }

void encode(benchmark::State& state, Isa isa, uint32_t prime) {
    const CyclicCode code = code_of(prime);
    std::vector<uint32_t> weights(code.d() * code.m);
    code.encode_weights(3, weights);
    combine(state, isa, {.prime = prime, .outs = 1, .ins = code.d() * code.m, .in_signed = true}, weights);
}

void decode(benchmark::State& state, Isa isa, uint32_t prime) {
    const CyclicCode code = code_of(prime);
    const std::vector<Rank> ranks = {0, 1, 2, 3, 4, 5, 6, 7};
    std::vector<uint32_t> weights(code.m * code.senders());
    code.decode_weights(ranks, weights);
    combine(state, isa, {.prime = prime, .outs = code.m, .ins = code.senders(), .out_signed = true}, weights);
}

void decode_weights(benchmark::State& state) {
    const CyclicCode code = {static_cast<uint32_t>(state.range(0)), 2, 1, prime_32};
    std::vector<Rank> ranks;
    for (Rank rank = 0; rank < code.senders(); ++rank) ranks.push_back(rank);
    std::vector<uint32_t> weights(code.m * code.senders());
    for (auto _ : state) {
        code.decode_weights(ranks, weights);
        benchmark::DoNotOptimize(weights.data());
    }
}

void digest(benchmark::State& state, Isa isa, Word word) {
    const auto bytes = static_cast<uint64_t>(state.range(0));
    const Rows in(1, bytes);
    const Buffer& words = in.buffers[0];
    for (auto _ : state)
        benchmark::DoNotOptimize(word == Word::i16 ? word_kernels(isa).digest_i16(words.as<int16_t>(), bytes / 2, 0)
                                                   : word_kernels(isa).digest_i32(words.as<int32_t>(), bytes / 4, 0));
    state.SetBytesProcessed(state.iterations() * state.range(0));
}

void auto16(benchmark::State& state, Isa isa) {
    const auto count = static_cast<uint64_t>(state.range(0)) / sizeof(float);
    std::vector<float> x(count);
    for (uint64_t i = 0; i < count; ++i) x[i] = uniform(random4(Purpose::test, 1, i, 0)[0]) - 0.5f;
    std::vector<int16_t> words(count, 1);
    for (auto _ : state) {
        word_kernels(isa).quantise_i16(words.data(), x.data(), count, {1.0, 0x1p12, quantise_limit(Quantiser::auto16, 8)}, {1, 2, 3, 0},
                                       true);
        benchmark::ClobberMemory();
    }
    state.SetBytesProcessed(state.iterations() * state.range(0));
}

const bool registered = [] {
    auto sizes = [](benchmark::internal::Benchmark* each) { each->Arg(256 << 10)->Arg(4 << 20); };
    sizes(benchmark::RegisterBenchmark("code/memcpy", copy));
    benchmark::RegisterBenchmark("code/decode_weights/senders", decode_weights)->Arg(8)->Arg(64);
    for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
        if (isa > isa_best()) continue;
        const std::string name = isa_name(isa);
        for (uint32_t prime : {prime_32, prime_16}) {
            const std::string quantiser = prime == prime_32 ? "auto32/" : "auto16/";
            sizes(benchmark::RegisterBenchmark(("code/encode/" + quantiser + name).c_str(), encode, isa, prime));
            sizes(benchmark::RegisterBenchmark(("code/decode/" + quantiser + name).c_str(), decode, isa, prime));
            const Word word = prime == prime_32 ? Word::i32 : Word::i16;
            sizes(benchmark::RegisterBenchmark(("code/digest/" + quantiser + name).c_str(), digest, isa, word));
        }
        sizes(benchmark::RegisterBenchmark(("code/quantise/auto16/" + name).c_str(), auto16, isa));
    }
    return true;
}();

}   // namespace
}   // namespace gradcast
