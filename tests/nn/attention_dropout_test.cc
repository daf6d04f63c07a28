// Dropout of attention's probabilities: beside PyTorch's numbers (make_attention_dropout.py), and what its draws depend on.
#include "nn/graph/attention.h"
#include "runtime/core/rng.h"
#include "tests/nn/nets.h"

namespace gradcast {
namespace {

constexpr uint32_t script_vocabulary = 7, script_positions = 75;

NetSpec dropping(bool causal, double rate, uint32_t heads = 2) {
    LayerSpec attends = attention(heads);
    attends.values.set("causal", causal);
    attends.values.set("dropout", rate);
    return {.C = 1,
            .H = 1,
            .W = script_positions + 1,
            .classes = 1,
            .element = Element::u16,
            .vocabulary = script_vocabulary,
            .layers = {layer("embedding outputs=18"), attends, linear(script_vocabulary), loss()}};
}

/// Of the script's parameters and tokens.
struct Script {
    Rig rig;
    std::vector<uint16_t> tokens;
    std::vector<float> mean{0}, std{1};
    Samples samples;
    Script(const NetSpec& spec, uint32_t count, uint64_t seed = 9, uint32_t lanes = 1)
        : rig(spec, config(count, seed, lanes)), tokens(count * (script_positions + 1)) {
        const std::vector<float> flat = numbers(rig.net->parameters().size(), 5);
        for (size_t i = 0; i < flat.size(); ++i) rig.net->parameters()[i] = 2 * flat[i];
        rig.net->refresh();
        for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint16_t>(splitmix64(i) % script_vocabulary);
        samples = {reinterpret_cast<const uint8_t*>(tokens.data()), nullptr, count, 1, 1, script_positions + 1, mean.data(), std.data()};
        samples.element = Element::u16;
    }
    Gather block(BlockId id, uint32_t lane = 0) {
        Gather gather(rig.net->layout());
        EXPECT_TRUE(rig.net->block(lane, id, samples, gather).ok());
        return gather;
    }

private:
    static NetConfig config(uint32_t count, uint64_t seed, uint32_t lanes) {
        NetConfig made = sizes({count}, lanes);
        made.seed = seed;
        return made;
    }
};

// The script draws the masks itself and multiplies the softmax by mask / (1 - rate), as scaled_dot_product_attention(dropout_p) does.
TEST(AttentionDropout, GivesPyTorchsNumbers) {
    struct Case {
        bool causal;
        double loss, norms[3], products[3];   // of the embedding, the weight and the bias of the linear layer; products with random numbers
    };
    constexpr Case cases[] = {{false, 12.024317083, {2.835657219, 2.789850127, 1.409500271}, {0.031959034, -0.188074294, 0.296613457}},
                              {true, 13.197632157, {3.022624842, 2.796459501, 1.463259904}, {-0.256163517, -0.043954268, 0.173514277}}};
    for (const Case& each : cases) {
        SCOPED_TRACE(each.causal ? "causal" : "all keys");
        Script script(dropping(each.causal, 0.3125), 3);
        const Gather found = script.block({3, 5});
        EXPECT_NEAR(found.total, each.loss, 1e-5);
        constexpr size_t sizes[] = {script_vocabulary * 18, script_vocabulary * 6, script_vocabulary};
        for (size_t i = 0, at = 0; i < 3; at += sizes[i++]) {
            const std::vector<float> with = numbers(sizes[i], static_cast<uint32_t>(11 + i));
            double norm = 0, product = 0;
            for (size_t k = 0; k < sizes[i]; ++k) {
                const auto slope = static_cast<double>(found.gradient[at + k]);
                norm += slope * slope, product += slope * static_cast<double>(with[k]);
            }
            EXPECT_NEAR(std::sqrt(norm), each.norms[i], 1e-5) << i;
            EXPECT_NEAR(product, each.products[i], 1e-5) << i;
        }
    }
}

TEST(AttentionDropout, DrawsBySeedStepBlockAndSampleAlone) {
    Script script(dropping(true, 0.25), 1, 9, 2), other(dropping(true, 0.25), 1, 10), without(dropping(true, 0), 1);
    const Gather first = script.block({3, 5});
    EXPECT_TRUE(same_bits(first.gradient, script.block({3, 5}, 1).gradient));
    EXPECT_NE(first.total, script.block({4, 5}).total);
    EXPECT_NE(first.total, script.block({3, 6}).total);
    EXPECT_NE(first.total, other.block({3, 5}).total);
    EXPECT_NE(first.total, without.block({3, 5}).total);
    // An evaluation drops nothing.
    EXPECT_EQ(script.rig.loss(script.samples), without.rig.loss(without.samples));
    // The second of two samples of the same tokens has other masks.
    Script two(dropping(true, 0.25), 2);
    std::copy_n(two.tokens.begin(), script_positions + 1, two.tokens.begin() + script_positions + 1);
    EXPECT_NE(two.block({3, 5}).total, 2 * first.total);
}

// A net without dropout has the bits that it had before the key existed, and a rate below half a unit drops nothing.
TEST(AttentionDropout, OfZeroChangesNothing) {
    EXPECT_EQ(layer_text(dropping(true, 0).layers[1]), "attention heads=2 causal=1");
    Script without(dropping(false, 0), 2), tiny(dropping(false, 1e-6), 2);
    EXPECT_TRUE(same_bits(without.block({3, 5}).gradient, tiny.block({3, 5}).gradient));
}

TEST(AttentionDropout, KeepsTheShare) {
    for (const double rate : {0.1, 0.5, 0.9}) {
        const DropoutShare share = dropout_share(rate);
        EXPECT_NEAR(share.drop / 65536.0, rate, 0x1p-17);
        EXPECT_NEAR(static_cast<double>(share.scale), 1 / (1 - rate), 1e-3);
        uint64_t kept = 0;
        constexpr uint32_t T = 256, heads = 4;
        for (uint32_t head = 0; head < heads; ++head)
            for (uint32_t query = 0; query < T; ++query)
                for (uint32_t key = 0; key < T; ++key) {
                    const Philox draw = random4(Purpose::dropout, 77, 1, AttentionDraws::first(head, query, T) + key / 8);
                    kept += (draw[key % 8 / 2] >> key % 2 * 16 & 0xffff) >= share.drop;
                }
        constexpr double count = double{heads} * T * T;
        EXPECT_NEAR(static_cast<double>(kept) / count, 1 - rate, 5 * std::sqrt(rate * (1 - rate) / count));
    }
}

TEST(AttentionDropout, SlopesAreThoseOfTheLoss) {
    for (const bool causal : {false, true}) {
        const Difference each{"dropping", dropping(causal, 0.3), 2, false, true};
        Rig rig(each.spec, sizes({each.samples}));
        expect_slopes(rig, each);
    }
}

TEST(AttentionDropout, Mistakes) {
    std::vector<Layer> layers;
    EXPECT_STREQ(layers_check(dropping(true, 1), &layers).what, "layer attention1: its dropout 1 must be at least 0 and below 1");
    NetSpec spec = of(3, 1 << 10, 1 << 8, 0, 2, {conv(6, 1), attention(2), fc(2), loss()});
    EXPECT_TRUE(layers_check(spec, &layers).ok());
    spec.layers[1].values.set("dropout", 0.1);
    EXPECT_STREQ(layers_check(spec, &layers).what,
                 "layer attention1: dropout draws numbers for 2 heads of 262144 positions, which are more than it can count: take fewer "
                 "heads or positions, or dropout = 0");
}

}   // namespace
}   // namespace gradcast
