// Whole steps, from samples to the state's digest: graphs alone, and the bits of the CPU for the same gradients.
#include <functional>

#include "tests/cuda/steps.h"
#include "tests/nn/nets.h"

namespace gradcast {
namespace {

const OptimiserConfig adam{.kind = "adam", .lr = 1e-2, .schedule = "step", .decay_every = 1, .decay = 0.5};
const OptimiserConfig averaged{.kind = "adamw", .lr = 1e-2, .weight_decay = 0.1, .ema = 0.9};
const OptimiserConfig sgd{
    .lr = 0.05, .momentum = 0.9, .weight_decay = 1e-3, .nesterov = true, .schedule = "cosine", .warm_up = 2, .steps = 5};

/// The config with what it names of a net.
OptimiserConfig ranged(OptimiserConfig config, const NetSpec& spec) {
    std::vector<Layer> layers;
    Status status = layers_check(spec, &layers);
    if (status.ok()) status = optimiser_ranges(layers, &config);
    EXPECT_TRUE(status.ok()) << status.what;
    return config;
}
OptimiserConfig exempt_of_everything() {
    OptimiserConfig config = sgd;
    config.decay_exempt = true;
    config.freeze = {"conv2", "fc1.bias"};
    config.ema = 0.75;
    return ranged(config, everything());
}

/// Its embedding's weights are those of the head too: a block has two gradients of them.
NetSpec tied_text() {
    NetSpec spec{.C = 1, .H = 1, .W = 8, .classes = 1, .element = Element::u16, .vocabulary = 19};
    for (const char* text : {"embedding name=wte outputs=24 initial_std=0.5", "positions initial_std=0.5", "linear outputs=72",
                             "attention heads=3 causal=1", "linear outputs=24", "layer_norm", "linear outputs=48", "gelu",
                             "linear outputs=24", "linear name=head outputs=19 weights_of=wte bias=0", "softmax_cross_entropy"})
        spec.layers.push_back(layer(text));
    return spec;
}

OptimiserConfig frozen_of_tied_text() {
    OptimiserConfig config = averaged;
    config.decay_exempt_names = {"layer_norm1"};
    config.freeze = {"linear1", "positions1"};
    return ranged(config, tied_text());
}
OptimiserConfig lamb_of_everything() {
    return ranged({.kind = "lamb", .lr = 1e-2, .weight_decay = 0.1, .decay_exempt = true, .ema = 0.9}, everything());
}

/// Hands each gradient to a codec, as it comes.
struct Quantises : GradientSink {
    Codec& codec;
    std::function<const Plan&(uint32_t, size_t)> plan;
    Quantises(Codec& with, std::function<const Plan&(uint32_t, size_t)> of) : codec(with), plan(std::move(of)) {}
    void loss(uint32_t, BlockId, double) override {}
    Status bucket(uint32_t lane, BlockId id, uint32_t bucket, Buffer part) override {
        return codec.add(lane, id, bucket, part, plan(id.block, bucket));
    }
};

class CudaSteps : public testing::TestWithParam<StepCase> {};

struct Trace final : NetTrace {
    uint64_t now_ns() override { return 0; }
    void pass(uint32_t, const Layer&, Pass, uint64_t, uint64_t) override { ++passes; }
    std::atomic<uint64_t> passes{0};
};

// Learning rate, Adam's corrections, scales and seeds change in each step; lanes take blocks in any order.
TEST_P(CudaSteps, AreAsOnTheCpu) {
    GC_NEED_GPU();
    int count = 0;
    ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
    if (static_cast<uint32_t>(count) < GetParam().gpus) GTEST_SKIP() << "one GPU alone";
    const NetSpec spec = GetParam().net ? GetParam().net() : everything();
    Steps graphs(GetParam(), spec), launches(GetParam(), spec), whole(GetParam(), spec, true);
    launches.graphs = false;
    const bool by_tensor = optimiser_find(GetParam().optimiser.kind)->look != nullptr;
    EXPECT_EQ(whole.net->steps_ahead(), GetParam().gpus == 1 && GetParam().quantiser != Quantiser::fixed && !by_tensor ? 2u : 0u);
    // The same gradients, quantised, summed and applied on the CPU.
    Rig cpu(spec, many_buckets(1), GetParam().optimiser);
    CudaRig gradients(spec, many_buckets(1));
    const Layout& layout = cpu.net->layout();
    const auto codec = codec_cpu(layout, {GetParam().quantiser, batch, block_count, 99});
    Words words(*codec, layout, graphs.words->word, GetParam().targets);
    ASSERT_GT(layout.buckets.size(), 4u);
    const std::vector<float> ones(layout.elements, 1.0f);
    for (Codec* each : {codec.get(), graphs.codec.get(), launches.codec.get(), whole.codec.get()}) each->probe(ones.data());
    Trace trace;   // the last step is traced: launched operation by operation
    for (StepId step = 0; step < 4; ++step) {
        if (step == 3) {
            graphs.net->trace(&trace);
            launches.net->trace(&trace);
            whole.net->trace(&trace);
        }
        const Data data(spec, batch, static_cast<uint32_t>(step) + 1);
        for (auto& target : words.records)
            for (Record& record : target) record.blocks = 0;
        std::copy(cpu.net->parameters().begin(), cpu.net->parameters().end(), gradients.net->parameters().begin());
        gradients.net->refresh();
        auto target = [&](uint32_t block, size_t bucket) -> const Plan& {
            return words.plans[target_of(block, GetParam().targets) * layout.buckets.size() + bucket];
        };
        for (uint32_t block = 0; block < block_count; ++block) {
            Samples samples = data.samples;
            samples.count = block_samples;
            samples.labels += block * block_samples;
            samples.images += uint64_t{block} * block_samples * spec.sample_bytes();
            Quantises sink(*codec, target);
            ASSERT_TRUE(gradients.net->block(0, {step, block}, samples, sink).ok());
        }
        for (uint32_t i = 0; i < words.plans.size(); ++i)
            ASSERT_TRUE(codec->finish(step, i % static_cast<uint32_t>(layout.buckets.size()), words.plans[i]).ok());
        cpu.optimiser->step(step);
        std::vector<BucketSum> sums;
        for (uint32_t b = 0; b < layout.buckets.size(); ++b) sums.push_back({codec->whole(words.sum(*codec, step, b)), codec->units(b)});
        uint64_t want = 0;
        ASSERT_TRUE(cpu.net->apply(cpu.lanes, *cpu.optimiser, sums, &want).ok());
        for (uint32_t b = 0; b < layout.buckets.size(); ++b) codec->commit(words.sum(*codec, step, b));
        for (Steps* each : {&graphs, &launches}) {
            SCOPED_TRACE(fmt::format("step {} {}", step, each == &graphs ? "by graphs" : "by launches"));
            EXPECT_EQ(each->step(step, data.samples), want);
            for (size_t i = 0; i < words.plans.size(); ++i) {
                const Plan &a = each->words->plans[i], &b = words.plans[i];
                EXPECT_EQ(std::memcmp(a.words.host, b.words.host, b.words.bytes), 0) << i;
                EXPECT_EQ(a.record->digest, b.record->digest);
                EXPECT_EQ(a.record->clipped, b.record->clipped);
                EXPECT_TRUE(std::equal(a.record->maxima.begin(), a.record->maxima.end(), b.record->maxima.begin()));
            }
            EXPECT_TRUE(std::equal(codec->exponents().begin(), codec->exponents().end(), each->codec->exponents().begin()));
        }
        if (whole.net->steps_ahead() > 0) {
            SCOPED_TRACE(fmt::format("whole step {}", step));
            const WholeStep done = whole.whole_step(step, data.samples);
            EXPECT_EQ(done.digest, want);
            uint64_t clipped = 0;
            for (uint32_t b = 0; b < layout.buckets.size(); ++b) {
                const Sum sum = words.sum(*codec, step, b);   // merges the targets' maxima
                EXPECT_TRUE(std::equal(sum.maxima.begin(), sum.maxima.end(), done.maxima.begin() + layout.buckets[b].group));
            }
            for (const Plan& plan : words.plans) clipped += plan.record->clipped;
            EXPECT_EQ(done.clipped, clipped);
            EXPECT_TRUE(std::equal(codec->exponents().begin(), codec->exponents().end(), whole.codec->exponents().begin()));
#ifdef GC_CUDA_HOST
            if (step < 3) {   // one launch, one wait; the first copies the scales
                EXPECT_EQ(whole.counts.graphs, 1u);
                EXPECT_EQ(whole.counts.kernels, 0u);
                EXPECT_EQ(whole.counts.synchronisations, 1u);
                EXPECT_EQ(whole.counts.allocations, 0u);
            }
#endif
        }
        if (step == 3) break;
#ifdef GC_CUDA_HOST
        // Graphs: one a block, one an end of a bucket and GPU, one an update and GPU, two digests.  Waits: one a block's loss, one an end
        // of a bucket, one for both digests.
        const uint64_t ends = words.plans.size(), updates = layout.buckets.size(), gpus = GetParam().gpus;
        EXPECT_EQ(graphs.counts.kernels, 0u);
        EXPECT_GT(launches.counts.kernels, block_count * updates - 1);
        EXPECT_EQ(graphs.counts.graphs, block_count + ends * gpus + updates * gpus + 2);
        EXPECT_EQ(graphs.counts.synchronisations, block_count + ends + 1);
        EXPECT_EQ(graphs.counts.allocations, 0u);
#endif
    }
    EXPECT_GT(trace.passes.load(), 0u);
}
INSTANTIATE_TEST_SUITE_P(
    All, CudaSteps,
    testing::Values(StepCase{1, 1, 1, Quantiser::auto32, sgd, false}, StepCase{2, 1, 2, Quantiser::auto16, adam, true},
                    StepCase{3, 2, 1, Quantiser::auto16, adam, false}, StepCase{3, 2, 2, Quantiser::auto32, sgd, true},
                    StepCase{2, 1, 1, Quantiser::fixed, sgd, false}, StepCase{1, 1, 1, Quantiser::auto32, adam, false, tied_text},
                    StepCase{2, 1, 2, Quantiser::auto16, sgd, false, tied_text},
                    StepCase{3, 2, 1, Quantiser::auto32, sgd, false, tied_text}, StepCase{2, 1, 1, Quantiser::fixed, sgd, false, tied_text},
                    StepCase{2, 1, 1, Quantiser::auto32, exempt_of_everything(), false},
                    StepCase{1, 1, 2, Quantiser::auto16, exempt_of_everything(), true},
                    StepCase{2, 1, 1, Quantiser::auto32, frozen_of_tied_text(), false, tied_text},
                    StepCase{2, 1, 1, Quantiser::auto16, lamb_of_everything(), false}),
    [](const auto& each) {
        const StepCase& c = each.param;
        return fmt::format("{}_{}lanes_{}gpus_{}targets{}", quantiser_name(c.quantiser), c.lanes, c.gpus, c.targets, c.net ? "_tied" : "") +
               (c.optimiser.ema > 0 ? fmt::format("_{}_ema", c.optimiser.kind) : "");
    });

}   // namespace
}   // namespace gradcast
