// Layers that do not learn: the gradients above them keep their bits, and theirs are zeros.
#include "nn/frozen.h"
#include "tests/nn/chain.h"
#include "tests/nn/llama.h"

namespace gradcast {
namespace {

struct FrozenCase {
    const char* name;
    NetSpec spec;
};
void PrintTo(const FrozenCase& each, std::ostream* out) { *out << each.name; }

/// Two large gradients, which are handed in by pieces.
NetSpec pieces() { return {.C = 3, .H = 20, .W = 20, .classes = 7, .layers = {fc(301), relu(), fc(300), fc(7), loss()}}; }
NetSpec sliced() {
    NetSpec spec = pieces();
    spec.layers[2].values.set("slices", 2);
    return spec;
}

class Frozen : public testing::TestWithParam<FrozenCase> {};

TEST_P(Frozen, GradientsAboveKeepTheirBits) {
    const NetSpec& spec = GetParam().spec;
    std::vector<Layer> layers;
    ASSERT_TRUE(layers_check(spec, &layers).ok());
    const NetConfig config = sizes({3, 4});
    Rig whole(spec, config);
    const Data data(spec, 4), other(spec, 3, 2);
    for (uint32_t count = 1; count <= layers.size(); ++count) {
        if (count < layers.size() && layers[count].parameters() == 0) continue;
        SCOPED_TRACE(count);
        Rig rig(spec, config);
        net_cpu_freeze(*rig.net, count);
        rig.block(other.samples);   // leaves other gradients in the lane's memory
        for (const bool by_pieces : {false, true}) {
            Gather wanted(whole.net->layout()), found(rig.net->layout());
            found.by_pieces = by_pieces;
            ASSERT_TRUE(whole.net->block(0, {1, 2}, data.samples, wanted).ok());
            ASSERT_TRUE(rig.net->block(0, {1, 2}, data.samples, found).ok());
            EXPECT_EQ(found.total, wanted.total);
            for (uint32_t i = 0; i < layers.size(); ++i) {
                const auto part = [&](const Gather& of, uint64_t first, uint64_t size) {
                    const auto begin = of.gradient.begin() + static_cast<ptrdiff_t>(first);
                    return std::vector<float>(begin, begin + static_cast<ptrdiff_t>(size));
                };
                const Layer& l = layers[i];
                const std::vector<float> weights = part(found, l.offset, l.parameters());
                EXPECT_TRUE(same_bits(weights, i < count ? std::vector<float>(l.parameters()) : part(wanted, l.offset, l.parameters())))
                    << layer_name(l);
                EXPECT_TRUE(same_bits(part(found, l.statistics_offset, l.statistics), part(wanted, l.statistics_offset, l.statistics)));
            }
        }
    }
}
// No gradient crosses a cut below the first layer that learns.
TEST_P(Frozen, StagesHandInTheGradientsOfTheWholeNet) {
    const NetSpec& spec = GetParam().spec;
    std::vector<Layer> layers;
    ASSERT_TRUE(layers_check(spec, &layers).ok());
    NetConfig config = sizes({3});
    const std::vector<uint32_t> all = Rig(spec, config).net->stage_begins();
    ASSERT_GT(all.size(), 2u);
    const std::vector<uint32_t> begins = {0, all[all.size() / 3], all[2 * all.size() / 3]};
    const Data data(spec, 3);
    const Block block{{0, 0}, data.samples};
    for (uint32_t count = 1; count <= layers.size(); ++count) {
        if (count < layers.size() && layers[count].parameters() == 0) continue;
        Rig whole(spec, config, adam);
        net_cpu_freeze(*whole.net, count);
        const Gather wanted = whole.block(data.samples);
        for (const bool apart : {false, true}) {
            SCOPED_TRACE(fmt::format("{} layers, apart {}", count, apart));
            NetConfig cut = config;
            cut.passes_apart = apart;
            Chain<Rig> chain(spec, cut, begins), learns(spec, cut, begins);
            for (size_t i = 0; i < begins.size(); ++i) {
                net_cpu_freeze(chain.net(i), count);
                for (size_t edge = 0; edge < chain.net(i).edges().size(); ++edge) {
                    const Edge& its = chain.net(i).edges()[edge];
                    EXPECT_EQ(its.learns, its.from >= count && learns.net(i).edges()[edge].learns) << its.from << " " << its.by;
                }
            }
            chain.blocks({&block, 1}, 3, apart);
            EXPECT_EQ(chain.found.back().total, wanted.total);
            EXPECT_TRUE(same_bits(
                chain.gathered(layers_layout(layers, config.bucket_bytes).elements, [&](size_t i) { return chain.found[i].gradient; }),
                wanted.gradient));
        }
    }
}
INSTANTIATE_TEST_SUITE_P(Nets, Frozen,
                         testing::Values(FrozenCase{"everything", everything()}, FrozenCase{"encoder_decoder", encoder_decoder()},
                                         FrozenCase{"gpt", small_gpt()}, FrozenCase{"llama", small_llama()},
                                         FrozenCase{"masks", of_masks()}, FrozenCase{"lenet5", preset("lenet5")},
                                         FrozenCase{"pieces", pieces()}, FrozenCase{"sliced", sliced()}),
                         [](const auto& p) { return p.param.name; });

// Blocks that are computed together have the gradients of blocks alone.
TEST(FrozenBlocks, TogetherAreAsAlone) {
    for (const NetSpec& spec : {preset("lenet5"), pieces()}) {
        std::vector<Layer> layers;
        ASSERT_TRUE(layers_check(spec, &layers).ok());
        Rig rig(spec, sizes({16}));
        ASSERT_GT(rig.net->together(), 1u);
        uint32_t count = 1;
        while (layers[count].parameters() == 0) ++count;
        net_cpu_freeze(*rig.net, count);
        const Data first(spec, 16), second(spec, 16, 2);
        const Block blocks[] = {{{0, 0}, first.samples}, {{0, 1}, second.samples}};
        for (const bool by_pieces : {false, true}) {
            GatherEach found(rig.net->layout(), 2, by_pieces);
            ASSERT_TRUE(rig.net->blocks(0, blocks, found).ok());
            for (uint32_t b = 0; b < 2; ++b) {
                Gather alone(rig.net->layout());
                ASSERT_TRUE(rig.net->block(0, {0, b}, blocks[b].samples, alone).ok());
                EXPECT_TRUE(same_bits(found.each[b].gradient, alone.gradient));
            }
        }
    }
}

TEST(FrozenLayers, AreCountedUpToTheFirstThatLearns) {
    const NetSpec spec = preset("lenet5");   // conv1, pool, relu, conv2, ..., fc1, relu, fc2, relu, fc3
    std::vector<Layer> layers;
    ASSERT_TRUE(layers_check(spec, &layers).ok());
    const auto learns_from = [&](std::vector<std::string> freeze) -> std::string {
        OptimiserConfig config{.freeze = std::move(freeze)};
        EXPECT_TRUE(optimiser_ranges(layers, &config).ok());
        return layer_name(layers[layers_frozen(layers, config)]);
    };
    EXPECT_EQ(learns_from({}), "conv1");
    EXPECT_EQ(learns_from({"conv1.weight"}), "conv1");
    EXPECT_EQ(learns_from({"conv1.weight", "conv1.bias"}), "conv2");
    EXPECT_EQ(learns_from({"conv1", "fc1"}), "conv2");
    EXPECT_EQ(learns_from({"conv1", "conv2", "fc1", "fc2"}), "fc3");
    EXPECT_EQ(learns_from({"fc3"}), "conv1");
}

}   // namespace
}   // namespace gradcast
