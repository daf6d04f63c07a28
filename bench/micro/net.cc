// One block, forward and backward, as a step computes it; blocks of 16 are those of a batch of 128 in 8 blocks.
#include <benchmark/benchmark.h>

#include "nn/net.h"
#include "nn/optimiser.h"

namespace gradcast {
namespace {

struct NoSink : GradientSink {
    Status bucket(uint32_t, BlockId, uint32_t, Buffer gradient) override {
        benchmark::DoNotOptimize(gradient.host);
        return {};
    }
    void loss(uint32_t, BlockId, double) override {}
};

void net_block(benchmark::State& state, const char* preset) {
    auto count = static_cast<uint32_t>(state.range(0));
    NetSpec spec;
    Arena arena;
    std::unique_ptr<Net> net;
    NetConfig config;
    config.samples_max = count, config.block_sizes = {count};
    Status status = preset_find(preset, 1, 28, 28, 10, &spec);
    if (status.ok()) status = net_cpu_plan(spec, config, arena, &net);
    if (status.ok()) status = arena.seal();
    if (status.ok()) status = net_cpu_ready(*net);
    if (!status.ok()) return state.SkipWithError(status.what);
    std::vector<uint8_t> images(uint64_t{count} * 28 * 28);
    std::vector<int32_t> labels(count);
    for (size_t i = 0; i < images.size(); ++i) images[i] = static_cast<uint8_t>(i * 7919 >> 3);
    for (uint32_t i = 0; i < count; ++i) labels[i] = static_cast<int32_t>(i % 10);
    float mean = 0.3f, std = 0.35f;
    Samples samples{images.data(), labels.data(), count, 1, 28, 28, &mean, &std};
    NoSink sink;
    StepId step = 0;
    for (auto _ : state)
        if (!net->block(0, {step++, 0}, samples, sink).ok()) return state.SkipWithError("block failed");
    state.counters["images/s"] = benchmark::Counter(static_cast<double>(state.iterations()) * count, benchmark::Counter::kIsRate);
}
BENCHMARK_CAPTURE(net_block, lenet5, "lenet5")->Arg(16)->Arg(100);
BENCHMARK_CAPTURE(net_block, mlp, "mlp")->Arg(16)->Arg(100);

/// What follows a step's exchange: words to float, SGD with momentum, copies of the weights.
void net_apply(benchmark::State& state, const char* preset) {
    NetSpec spec;
    Arena arena;
    std::unique_ptr<Net> net;
    std::unique_ptr<Optimiser> optimiser;
    NetConfig config;
    config.samples_max = 16, config.block_sizes = {16};
    OptimiserConfig sgd;
    sgd.momentum = 0.9;
    Status status = preset_find(preset, 1, 28, 28, 10, &spec);
    if (status.ok()) status = net_cpu_plan(spec, config, arena, &net);
    if (status.ok()) status = optimiser_plan(sgd, net->layout().elements, arena, &optimiser);
    if (status.ok()) status = arena.seal();
    if (status.ok()) status = net_cpu_ready(*net);
    if (!status.ok()) return state.SkipWithError(status.what);
    std::vector<int32_t> words(net->layout().elements, 1);
    std::vector<double> units(net->layout().groups.size(), 0x1p-40);
    for (auto _ : state)
        for (uint32_t b = 0; b < net->layout().buckets.size(); ++b) {
            const Bucket& bucket = net->layout().buckets[b];
            Sum sum;
            sum.bucket = b, sum.words = {reinterpret_cast<std::byte*>(words.data() + bucket.offset), nullptr, bucket.count * 4};
            if (!net->apply(*optimiser, sum, std::span(units).first(bucket.group_count)).ok()) return state.SkipWithError("apply failed");
        }
    state.counters["parameters/s"] =
        benchmark::Counter(static_cast<double>(state.iterations()) * static_cast<double>(words.size()), benchmark::Counter::kIsRate);
}
BENCHMARK_CAPTURE(net_apply, lenet5, "lenet5");
BENCHMARK_CAPTURE(net_apply, mlp, "mlp");

}   // namespace
}   // namespace gradcast
