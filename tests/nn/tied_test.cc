// Weights that several layers take (weights_of): what a net with them is.  positions_test.cc has PyTorch's numbers of one.
#include <algorithm>

#include "nn/frozen.h"
#include "tests/nn/tied.h"

namespace gradcast {
namespace {

NetSpec text_net(const std::vector<std::string>& layers) {
    NetSpec spec{.C = 1, .H = 1, .W = 6, .classes = 1, .element = Element::u16, .vocabulary = 7};
    for (const std::string& each : layers) spec.layers.push_back(layer(each));
    return spec;
}

const std::vector<std::string> two_heads = {"embedding name=wte outputs=4", "linear name=up outputs=7 weights_of=wte bias=0",
                                            "linear name=down outputs=4", "linear name=head outputs=7 weights_of=up bias=0",
                                            "softmax_cross_entropy"};

TEST(Tied, ParametersAreTheOthersAndCountOnce) {
    std::vector<Layer> apart, tied;
    ASSERT_TRUE(layers_check(small_gpt(), &apart).ok());
    ASSERT_TRUE(layers_check(tied_gpt(), &tied).ok());
    const Layout layout = layers_layout(tied, 1);
    EXPECT_EQ(layout.elements + 7 * 24, layers_layout(apart, 1).elements);
    const Layer& head = tied[tied.size() - 2];
    EXPECT_EQ(head.parameters(), 0u);
    EXPECT_TRUE(head.learns());
    EXPECT_EQ(head.offset, tied[0].offset);
    EXPECT_EQ(tied[0].uses, 2u);
    EXPECT_EQ(layout.groups[0].uses, 2u);
    EXPECT_EQ(std::ranges::count(layout.groups, 1u, &Group::uses), static_cast<int64_t>(layout.groups.size()) - 1);
}

TEST(Tied, AsText) {
    const std::string text = "linear name=head weights_of=wte outputs=7 bias=0";
    const LayerSpec head = layer(text);
    EXPECT_EQ(head.weights_of, "wte");
    EXPECT_EQ(layer_text(head), text);
}

// Initial weights do not depend on who takes them.
TEST(Tied, BeginsAsWithoutATie) {
    Rig apart(small_gpt(), sizes({2})), tied(tied_gpt(), sizes({2}));
    const std::span<const float> all = tied.net->parameters();
    EXPECT_TRUE(std::ranges::equal(all, apart.net->parameters().first(all.size())));
}

TEST(Tied, BucketsAreCompleteBeforeALayerAddsToAnother) {
    for (const uint64_t bucket_bytes : {uint64_t{1}, uint64_t{1} << 40}) {
        const NetSpec spec = text_net(two_heads);
        std::vector<Layer> layers;
        ASSERT_TRUE(layers_check(spec, &layers).ok());
        const Layout layout = layers_layout(layers, bucket_bytes);
        ASSERT_EQ(layout.groups.size(), 2u);   // wte, down
        EXPECT_EQ(layout.groups[0].uses, 3u);
        ASSERT_EQ(layout.buckets.size(), 2u);
        EXPECT_EQ(layout.buckets[1].count, 28u);
        EXPECT_EQ(buckets_of_layers(layers, layout), (std::vector<uint32_t>{1, 1, 0, 1, ~0u}));
        // The gradient of a use is not written where that of `down` waits for its taker.
        NetConfig config = sizes({3});
        config.bucket_bytes = bucket_bytes;
        Rig rig(spec, config);
        const Data data(spec, 3);
        const Gather found = rig.block(data.samples);
        EXPECT_EQ(found.came, (std::vector<uint32_t>{1, 3}));
    }
    // Neighbours in the vector that a use stands between.
    std::vector<Layer> layers;
    ASSERT_TRUE(layers_check(text_net({"embedding name=wte outputs=7", "layer_norm", "linear outputs=7 weights_of=wte bias=0", "layer_norm",
                                       "rms_norm", "softmax_cross_entropy"}),
                             &layers)
                    .ok());
    EXPECT_EQ(buckets_of_layers(layers, layers_layout(layers, uint64_t{1} << 40)), (std::vector<uint32_t>{2, 1, 2, 0, ~0u, ~0u}));
}

TEST(Tied, SlopesAreThoseOfTheLoss) {
    for (const Difference& each : {Difference{"gpt", tied_gpt(), 4, false}, {"two heads", text_net(two_heads), 5, false}}) {
        SCOPED_TRACE(each.name);
        Rig rig(each.spec, sizes({each.samples}));
        expect_slopes(rig, each);
    }
}

// Of frozen weights no use hands in what the memory held before.
TEST(Tied, FrozenLayersHandInZeros) {
    const NetSpec spec = text_net(two_heads);
    std::vector<Layer> layers;
    ASSERT_TRUE(layers_check(spec, &layers).ok());
    OptimiserConfig config;
    config.freeze = {"wte"};
    ASSERT_TRUE(optimiser_ranges(layers, &config).ok());
    EXPECT_EQ(layers_frozen(layers, config), 2u);   // wte, up
    Rig learns(spec, sizes({3})), rig(spec, sizes({3}));
    const Data data(spec, 3);
    const Gather wanted = learns.block(data.samples);
    net_cpu_freeze(*rig.net, 2);
    struct Uses : Gather {
        using Gather::Gather;
        std::vector<float> largest;   // of each gradient of the tied weights
        Status bucket(uint32_t lane, BlockId id, uint32_t bucket, Buffer part) override {
            if (layout.buckets[bucket].offset == 0) {
                float most = 0;
                for (uint64_t i = 0; i < part.bytes / sizeof(float); ++i) most = std::max(most, std::abs(part.as<float>()[i]));
                largest.push_back(most);
            }
            return Gather::bucket(lane, id, bucket, part);
        }
    } found(rig.net->layout());
    ASSERT_TRUE(rig.net->block(0, {0, 0}, data.samples, found).ok());
    ASSERT_EQ(found.largest.size(), 3u);   // head, up, wte
    EXPECT_GT(found.largest[0], 0);
    EXPECT_EQ(found.largest[1], 0);
    EXPECT_EQ(found.largest[2], 0);
    EXPECT_TRUE(std::ranges::equal(std::span(found.gradient).subspan(28), std::span(wanted.gradient).subspan(28)));   // of down
}

// A large head hands in its gradient by pieces, as one with weights of its own does.
TEST(Tied, LargeGradientsComeInPieces) {
    NetSpec spec = text_net({"embedding name=wte outputs=64", "linear outputs=5000 weights_of=wte bias=0", "softmax_cross_entropy"});
    spec.vocabulary = 5000;
    Rig rig(spec, sizes({2}));
    const Data data(spec, 2);
    const Gather wanted = rig.block(data.samples);
    struct ByPieces : Gather {
        using Gather::Gather;
        uint32_t all = 0;   // gradients in pieces
        bool pieces(uint32_t lane, std::span<const Block> blocks, uint32_t bucket, const GradientPiece& piece, Status* status) override {
            std::vector<float> whole;
            while (whole.size() < layout.buckets[bucket].count) {
                const GradientPart part = piece(0, whole.size());
                for (uint32_t row = 0; row < part.rows; ++row)
                    whole.insert(whole.end(), part.x + row * part.apart, part.x + row * part.apart + part.count);
            }
            ++all;
            *status = bucket_of(lane, blocks[0].id, bucket, whole);
            return true;
        }
        Status bucket_of(uint32_t lane, BlockId id, uint32_t number, std::vector<float>& of) {
            return bucket(lane, id, number, {reinterpret_cast<std::byte*>(of.data()), nullptr, of.size() * sizeof(float)});
        }
    } found(rig.net->layout());
    ASSERT_TRUE(rig.net->block(0, {0, 0}, data.samples, found).ok());
    EXPECT_EQ(found.all, 1u);   // of the head
    EXPECT_EQ(found.came, std::vector<uint32_t>{2});
    EXPECT_EQ(found.gradient, wanted.gradient);
}

TEST(Tied, StagesThatTakeTheWeightsHaveThem) {
    std::vector<Layer> layers;
    NetSpec spec = text_net({"embedding name=e outputs=4", "linear name=a outputs=4", "linear name=b outputs=4 weights_of=a bias=0",
                             "linear name=c outputs=7", "softmax_cross_entropy"});
    spec.layers[1].values.set("bias", 0);
    ASSERT_TRUE(layers_check(spec, &layers).ok());
    NetOrder order;
    ASSERT_TRUE(net_cpu_order(spec, &order).ok());
    EXPECT_EQ(order.begins, (std::vector<uint32_t>{0, 1, 2, 3, 4}));
    const Layout first = layers_layout(layers, 1, {0, 2}), last = layers_layout(layers, 1, {2, ~0u}),
                 both = layers_layout(layers, 1, {1, 3});
    EXPECT_EQ(first.offset_of(layers[1].offset), layers[1].offset);
    EXPECT_EQ(last.offset_of(layers[1].offset), 0u);
    EXPECT_TRUE(last.groups.front().shared);
    EXPECT_FALSE(first.groups.back().shared || both.groups[0].shared || last.groups.back().shared);
    EXPECT_EQ(first.elements + last.elements, layers_layout(layers, 1).elements + layers[1].weights);
    for (const Layout& each : {first, last}) EXPECT_EQ(each.whole(), layers_layout(layers, 1).elements);
    EXPECT_EQ(gradients_of_buckets(layers, first, {0, 2}), (std::vector<uint32_t>{1, 1}));
    EXPECT_EQ(gradients_of_buckets(layers, last, {2, ~0u}), (std::vector<uint32_t>{1, 1}));
    EXPECT_EQ(gradients_of_buckets(layers, both, {1, 3}), (std::vector<uint32_t>{2}));
    const std::vector<uint32_t> between = {0, 2}, before = {0, 1};
    ASSERT_EQ(weights_shared(layers, between).size(), 1u);
    EXPECT_EQ(weights_shared(layers, between)[0].layer, 1u);
    EXPECT_EQ(weights_shared(layers, between)[0].stages, (std::vector<uint32_t>{0, 1}));
    EXPECT_TRUE(weights_shared(layers, before).empty());
}

TEST(Tied, Mistakes) {
    std::vector<Layer> layers;
    const auto mistake = [&](std::vector<std::string> texts, bool ends = true) {
        if (ends) texts.emplace_back("softmax_cross_entropy");
        return std::string(layers_check(text_net(texts), &layers).what);
    };
    const std::string wte = "embedding name=wte outputs=4";
    EXPECT_EQ(mistake({wte, "linear outputs=7 weights_of=wtf bias=0"}),
              "layer linear1: weights_of \"wtf\" is no layer before it: did you mean wte?");
    EXPECT_EQ(mistake({wte, "linear name=head outputs=7 weights_of=head bias=0"}), "layer head: weights_of \"head\" is no layer before it");
    EXPECT_EQ(mistake({wte, "linear outputs=7 weights_of=wte"}),
              "layer linear1: weights that wte and linear1 share (weights_of) go without a bias: set bias = false");
    EXPECT_EQ(mistake({wte, "linear name=a outputs=4", "linear name=b outputs=4 weights_of=a bias=0"}),
              "layer a: weights that a and b share (weights_of) go without a bias: set bias = false");
    EXPECT_EQ(mistake({wte, "linear outputs=8 weights_of=wte bias=0"}),
              "layer linear1: its weights are 8x4, and those of wte (weights_of) 7x4");
    EXPECT_EQ(mistake({wte, "relu", "linear outputs=7 weights_of=relu1 bias=0"}),
              "layer linear1: its weights are 7x4, and those of relu1 (weights_of) none");
    EXPECT_EQ(mistake({wte, "inner_product outputs=7 weights_of=wte bias=0"}),
              "layer fc1: inner_product has no weights_of, which goes with linear");
    std::vector<std::string> many = {"embedding name=wte outputs=7"};
    for (uint32_t i = 0; i < layer_uses_max; ++i) many.push_back(fmt::format("linear name=l{} outputs=7 weights_of=wte bias=0", i));
    EXPECT_EQ(mistake(many), "layer l15: 16 layers have the weights of wte already, the most that can");
}

}   // namespace
}   // namespace gradcast
