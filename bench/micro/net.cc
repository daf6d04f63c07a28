// One block, forward and backward, as a step computes it (blocks of 16 are those of a batch of 128 in 8 blocks), the whole step, its end.
#include <benchmark/benchmark.h>

#include "nn/net.h"
#include "nn/optimiser.h"
#include "transport/code/codec.h"

namespace gradcast {
namespace {

struct NoSink : GradientSink {
    Status bucket(uint32_t, BlockId, uint32_t, Buffer gradient) override {
        benchmark::DoNotOptimize(gradient.host);
        return {};
    }
    void loss(uint32_t, BlockId, double) override {}
};

/// A net with its optimiser for blocks of `count` made-up samples.
struct Made {
    NetSpec spec;
    Arena arena;
    std::unique_ptr<Net> net;
    std::unique_ptr<Optimiser> optimiser;
    std::vector<uint8_t> images;
    std::vector<int32_t> labels;
    float mean = 0.3f, std = 0.35f;
    Samples samples;

    Status open(const char* preset, uint32_t count) {
        NetConfig config;
        config.samples_max = count, config.block_sizes = {count};
        OptimiserConfig sgd;
        sgd.lr = 1e-6, sgd.momentum = 0.9;   // nothing is learnt, so every step does the same work
        GC_TRY(preset_find(preset, 1, 28, 28, 10, &spec));
        GC_TRY(net_cpu_plan(spec, config, arena, &net));
        GC_TRY(optimiser_plan(sgd, net->layout().elements, arena, &optimiser));
        GC_TRY(arena.seal());
        GC_TRY(net_cpu_ready(*net));
        images.resize(uint64_t{count} * 28 * 28), labels.resize(count);
        for (size_t i = 0; i < images.size(); ++i) images[i] = static_cast<uint8_t>(i * 7919 >> 3);
        for (uint32_t i = 0; i < count; ++i) labels[i] = static_cast<int32_t>(i % 10);
        samples = {images.data(), labels.data(), count, 1, 28, 28, &mean, &std};
        return {};
    }
};

void rate(benchmark::State& state, const char* name, double each) {
    state.counters[name] = benchmark::Counter(static_cast<double>(state.iterations()) * each, benchmark::Counter::kIsRate);
}

void net_block(benchmark::State& state, const char* preset) {
    auto count = static_cast<uint32_t>(state.range(0));
    Made made;
    if (Status status = made.open(preset, count); !status.ok()) return state.SkipWithError(status.what);
    NoSink sink;
    StepId step = 0;
    while (state.KeepRunning())
        if (!made.net->block(0, {step++, 0}, made.samples, sink).ok()) return state.SkipWithError("block failed");
    rate(state, "images/s", count);
}
BENCHMARK_CAPTURE(net_block, lenet5, "lenet5")->Arg(16)->Arg(100);
BENCHMARK_CAPTURE(net_block, mlp, "mlp")->Arg(16)->Arg(100);

/// Blocks quantised and added up, as they are on their way to the exchange.
struct Words : GradientSink {
    static constexpr uint32_t blocks = 8, count = 16;
    const Layout& layout;
    std::unique_ptr<Codec> codec;
    std::vector<int32_t> words;
    std::vector<float> maxima;
    std::vector<Record> records;
    explicit Words(const Layout& l)
        : layout(l),
          codec(codec_cpu(l, {Quantiser::auto32, blocks * count, blocks})),
          words(l.elements),
          maxima(l.groups.size()),
          records(l.buckets.size()) {}
    Status bucket(uint32_t lane, BlockId id, uint32_t b, Buffer gradient) override {
        const Bucket& range = layout.buckets[b];
        records[b].maxima = std::span(maxima).subspan(range.group, range.group_count);
        Fence fence;
        return codec->add(lane, id, b, gradient, {Word::i32, sum(b).words, &records[b]}, &fence);
    }
    void loss(uint32_t, BlockId, double) override {}
    Sum sum(uint32_t b) {
        const Bucket& range = layout.buckets[b];
        Sum sum;
        sum.bucket = b, sum.maxima = records[b].maxima;
        sum.words = {reinterpret_cast<std::byte*>(words.data() + range.offset), nullptr, range.count * sizeof(int32_t)};
        return sum;
    }
};

/// A step of 128 samples in 8 blocks on one lane, without loading and exchange: forward, backward, quantise, words to float, SGD with
/// momentum, copies of the weights, scales.
void net_step(benchmark::State& state, const char* preset) {
    Made made;
    if (Status status = made.open(preset, Words::count); !status.ok()) return state.SkipWithError(status.what);
    Words words(made.net->layout());
    StepId step = 0;
    while (state.KeepRunning()) {
        for (uint32_t block = 0; block < Words::blocks; ++block)
            if (!made.net->block(0, {step, block}, made.samples, words).ok()) return state.SkipWithError("block failed");
        made.optimiser->step(step++);
        for (uint32_t b = 0; b < words.records.size(); ++b) {
            if (!made.net->apply(*made.optimiser, words.sum(b), words.codec->units(b)).ok()) return state.SkipWithError("apply failed");
            words.codec->commit(words.sum(b));
        }
    }
    rate(state, "images/s", Words::blocks * Words::count);
}
BENCHMARK_CAPTURE(net_step, lenet5, "lenet5");
BENCHMARK_CAPTURE(net_step, mlp, "mlp");

/// What follows a step's exchange: words to float, SGD with momentum, copies of the weights.
void net_apply(benchmark::State& state, const char* preset) {
    Made made;
    if (Status status = made.open(preset, Words::count); !status.ok()) return state.SkipWithError(status.what);
    Words words(made.net->layout());
    while (state.KeepRunning())
        for (uint32_t b = 0; b < words.records.size(); ++b)
            if (!made.net->apply(*made.optimiser, words.sum(b), words.codec->units(b)).ok()) return state.SkipWithError("apply failed");
    rate(state, "parameters/s", static_cast<double>(words.words.size()));
}
BENCHMARK_CAPTURE(net_apply, lenet5, "lenet5");
BENCHMARK_CAPTURE(net_apply, mlp, "mlp");

}   // namespace
}   // namespace gradcast
