// A net that is cut into stages has the bits of the whole net: losses, gradients, parameters and the digest of the state.
#include "tests/nn/nets.h"

namespace gradcast {
namespace {

const OptimiserConfig adam = {.kind = "adam", .lr = 0.01};

struct Chain {
    std::vector<std::unique_ptr<Rig>> stages;
    std::vector<Gather> found;   // by stage, of the last block
    uint32_t slot = 0;

    Chain(const NetSpec& spec, NetConfig config, const std::vector<uint32_t>& begins) {
        for (size_t i = 0; i < begins.size(); ++i) {
            config.stage = {begins[i], i + 1 < begins.size() ? begins[i + 1] : ~0u};
            stages.push_back(std::make_unique<Rig>(spec, config, adam));
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
    std::vector<float> outputs;
    Evaluated(uint32_t samples, uint32_t classes) : predicted(samples, -1), outputs(uint64_t{samples} * classes, NAN) {}
    Status of(Net& net, const Samples& samples) { return net.evaluate(0, samples, &right, &loss, predicted.data(), outputs.data()); }
};

void expect_evaluations_of_the_whole(const NetSpec& spec, const std::vector<uint32_t>& begins, bool recompute) {
    NetConfig config = sizes({3});
    config.samples_max = 37;   // not a multiple of 16, which some orders are
    Rig whole(spec, config);
    config.slots = 2;
    config.recompute = recompute;
    Chain chain(spec, config, begins);
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
        Evaluated wanted(samples, spec.classes), found(samples, spec.classes);
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
void expect_bits_of_the_whole(const NetSpec& spec, const std::vector<uint32_t>& begins, bool apart, uint32_t samples = 3) {
    NetConfig config = sizes({samples});
    Rig whole(spec, config, adam);
    config.passes_apart = apart;
    Chain chain(spec, config, begins);
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

std::vector<uint32_t> begins_of(const NetSpec& spec) {
    Rig rig(spec, sizes({3}));
    return rig.net->stage_begins();
}

TEST(Stages, TwoCutAnywhere) {
    for (const NetSpec& spec : {preset("lenet5"), everything()})
        for (const uint32_t begin : begins_of(spec)) {
            SCOPED_TRACE(spec.layers[begin].kind + " " + std::to_string(begin));
            if (begin > 0) expect_bits_of_the_whole(spec, {0, begin}, begin % 2 == 0);
        }
}

// Shortcuts cross several cuts, and values go straight to each stage that reads them.
TEST(Stages, AsManyAsThereCanBe) {
    for (const char* name : {"lenet5", "mlp", "nin", "resnet9", "everything"})
        for (const bool apart : {false, true}) {
            SCOPED_TRACE(name);
            const bool grey = name == std::string("lenet5") || name == std::string("mlp");
            const NetSpec spec = name == std::string("everything") ? everything() : preset(name, grey ? 1 : 3, grey ? 28 : 32);
            expect_bits_of_the_whole(spec, begins_of(spec), apart);
        }
}

// Blocks that are computed together in the whole net are so in its stages.
TEST(Stages, OfBlocksTogether) {
    const NetSpec spec = preset("lenet5");
    const NetConfig config = sizes({16});
    Rig whole(spec, config, adam);
    Chain chain(spec, config, {0, 3, 7});
    constexpr uint32_t count = 3;
    ASSERT_GE(whole.net->together(), count);
    for (const auto& stage : chain.stages) ASSERT_EQ(stage->net->together(), whole.net->together());
    std::vector<std::unique_ptr<Data>> data;
    std::vector<Block> blocks;
    for (uint32_t b = 0; b < count; ++b) {
        data.push_back(std::make_unique<Data>(spec, 16, b + 1));
        blocks.push_back({{0, b}, data[b]->samples});
    }
    std::vector<GatherEach> found;
    for (const auto& stage : chain.stages) {
        found.emplace_back(stage->net->layout(), count, true);
        for (Gather& each : found.back().each) each.has_loss = &stage != &chain.stages.back();
    }
    for (size_t i = 0; i < found.size(); ++i) {
        chain.receive(i, false, 16 * count);
        ASSERT_TRUE(chain.net(i).forward(0, 0, blocks, found[i]).ok());
    }
    for (size_t i = found.size(); i-- > 0;) {
        chain.receive(i, true, 16 * count);
        ASSERT_TRUE(chain.net(i).backward(0, 0, Backward::both, found[i]).ok());
    }
    for (uint32_t b = 0; b < count; ++b) {
        Gather wanted(whole.net->layout());
        ASSERT_TRUE(whole.net->block(0, blocks[b].id, blocks[b].samples, wanted).ok());
        EXPECT_EQ(found.back().each[b].total, wanted.total);
        EXPECT_TRUE(
            same_bits(chain.gathered(whole.net->layout().elements, [&](size_t i) { return found[i].each[b].gradient; }), wanted.gradient));
    }
}

TEST(Stages, EvaluateWithTheBitsOfTheWholeNet) {
    for (const char* name : {"lenet5", "mlp", "nin", "resnet9", "everything"}) {
        const bool grey = name == std::string("lenet5") || name == std::string("mlp");
        const NetSpec spec = name == std::string("everything") ? everything() : preset(name, grey ? 1 : 3, grey ? 28 : 32);
        const std::vector<uint32_t> all = begins_of(spec);
        for (size_t stages = 2; stages <= 4; ++stages) {
            SCOPED_TRACE(fmt::format("{}, {} stages", name, stages));
            std::vector<uint32_t> begins;
            for (size_t i = 0; i < stages; ++i) begins.push_back(all[all.size() * i / stages]);
            expect_evaluations_of_the_whole(spec, begins, stages % 2 == 0);
        }
    }
}

TEST(Stages, TakeTheMemoryOfTheirLayers) {
    const NetSpec spec = preset("mlp");
    uint64_t most = 0;
    auto bytes = [&](const Stage& stage) {
        NetConfig config = sizes({64});
        config.stage = stage;
        Rig rig(spec, config);
        return rig.arena.whole().bytes;
    };
    const std::vector<uint32_t> begins = begins_of(spec);
    for (size_t i = 0; i < begins.size(); ++i) most = std::max(most, bytes({begins[i], i + 1 < begins.size() ? begins[i + 1] : ~0u}));
    EXPECT_LT(most, bytes({}) * 3 / 4);   // it has more than half of the parameters
}

TEST(Stages, RefuseCutsThatFusionsCross) {
    const NetSpec spec = preset("lenet5");   // conv, relu, pool, ...
    auto mistake = [&](const Stage& stage) {
        NetConfig config = sizes({4});
        config.stage = stage;
        Arena arena;
        std::unique_ptr<Net> net;
        return std::string(net_cpu_plan(spec, config, arena, &net).what);
    };
    EXPECT_EQ(mistake({1, 4}), "no stage can begin at layer pool1, which is computed with the one before it: begin it at conv1 or conv2");
    EXPECT_EQ(mistake({0, 2}), "no stage can begin at layer relu1, which is computed with the one before it: begin it at conv1 or conv2");
    EXPECT_EQ(mistake({3, 3}), "a stage needs at least one of the net's 12 layers");
    EXPECT_EQ(mistake({90, 99}), "a stage needs at least one of the net's 12 layers");
}

}   // namespace
}   // namespace gradcast
