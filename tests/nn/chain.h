// A net that is cut into stages beside the whole net: on the CPU (nn/stages_test.cc) and on GPUs (cuda/stages_test.cc).
#pragma once
#include "tests/nn/nets.h"

namespace gradcast {

inline const OptimiserConfig adam = {.kind = "adam", .lr = 0.01};

/// Each stage's net, of a kind of rig (nn/rig.h, cuda/nn_rig.h).
template <typename Kind>
struct Chain {
    std::vector<std::unique_ptr<Kind>> stages;
    std::vector<Gather> found;   // by stage, of the last block
    uint32_t slot = 0;

    Chain(const NetSpec& spec, NetConfig config, const std::vector<uint32_t>& begins) {
        for (size_t i = 0; i < begins.size(); ++i) {
            config.stage = {begins[i], i + 1 < begins.size() ? begins[i + 1] : ~0u};
            stages.push_back(std::make_unique<Kind>(spec, config, adam));
        }
    }
    Net& net(size_t stage) { return *stages[stage]->net; }
    /// Copies the values (or gradients) that cross cuts to that stage's blocks.
    void receive(size_t stage, bool gradients, uint32_t samples) {
        receive(stage, gradients, [&](Net& of, size_t edge) { return of.edge(0, slot, edge, gradients, samples); });
    }
    template <typename Memory>
    void receive(size_t stage, bool gradients, Memory memory) {
        for (size_t to = 0; to < net(stage).edges().size(); ++to) {
            const Edge edge = net(stage).edges()[to];
            if (edge.incoming == gradients || (gradients && !edge.learns)) continue;
            uint32_t senders = 0;
            for (size_t other = 0; other < stages.size(); ++other)
                for (size_t from = 0; from < net(other).edges().size(); ++from) {
                    const Edge& twin = net(other).edges()[from];
                    if (other == stage || twin.from != edge.from || twin.by != edge.by) continue;
                    const Buffer sent = memory(net(other), from), received = memory(net(stage), to);
                    ASSERT_EQ(sent.bytes, received.bytes);
                    std::memcpy(received.host, sent.host, sent.bytes);
                    ++senders;
                }
            EXPECT_EQ(senders, 1u);
        }
    }
    void forward(std::span<const Block> all, uint32_t samples) {
        found.clear();
        for (size_t i = 0; i < stages.size(); ++i) {
            found.emplace_back(net(i).layout());
            found.back().has_loss = i + 1 < stages.size();   // the last stage has the loss
        }
        for (size_t i = 0; i < stages.size(); ++i) {
            receive(i, false, samples);
            const Status status = net(i).forward(0, slot, all, found[i]);
            ASSERT_TRUE(status.ok()) << status.what;
        }
    }
    void backward(uint32_t samples, bool apart) {
        for (size_t i = stages.size(); i-- > 0;) {
            receive(i, true, samples);
            ASSERT_TRUE(net(i).backward(0, slot, apart ? Backward::data : Backward::both, found[i]).ok());
        }
        for (size_t i = 0; apart && i < stages.size(); ++i) ASSERT_TRUE(net(i).backward(0, slot, Backward::weights, found[i]).ok());
    }
    void blocks(std::span<const Block> all, uint32_t samples, bool apart) {
        forward(all, samples);
        backward(samples, apart);
    }
    template <typename Of>
    std::vector<float> gathered(uint64_t elements, Of of) {
        std::vector<float> whole(elements, NAN);
        for (size_t i = 0; i < stages.size(); ++i)
            for (const Layout::Run& run : net(i).layout().runs())
                std::copy_n(of(i).begin() + static_cast<int64_t>(run.offset), run.count, whole.begin() + static_cast<int64_t>(run.place));
        return whole;
    }
};

struct Evaluated {
    uint32_t right = ~0u;
    double loss = NAN;
    std::vector<int32_t> predicted;
    std::vector<float> outputs;   // empty: they are not asked for
    Evaluated(uint32_t samples, uint32_t outputs_of) : predicted(samples, -1), outputs(uint64_t{samples} * outputs_of, NAN) {}
    Status of(Net& net, const Samples& samples) {
        return net.evaluate(0, samples, &right, &loss, predicted.data(), outputs.empty() ? nullptr : outputs.data());
    }
};

/// outputs: those of the loss are compared too.
template <typename Kind>
void expect_evaluations_of_the_whole(const NetSpec& spec, const std::vector<uint32_t>& begins, bool recompute, bool outputs = true) {
    NetConfig config = sizes({3});
    config.samples_max = 37;   // not a multiple of 16, which some orders are
    Kind whole(spec, config);
    config.slots = 2;
    config.recompute = recompute;
    Chain<Kind> chain(spec, config, begins);
    const std::span<float> parameters = whole.net->parameters();
    const std::vector<float> noise = numbers(parameters.size(), 5);
    for (size_t i = 0; i < parameters.size(); ++i) parameters[i] += 0.05f * noise[i];
    whole.net->refresh();
    for (size_t i = 0; i < begins.size(); ++i) {
        for (const Layout::Run& run : chain.net(i).layout().runs())
            std::copy_n(parameters.begin() + static_cast<int64_t>(run.place), run.count,
                        chain.net(i).parameters().begin() + static_cast<int64_t>(run.offset));
        chain.net(i).refresh();
    }
    // A block is in flight in the other slot.
    Data trained(spec, 3);
    const Gather gradient = whole.block(trained.samples);
    const Block block{{0, 0}, trained.samples};
    chain.slot = 1;
    chain.forward({&block, 1}, 3);
    for (const uint32_t samples : {37u, 21u, 3u, 2u}) {
        SCOPED_TRACE(samples);
        Data data(spec, samples, samples);
        Evaluated wanted(samples, outputs ? spec.classes : 0), found(samples, outputs ? spec.classes : 0);
        ASSERT_TRUE(wanted.of(*whole.net, data.samples).ok());
        for (size_t i = 0; i < begins.size(); ++i) {
            const bool last = i + 1 == begins.size();
            Samples read{.count = samples};
            if (i == 0) read = data.samples;
            read.labels = last ? data.samples.labels : nullptr;
            chain.receive(i, false, [&](Net& of, size_t edge) { return of.evaluation_edge(0, edge, samples); });
            const Status status = found.of(chain.net(i), read);
            ASSERT_TRUE(status.ok()) << status.what;
            if (last) continue;
            EXPECT_TRUE(found.right == 0 && found.loss == 0 && found.predicted == Evaluated(samples, 1).predicted);
        }
        EXPECT_EQ(found.right, wanted.right);
        EXPECT_EQ(found.loss, wanted.loss);
        EXPECT_EQ(found.predicted, wanted.predicted);
        EXPECT_TRUE(same_bits(found.outputs, wanted.outputs));
    }
    chain.backward(3, false);
    EXPECT_EQ(chain.found.back().total, gradient.total);
    EXPECT_TRUE(same_bits(chain.gathered(parameters.size(), [&](size_t i) { return chain.found[i].gradient; }), gradient.gradient));
}

/// Two steps of one block.
template <typename Kind>
void expect_bits_of_the_whole(const NetSpec& spec, const std::vector<uint32_t>& begins, bool apart, uint32_t samples = 3) {
    NetConfig config = sizes({samples});
    Kind whole(spec, config, adam);
    config.passes_apart = apart;
    Chain<Kind> chain(spec, config, begins);
    const uint64_t elements = whole.net->layout().elements;
    for (StepId step = 0; step < 2; ++step) {
        Data data(spec, samples, static_cast<uint32_t>(step + 1));
        const Block block{{step, 0}, data.samples};
        Gather wanted = whole.block(data.samples, 0, step);
        chain.blocks({&block, 1}, samples, apart);
        EXPECT_EQ(chain.found.back().total, wanted.total);
        ASSERT_TRUE(same_bits(chain.gathered(elements, [&](size_t i) { return chain.found[i].gradient; }), wanted.gradient));
        whole.step(step, wanted.gradient, samples);
        uint64_t digest = 0;
        for (size_t i = 0; i < chain.stages.size(); ++i) {
            EXPECT_EQ(chain.found[i].next, chain.net(i).layout().buckets.size());
            EXPECT_EQ(chain.net(i).layout().whole(), elements);
            chain.stages[i]->step(step, chain.found[i].gradient, samples);
            digest += chain.net(i).digest() + chain.stages[i]->optimiser->digest(elements);
        }
        EXPECT_EQ(digest, whole.net->digest() + whole.optimiser->digest(elements));
    }
    const std::span<const float> parameters = whole.net->parameters();
    EXPECT_TRUE(same_bits(chain.gathered(elements, [&](size_t i) { return chain.net(i).parameters(); }),
                          std::vector<float>(parameters.begin(), parameters.end())));
}

}   // namespace gradcast
