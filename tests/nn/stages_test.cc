// A net that is cut into stages has the bits of the whole net: losses, gradients, parameters and the digest of the state.
#include "tests/nn/chain.h"

namespace gradcast {
namespace {

std::vector<uint32_t> begins_of(const NetSpec& spec) {
    Rig rig(spec, sizes({3}));
    return rig.net->stage_begins();
}

TEST(Stages, TwoCutAnywhere) {
    for (const NetSpec& spec :
         {small_gpt(), of_masks(), preset("lenet5"), everything(), regression_on_floats(Element::f32), encoder_decoder()})
        for (const uint32_t begin : begins_of(spec)) {
            SCOPED_TRACE(spec.layers[begin].kind + " " + std::to_string(begin));
            if (begin > 0) expect_bits_of_the_whole<Rig>(spec, {0, begin}, begin % 2 == 0);
        }
}

// Shortcuts cross several cuts, and values go straight to each stage that reads them.
TEST(Stages, AsManyAsThereCanBe) {
    for (const char* name : {"lenet5", "mlp", "nin", "resnet9", "everything"})
        for (const bool apart : {false, true}) {
            SCOPED_TRACE(name);
            const bool grey = name == std::string("lenet5") || name == std::string("mlp");
            const NetSpec spec = name == std::string("everything") ? everything() : preset(name, grey ? 1 : 3, grey ? 28 : 32);
            expect_bits_of_the_whole<Rig>(spec, begins_of(spec), apart);
        }
}

// Blocks that are computed together in the whole net are so in its stages.
TEST(Stages, OfBlocksTogether) {
    const NetSpec spec = preset("lenet5");
    const NetConfig config = sizes({16});
    Rig whole(spec, config, adam);
    Chain<Rig> chain(spec, config, {0, 3, 7});
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
            expect_evaluations_of_the_whole<Rig>(spec, begins, stages % 2 == 0);
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
